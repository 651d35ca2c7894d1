"""Connections of a server that end in time, and no more of them than there is room for.

A connection costs a descriptor for as long as it is open, and who sends a header byte by byte, or
does not read what is answered, holds it at no cost. So each part of an exchange has its time: the
header, the body, and the reading of an answer. What takes longer is cut off, without an answer:
whoever does that reads none. How long an answer is thought about is up to who gives it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from vedette.domain.base.connections import ConnectionLimiter
from vedette.interfaces.http.uvicorn_server import update_date_header

if TYPE_CHECKING:
    from uvicorn.protocols.http.h11_impl import H11Protocol

# Seconds. Who reads a body answers within ten that it was too slow; this is for who reads none.
HEADER_S, BODY_S, READING_S = 10.0, 30.0, 30.0


def build_protocol(
    connections: ConnectionLimiter, *, header_s: float = HEADER_S, body_s: float = BODY_S,
    reading_s: float = READING_S,
) -> type[H11Protocol]:  # fmt: skip
    """Return uvicorn's HTTP protocol with a bound on connections and on the time of each part."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class BoundedProtocol(H11Protocol):
        _peer: str | None = None
        _part = ""
        _timer: asyncio.TimerHandle | None = None
        _unread: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            peer = self.client[0] if self.client else ""
            if not connections.acquire(peer):
                transport.abort()
                return
            self._peer = peer
            self._time()

        def connection_lost(self, exc: Exception | None) -> None:
            for timer in (self._timer, self._unread):
                if timer is not None:
                    timer.cancel()
            if self._peer is not None:
                connections.release(self._peer)
                self._peer = None
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            update_date_header(self.server_state, self.config)
            super().data_received(data)
            self._time()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._part = ""
            self._time()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._unread = self.loop.call_later(reading_s, self.transport.abort)

        def resume_writing(self) -> None:
            super().resume_writing()
            if self._unread is not None:
                self._unread.cancel()
                self._unread = None

        def _time(self) -> None:
            """Begin the time of the part that the exchange has come to."""
            cycle: Any = self.cycle
            if cycle is None or cycle.response_complete:
                part, seconds = "header", header_s
            elif cycle.more_body:
                part, seconds = "body", body_s
            else:
                part, seconds = "answer", None
            if part == self._part or self.transport.is_closing():
                return
            self._part = part
            if self._timer is not None:
                self._timer.cancel()
            self._timer = None if seconds is None else self.loop.call_later(seconds, self._cut)

        def _cut(self) -> None:
            self.transport.abort()

    return BoundedProtocol
