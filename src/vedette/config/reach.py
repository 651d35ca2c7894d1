"""What a target's table says that tools must reach: a folder, addresses, files to read.

A box lets an agent's tools go there and nowhere else, so what is not said here is not reached.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

_WEB = {"http": 80, "https": 443}
_MAIL = {
    "imap": {"implicit": 993, "starttls": 143, "none": 143},
    "smtp": {"implicit": 465, "starttls": 587, "none": 25},
}
# Pub/Sub itself, and what its client's credentials come from.
_GOOGLE = (
    ("pubsub.googleapis.com", 443), ("oauth2.googleapis.com", 443),
    ("metadata.google.internal", 80), ("169.254.169.254", 80),
)  # fmt: skip
_DEFAULT_TLS = {"imap": "implicit", "smtp": "starttls"}


class Reach(Struct, frozen=True):
    """What the tools of an agent reach. `folders` are written to, `files` are read.

    `target_addresses` are (host, TCP port). Paths are absolute. `allows_udp` says that a library
    among them asks name servers by itself (gRPC does), so that UDP has to be open.
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


def build_reach(tables: Iterable[Mapping[str, Any]]) -> Reach:
    """Return what the tools of these targets reach."""
    declared = list(tables)
    return Reach(
        tuple(dict.fromkeys(place for table in declared for place in _folders(table))),
        tuple(dict.fromkeys(file for table in declared for file in _files(table))),
        tuple(dict.fromkeys(one for table in declared for one in target_addresses(table))),
        any(table.get("kind") == "pubsub" for table in declared),
    )


def target_folder(table: Mapping[str, Any]) -> str | None:
    """Return the folder that a target's tools write in, if it has one.

    Of a file it is the folder in which it lies: a database writes more files beside itself. What is
    not there yet counts as a file if its name has an ending.
    """
    path = table.get("path")
    if not isinstance(path, str) or not path:
        return None
    named = Path(path)
    file = named.is_file() or (bool(named.suffix) and not named.is_dir())
    return str(named.parent) if file and table.get("kind") != "maildir" else path


def is_separate(folder: str, closed: Iterable[Path], content: Iterable[Path]) -> bool:
    """Say whether a folder holds none of the `closed` ones and lies in none of the `content`."""
    path = Path(folder).resolve()
    return not any(one.resolve().is_relative_to(path) for one in closed) and not any(
        path.is_relative_to(one.resolve()) for one in content
    )


def target_addresses(table: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield the addresses that a target names. Raises ValueError for one that is none."""
    for key in ("url", "base_url"):
        if isinstance(table.get(key), str):
            parts = urlsplit(table[key])
            port = parts.port or _WEB.get(parts.scheme)
            if parts.hostname and port:
                yield parts.hostname, port
    kind = str(table.get("kind"))
    yield from _server(table, "", kind)
    yield from _server(table, "smtp_", "smtp")
    if kind == "pubsub":
        emulator = os.environ.get("PUBSUB_EMULATOR_HOST")
        yield from [parse_address(emulator)] if emulator else _GOOGLE
    for text in table.get("reach", ()):
        yield parse_address(text)


def parse_address(text: Any) -> tuple[str, int]:
    """Return the host and port of `host:port`. Raises ValueError."""
    host, _, port = text.rpartition(":") if isinstance(text, str) else ("", "", "")
    if not (host and port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ValueError(f"{text!r} is no address")
    return host.strip("[]"), int(port)


def _server(table: Mapping[str, Any], prefix: str, kind: str) -> Iterator[tuple[str, int]]:
    host, port = table.get(f"{prefix}host"), table.get(f"{prefix}port")
    if port is None and kind in _MAIL:
        port = _MAIL[kind].get(str(table.get(f"{prefix}tls", _DEFAULT_TLS[kind])))
    if isinstance(host, str) and host and isinstance(port, int):
        yield host, port


def _folders(table: Mapping[str, Any]) -> Iterator[str]:
    folder = target_folder(table)
    if folder is not None:
        yield folder


def _files(table: Mapping[str, Any]) -> Iterator[str]:
    for key in ("ca_file", "smtp_ca_file"):
        if isinstance(table.get(key), str):
            yield table[key]
