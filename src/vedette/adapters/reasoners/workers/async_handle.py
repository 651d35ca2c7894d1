"""The handle of a worker with an event loop: it is pinged, and told the addresses of its hosts."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

from vedette.adapters.reasoners.workers import protocol
from vedette.adapters.reasoners.workers.frames import MAX_FRAME_BYTES, BadFrame, Frame, pack_frame
from vedette.adapters.reasoners.workers.plain_data import read_plain
from vedette.adapters.reasoners.workers.worker_handle import WorkerHandle
from vedette.adapters.reasoners.workers.worker_start import Pool
from vedette.config.reach import Reach

_PING_S = 1.0


class AsyncHandle(WorkerHandle):
    """The handle of an `AsyncWorker`. One whose loop is silent for `seconds` is to be killed."""

    def __init__(self, pool: Pool[WorkerHandle], agent: str, seconds: float, memory: int) -> None:
        super().__init__(pool, agent, seconds, memory)
        self.reach = Reach()
        self._lookups: dict[str, asyncio.Task[None]] = {}
        self._pinged_at = 0.0
        self._silent_since = 0.0

    def reset(self) -> None:
        """Forget what the last worker had been sent."""
        self._pinged_at = self._silent_since = 0.0

    # --- is its loop alive ------------------------------------------------------------------

    def silence_reason(self, now: float) -> str:
        """Ping the worker now and then; say how long it has been silent if that is too long."""
        if self._silent_since and now - self._silent_since > self.seconds:
            return f"did not answer for {self.seconds:g} s"
        if not self._silent_since and now - self._pinged_at > _PING_S:
            self._pinged_at = self._silent_since = now
            self.send(pack_frame(0, protocol.PING))
        return ""

    def on_pong(self) -> None:
        """The worker has answered a ping."""
        self._silent_since = 0.0

    # --- names of hosts ---------------------------------------------------------------------

    def on_name_query(self, frame: Frame) -> None:
        """Answer with the addresses of a host in the worker's reach; with none for any other."""
        host = read_plain(frame.plain)
        if not isinstance(host, str) or len(self._unsent) > MAX_FRAME_BYTES:
            raise BadFrame("a question that is none, or more of them than answers are read")
        if host not in self.reach.hosts:
            self._send_addresses(host, [])
        elif host not in self._lookups:
            self._lookups[host] = asyncio.ensure_future(self._resolve_name(host))

    async def _resolve_name(self, host: str) -> None:
        found: list[str] = []
        try:
            with suppress(OSError, UnicodeError):
                loop = asyncio.get_running_loop()
                rows = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
                found = list(dict.fromkeys(str(row[4][0]) for row in rows))
        finally:
            del self._lookups[host]
        self._send_addresses(host, found)

    def _send_addresses(self, host: str, addresses: list[str]) -> None:
        self.send(pack_frame(0, protocol.NAME_ANSWER, protocol.pack((host, addresses))))
