"""The Performer port on tools in worker processes, one for each agent."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from vedette.adapters.reasoners.workers import protocol
from vedette.adapters.reasoners.workers.frames import MOST, BadFrame, Frame, pack
from vedette.adapters.reasoners.workers.pending_call import Asked, WorkerLost
from vedette.adapters.reasoners.workers.plain_data import read_plain
from vedette.adapters.reasoners.workers.remote_error import Raised, raised
from vedette.adapters.reasoners.workers.worker_handle import Seat
from vedette.adapters.reasoners.workers.worker_start import Pool
from vedette.config.reach import Reach
from vedette.domain.agent import Limits
from vedette.domain.base import failpoint
from vedette.domain.effect import Call, Outcome, RowWrite
from vedette.domain.tool import Tool

# How long a transactional tool may keep the line: it is asked while the loop waits.
ROWS_S = 1.0
_ROWS_START_S = 5.0
# What a call gets beyond its own time, in which its worker is to say itself that it is over.
_GRACE_S = 2.0
_PING_S = 1.0
# With this many calls of an agent that outlived their time, its worker is ended, and they with it.
HUNG = 16
# How often a call that was not begun is asked of another worker.
_LOSSES = 3


class WorkerHands:
    """Performs each agent's tools in a process of its own.

    `made` is asked before each is made: the agent's folder, the release that its files must be
    (None tries what lies there), and its limits. So is `reach`: what of the world its targets
    declare; in a box there is nothing else.
    """

    def __init__(
        self,
        pool: Pool[Seat],
        made: Callable[[str], tuple[str, str | None, Limits]],
        reach: Callable[[str], Reach] = lambda agent: Reach(),
    ) -> None:
        self._pool = pool
        self._made = made
        self._reach_of = reach
        self._seats: dict[str, _HandsSeat] = {}

    def _seat(self, agent: str) -> _HandsSeat:
        seat = self._seats.get(agent)
        if seat is None:
            seat = self._seats[agent] = _HandsSeat(self._pool, agent, self._made, self._reach_of)
        return seat

    def renew(self, agent: str) -> None:
        """Have an agent's worker made anew when it is next needed; nothing may be under way.

        A call that outlived its time goes with the worker: what came of it is asked of its target.
        """
        seat = self._seats.get(agent)
        if seat is not None:
            seat.kill("was to be made anew", charge=False, quiet=True)

    def prepare(self, agent: str) -> None:
        """Have an agent's worker made before it is needed."""
        self._seat(agent).prepare()

    def rows(self, tool: Tool, call: Call, row: Mapping[str, Any] | None) -> list[RowWrite]:
        """Return what a transactional tool writes. The loop waits for it, `ROWS_S` at most."""
        return self._seat(call.agent).rows(tool, call, row)

    async def perform(
        self, tool: Tool, call: Call, may_start: Callable[[], bool]
    ) -> Outcome | None:
        """Call the tool once; None if it may not start.

        The worker asks `may_start` immediately before the call, and again if the answer took
        long. If the worker dies, the outcome of a call that was permitted is `unknown`.
        """
        return await self._seat(call.agent).call(protocol.PERFORM, tool, call, may_start)

    async def ask(self, tool: Tool, call: Call) -> Outcome | None:
        """Say what came of the call's key, as the target says; `unknown` if the worker dies."""
        return await self._seat(call.agent).call(protocol.ASK, tool, call, lambda: True)

    def close(self) -> None:
        """Nothing of its own to close: the pool holds the workers."""


class _Calling(Asked):
    """A call that was asked of a worker. `began` is when it was permitted, 0.0 before."""

    __slots__ = ("began", "losses", "may_start", "seconds")

    def __init__(
        self,
        number: int,
        kind: int,
        call: Call,
        frame: Callable[[], bytes],
        may_start: Callable[[], bool],
    ) -> None:
        super().__init__(number, kind, call.key, frame)
        self.may_start = may_start
        self.seconds = call.timeout_us / 1_000_000
        self.began = 0.0
        self.losses = 0


class _HandsSeat(Seat):
    kind = "hands"

    def __init__(
        self,
        pool: Pool[Seat],
        agent: str,
        made: Callable[[str], tuple[str, str | None, Limits]],
        reach: Callable[[str], Reach],
    ) -> None:
        _, _, limits = made(agent)
        super().__init__(pool, agent, limits.time_us / 1_000_000, limits.memory)
        self._made_of = made
        self._reach_of = reach
        self._folder = ""
        self._reach = Reach()
        self._places: dict[str, tuple[int, int] | None] = {}
        self._looking: dict[str, asyncio.Task[None]] = {}
        self._hung = 0
        self._pinged = 0.0
        self._silent_since = 0.0

    # --- what is asked ----------------------------------------------------------------------

    def prepare(self) -> None:
        if not self.worker and not self.pending:
            self.sit()

    def rows(self, tool: Tool, call: Call, row: Mapping[str, Any] | None) -> list[RowWrite]:
        self._renew()
        known = None if row is None else dict(row)
        told = protocol.pack((protocol.tool_out(tool), protocol.call_out(call), known))
        number = self.number()
        asked = Asked(number, protocol.ROWS, call.key, lambda: pack(number, protocol.ROWS, told))
        self.put(asked)
        self.wait_for(asked, ROWS_S if self.made else _ROWS_START_S)
        rows: list[RowWrite] = asked.future.result()
        return rows

    async def call(
        self, kind: int, tool: Tool, call: Call, may_start: Callable[[], bool]
    ) -> Outcome | None:
        if self._hung >= HUNG:
            told = f"not called: {HUNG} or more calls of {self.agent} have not come back"
            return Outcome("retry" if kind == protocol.PERFORM else "unknown", error=told)
        self._renew()
        told_call = protocol.pack((protocol.tool_out(tool), protocol.call_out(call)))
        number = self.number()
        asked = _Calling(number, kind, call, lambda: pack(number, kind, told_call), may_start)
        self.put(asked)
        try:
            outcome: Outcome | None = await asked.future
        except asyncio.CancelledError:
            # Whoever asked goes; what was begun goes on until its worker has said what came of it.
            self.send(pack(number, protocol.CANCEL))
            raise
        return outcome

    def _renew(self) -> None:
        """Let a worker go that was born before a folder of its targets was made or replaced.

        What a process may reach is bound to what there was when it entered its box.
        """
        changed = any(_place(path) != known for path, known in self._places.items())
        if changed and self.worker and not self.pending:
            self.kill("was born before its target's folder", charge=False, quiet=True)

    # --- as a seat --------------------------------------------------------------------------

    def fresh(self) -> None:
        self._hung = 0
        self._pinged = self._silent_since = 0.0

    def making(self) -> bytes:
        folder, release, limits = self._made_of(self.agent)
        self._folder = folder
        self.seconds, self.memory = limits.time_us / 1_000_000, limits.memory
        return pack(0, protocol.MAKE, protocol.pack((folder, release)))

    def reaches(self) -> dict[str, Any]:
        self._reach = self._reach_of(self.agent)
        self._places = {path: _place(path) for path in self._reach.folders}
        read = (str(Path(self._folder).resolve()), *self._reach.files)
        return {
            "read": read,
            "write": self._reach.folders,
            "ports": self._reach.ports,
            "datagrams": self._reach.datagrams,
        }

    def name_asked(self, frame: Frame) -> None:
        host = read_plain(frame.plain)
        if not isinstance(host, str) or len(self._rest) > MOST:
            raise BadFrame("a question that is none, or more of them than answers are read")
        if host not in self._reach.hosts:
            self._tell_name(host, [])
        elif host not in self._looking:
            self._looking[host] = asyncio.ensure_future(self._look(host))

    async def _look(self, host: str) -> None:
        found: list[str] = []
        try:
            with suppress(OSError, UnicodeError):
                loop = asyncio.get_running_loop()
                rows = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
                found = list(dict.fromkeys(str(row[4][0]) for row in rows))
        finally:
            del self._looking[host]
        self._tell_name(host, found)

    def _tell_name(self, host: str, found: list[str]) -> None:
        self.send(pack(0, protocol.NAMED, protocol.pack((host, found))))

    def taken(self, frame: Frame, asked: Asked) -> None:
        if frame.kind == protocol.MAY_I and isinstance(asked, _Calling):
            self._decide(asked)
            return
        self.done(asked)
        if isinstance(asked, _Calling) and asked.began:
            failpoint.reach("call:after")
        try:
            if frame.kind == protocol.FAILED:
                error, kind = raised(frame.plain)
                asked.fail(error)
                if kind == "memory":
                    self.kill("went over its memory limit")
            elif frame.kind != protocol.DONE:
                raise BadFrame("of another kind than was asked for")
            elif asked.kind == protocol.ROWS:
                asked.settle(protocol.rows_in(frame.plain))
            else:
                self._settle(asked, protocol.outcome_in(frame.plain))
        except BadFrame as error:
            asked.fail(Raised(f"what the tool answered is no answer: {error}"))

    def _decide(self, asked: _Calling) -> None:
        """Answer a worker that is about to make a call."""
        yes = False
        # Of a call that was begun nobody asks again, but for a worker that slept over the answer.
        if not asked.future.done():
            try:
                yes = asked.may_start()
            except Exception as error:
                asked.fail(error)
        asked.began = time.monotonic() if yes else 0.0
        if yes:
            failpoint.reach("call:before")
        self.send(pack(asked.number, protocol.MAY, b"y" if yes else b"n"))

    def _settle(self, asked: Asked, outcome: Outcome | None) -> None:
        late = outcome is not None and outcome.state == "unknown"
        if late and isinstance(asked, _Calling) and asked.began:
            self._hung += time.monotonic() - asked.began >= asked.seconds
        asked.settle(outcome)
        self._end_hung()

    def _end_hung(self) -> None:
        """With too many calls that hang, end them once no other is on its way."""
        if self._hung >= HUNG and not self.pending:
            self.kill(f"had {self._hung} calls that did not come back", charge=False)

    def lost(self, guilty: Asked | None, why: str) -> None:
        told = f"the worker of {self.agent} {why}"
        for asked in list(self.pending.values()):
            if asked.future.done():
                del self.pending[asked.number]
            elif isinstance(asked, _Calling) and asked.kind == protocol.PERFORM:
                self._lost_call(asked, told, charged=guilty is not None)
            elif asked.kind == protocol.ASK:
                del self.pending[asked.number]
                asked.settle(Outcome("unknown", error=told))
            else:
                del self.pending[asked.number]
                asked.fail(WorkerLost(told))
        self._hung = 0

    def unborn(self, error: Exception) -> None:
        """No call has begun: it may be made later."""
        for asked in self.pending.values():
            if asked.kind == protocol.PERFORM:
                asked.settle(Outcome("retry", error=f"not called: {error}"))
            elif asked.kind == protocol.ASK:
                asked.settle(Outcome("unknown", error=str(error)))
        super().unborn(error)

    def _lost_call(self, asked: _Calling, told: str, *, charged: bool) -> None:
        asked.losses += charged
        if asked.began:
            del self.pending[asked.number]
            asked.settle(Outcome("unknown", error=told))
        elif asked.losses >= _LOSSES:
            del self.pending[asked.number]
            asked.settle(Outcome("retry", error=f"not called: {told}"))

    def overdue(self, now: float) -> str:
        """A worker says itself that a call is over; one that does not has lost its loop."""
        begun = [a for a in self.pending.values() if isinstance(a, _Calling) and a.began]
        for asked in begun:
            if now - asked.began > asked.seconds + _GRACE_S:
                return f"did not end a call that took longer than {asked.seconds:g} s"
        if self._silent_since and now - self._silent_since > self.seconds:
            return f"did not answer for {self.seconds:g} s"
        if not self._silent_since and now - self._pinged > _PING_S:
            self._pinged = self._silent_since = now
            self.send(pack(0, protocol.PING))
        return ""

    def pong(self) -> None:
        self._silent_since = 0.0


def _place(path: str) -> tuple[int, int] | None:
    """Return which folder lies at a path now; None where there is none."""
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
