"""A worker that performs: one agent's tools, on threads, asked for by number.

One thread reads the engine's words, so that a tool that keeps the loop busy cannot keep the answer
to `may_start` from whoever waits for it.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Protocol

from vedette.adapters.reasoners.workers import protocol
from vedette.adapters.reasoners.workers.confinement import Note
from vedette.adapters.reasoners.workers.frames import ANY, Frame, Frames, pack
from vedette.adapters.reasoners.workers.name_resolution import Names
from vedette.adapters.reasoners.workers.plain_data import pack_plain
from vedette.adapters.reasoners.workers.reasoner_worker import bounded, failed
from vedette.domain.effect import Call, Outcome, RowWrite
from vedette.domain.tool import Tool

# A permit older than this is asked for again: what it rests on may have changed while we slept.
_FRESH_S = 0.25
_READ = 262144


class Hands(Protocol):
    """The part of LocalHands that a worker needs."""

    def rows(self, tool: Tool, call: Call, row: Mapping[str, Any] | None) -> list[RowWrite]: ...

    async def perform(
        self, tool: Tool, call: Call, may_start: Callable[[], bool]
    ) -> Outcome | None: ...

    async def ask(self, tool: Tool, call: Call) -> Outcome | None: ...

    def load(self, agent: str) -> object: ...


# Makes the hands of a worker: (agent, folder, release).
MakeHands = Callable[[str, str, str | None], Hands]


def serve_hands(
    line: socket.socket, note: Note, agent: str, make: MakeHands, *, asks_names: bool = False
) -> None:
    """Perform until the engine hangs up; with `asks_names` the engine is asked for addresses."""
    threading.stack_size(1024 * 1024)  # its reserve counts as data; the usual 8 MB would be dear
    worker = _HandsWorker(line, note, agent, make)
    if asks_names:
        worker.names.install()
    asyncio.run(worker.serve())


class _Permit:
    """Where a call waits for the engine's yes or no."""

    def __init__(self) -> None:
        self.told = threading.Event()
        self.yes = False


class _HandsWorker:
    def __init__(self, line: socket.socket, note: Note, agent: str, make: MakeHands) -> None:
        self._line = line
        self._note = note
        self._agent = agent
        self._make = make
        self._hands: Hands
        self._writing = threading.Lock()
        self._permits: dict[int, _Permit] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._over = asyncio.Event()
        self.names = Names(self._ask_name)

    async def serve(self) -> None:
        loop = asyncio.get_running_loop()
        reader = threading.Thread(target=self._read, args=(loop,), daemon=True)
        reader.start()
        await self._over.wait()
        # Calls on their way may come back for as long as the zygote lets us live.
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        frames = Frames(ANY)
        while data := self._received():
            for frame in frames.feed(data):
                if frame.kind == protocol.MAY:
                    self._decided(frame)
                elif frame.kind == protocol.NAMED:
                    self.names.told(*protocol.read(frame.plain))
                else:
                    loop.call_soon_threadsafe(self._begin, frame)
        for permit in list(self._permits.values()):
            permit.told.set()  # nobody is there to permit anything: no
        loop.call_soon_threadsafe(self._over.set)

    def _received(self) -> bytes:
        try:
            return self._line.recv(_READ)
        except OSError:
            return b""

    def _send(self, data: bytes) -> None:
        with self._writing:
            self._line.sendall(data)

    def _answer(self, data: bytes) -> None:
        # An engine that is gone is told nothing; whoever reads its words finds out and ends this.
        with suppress(ConnectionError):
            self._send(data)

    # --- on the loop ------------------------------------------------------------------------

    def _begin(self, frame: Frame) -> None:
        number, kind = frame.number, frame.kind
        if kind == protocol.PING:
            self._answer(pack(number, protocol.PONG))
        elif kind == protocol.CANCEL:
            task = self._tasks.get(number)
            if task is not None:
                task.cancel()
        elif kind in (protocol.MAKE, protocol.ROWS):
            self._note.begin(number)
            self._answer(self._at_once(number, kind, frame.plain))
        else:
            task = asyncio.ensure_future(self._work(number, kind, frame.plain))
            self._tasks[number] = task
            task.add_done_callback(lambda _: self._tasks.pop(number, None))

    def _at_once(self, number: int, kind: int, plain: bytes) -> bytes:
        try:
            told = protocol.read(plain)
            if kind == protocol.MAKE:
                self._hands = self._make(self._agent, *told)
                self._hands.load(self._agent)
                return pack(number, protocol.DONE)
            tool, call, row = told
            rows = self._hands.rows(Tool(*tool), Call(*call), row)
            return bounded(number, protocol.rows_out(rows))
        except BaseException as error:
            return failed(number, error)

    async def _work(self, number: int, kind: int, plain: bytes) -> None:
        try:
            told_tool, told_call = protocol.read(plain)
            tool, call = Tool(*told_tool), Call(*told_call)
            if kind == protocol.PERFORM:
                outcome = await self._hands.perform(tool, call, lambda: self._may(number))
            else:
                outcome = await self._hands.ask(tool, call)
            answer = bounded(number, protocol.outcome_out(outcome))
        except asyncio.CancelledError as error:
            answer = failed(number, error)
        except BaseException as error:
            answer = failed(number, error)
        self._answer(answer)

    def _ask_name(self, host: str) -> None:
        self._answer(pack(0, protocol.NAME, pack_plain(host)))

    # --- the permit -------------------------------------------------------------------------

    def _may(self, number: int) -> bool:
        """Ask the engine, immediately before the call; on the thread that makes it."""
        while True:
            permit = self._permits[number] = _Permit()
            asked = time.monotonic()
            try:
                self._send(pack(number, protocol.MAY_I))
            except OSError:
                return False
            permit.told.wait()
            del self._permits[number]
            if not permit.yes or time.monotonic() - asked < _FRESH_S:
                return permit.yes

    def _decided(self, frame: Frame) -> None:
        permit = self._permits.get(frame.number)
        if permit is not None:
            permit.yes = frame.plain == b"y"
            permit.told.set()
