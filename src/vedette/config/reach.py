"""Reach of tools, as a target's table says it: a folder, addresses, files to read.

A box lets an agent's tools go there and nowhere else, so what is not said here is not reached.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from vedette.config.plugins import plugins
from vedette.domain.base.urls import parse_url
from vedette.domain.ports.plugin import TARGETS, TargetPlugin

_PORTS = {"http": 80, "https": 443}


class Reach(Struct, frozen=True):
    """What targets' tables let an agent's tools reach.

    `folders` are written to, `files` (folders among them) are read. `addresses` are
    (host, TCP port). Paths are absolute. `allows_udp` says that a library among them asks name
    servers by itself (gRPC does), so that UDP has to be open.
    """

    folders: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    addresses: tuple[tuple[str, int], ...] = ()
    allows_udp: bool = False

    @property
    def hosts(self) -> frozenset[str]:
        """Return the hosts whose addresses the tools may be told."""
        return frozenset(host for host, _ in self.addresses)

    @property
    def ports(self) -> tuple[int, ...]:
        """Return the ports that the tools may connect to."""
        return tuple(sorted({port for _, port in self.addresses}))


def target_plugin(table: Mapping[str, Any]) -> TargetPlugin:
    """Return the plugin of a target's kind in its table; the base of all for one nothing brings."""
    kind, known = table.get("kind"), plugins(TARGETS)
    plugin: TargetPlugin = known.get(kind) if isinstance(kind, str) and kind in known else _ANY
    return plugin


_ANY = TargetPlugin()


def build_reach(tables: Iterable[Mapping[str, Any]]) -> Reach:
    """Return what tools reach by these targets' tables."""
    declared = list(tables)
    folders = (target_folder(table) for table in declared)
    return Reach(
        tuple(dict.fromkeys(folder for folder in folders if folder is not None)),
        tuple(dict.fromkeys(file for table in declared for file in _files(table))),
        tuple(dict.fromkeys(one for table in declared for one in _addresses(table))),
        any(target_plugin(table).uses_udp(table) for table in declared),
    )


def target_folder(table: Mapping[str, Any]) -> str | None:
    """Return the folder that a target's table has its tools write in, if it has one.

    Of a file it is the folder in which it lies: a database writes more files beside itself. What is
    not there yet counts as a file if its name has an ending.
    """
    path = table.get("path")
    if not isinstance(path, str) or not path:
        return None
    named = Path(path)
    file = named.is_file() or (bool(named.suffix) and not named.is_dir())
    return str(named.parent) if file and not target_plugin(table).path_is_folder else path


def is_separate(folder: str, closed: Iterable[Path], content: Iterable[Path]) -> bool:
    """Say whether a target's folder holds none of the `closed` ones and lies in no `content`."""
    path = Path(folder).resolve()
    return not any(one.resolve().is_relative_to(path) for one in closed) and not any(
        path.is_relative_to(one.resolve()) for one in content
    )


def parse_address(text: Any) -> tuple[str, int]:
    """Return the host and port of `host:port` in a target's table. Raises ValueError."""
    host, _, port = text.rpartition(":") if isinstance(text, str) else ("", "", "")
    if not (host and port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ValueError(f"{text!r} is no address")
    return host.strip("[]"), int(port)


def _addresses(table: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield the addresses that a target names. Raises ValueError for one that is none."""
    for key in ("url", "base_url"):
        parts = parse_url(str(table.get(key, "")))
        if parts is not None:
            yield parts.hostname or "", parts.port or _PORTS[parts.scheme]
    host, port = table.get("host"), table.get("port")
    if isinstance(host, str) and host and isinstance(port, int):
        yield host, port
    yield from target_plugin(table).addresses(table)
    for text in table.get("reach", ()):
        yield parse_address(text)


def _files(table: Mapping[str, Any]) -> Iterator[str]:
    for key in ("ca_file", "smtp_ca_file"):
        if isinstance(table.get(key), str):
            yield table[key]
    yield from table.get("read", ())
