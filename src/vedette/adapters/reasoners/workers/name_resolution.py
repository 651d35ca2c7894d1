"""Names of hosts, for tools in a box: asked of the engine, which answers for their targets' only.

A box has no UDP: whoever may ask a name server anything can tell it anything.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

_WAIT_S = 10.0


class _Answer:
    def __init__(self) -> None:
        self.told = threading.Event()
        self.addresses: Sequence[str] = ()


class Names:
    """Stands in for `socket.getaddrinfo` in this process. `ask` sends a host's name."""

    def __init__(self, ask: Callable[[str], None]) -> None:
        self._ask = ask
        self._asked: dict[str, _Answer] = {}
        self._lock = threading.Lock()
        self._numeric = socket.getaddrinfo

    def install(self) -> None:
        """Be asked by everything in this process that looks names up in Python."""
        socket.getaddrinfo = self.look

    def told(self, host: str, addresses: Sequence[str]) -> None:
        """Take the answer to what was asked."""
        with self._lock:
            answer = self._asked.pop(host, None)
        if answer is not None:
            answer.addresses = addresses
            answer.told.set()

    def look(
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
        if not isinstance(name, str) or not name or _is_number(name):
            return self._numeric(host, port, family, type, proto, flags)
        found: list[Any] = []
        for address in self._addresses(name):
            numeric = flags | socket.AI_NUMERICHOST
            # One of the other family than the one that is asked for.
            with suppress(socket.gaierror):
                found += self._numeric(address, port, family, type, proto, numeric)
        if not found:
            told = f"{name} is no host of this agent's targets, or is not known"
            raise socket.gaierror(socket.EAI_NONAME, told)
        return found

    def _addresses(self, name: str) -> Sequence[str]:
        with self._lock:
            answer = self._asked.get(name)
            if answer is None:
                answer = self._asked[name] = _Answer()
                self._ask(name)
        if not answer.told.wait(_WAIT_S):
            with self._lock:
                self._asked.pop(name, None)
            raise socket.gaierror(socket.EAI_AGAIN, f"{name}: no answer from the engine")
        return answer.addresses


def _is_number(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True
