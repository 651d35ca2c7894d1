"""[targets.NAME] of vedette.toml: what a target's table holds to, whatever its kind.

What one kind asks for beyond that is its plugin's (`vedette.domain.ports.plugin`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from vedette.config.plugins import plugins
from vedette.config.problem import Problem
from vedette.config.reach import is_separate, parse_address, target_folder, target_plugin
from vedette.config.secret_reference import is_secret_literal, secret_keys, secret_names
from vedette.config.yaml import Document
from vedette.domain.base.errors import BadFleet
from vedette.domain.base.urls import parse_url
from vedette.domain.ports.plugin import TARGETS, TableProblem

Targets = Mapping[str, Mapping[str, Any]]

_PATHS = ("@state/", "./")
# What the engine has in the state folder beside files with an ending.
_ENGINE_FOLDERS = frozenset(
    {"archive", "before", "identities", "in_hand", "keys", "machine-code", "models", "programs",
     "releases", "restoring", "scratch", "spare", "upgrade"}
)  # fmt: skip
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}\Z")


def target_problems(targets: Targets, document: Document) -> Iterator[Problem]:
    """Yield what is wrong with [targets.NAME] of vedette.toml."""
    for name, table in targets.items():
        for inside, what, mend in _table_problems(name, table, targets):
            yield document.problem(("targets", name, *inside), what, mend)


def resolve_targets(targets: Targets) -> dict[str, Mapping[str, Any]]:
    """Return targets' tables as tools get them, of tables whose paths are absolute."""
    return {name: target_plugin(table).resolve(table, targets) for name, table in targets.items()}


def resolve_paths(table: Mapping[str, Any], path: Callable[[str], Path]) -> dict[str, Any]:
    """Return a target's table with `path`, whatever ends in `_file`, and `@state/` absolute.

    So is `./` in front of a text. The last two stand in `read`, and in the lists that its plugin
    names (`path_lists`).
    """
    lists = ("read", *target_plugin(table).path_lists)

    def resolve(key: str, value: Any) -> Any:
        if key in lists and isinstance(value, list):
            return [
                str(path(one)) if isinstance(one, str) and one.startswith(_PATHS) else one
                for one in value
            ]
        is_path = key == "path" or key.endswith("_file")
        return str(path(value)) if isinstance(value, str) and is_path else value

    return {key: resolve(key, value) for key, value in table.items()}


def folder_problems(
    targets: Targets, closed: tuple[Path, ...], content: tuple[Path, ...], document: Document
) -> Iterator[Problem]:
    """Yield the targets whose folder is not theirs alone: a box would open what else lies there."""
    for name, table in targets.items():
        folder = target_folder(table)
        if folder is not None and not is_separate(folder, closed, content):
            what = f"tools would reach all of {folder}, where the fleet's own files lie"
            own = f'"@state/{name}/{Path(table["path"]).name}"'
            mend = f"give it a folder of its own, such as {own}, and move it there"
            yield document.problem(("targets", name, "path"), what, mend)


def program_problems(
    targets: Targets,
    closed: tuple[Path, ...],
    content: tuple[Path, ...],
    state: Path,
    document: Document,
) -> Iterator[Problem]:
    """Yield the targets whose tools or program would open what is not theirs: the fleet's files, a
    secret, what the engine keeps in the state folder; or would write what they only read.
    """
    secrets = tuple(
        Path(table[key])
        for table in targets.values()
        for named in secret_names(table)
        if isinstance(table.get(key := f"{named}_file"), str)
    )
    for name, table in targets.items():
        own = target_folder(table)
        read = [("read", path) for path in table.get("read", ())]
        for key, opened in dict.fromkeys([*read, *target_plugin(table).folders(table)]):
            if _is_engine_state(opened, state) or not is_separate(
                opened, (*closed, *secrets), content
            ):
                what = f"tools would reach {opened}, where the fleet's own files lie"
                mend = f'name a folder of its own, such as "@state/{name}"'
                yield document.problem(("targets", name, key), what, mend)
            elif key == "read" and own is not None and _overlap(opened, own):
                what = f"tools write in {own}, and so in {opened}, which they only read"
                mend = "name a folder that lies neither in the target's own nor around it"
                yield document.problem(("targets", name, key), what, mend)


def _overlap(one: str, other: str) -> bool:
    first, second = Path(one).resolve(), Path(other).resolve()
    return first.is_relative_to(second) or second.is_relative_to(first)


def _is_engine_state(opened: str, state: Path) -> bool:
    """Say whether a path lies in a part of the state folder that is the engine's."""
    path, folder = Path(opened).resolve(), state.resolve()
    if not path.is_relative_to(folder) or path == folder:
        return False  # the folder itself is closed
    first = path.relative_to(folder).parts[0]
    # All of the engine's files have an ending: keys, stores with their logs, locks, sockets.
    return "." in first or first in _ENGINE_FOLDERS


def _table_problems(
    name: str, table: Mapping[str, Any], targets: Targets
) -> Iterator[TableProblem]:
    kind = table.get("kind")
    if not _NAME.match(name):
        yield (), f"{name!r} cannot name a target", "use a-z, 0-9, _ and -"
        return
    if not isinstance(kind, str) or not kind:
        yield ("kind",), "is missing", "for example webhook or maildir"
        return
    if kind in plugins(TARGETS):
        yield from _kind_problems(kind, table, targets)
    yield from _reach_problems(table.get("reach", []))
    yield from _read_problems(table.get("read", []))
    if not isinstance(table.get("create", False), bool):
        yield ("create",), "is not true or false", "write create = true to have the folder made"
    for named in secret_names(table):
        if len(secret_keys(table, named)) > 1:
            what = f"{named} is referred to more than once"
            yield (), what, "leave one of _env, _file and _secret"
    for key, value in table.items():
        if is_secret_literal(key, value):
            what = "a secret does not stand in a file of the fleet"
            yield (key,), what, f"write {key}_env ="
        if key in ("url", "base_url") and isinstance(value, str):
            yield from _url_problems(key, value)


def _kind_problems(kind: str, table: Mapping[str, Any], targets: Targets) -> Iterator[TableProblem]:
    try:
        required = target_plugin(table).required
    except BadFleet as error:  # what should bring it is broken
        yield ("kind",), error.what, error.mend or ""
        return
    for needed in required:
        if not (isinstance(table.get(needed), str) and table[needed]):
            yield (needed,), f"a {kind} needs a {needed}", f"add {needed} ="
    yield from plugins(TARGETS).problems(kind, table, targets)


def _reach_problems(value: Any) -> Iterator[TableProblem]:
    mend = 'write reach = ["host:port"]'
    if not isinstance(value, list):
        yield ("reach",), "must be a list of addresses", mend
        return
    for index, text in enumerate(value):
        try:
            parse_address(text)
        except ValueError as error:
            yield ("reach", index), str(error), mend


def _read_problems(value: Any) -> Iterator[TableProblem]:
    if not isinstance(value, list) or not all(
        isinstance(path, str) and path.startswith("/") for path in value
    ):
        mend = 'write ["/srv/files"], ["./files"] or ["@state/files"]'
        yield ("read",), "is no list of absolute paths", mend


def _url_problems(key: str, url: str) -> Iterator[TableProblem]:
    parts = parse_url(url)
    if parts is None:
        yield (key,), f"{url!r} is no URL", "write https://host/path"
    elif parts.password or parts.username:
        mend = "write token_env = and take it out of the URL"
        yield (key,), "a secret does not stand in a file of the fleet", mend
