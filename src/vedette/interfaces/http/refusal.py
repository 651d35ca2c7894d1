"""Connections that are refused as they come: answered at once, and given no place among the others.

The answer is written before a request was read, and then nothing more: a peer that closes when it
has read it is gone at once, any other after a second. What it sends meanwhile is not looked at; a
socket that were closed with it unread could take the answer along.
"""

from __future__ import annotations

import asyncio
import json

from vedette.domain.base.errors import VedetteError

# So many are answered at a time; who comes beyond that is cut off without a word.
MAX_OPEN = 16
_LINGER_S = 1.0


class RefusedConnections:
    """The refused connections of an HTTP server that are still open. Belongs to its event loop."""

    def __init__(self) -> None:
        self._open: set[asyncio.Transport] = set()

    @property
    def count(self) -> int:
        """Return how many there are."""
        return len(self._open)

    def reject(self, transport: asyncio.Transport, error: VedetteError) -> None:
        """Answer a new connection with an error (HTTP 403) and have it leave."""
        transport.set_protocol(_RefusedProtocol(transport, self._open))
        if self.count >= MAX_OPEN:
            transport.abort()
            return
        self._open.add(transport)
        body = json.dumps({"error": error.to_json()}, ensure_ascii=False).encode()
        transport.write(
            b"HTTP/1.1 403 Forbidden\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\nConnection: close\r\n\r\n%b" % (len(body), body)
        )
        transport.write_eof()

    def close(self) -> None:
        """Cut off all that are left: the server ends."""
        for transport in list(self._open):
            transport.abort()


class _RefusedProtocol(asyncio.Protocol):
    def __init__(self, transport: asyncio.Transport, open: set[asyncio.Transport]) -> None:
        self._transport, self._open = transport, open
        self._timer = asyncio.get_running_loop().call_later(_LINGER_S, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        self._open.discard(self._transport)
