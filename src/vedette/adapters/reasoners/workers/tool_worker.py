"""A worker that performs one agent's tools, on threads, by numbered calls."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from vedette.adapters.reasoners.workers import protocol
from vedette.adapters.reasoners.workers.async_worker import AsyncWorker
from vedette.adapters.reasoners.workers.confinement import ProgressRecord
from vedette.adapters.reasoners.workers.frames import Frame, pack_frame
from vedette.adapters.reasoners.workers.reasoner_worker import pack_answer, pack_failure
from vedette.domain.base import machine
from vedette.domain.effect import PERMIT_LIFE_US, Call, Outcome, RowWrite
from vedette.domain.tool import Tool

# What may pass between the look at a permit and the call: other threads take their turns.
_BEGIN_US = 20_000


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


class _ToolWorker(AsyncWorker):
    def __init__(
        self, connection: socket.socket, progress: ProgressRecord, agent: str, make: MakeToolRunner
    ) -> None:
        super().__init__(connection, progress)
        self._agent = agent
        self._make = make
        self._tools: ToolRunner
        self._permits: dict[int, _Permit] = {}
        self._declared: dict[int, Tool] = {}
        # When permits were granted that came with calls (`boot_us`), by the calls' numbers.
        self._sent_permits: dict[int, int] = {}

    # --- on the thread that reads -----------------------------------------------------------

    def receive(self, frame: Frame) -> bool:
        if frame.kind == protocol.PERMIT:
            self._grant(frame)
        elif frame.kind == protocol.PERMITS:
            granted_us, numbers = protocol.read(frame.plain)
            self._sent_permits.update(dict.fromkeys(numbers, granted_us))
        else:
            return False
        return True

    def on_hang_up(self) -> None:
        self._sent_permits.clear()
        for permit in list(self._permits.values()):
            permit.event.set()  # nobody is there to permit anything: no

    # --- on the loop ------------------------------------------------------------------------

    def handle_request(self, frame: Frame) -> None:
        number, kind = frame.number, frame.kind
        if kind == protocol.TOOL:
            slot, declared = protocol.read(frame.plain)
            self._declared[slot] = Tool(*protocol.read(declared))
        elif kind in (protocol.MAKE, protocol.ROWS):
            self._progress.begin(number)
            self.answer(self._answer_now(number, kind, frame.plain))
        else:
            self.start_call(number, self._run_call(number, kind, frame.plain))

    def on_call_end(self, number: int) -> None:
        self._sent_permits.pop(number, None)

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
        self.answer_soon(answer)

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
                self.send(pack_frame(number, protocol.PERMIT_QUERY))
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
