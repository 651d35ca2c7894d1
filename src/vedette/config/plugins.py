"""The plugins that are installed: which kind comes from which wheel, each loaded when it is named.

The entry points of a group are read from the `entry_points.txt` of every distribution on the import
path, as `importlib.metadata` does. That is not used: it and the e-mail parser that it loads take a
start 60 ms, and its scan 30 ms, where this takes 2 ms (120 distributions).

https://packaging.python.org/en/latest/specifications/entry-points/
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

from msgspec import Struct

from vedette.config.field import Shape, Table
from vedette.config.kinds import Errors, Kind, Loc, OneOf, build_error
from vedette.domain.base.errors import BadFleet, VedetteError
from vedette.domain.ports.plugin import (
    NOTIFIERS,
    REASONERS,
    SOURCES,
    TARGETS,
    TOOLS,
    NotifierPlugin,
    Plan,
    ReasonerPlugin,
    SourcePlugin,
    TableContext,
    TableProblem,
    TargetPlugin,
    ToolPlugin,
)

_INFO_SUFFIXES = (".dist-info", ".egg-info")
_BASES: Mapping[str, type[Any]] = {
    SOURCES: SourcePlugin, NOTIFIERS: NotifierPlugin, TARGETS: TargetPlugin, TOOLS: ToolPlugin,
    REASONERS: ReasonerPlugin,
}  # fmt: skip


class EntryPoint(Struct, frozen=True):
    """A plugin's entry point: a distribution's line `name = module:attribute`, and who says it."""

    name: str
    module: str
    attribute: str
    distribution: str
    version: str

    @property
    def provider(self) -> str:
        """Return who brings it, for people."""
        return f"{self.distribution} {self.version}".strip()


class Plugins:
    """The plugins of one group. Raises BadFleet, which names the wheel, for one that is no good."""

    def __init__(self, group: str, found: Mapping[str, tuple[EntryPoint, ...]]) -> None:
        self._group, self._found = group, found
        self._loaded: dict[str, Any] = {}

    def names(self) -> tuple[str, ...]:
        """Return the kinds there are: the shipped ones first, in alphabetical order."""
        return tuple(sorted(self._found, key=lambda name: (not self._is_shipped(name), name)))

    def _is_shipped(self, name: str) -> bool:
        return any(entry.distribution == "vedette" for entry in self._found[name])

    def __contains__(self, name: object) -> bool:
        return name in self._found

    def get(self, name: str) -> Any:
        """Return the plugin of a kind; imports it the first time. Raises BadFleet."""
        if name not in self._loaded:
            self._loaded[name] = self._load(name)
        return self._loaded[name]

    def problems(self, name: str, *given: Any) -> list[TableProblem]:
        """Return what is wrong with a table beyond its shape, as the plugin of a kind says."""
        try:
            with self.wrap_errors(name):
                return list(self.get(name).problems(*given))
        except BadFleet as error:
            return [((), error.what, error.mend or "")]

    def plan(self, table: Any, context: TableContext) -> Plan:
        """Return what a sound table comes to. Raises BadFleet."""
        with self.wrap_errors(table.kind):
            plan: Plan = self.get(table.kind).plan(table, context)
        return plan

    @contextmanager
    def wrap_errors(self, name: str) -> Iterator[None]:
        """Say in a BadFleet which wheel it was, where its plugin fails in a way of its own."""
        try:
            yield
        except VedetteError:
            raise
        except Exception as error:
            if name not in self._found or self._is_shipped(name):
                raise
            entry = self._found[name][0]
            what = f"{name!r} of {entry.provider} failed: {type(error).__name__}: {error}"
            mend = f"mend or uninstall {entry.distribution}"
            raise BadFleet(what, where=self._group, mend=mend) from error

    def _load(self, name: str) -> Any:
        if name not in self._found:
            mend = f"there are: {', '.join(self.names())}" if self._found else REINSTALL
            raise BadFleet(f"nothing installed brings {name!r}", where=self._group, mend=mend)
        entry, *others = self._found[name]
        if others:
            who = " and ".join(sorted(each.provider for each in (entry, *others)))
            mend = "uninstall one of them"
            raise BadFleet(f"{name!r} is brought by {who}", where=self._group, mend=mend)
        mend = f"mend or uninstall {entry.distribution}"
        try:
            found: Any = importlib.import_module(entry.module)
            for part in entry.attribute.split("."):
                found = getattr(found, part)
        except Exception as error:
            what = f"{name!r} of {entry.provider} cannot be loaded: {type(error).__name__}: {error}"
            raise BadFleet(what, where=self._group, mend=mend) from error
        wrong = self._find_fault(name, found)
        if wrong:
            at = f"{entry.module}:{entry.attribute}"
            what = f"{name!r} of {entry.provider} is no plugin: {at} {wrong}"
            raise BadFleet(what, where=self._group, mend=mend)
        return found

    def _find_fault(self, name: str, found: Any) -> str:
        """Say what an object lacks to be a plugin of the group; empty if it is one."""
        base = _BASES[self._group]
        if self._group == TOOLS and _is_engine_performer(name):
            return "has a name that is the engine's own"
        if not isinstance(found, base):
            return f"is no instance of {base.__name__}"
        if "table" not in base.__annotations__:
            return ""
        table = getattr(found, "table", None)
        if not (isinstance(table, type) and issubclass(table, Shape)):
            return "has no table of vedette.sdk.Table"
        try:
            fields = table.fields()
        except Exception as error:
            return f"has a table that cannot be read: {type(error).__name__}: {error}"
        if self._group not in (SOURCES, NOTIFIERS):
            return ""
        kind = fields["kind"].kind if "kind" in fields else None
        if not (isinstance(kind, OneOf) and kind.values == (name,)):
            return f"has a table without kind: Literal[{name!r}]"
        return "" if "name" in fields else "has a table without a name"


def _is_engine_performer(name: str) -> bool:
    from vedette.domain.work_tools import ENGINE_PERFORMERS

    return name in ENGINE_PERFORMERS


REINSTALL = "install vedette anew (in a checkout: make setup), its entry points are missing"


class PluginName(OneOf):
    """The kind of a field that names a plugin of a group."""

    def __init__(self, group: str, first: str) -> None:
        """`first` is told first of those that there are."""
        self._group, self._first = group, first

    @property
    def values(self) -> tuple[str, ...]:
        """Return the names that there are."""
        names = plugins(self._group).names()
        return tuple(sorted(names, key=lambda name: name != self._first))


class PluginTable(Kind):
    """One plugin's table in a file, which is loaded when a file first has such a table."""

    def __init__(self, group: str, name: str, *at: str) -> None:
        """`at` is the key below it by which a plugin that is no good is told."""
        self._group, self._name, self._at = group, name, at

    def check(self, value: Any, loc: Loc, errors: Errors) -> Any:
        """Check the mapping as the plugin's table."""
        try:
            table = self._table()
        except BadFleet as refused:
            problem = {"what": refused.what, "mend": refused.mend}
            errors.append(build_error("plugin", (*loc, *self._at), value, problem))
            return None
        return table.check(value, loc, errors)

    def schema(self, defs: dict[str, Any]) -> dict[str, Any]:
        """Point to the table's own schema. Raises BadFleet."""
        return self._table().schema(defs)

    def _table(self) -> Table:
        return Table(plugins(self._group).get(self._name).table)


class PluginTables(Mapping[str, PluginTable]):
    """The tables that a file may have of a group's plugins, by kind."""

    def __init__(self, group: str) -> None:
        self._group = group

    def __contains__(self, kind: object) -> bool:
        return kind in plugins(self._group)

    def __getitem__(self, kind: str) -> PluginTable:
        return PluginTable(self._group, kind, "kind")

    def __iter__(self) -> Iterator[str]:
        return iter(plugins(self._group).names())

    def __len__(self) -> int:
        return len(plugins(self._group).names())


def plugins(group: str) -> Plugins:
    """Return the plugins of a group that are installed."""
    return _plugins(group, tuple(sys.path))


@cache
def _plugins(group: str, path: tuple[str, ...]) -> Plugins:
    found = _entry_points(path).get(group, {})
    return Plugins(group, {name: tuple(entries) for name, entries in found.items()})


@cache
def _entry_points(path: tuple[str, ...]) -> dict[str, dict[str, list[EntryPoint]]]:
    """Return the entry points of ours by group and name, each with who claims it.

    A distribution that is on the path twice counts where it is first, as for an import.
    """
    groups: dict[str, dict[str, list[EntryPoint]]] = {}
    seen: set[str] = set()
    for folder in path:
        try:
            inside = sorted(
                entry.name
                for entry in os.scandir(folder or ".")
                if entry.name.endswith(_INFO_SUFFIXES)
            )
        except OSError:
            continue
        for info in inside:
            name, _, version = info.rpartition(".")[0].partition("-")
            normal = name.lower().replace("_", "-").replace(".", "-")
            if normal in seen:
                continue
            seen.add(normal)
            at = os.path.join(folder or ".", info)  # noqa: PTH118 (a Path costs more than the rest)
            for group, point in _read_entry_points(at, normal, version):
                groups.setdefault(group, {}).setdefault(point.name, []).append(point)
    return groups


def _read_entry_points(info: str, name: str, version: str) -> Iterator[tuple[str, EntryPoint]]:
    """Yield the entry points of ours that a distribution declares, with their groups."""
    try:
        with open(f"{info}/entry_points.txt", encoding="utf-8") as file:  # noqa: PTH123 (as above)
            text = file.read()
    except (OSError, UnicodeDecodeError):
        return
    if "[vedette." not in text:
        return
    group = ""
    for line in text.splitlines():
        line = line.strip()
        if line.startswith("["):
            group = line.strip("[] ")
        elif group.startswith("vedette.") and "=" in line and not line.startswith(("#", ";")):
            point, _, value = line.partition("=")
            module, _, attribute = value.partition("[")[0].partition(":")
            yield group, EntryPoint(
                point.strip(), module.strip(), attribute.strip(), name, version
            )  # fmt: skip
