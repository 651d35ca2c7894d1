"""A small TCP proxy between a worker and its database: it stalls, drops and slows the link."""

from __future__ import annotations

import asyncio
from contextlib import suppress

_CHUNK = 65536


class Link:
    """Hands bytes on between who connects here and a port of this machine."""

    def __init__(self, port: int) -> None:
        self._to = port
        self.port = 0
        self.delay_s = 0.0
        self._open = asyncio.Event()
        self._open.set()
        self._writers = set[asyncio.StreamWriter]()
        self._pumps = set[asyncio.Task[None]]()
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Listen on a free port."""
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        """Listen no longer, and hang up."""
        if self._server is not None:
            self._server.close()
        self.drop()
        for pump in self._pumps:
            pump.cancel()

    def stall(self) -> None:
        """Hand nothing on until `resume`; nobody is told."""
        self._open.clear()

    def resume(self) -> None:
        """Hand on what was held back, and all that follows, at once."""
        self.delay_s = 0.0
        self._open.set()

    def drop(self) -> None:
        """Reset every connection."""
        for writer in self._writers:
            writer.transport.abort()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, onward = await asyncio.open_connection("127.0.0.1", self._to)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, onward}
        pumps = [
            asyncio.create_task(self._pump(reader, onward)),
            asyncio.create_task(self._pump(there, writer)),
        ]
        self._pumps |= set(pumps)
        await asyncio.wait(pumps)
        self._pumps -= set(pumps)
        self._writers -= {writer, onward}

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(_CHUNK):
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                await self._open.wait()
                writer.write(data)
                await writer.drain()
        # Whoever hangs up is waited for behind a stall, too: the other end cannot know.
        await self._open.wait()
        writer.transport.abort()
