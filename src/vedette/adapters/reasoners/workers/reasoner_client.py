"""The Reasoner port on judges in worker processes, one for each agent."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from pathlib import Path
from typing import Any

from vedette.adapters.reasoners.workers import protocol
from vedette.adapters.reasoners.workers.confinement import read_note
from vedette.adapters.reasoners.workers.frames import BadFrame, Frame, pack
from vedette.adapters.reasoners.workers.pending_call import Asked, WorkerLost
from vedette.adapters.reasoners.workers.plain_data import read_plain
from vedette.adapters.reasoners.workers.remote_error import Raised, raised
from vedette.adapters.reasoners.workers.worker_handle import Seat
from vedette.adapters.reasoners.workers.worker_start import START_S, Pool
from vedette.domain.agent import Limits
from vedette.domain.base.dataclass import dataclass
from vedette.domain.event import Event
from vedette.domain.memory import Briefing, Memory
from vedette.domain.ports import Thought

_CHECKPOINT_EVERY = 256
_SLOTS = 64
# How many workers of an agent may be at questions that take long or end workers, beside its main
# one; and after how long the others do not wait for a question, if that is usual for the judge.
_APART = 12
_SUSPECTS = 1024
_NICE = 10
_SLOW_S, _SLOWER = 0.25, 4.0
_MEND = "see `limits` in agent.yaml"
_NEEDS_STATE = Thought(needs_state=True, observed=False)


@dataclass(frozen=True, slots=True)
class Making:
    """What a judge is made of, in a worker: the agent's folder, its charter, its lessons.

    `release` is the digest that the folder's files must have; None tries what lies there.
    """

    folder: str
    charter: Mapping[str, Any]
    lessons: Sequence[Memory] = ()
    limits: Limits = field(default_factory=Limits)
    checkpoint_every: int = _CHECKPOINT_EVERY
    release: str | None = None


class WorkerJudges:
    """Runs each agent's judge in a process of its own.

    A question that takes long keeps that process, and the agent's others get a fresh one. A key
    whose question ended a worker is asked of one apart until it is answered. `make` is asked before
    each is made.

    `beside` is told of an agent whose judge is about to be made: its tools may be wanted soon.
    `expired` says, once, that an agent's is to be made anew: what it was taught holds no longer.
    """

    def __init__(
        self,
        pool: Pool[Seat],
        make: Callable[[str], Making],
        beside: Callable[[str], None] = lambda agent: None,
        expired: Callable[[str], bool] = lambda agent: False,
    ) -> None:
        self._pool = pool
        self._make = make
        self._beside = beside
        self._expired = expired
        self._seats: dict[str, _JudgeSeat] = {}
        self._apart: dict[str, list[_JudgeSeat]] = {}
        # Keys whose question ended a worker, with the seat at which they are asked next.
        self._suspects: dict[tuple[str, str], _JudgeSeat | None] = {}

    def _seat_of(self, agent: str, key: str) -> _JudgeSeat:
        """Return the seat at which a key is asked: the agent's main one, but for suspects."""
        if (agent, key) not in self._suspects:
            return self._seat(agent)
        seat = self._suspects[agent, key]
        if seat is None:
            seat = self._suspects[agent, key] = self._seat_apart(agent)
        return seat

    def _seat_apart(self, agent: str) -> _JudgeSeat:
        seats = self._apart.setdefault(agent, [])
        if len(seats) >= _APART:
            return min(seats, key=lambda seat: len(seat.pending))
        seat = _JudgeSeat(self._pool, agent, self._make, self._beside)
        seat.apart = True
        seats.append(seat)
        return seat

    def _step_aside(self, seat: _JudgeSeat, asked: list[Asked]) -> None:
        """Let a main seat's worker go on with what it is at, in a seat apart, if there is one."""
        if len(self._apart.get(seat.agent, ())) < _APART:
            with suppress(OSError):  # it may be in an endless loop: the others come first
                os.setpriority(os.PRIO_PROCESS, seat.pid, _NICE)
            seat.leave_to(self._seat_apart(seat.agent), asked)

    def _clear(self, agent: str) -> None:
        """Let the workers apart go that nothing is asked of any more."""
        seats = self._apart.get(agent, [])
        for seat in [seat for seat in seats if not seat.pending]:
            seats.remove(seat)
            if not seats:
                del self._apart[agent]
            seat.kill("is needed no more", charge=False, quiet=True)
            for key in [key for key, at in self._suspects.items() if at is seat]:
                self._suspects[key] = None

    def _seat(self, agent: str) -> _JudgeSeat:
        seat = self._seats.get(agent)
        if seat is None:
            seat = self._seats[agent] = _JudgeSeat(self._pool, agent, self._make, self._beside)
            seat.step_aside = self._step_aside
        return seat

    async def reason(self, briefing: Briefing) -> Thought:
        """Judge one event; ask for state if what is held is not at `briefing.previous`.

        Raises WorkerLost if the worker died of it, and what the judge raises, by its name.
        """
        if self._expired(briefing.agent):
            self.renew(briefing.agent)
        agent, key = briefing.agent, briefing.key
        try:
            thought: Thought = await self._seat_of(agent, key).reason(briefing).future
        except Exception as error:
            if isinstance(error, WorkerLost) and error.charged:
                self._suspects[agent, key] = None
                if len(self._suspects) > _SUSPECTS:
                    del self._suspects[next(iter(self._suspects))]
            self._clear(agent)
            raise
        if not thought.needs_state and (self._apart or self._suspects):
            self._suspects.pop((agent, key), None)
            self._clear(agent)
        return thought

    def restore(
        self,
        agent: str,
        key: str,
        checkpoint: bytes | None,
        at: int,
        since: Sequence[tuple[int, Event]],
    ) -> None:
        """Have a key's state taken up; what goes wrong is raised by the key's next `reason`."""
        self._seat_of(agent, key).restore(key, checkpoint, at, since)

    def forget(self, agent: str, key: str) -> None:
        """Drop a key's state: what it learned last was not committed."""
        seat = self._suspects.get((agent, key)) or self._seats.get(agent)
        if seat is not None:
            seat.forget(key)

    def fold(
        self, agent: str, checkpoint: bytes | None, since: Sequence[tuple[int, Event]]
    ) -> bytes | None:
        """Return the checkpoint after `since`; None for a judge without state.

        The loop waits for it: this is asked when content is erased, and then for few keys.
        """
        return self._seat(agent).fold(checkpoint, since)

    async def try_making(self, agent: str, making: Making) -> None:
        """Make a judge in a worker of its own, and let it go; raises what that raises."""
        seat = _JudgeSeat(self._pool, agent, lambda _: making, lambda _: None)
        try:
            await seat.folded_nothing()
        finally:
            seat.kill("was only tried", charge=False, quiet=True)

    def renew(self, agent: str) -> None:
        """Let an agent's worker go: the next one is made anew, and takes its states up again."""
        main = self._seats.get(agent)
        for seat in [*self._apart.get(agent, ()), *([main] if main is not None else [])]:
            seat.kill("was to be made anew", charge=False, quiet=True)


class _JudgeSeat(Seat):
    kind = "judge"

    def __init__(
        self,
        pool: Pool[Seat],
        agent: str,
        make: Callable[[str], Making],
        beside: Callable[[str], None],
    ) -> None:
        limits = make(agent).limits
        super().__init__(pool, agent, limits.time_us / 1e6, limits.memory)
        self._make = make
        self._beside = beside
        self._folder = ""
        self._registry: Mapping[str, Any] | None = None
        self._known: dict[tuple[int, ...], tuple[int, tuple[Memory, ...]]] = {}
        self._slots: list[tuple[int, ...] | None] = [None] * (_SLOTS + 1)
        self._slot = 0
        # States that were taken up for a judgement that is not answered yet: should the worker
        # die before it is, the next one needs them too.
        self._given: dict[str, Asked] = {}
        # Since when the worker is at one question, 0 if that is not known; what is usual.
        self._began, self._usual = 0.0, 0.0
        # The seat that the worker was left by, which learns how long its question took.
        self._left_by: _JudgeSeat | None = None

    # --- what is asked ----------------------------------------------------------------------

    def reason(self, briefing: Briefing) -> Asked:
        number = self.number()
        asked = Asked(
            number, protocol.REASON, briefing.key, lambda: self._briefed(number, briefing)
        )
        if not self.pending and self.made:
            self._began = time.monotonic()
        self.put(asked)
        return asked

    def restore(
        self, key: str, checkpoint: bytes | None, at: int, since: Sequence[tuple[int, Event]]
    ) -> None:
        told = protocol.pack((key, at, checkpoint is not None, _history(since)))
        self._ask(protocol.RESTORE, key, told, checkpoint)

    def fold(self, checkpoint: bytes | None, since: Sequence[tuple[int, Event]]) -> bytes | None:
        told = protocol.pack((checkpoint is not None, _history(since)))
        before = len(self.pending)
        asked = self._ask(protocol.FOLD, "", told, checkpoint)
        self.wait_for(asked, START_S + self.seconds * (before + len(since)))
        folded: bytes | None = asked.future.result()
        return folded

    async def folded_nothing(self) -> None:
        """Have a judge made, and asked something that no event is needed for."""
        await self._ask(protocol.FOLD, "", protocol.pack((False, [])), None).future

    def forget(self, key: str) -> None:
        self._given.pop(key, None)
        self.send(pack(0, protocol.FORGET, protocol.pack(key)))

    def _ask(self, kind: int, key: str, told: bytes, blob: bytes | None) -> Asked:
        number = self.number()
        asked = Asked(number, kind, key, lambda: pack(number, kind, told, blob or b""))
        self.put(asked)
        return asked

    def _briefed(self, number: int, briefing: Briefing) -> bytes:
        """Return a briefing's frame, after what the worker has to know first."""
        before = b""
        if briefing.registry is not self._registry:
            self._registry = briefing.registry
            before += pack(0, protocol.REGISTRY, protocol.pack(dict(briefing.registry)))
        slot = 0
        if briefing.memories:
            ids = tuple(map(id, briefing.memories))
            known = self._known.get(ids)
            if known is None:
                known, told = self._remember(ids, briefing.memories)
                before += told
            slot = known[0]
        return before + pack(
            number, protocol.REASON, protocol.pack(protocol.briefing_out(briefing, slot))
        )

    def _remember(
        self, ids: tuple[int, ...], memories: tuple[Memory, ...]
    ) -> tuple[tuple[int, tuple[Memory, ...]], bytes]:
        """Tell the worker of memories once, under a number; the oldest number is used again."""
        slot = self._slot = self._slot % _SLOTS + 1
        old = self._slots[slot]
        if old is not None:
            del self._known[old]
        self._slots[slot] = ids
        # The memories are kept, so that no other may get their ids.
        known = self._known[ids] = (slot, memories)
        told = protocol.pack((slot, [protocol.memory_out(memory) for memory in memories]))
        return known, pack(0, protocol.MEMORIES, told)

    # --- as a seat --------------------------------------------------------------------------

    def fresh(self) -> None:
        self._registry, self._began, self._left_by = None, 0.0, None
        self._known, self._slots, self._slot = {}, [None] * (_SLOTS + 1), 0

    def making(self) -> bytes:
        self._beside(self.agent)
        made = self._make(self.agent)
        self.seconds, self.memory = made.limits.time_us / 1e6, made.limits.memory
        self._folder = made.folder
        lessons = [protocol.memory_out(lesson) for lesson in made.lessons]
        charter = protocol.builtin(made.charter)
        told = (made.folder, made.release, charter, lessons, made.checkpoint_every)
        return pack(0, protocol.MAKE, protocol.pack(told))

    def reaches(self) -> dict[str, Any]:
        return {"read": (str(Path(self._folder).resolve()),)}

    def taken(self, frame: Frame, asked: Asked) -> None:
        if self._why:
            return  # it was killed by a word before this one: the next worker is asked again
        self.done(asked)
        now = time.monotonic()
        if self._began and asked.kind == protocol.REASON:
            took, left = now - self._began, self._left_by
            if left is None:
                self._usual = max(took, self._usual * 0.98)
            else:  # by degrees: others are not to wait for the next rare one that takes long
                left._usual += max(0.0, took - left._usual) / 4
        self._began = now
        if asked.kind == protocol.RESTORE:
            self._given[asked.key] = asked
        elif asked.kind == protocol.REASON:
            self._given.pop(asked.key, None)
        try:
            if frame.kind == protocol.FAILED:
                self._failed(frame, asked)
            elif frame.kind == protocol.NEEDS_STATE and asked.kind == protocol.REASON:
                asked.settle(_NEEDS_STATE)
            elif frame.kind != protocol.DONE:
                raise BadFrame("of another kind than was asked for")
            elif asked.kind == protocol.REASON:
                asked.settle(protocol.thought_in(frame.plain, frame.blob))
            elif asked.kind == protocol.FOLD:
                asked.settle(frame.blob if read_plain(frame.plain) else None)
            else:
                asked.settle(None)
        except BadFrame as error:
            self._blame(asked, Raised(f"what the judge answered is no answer: {error}"))

    def _failed(self, frame: Frame, asked: Asked) -> None:
        error, kind = raised(frame.plain)
        if kind == "memory":
            # What is left of the worker is not to be trusted, and the event may be innocent.
            why = "went over its memory limit"
            self._blame(asked, self._lost_by(why))
            self.kill(why, charge=False)
        else:
            self._blame(asked, error)

    def _lost_by(self, why: str) -> WorkerLost:
        lost = WorkerLost(f"the worker of {self.agent} {why} at this event", mend=_MEND)
        lost.charged = True
        return lost

    def _blame(self, asked: Asked, error: Exception) -> None:
        """Raise an error where it is waited for: that of a state taken up, by its key's run."""
        if asked.kind == protocol.RESTORE:
            asked.settle(None)
            for other in self.pending.values():
                if other.kind == protocol.REASON and other.key == asked.key:
                    other.fail(error)
                    break
        else:
            asked.fail(error)

    def lost(self, guilty: Asked | None, why: str) -> None:
        if guilty is not None:
            self.pending.pop(guilty.number, None)
            self._blame(guilty, self._lost_by(why))
        again: dict[int, Asked] = {}
        for asked in self.pending.values():
            if asked.kind == protocol.REASON and asked.key in self._given:
                given = self._given[asked.key]
                again.setdefault(given.number, given)
            # Whoever has been told, or has gone, is not asked for again.
            if asked.kind == protocol.RESTORE or not asked.future.done():
                again[asked.number] = asked
        self.pending, self._given = again, {}

    def unborn(self, error: Exception) -> None:
        super().unborn(error)
        self._given.clear()  # their runs begin anew, and ask for state

    def watch(self, now: float) -> None:
        super().watch(now)
        if self.step_aside is None or not (self.made and self._line) or self._why:
            return
        if self.stuck(now) > max(_SLOW_S, _SLOWER * self._usual):
            at = self.pending.get(read_note(self._note)[0])
            if at is not None and at.kind != protocol.FOLD:
                mine = [one for one in self.pending.values() if one.key == at.key]
                if len(mine) < len(self.pending):
                    self.step_aside(self, mine)

    def _take_over(self, of: Seat) -> None:
        super()._take_over(of)
        if isinstance(of, _JudgeSeat):
            self._left_by, self._began = of, self._seen_at

    def overdue(self, now: float) -> str:
        return f"took longer than {self.seconds:g} s" if self.stuck(now) > self.seconds else ""


def _history(since: Sequence[tuple[int, Event]]) -> list[tuple[int, tuple[Any, ...]]]:
    return [(position, protocol.event_out(event)) for position, event in since]
