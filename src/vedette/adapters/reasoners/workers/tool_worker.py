"""A worker that performs one agent's tools, on threads, by numbered calls.

One thread reads the engine's frames, so that a tool that keeps the loop busy cannot keep the answer
to `may_start` from whoever waits for it.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from vedette.adapters.reasoners.workers import protocol
from vedette.adapters.reasoners.workers.confinement import ProgressRecord
from vedette.adapters.reasoners.workers.frames import UNBOUNDED, Frame, FrameDecoder, pack_frame
from vedette.adapters.reasoners.workers.name_resolution import NameResolver
from vedette.adapters.reasoners.workers.plain_data import pack_plain
from vedette.adapters.reasoners.workers.reasoner_worker import pack_answer, pack_failure
from vedette.domain.base import machine
from vedette.domain.effect import PERMIT_LIFE_US, Call, Outcome, RowWrite
from vedette.domain.tool import Tool

# What may pass between the look at a permit and the call: other threads take their turns.
_BEGIN_US = 20_000
_READ = 262144


class ToolRunner(Protocol):
    """The part of InProcessTools that a worker needs."""

    def compute_rows(
        self, tool: Tool, call: Call, row: Mapping[str, Any] | None
    ) -> list[RowWrite]: ...

    async def perform(
        self, tool: Tool, call: Call, may_start: Callable[[], bool]
    ) -> Outcome | None: ...

    async def query(self, tool: Tool, call: Call) -> Outcome | None: ...

    def load(self, agent: str) -> object: ...


# Makes the tool runner of a worker: (agent, folder, release).
MakeToolRunner = Callable[[str, str, str | None], ToolRunner]


def serve_tools(
    connection: socket.socket,
    progress: ProgressRecord,
    agent: str,
    make: MakeToolRunner,
    *,
    asks_names: bool = False,
) -> None:
    """Perform in a tool worker until the engine hangs up; it resolves names if `asks_names`."""
    threading.stack_size(1024 * 1024)  # its reserve counts as data; the usual 8 MB would be dear
    worker = _ToolWorker(connection, progress, agent, make)
    if asks_names:
        worker.names.install()
    asyncio.run(worker.serve())


class _Permit:
    """Where a call waits for the engine's yes or no."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self.is_granted = False
        self.granted_us = 0


class _ToolWorker:
    def __init__(
        self, connection: socket.socket, progress: ProgressRecord, agent: str, make: MakeToolRunner
    ) -> None:
        self._connection = connection
        self._progress = progress
        self._agent = agent
        self._make = make
        self._tools: ToolRunner
        self._write_lock = threading.Lock()
        self._permits: dict[int, _Permit] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._end_event = asyncio.Event()
        self._declared: dict[int, Tool] = {}
        self._outgoing: list[bytes] = []
        # When permits were granted that came with calls (`boot_us`), by the calls' numbers.
        self._sent_permits: dict[int, int] = {}
        self.names = NameResolver(self._send_name_query)

    async def serve(self) -> None:
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
                if frame.kind == protocol.PERMIT:
                    self._grant(frame)
                elif frame.kind == protocol.PERMITS:
                    granted_us, numbers = protocol.read(frame.plain)
                    self._sent_permits.update(dict.fromkeys(numbers, granted_us))
                elif frame.kind == protocol.NAME_ANSWER:
                    self.names.set_addresses(*protocol.read(frame.plain))
                else:
                    requests.append(frame)
            if requests:
                loop.call_soon_threadsafe(self._handle_frames, requests)
        self._sent_permits.clear()
        for permit in list(self._permits.values()):
            permit.event.set()  # nobody is there to permit anything: no
        loop.call_soon_threadsafe(self._end_event.set)

    def _receive(self) -> bytes:
        try:
            return self._connection.recv(_READ)
        except OSError:
            return b""

    def _send(self, data: bytes) -> None:
        with self._write_lock:
            self._connection.sendall(data)

    def _answer(self, data: bytes) -> None:
        # An engine that is gone gets no answer; the thread that reads finds out and ends this.
        with suppress(ConnectionError):
            self._send(data)

    # --- on the loop ------------------------------------------------------------------------

    def _handle_frames(self, frames: Sequence[Frame]) -> None:
        for frame in frames:
            self._handle_frame(frame)

    def _handle_frame(self, frame: Frame) -> None:
        number, kind = frame.number, frame.kind
        if kind == protocol.PING:
            self._answer(pack_frame(number, protocol.PONG))
        elif kind == protocol.CANCEL:
            task = self._tasks.get(number)
            if task is not None:
                task.cancel()
        elif kind == protocol.TOOL:
            slot, declared = protocol.read(frame.plain)
            self._declared[slot] = Tool(*protocol.read(declared))
        elif kind in (protocol.MAKE, protocol.ROWS):
            self._progress.begin(number)
            self._answer(self._answer_now(number, kind, frame.plain))
        else:
            task = asyncio.ensure_future(self._run_call(number, kind, frame.plain))
            self._tasks[number] = task
            task.add_done_callback(lambda task: self._end_call(number, task))

    def _end_call(self, number: int, task: asyncio.Task[None]) -> None:
        self._tasks.pop(number, None)
        self._sent_permits.pop(number, None)
        if task.cancelled():  # before its first step: it has answered nothing
            self._answer(pack_failure(number, asyncio.CancelledError()))

    def _answer_now(self, number: int, kind: int, plain: bytes) -> bytes:
        try:
            payload = protocol.read(plain)
            if kind == protocol.MAKE:
                self._tools = self._make(self._agent, *payload)
                self._tools.load(self._agent)
                return pack_frame(number, protocol.DONE)
            slot, call, row = payload
            rows = self._tools.compute_rows(self._declared[slot], Call(*call), row)
            return pack_answer(number, protocol.pack_rows(rows))
        except BaseException as error:
            return pack_failure(number, error)

    async def _run_call(self, number: int, kind: int, plain: bytes) -> None:
        try:
            slot, fields, _ = protocol.read(plain)
            tool, call = self._declared[slot], Call(*fields)
            if kind == protocol.PERFORM:
                outcome = await self._tools.perform(tool, call, lambda: self._may_start(number))
            else:
                outcome = await self._tools.query(tool, call)
            answer = pack_answer(number, protocol.pack_outcome(outcome))
        except asyncio.CancelledError as error:
            answer = pack_failure(number, error)
        except BaseException as error:
            answer = pack_failure(number, error)
        self._outgoing.append(answer)
        if len(self._outgoing) == 1:
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        """Send the answers that came in one turn of the loop together."""
        answers = b"".join(self._outgoing)
        self._outgoing.clear()
        self._answer(answers)

    def _send_name_query(self, host: str) -> None:
        self._answer(pack_frame(0, protocol.NAME_QUERY, pack_plain(host)))

    # --- the permit -------------------------------------------------------------------------

    def _may_start(self, number: int) -> bool:
        """Say whether a call may start, immediately before it; on the thread that makes it.

        Where no permit came with it, or one that holds no more, the engine is asked. The clock is
        one for all processes of a machine.
        """
        granted_us = self._sent_permits.pop(number, None)
        if granted_us is not None and _is_recent(granted_us):
            self._progress.begin_call(number)
            return True
        while True:
            permit = self._permits[number] = _Permit()
            try:
                self._send(pack_frame(number, protocol.PERMIT_QUERY))
            except OSError:
                return False
            permit.event.wait()
            del self._permits[number]
            if not permit.is_granted:
                return False
            if _is_recent(permit.granted_us):
                self._progress.begin_call(number)
                return True

    def _grant(self, frame: Frame) -> None:
        permit = self._permits.get(frame.number)
        if permit is not None:
            permit.granted_us, permit.is_granted = protocol.read(frame.plain)
            permit.event.set()


def _is_recent(granted_us: int) -> bool:
    """Say whether a permit still holds, and will for long enough to begin its call."""
    return 0 <= machine.boot_us() - granted_us < PERMIT_LIFE_US - _BEGIN_US
