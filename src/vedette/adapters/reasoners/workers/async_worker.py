"""A worker that has several calls at work at once, on an event loop, beside a thread that reads.

One thread reads the engine's frames, so that code that keeps the loop busy cannot keep an answer of
the engine's (a permit, an address) from a thread that waits for it.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any

from vedette.adapters.reasoners.workers import protocol
from vedette.adapters.reasoners.workers.confinement import ProgressRecord
from vedette.adapters.reasoners.workers.frames import UNBOUNDED, Frame, FrameDecoder, pack_frame
from vedette.adapters.reasoners.workers.name_resolution import NameResolver
from vedette.adapters.reasoners.workers.plain_data import pack_plain
from vedette.adapters.reasoners.workers.reasoner_worker import pack_failure

_READ = 262144


class AsyncWorker:
    """The base of a worker that answers numbered calls as they come to their ends."""

    def __init__(self, connection: socket.socket, progress: ProgressRecord) -> None:
        self._connection = connection
        self._progress = progress
        self._write_lock = threading.Lock()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._end_event = asyncio.Event()
        self._outgoing: list[bytes] = []
        self.names = NameResolver(self._send_name_query)

    # --- for the kinds to say ---------------------------------------------------------------

    def handle_request(self, frame: Frame) -> None:
        """Take a frame, on the loop."""
        raise NotImplementedError

    def receive(self, frame: Frame) -> bool:
        """Take a frame on the thread that reads, if it is for there."""
        return False

    def on_hang_up(self) -> None:
        """The engine has gone; called on the thread that reads."""

    def on_call_end(self, number: int) -> None:
        """A call has come to its end."""

    # --- the thread that reads --------------------------------------------------------------

    async def serve(self) -> None:
        """Answer until the engine hangs up."""
        loop = asyncio.get_running_loop()
        reader = threading.Thread(target=self._read_frames, args=(loop,), daemon=True)
        reader.start()
        await self._end_event.wait()
        # Calls on their way may come back for as long as the fork server lets us live.
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _read_frames(self, loop: asyncio.AbstractEventLoop) -> None:
        frames = FrameDecoder(UNBOUNDED)
        while data := self._receive():
            requests = []
            for frame in frames.feed(data):
                if frame.kind == protocol.NAME_ANSWER:
                    self.names.set_addresses(*protocol.read(frame.plain))
                elif not self.receive(frame):
                    requests.append(frame)
            if requests:
                loop.call_soon_threadsafe(self._handle_frames, requests)
        self.on_hang_up()
        loop.call_soon_threadsafe(self._end_event.set)

    def _receive(self) -> bytes:
        try:
            return self._connection.recv(_READ)
        except OSError:
            return b""

    def send(self, data: bytes) -> None:
        """Send bytes from any thread. Raises OSError."""
        with self._write_lock:
            self._connection.sendall(data)

    def answer(self, data: bytes) -> None:
        """Send an answer now."""
        # An engine that is gone gets no answer; the thread that reads finds out and ends this.
        with suppress(ConnectionError):
            self.send(data)

    def _send_name_query(self, host: str) -> None:
        self.answer(pack_frame(0, protocol.NAME_QUERY, pack_plain(host)))

    # --- on the loop ------------------------------------------------------------------------

    def _handle_frames(self, frames: Sequence[Frame]) -> None:
        for frame in frames:
            if frame.kind == protocol.PING:
                self.answer(pack_frame(frame.number, protocol.PONG))
            elif frame.kind == protocol.CANCEL:
                task = self._tasks.get(frame.number)
                if task is not None:
                    task.cancel()
            else:
                self.handle_request(frame)

    def start_call(self, number: int, call: Coroutine[Any, Any, None]) -> None:
        """Begin a call, which is to answer by `answer_soon` whatever comes of it."""
        task = asyncio.ensure_future(call)
        self._tasks[number] = task
        task.add_done_callback(lambda task: self._end_call(number, task))

    def _end_call(self, number: int, task: asyncio.Task[None]) -> None:
        self._tasks.pop(number, None)
        self.on_call_end(number)
        if task.cancelled():  # before its first step: it has answered nothing
            self.answer(pack_failure(number, asyncio.CancelledError()))

    def answer_soon(self, data: bytes) -> None:
        """Send an answer together with the others of this turn of the loop."""
        self._outgoing.append(data)
        if len(self._outgoing) == 1:
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        answers = b"".join(self._outgoing)
        self._outgoing.clear()
        self.answer(answers)
