"""A small TCP proxy to a port of this machine: it stalls, drops, slows and cuts what goes through.

One stands between each worker and its database, and one between the fleet and its targets.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

_CHUNK = 65536
_QUEUE = 100


class Link:
    """Hands bytes on between who connects here and a port of this machine."""

    def __init__(self, port: int) -> None:
        self.to = port
        self.port = 0
        self.delay_s = 0.0
        self._open = asyncio.Event()
        self._open.set()
        self._cut = self._loses = False
        self._writers = set[asyncio.StreamWriter]()
        self._tasks = set[asyncio.Task[None]]()
        self._accepting: asyncio.Task[None] | None = None
        self._socket = socket.socket()

    async def open(self) -> None:
        """Listen on a free port."""
        self._socket.setblocking(False)
        self._socket.bind(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self._listen()

    def close(self) -> None:
        """Listen no longer, and hang up."""
        for task in (*self._tasks, *filter(None, [self._accepting])):
            task.cancel()
        self._socket.close()
        self.drop()

    def stall(self) -> None:
        """Hand nothing on until `resume`; nobody is told."""
        self._open.clear()

    def cut(self, *, loses: bool) -> None:
        """Hand nothing on until `resume`, and let nobody in; nobody is told.

        Who connects gets no answer (or one or two are let in by the kernel, and never heard). What
        is under way in connections that stand `loses` its way, or comes when the cut is mended.
        """
        self._cut, self._loses = True, loses
        self._open.clear()
        assert self._accepting is not None
        self._accepting.cancel()
        self._socket.listen(0)

    def resume(self) -> None:
        """Hand on what was held back, and all that follows, at once; reset what lost something."""
        self.delay_s = 0.0
        if self._cut:
            self._cut = False
            if self._loses:
                self.drop()
            with suppress(BlockingIOError):
                while True:
                    self._socket.accept()[0].close()
            self._listen()
        self._open.set()

    def drop(self) -> None:
        """Reset every connection."""
        for writer in self._writers:
            writer.transport.abort()

    def _listen(self) -> None:
        self._socket.listen(_QUEUE)
        self._accepting = asyncio.create_task(self._accept())

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            here, _ = await loop.sock_accept(self._socket)
            task = asyncio.create_task(self._serve(here))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve(self, here: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=here)
        self._writers.add(writer)
        try:
            there, onward = await asyncio.open_connection("127.0.0.1", self.to)
        except OSError:
            writer.transport.abort()
            self._writers.discard(writer)
            return
        self._writers.add(onward)
        await asyncio.gather(self._pump(reader, onward), self._pump(there, writer))
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
