"""The ToolExecutor port on tools in worker processes, one for each agent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from vedette.adapters.reasoners.workers import protocol
from vedette.adapters.reasoners.workers.async_handle import AsyncHandle
from vedette.adapters.reasoners.workers.confinement import read_begun_calls
from vedette.adapters.reasoners.workers.frames import BadFrame, Frame, pack_frame
from vedette.adapters.reasoners.workers.pending_call import PendingCall, WorkerLost
from vedette.adapters.reasoners.workers.remote_error import Raised, read_error
from vedette.adapters.reasoners.workers.worker_handle import WorkerHandle
from vedette.adapters.reasoners.workers.worker_start import Pool
from vedette.config.reach import Reach
from vedette.domain.agent import ResourceLimits
from vedette.domain.base import failpoint, machine
from vedette.domain.effect import Call, Outcome, RowWrite
from vedette.domain.tool import Tool

# How long a transactional tool may take: the event loop waits for it.
ROWS_S = 1.0
_ROWS_START_S = 5.0
# What a call gets beyond its own time, in which its worker is to say itself that it is over.
_GRACE_S = 2.0
# With this many calls of an agent that outlived their time, its worker is ended, and they with it.
MAX_HUNG = 16
# Calls of an agent beyond these may find no thread free in its worker: half of them may hang.
_MOST_SENT = 16
# How often a call that was not begun is sent to another worker.
_LOSSES = 3


class WorkerTools:
    """The tool executor that performs each agent's tools in a worker process of its own.

    `code_of` is called before each is made: the agent's folder, the release that its files must be
    (None tries what lies there), and its limits. So is `reach_of`: what of the world its targets
    declare; in a box there is nothing else.
    """

    def __init__(
        self,
        pool: Pool[WorkerHandle],
        code_of: Callable[[str], tuple[str, str | None, ResourceLimits]],
        reach_of: Callable[[str], Reach] = lambda agent: Reach(),
    ) -> None:
        self._pool = pool
        self._code_of = code_of
        self._reach_of = reach_of
        self._handles: dict[str, _ToolHandle] = {}

    def _handle(self, agent: str) -> _ToolHandle:
        handle = self._handles.get(agent)
        if handle is None:
            handle = self._handles[agent] = _ToolHandle(
                self._pool, agent, self._code_of, self._reach_of
            )
        return handle

    def renew(self, agent: str) -> None:
        """Have an agent's worker made anew when it is next needed; nothing may be under way.

        A call that outlived its time goes with the worker: its target is asked what came of it.
        """
        handle = self._handles.get(agent)
        if handle is not None:
            handle.kill("was to be made anew", charge=False, quiet=True)

    def prepare(self, agent: str) -> None:
        """Have an agent's worker made before it is needed."""
        self._handle(agent).prepare()

    def compute_rows(self, tool: Tool, call: Call, row: Mapping[str, Any] | None) -> list[RowWrite]:
        """Return what a transactional tool writes. The loop waits for it, `ROWS_S` at most."""
        return self._handle(call.agent).rows(tool, call, row)

    async def perform(
        self, tool: Tool, call: Call, may_start: Callable[[], bool]
    ) -> Outcome | None:
        """Call the tool once; None if it may not start.

        A permit that goes with the call holds for `PERMIT_LIFE_US`. Later, and where none went with
        it, the worker asks `may_start` immediately before the call, and again if the answer took
        long. If the worker dies, the outcome of a call that it had begun is `unknown`.
        """
        return await self._handle(call.agent).call(protocol.PERFORM, tool, call, may_start)

    async def query(self, tool: Tool, call: Call) -> Outcome | None:
        """Say what came of the call's key, as the target says; `unknown` if the worker dies."""
        return await self._handle(call.agent).call(protocol.ASK, tool, call, lambda: True)

    def close(self) -> None:
        """Nothing of its own to close: the pool holds the workers."""


class _PendingToolCall(PendingCall):
    """A call that was sent to a worker. `permitted_at` is when it was permitted, 0.0 before.

    It has begun only if the worker wrote that down (`ProgressRecord.begin_call`).
    """

    __slots__ = ("losses", "may_start", "permitted_at", "seconds")

    def __init__(
        self,
        number: int,
        kind: int,
        call: Call,
        build_frame: Callable[[], bytes],
        may_start: Callable[[], bool],
    ) -> None:
        super().__init__(number, kind, call.key, build_frame)
        self.may_start = may_start
        self.seconds = call.timeout_us / 1_000_000
        self.permitted_at = 0.0
        self.losses = 0


class _ToolHandle(AsyncHandle):
    kind = "hands"

    def __init__(
        self,
        pool: Pool[WorkerHandle],
        agent: str,
        code_of: Callable[[str], tuple[str, str | None, ResourceLimits]],
        reach_of: Callable[[str], Reach],
    ) -> None:
        _, _, limits = code_of(agent)
        super().__init__(pool, agent, limits.time_us / 1_000_000, limits.memory)
        self._code_of = code_of
        self._reach_of = reach_of
        self._folder = ""
        self._folder_ids: dict[str, tuple[int, int] | None] = {}
        self._hung_count = 0
        # The declarations that the worker has, and the number of each; and by the id of a tool,
        # which is kept so that no other may get it.
        self._slots: dict[bytes, int] = {}
        self._tools: dict[int, tuple[Tool, int]] = {}
        # Calls to be sent whose permits are to go with them, and calls that the worker asks about.
        self._unpermitted: list[_PendingToolCall] = []
        self._asked: list[_PendingToolCall] = []

    # --- calls ------------------------------------------------------------------------------

    def prepare(self) -> None:
        if not self.worker_number and not self.pending:
            self.start_worker()

    def rows(self, tool: Tool, call: Call, row: Mapping[str, Any] | None) -> list[RowWrite]:
        self._end_stale()
        known = None if row is None else dict(row)
        fields = protocol.call_to_tuple(call)
        number = self.next_number()
        pending = PendingCall(
            number, protocol.ROWS, call.key,
            lambda: self._call_frame(number, protocol.ROWS, tool, fields, known),
        )  # fmt: skip
        self.submit(pending)
        self.wait_for(pending, ROWS_S if self.is_ready else _ROWS_START_S)
        rows: list[RowWrite] = pending.future.result()
        return rows

    async def call(
        self, kind: int, tool: Tool, call: Call, may_start: Callable[[], bool]
    ) -> Outcome | None:
        if self._hung_count >= MAX_HUNG:
            what = f"not called: {MAX_HUNG} or more calls of {self.agent} have not come back"
            return Outcome("retry" if kind == protocol.PERFORM else "unknown", error=what)
        self._end_stale()
        fields = protocol.call_to_tuple(call)
        number = self.next_number()
        pending = _PendingToolCall(
            number, kind, call, lambda: self._call_frame(number, kind, tool, fields), may_start
        )
        has_room = len(self.pending) < _MOST_SENT and self.is_ready and self._socket is not None
        self.submit(pending)
        # One that may have to wait there, for a thread or for an earlier call of its key, is
        # permitted when it has its turn.
        if kind == protocol.PERFORM and has_room and call.attempt == 1:
            self._unpermitted.append(pending)
        try:
            outcome: Outcome | None = await pending.future
        except asyncio.CancelledError:
            # The caller goes; what was begun goes on until its worker has said what came of it.
            self.send(pack_frame(number, protocol.CANCEL))
            raise
        return outcome

    def _call_frame(
        self,
        number: int,
        kind: int,
        tool: Tool,
        fields: tuple[Any, ...],
        row: Mapping[str, Any] | None = None,
    ) -> bytes:
        """Return a call's frame, after its tool's declaration if the worker does not have it."""
        known = self._tools.get(id(tool))
        if known is not None:
            return pack_frame(number, kind, protocol.pack((known[1], fields, row)))
        declared = protocol.pack(protocol.tool_to_tuple(tool))
        slot = self._slots.get(declared, len(self._slots))
        frame = pack_frame(number, kind, protocol.pack((slot, fields, row)))
        # An equal one may be there: what is asked to verify is made anew for each question.
        if slot < len(self._slots):
            return frame
        self._slots[declared], self._tools[id(tool)] = slot, (tool, slot)
        return pack_frame(0, protocol.TOOL, protocol.pack((slot, declared))) + frame

    def _flush(self) -> None:
        """Send what is to be sent, and with calls the permits to start them: as late as it can."""
        if self._socket is not None:
            self._send_permits()
        super()._flush()

    def _send_permits(self) -> None:
        sent, self._unpermitted = self._unpermitted, []
        asked, self._asked = self._asked, []
        granted_us = machine.boot_us()
        permitted = [call.number for call in sent if self._permit(call)]
        if permitted:
            # Before the calls: each finds its permit there.
            permits = protocol.pack((granted_us, permitted))
            self._outgoing.insert(0, pack_frame(0, protocol.PERMITS, permits))
        for call in asked:
            answer = protocol.pack((granted_us, self._permit(call)))
            self._outgoing.append(pack_frame(call.number, protocol.PERMIT, answer))

    def _permit(self, call: _PendingToolCall) -> bool:
        """Say whether a call may start, and note it; what keeps it from that fails it."""
        may = False
        # Of a call that was begun nobody asks again, but for a worker that slept over the answer.
        if not call.future.done():
            try:
                may = call.may_start()
            except Exception as error:
                call.fail(error)
        call.permitted_at = time.monotonic() if may else 0.0
        if may:
            failpoint.hit_failpoint("call:before")
        return may

    def _end_stale(self) -> None:
        """End a worker that was started before a folder of its targets was made or replaced.

        What a process may reach is bound to what there was when it entered its box.
        """
        if self.pending or not self.worker_number:
            return
        if any(_folder_id(path) != known for path, known in self._folder_ids.items()):
            self.kill("was born before its target's folder", charge=False, quiet=True)

    # --- as a worker handle -----------------------------------------------------------------

    def reset(self) -> None:
        super().reset()
        self._hung_count = 0
        self._tools, self._slots, self._unpermitted, self._asked = {}, {}, [], []

    def make_message(self) -> bytes:
        folder, release, limits = self._code_of(self.agent)
        self._folder = folder
        self.seconds, self.memory = limits.time_us / 1_000_000, limits.memory
        return pack_frame(0, protocol.MAKE, protocol.pack((folder, release)))

    def sandbox_reach(self) -> dict[str, Any]:
        self.reach = self._reach_of(self.agent)
        self._folder_ids = {path: _folder_id(path) for path in self.reach.folders}
        read = (str(Path(self._folder).resolve()), *self.reach.files)
        return {
            "read": read,
            "write": self.reach.folders,
            "ports": self.reach.ports,
            "datagrams": self.reach.allows_udp,
        }

    def on_answer(self, frame: Frame, call: PendingCall) -> None:
        if frame.kind == protocol.PERMIT_QUERY and isinstance(call, _PendingToolCall):
            self._asked.append(call)
            self._schedule_flush()
            return
        self.remove(call)
        if isinstance(call, _PendingToolCall) and call.permitted_at:
            failpoint.hit_failpoint("call:after")
        try:
            if frame.kind == protocol.FAILED:
                error, kind = read_error(frame.plain)
                call.fail(error)
                if kind == "memory":
                    self.kill("went over its memory limit")
            elif frame.kind != protocol.DONE:
                raise BadFrame("of another kind than was asked for")
            elif call.kind == protocol.ROWS:
                call.resolve(protocol.read_rows(frame.plain))
            else:
                self._resolve_call(call, protocol.read_outcome(frame.plain))
        except BadFrame as error:
            call.fail(Raised(f"what the tool answered is no answer: {error}"))

    def _resolve_call(self, call: PendingCall, outcome: Outcome | None) -> None:
        is_unknown = outcome is not None and outcome.state == "unknown"
        if is_unknown and isinstance(call, _PendingToolCall) and call.permitted_at:
            is_over = time.monotonic() - call.permitted_at >= call.seconds
            # One that waited for an earlier call of its key has not begun, and hangs nowhere.
            self._hung_count += is_over and read_begun_calls(self._progress_fd)(call.number)
        call.resolve(outcome)
        self._end_hung()

    def _end_hung(self) -> None:
        """With too many calls that hang, end them once no other is on its way."""
        if self._hung_count >= MAX_HUNG and not self.pending:
            self.kill(f"had {self._hung_count} calls that did not come back", charge=False)

    def on_loss(self, culprit: PendingCall | None, why: str) -> None:
        what = f"the worker of {self.agent} {why}"
        for call in list(self.pending.values()):
            if call.future.done():
                del self.pending[call.number]
            elif isinstance(call, _PendingToolCall) and call.kind == protocol.PERFORM:
                self._on_lost_call(call, what, charged=culprit is not None)
            elif call.kind == protocol.ASK:
                del self.pending[call.number]
                call.resolve(Outcome("unknown", error=what))
            else:
                del self.pending[call.number]
                call.fail(WorkerLost(what))
        self._hung_count = 0

    def fail_calls(self, error: Exception) -> None:
        """No call has begun: it may be made later."""
        for call in self.pending.values():
            if call.kind == protocol.PERFORM:
                call.resolve(Outcome("retry", error=f"not called: {error}"))
            elif call.kind == protocol.ASK:
                call.resolve(Outcome("unknown", error=str(error)))
        super().fail_calls(error)

    def _on_lost_call(self, call: _PendingToolCall, what: str, *, charged: bool) -> None:
        call.losses += charged
        if call.permitted_at and self._has_begun(call.number):
            del self.pending[call.number]
            call.resolve(Outcome("unknown", error=what))
            return
        call.permitted_at = 0.0
        if call.losses >= _LOSSES:
            del self.pending[call.number]
            call.resolve(Outcome("retry", error=f"not called: {what}"))

    def overdue_reason(self, now: float) -> str:
        """A worker says itself that a call is over; one that does not has lost its loop."""
        overdue = [
            call
            for call in self.pending.values()
            if isinstance(call, _PendingToolCall)
            and call.permitted_at
            and now - call.permitted_at > call.seconds + _GRACE_S
        ]
        has_begun = read_begun_calls(self._progress_fd) if overdue else None
        for call in overdue:
            # One that has not begun waits for the worker's loop or a thread: others hang, not it.
            if has_begun is not None and has_begun(call.number):
                return f"did not end a call that took longer than {call.seconds:g} s"
        return self.silence_reason(now)


def _folder_id(path: str) -> tuple[int, int] | None:
    """Return which folder lies at a path now; None where there is none."""
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
