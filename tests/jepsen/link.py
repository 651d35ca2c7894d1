"""A small TCP proxy to a port of this machine: it stalls, drops, slows and cuts what goes through.

One stands between each worker and its database, and one between the fleet and its targets.
"""

from __future__ import annotations

import asyncio
import ctypes
import socket
import struct
from contextlib import suppress
from typing import Protocol

_CHUNK = 65536
_QUEUE = 100
# Linux's: a socket's filter sees each segment before TCP does, and one that says 0 drops it. So
# nothing is acknowledged, and who connects is not answered.
_ATTACH, _DETACH = 26, 27
_DROP_ALL = struct.pack("HBBI", 0x06, 0, 0, 0)


class _Socket(Protocol):
    def setsockopt(self, level: int, name: int, value: bytes | int, /) -> None: ...


def _drop_all(one: _Socket) -> None:
    code = ctypes.create_string_buffer(_DROP_ALL, len(_DROP_ALL))
    program = struct.pack("HP", 1, ctypes.addressof(code))
    one.setsockopt(socket.SOL_SOCKET, _ATTACH, program)


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
        self._socket.listen(_QUEUE)
        self._accepting = asyncio.create_task(self._accept())

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
        """Drop every segment that arrives here until `resume`, from either end; nobody is told.

        What is under way in connections that stand `loses` its way; otherwise it comes when the cut
        is mended, if whoever sent it has not given up.
        """
        self._cut, self._loses = True, loses
        self._open.clear()
        for one in self._sockets():
            _drop_all(one)

    def resume(self) -> None:
        """Hand on what was held back, and all that follows, at once; reset what lost something."""
        self.delay_s = 0.0
        if self._cut:
            self._cut = False
            for one in self._sockets():
                one.setsockopt(socket.SOL_SOCKET, _DETACH, 0)
            if self._loses:
                self.drop()
        self._open.set()

    def drop(self) -> None:
        """Reset every connection."""
        for writer in self._writers:
            writer.transport.abort()

    def _sockets(self) -> list[_Socket]:
        ends = (writer.get_extra_info("socket") for writer in self._writers)
        return [self._socket, *(end for end in ends if end is not None and end.fileno() >= 0)]

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
