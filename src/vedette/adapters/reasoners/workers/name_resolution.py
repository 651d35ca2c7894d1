"""Names of hosts, for tools in a box: the engine looks them up, for their targets' hosts only.

A box has no UDP: whoever may ask a name server anything can tell it anything.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from vedette.domain.base.addresses import is_ip_address

_ANSWER_TIMEOUT_S = 10.0


class _Answer:
    def __init__(self) -> None:
        self.event = threading.Event()
        self.addresses: Sequence[str] = ()


class NameResolver:
    """Stands in for `socket.getaddrinfo` in a tool's worker. `send_query` sends a host's name."""

    def __init__(self, send_query: Callable[[str], None]) -> None:
        self._send_query = send_query
        self._pending: dict[str, _Answer] = {}
        self._lock = threading.Lock()
        self._system_lookup = socket.getaddrinfo

    def install(self) -> None:
        """Answer everything in this process that looks names up in Python."""
        socket.getaddrinfo = self.resolve

    def set_addresses(self, host: str, addresses: Sequence[str]) -> None:
        """Take the engine's answer to a query."""
        with self._lock:
            answer = self._pending.pop(host, None)
        if answer is not None:
            answer.addresses = addresses
            answer.event.set()

    def resolve(
        self,
        host: Any,
        port: Any,
        family: int = 0,
        type: int = 0,
        proto: int = 0,
        flags: int = 0,
    ) -> list[Any]:
        """Return what `socket.getaddrinfo` returns. Raises socket.gaierror."""
        name = host.decode("ascii", "replace") if isinstance(host, bytes) else host
        if not isinstance(name, str) or not name or is_ip_address(name.partition("%")[0]):
            return self._system_lookup(host, port, family, type, proto, flags)
        found: list[Any] = []
        for address in self._query_addresses(name):
            numeric = flags | socket.AI_NUMERICHOST
            # One of another family than the one that is wanted.
            with suppress(socket.gaierror):
                found += self._system_lookup(address, port, family, type, proto, numeric)
        if not found:
            message = f"{name} is no host of this agent's targets, or is not known"
            raise socket.gaierror(socket.EAI_NONAME, message)
        return found

    def _query_addresses(self, name: str) -> Sequence[str]:
        with self._lock:
            answer = self._pending.get(name)
            if answer is None:
                answer = self._pending[name] = _Answer()
                self._send_query(name)
        if not answer.event.wait(_ANSWER_TIMEOUT_S):
            with self._lock:
                self._pending.pop(name, None)
            raise socket.gaierror(socket.EAI_AGAIN, f"{name}: no answer from the engine")
        return answer.addresses
