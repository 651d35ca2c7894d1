"""The Reasoner port on judges in worker processes, one for each agent."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from vedette.adapters.reasoners.workers import protocol
from vedette.adapters.reasoners.workers.confinement import read_progress
from vedette.adapters.reasoners.workers.frames import BadFrame, Frame, pack_frame
from vedette.adapters.reasoners.workers.pending_call import PendingCall, WorkerLost
from vedette.adapters.reasoners.workers.plain_data import read_plain
from vedette.adapters.reasoners.workers.remote_error import Raised, read_error
from vedette.adapters.reasoners.workers.worker_handle import WorkerHandle
from vedette.adapters.reasoners.workers.worker_start import START_S, Pool
from vedette.domain.agent import ResourceLimits
from vedette.domain.event import Event
from vedette.domain.memory import Briefing, Memory
from vedette.domain.ports.reasoner import ReasonerJudgement

_CHECKPOINT_EVERY = 256
_MEMORY_SLOTS = 64
# How many workers of an agent may be at questions that take long or end workers, beside its main
# one; and after how long the others do not wait for a question, if that is usual for the judge.
_MAX_SECONDARY = 12
_SUSPECTS = 1024
_NICE = 10
_SLOW_S, _SLOW_FACTOR = 0.25, 4.0
_MEND = "see `limits` in agent.yaml"
_NEEDS_STATE = ReasonerJudgement(needs_state=True, observed=False)


class JudgeSpec(Struct, frozen=True):
    """What a judge is made of, in a worker: the agent's folder, its charter, its lessons.

    `release` is the digest that the folder's files must have; None tries what lies there. With
    `takes_tasks` its judge has to have more than one turn.
    """

    folder: str
    charter: Mapping[str, Any]
    lessons: Sequence[Memory] = ()
    limits: ResourceLimits = field(default_factory=ResourceLimits)
    checkpoint_every: int = _CHECKPOINT_EVERY
    release: str | None = None
    takes_tasks: bool = False


class WorkerReasoner:
    """The reasoner that runs each agent's judge in a worker process of its own.

    A question that takes long keeps that process, and the agent's others get a fresh one. A key
    whose question ended a worker is put to a secondary one until it is answered. `spec_of` is
    called before each is made.

    `on_make` is called with an agent whose judge is about to be made: its tools may be wanted soon.
    `is_expired` says, once, that an agent's is to be made anew: what it was taught holds no longer.
    """

    def __init__(
        self,
        pool: Pool[WorkerHandle],
        spec_of: Callable[[str], JudgeSpec],
        on_make: Callable[[str], None] = lambda agent: None,
        is_expired: Callable[[str], bool] = lambda agent: False,
    ) -> None:
        self._pool = pool
        self._spec_of = spec_of
        self._on_make = on_make
        self._is_expired = is_expired
        self._handles: dict[str, _JudgeHandle] = {}
        self._secondary: dict[str, list[_JudgeHandle]] = {}
        # Keys whose question ended a worker, with the handle whose worker judges them next.
        self._suspects: dict[tuple[str, str], _JudgeHandle | None] = {}

    def _handle_for(self, agent: str, key: str) -> _JudgeHandle:
        """Return the handle for a key: the agent's main one, but for suspects."""
        if (agent, key) not in self._suspects:
            return self._handle(agent)
        handle = self._suspects[agent, key]
        if handle is None:
            handle = self._suspects[agent, key] = self._secondary_handle(agent)
        return handle

    def _secondary_handle(self, agent: str) -> _JudgeHandle:
        handles = self._secondary.setdefault(agent, [])
        if len(handles) >= _MAX_SECONDARY:
            return min(handles, key=lambda one: len(one.pending))
        handle = _JudgeHandle(self._pool, agent, self._spec_of, self._on_make)
        handle.is_secondary = True
        handles.append(handle)
        return handle

    def _move_to_secondary(self, handle: _JudgeHandle, calls: list[PendingCall]) -> None:
        """Move a main handle's worker, with its question, to a secondary handle if one is free."""
        if len(self._secondary.get(handle.agent, ())) < _MAX_SECONDARY:
            with suppress(OSError):  # it may be in an endless loop: the others come first
                os.setpriority(os.PRIO_PROCESS, handle.pid, _NICE)
            handle.hand_over(self._secondary_handle(handle.agent), calls)

    def _release_idle(self, agent: str) -> None:
        """End the secondary workers that have no pending calls any more."""
        handles = self._secondary.get(agent, [])
        for handle in [one for one in handles if not one.pending]:
            handles.remove(handle)
            if not handles:
                del self._secondary[agent]
            handle.kill("is needed no more", charge=False, quiet=True)
            for key in [key for key, owner in self._suspects.items() if owner is handle]:
                self._suspects[key] = None

    def _handle(self, agent: str) -> _JudgeHandle:
        handle = self._handles.get(agent)
        if handle is None:
            handle = self._handles[agent] = _JudgeHandle(
                self._pool, agent, self._spec_of, self._on_make
            )
            handle.on_stall = self._move_to_secondary
        return handle

    async def reason(self, briefing: Briefing) -> ReasonerJudgement:
        """Judge one event; ask for state if what is held is not at `briefing.previous`.

        Raises WorkerLost if the worker died of it, and what the judge raises, by its name.
        """
        if self._is_expired(briefing.agent):
            self.renew(briefing.agent)
        agent, key = briefing.agent, briefing.key
        try:
            judgement: ReasonerJudgement = (
                await self._handle_for(agent, key).reason(briefing).future
            )
        except Exception as error:
            if isinstance(error, WorkerLost) and error.is_culprit:
                self._suspects[agent, key] = None
                if len(self._suspects) > _SUSPECTS:
                    del self._suspects[next(iter(self._suspects))]
            self._release_idle(agent)
            raise
        if not judgement.needs_state and (self._secondary or self._suspects):
            self._suspects.pop((agent, key), None)
            self._release_idle(agent)
        return judgement

    def restore_state(
        self,
        agent: str,
        key: str,
        checkpoint: bytes | None,
        at: int,
        since: Sequence[tuple[int, Event]],
    ) -> None:
        """Have a key's state taken up; what goes wrong is raised by the key's next `reason`."""
        self._handle_for(agent, key).restore(key, checkpoint, at, since)

    def drop_state(self, agent: str, key: str) -> None:
        """Drop a key's state: what it learned last was not committed."""
        handle = self._suspects.get((agent, key)) or self._handles.get(agent)
        if handle is not None:
            handle.forget(key)

    def fold_state(
        self, agent: str, checkpoint: bytes | None, since: Sequence[tuple[int, Event]]
    ) -> bytes | None:
        """Return the checkpoint after `since`; None for a judge without state.

        The loop waits for it: this is called when content is erased, and then for few keys.
        """
        return self._handle(agent).fold(checkpoint, since)

    async def try_spec(self, agent: str, spec: JudgeSpec) -> None:
        """Make a judge in a worker of its own, and let it go; raises what that raises."""
        handle = _JudgeHandle(self._pool, agent, lambda _: spec, lambda _: None)
        try:
            await handle.fold_nothing()
        finally:
            handle.kill("was only tried", charge=False, quiet=True)

    def renew(self, agent: str) -> None:
        """Let an agent's worker go: the next one is made anew, and takes its states up again."""
        main = self._handles.get(agent)
        for handle in [*self._secondary.get(agent, ()), *([main] if main is not None else [])]:
            handle.kill("was to be made anew", charge=False, quiet=True)


class _JudgeHandle(WorkerHandle):
    kind = "judge"

    def __init__(
        self,
        pool: Pool[WorkerHandle],
        agent: str,
        spec_of: Callable[[str], JudgeSpec],
        on_make: Callable[[str], None],
    ) -> None:
        limits = spec_of(agent).limits
        super().__init__(pool, agent, limits.time_us / 1e6, limits.memory)
        self._spec_of = spec_of
        self._on_make = on_make
        self._folder = ""
        self._registry: Mapping[str, Any] | None = None
        self._memory_sets: dict[tuple[int, ...], tuple[int, tuple[Memory, ...]]] = {}
        self._memory_slots: list[tuple[int, ...] | None] = [None] * (_MEMORY_SLOTS + 1)
        self._last_slot = 0
        # States that were taken up for a judgement that is not answered yet: should the worker
        # die before it is, the next one needs them too.
        self._restores: dict[str, PendingCall] = {}
        # Since when the worker is at one question, 0 if that is not known; what is usual.
        self._reason_since, self._usual_s = 0.0, 0.0
        # The handle that handed the worker over; it learns how long the question took.
        self._former_handle: _JudgeHandle | None = None

    # --- calls ------------------------------------------------------------------------------

    def reason(self, briefing: Briefing) -> PendingCall:
        number = self.next_number()
        call = PendingCall(
            number, protocol.REASON, briefing.key, lambda: self._briefing_frame(number, briefing)
        )
        if not self.pending and self.is_ready:
            self._reason_since = time.monotonic()
        self.submit(call)
        return call

    def restore(
        self, key: str, checkpoint: bytes | None, at: int, since: Sequence[tuple[int, Event]]
    ) -> None:
        payload = protocol.pack((key, at, checkpoint is not None, _history(since)))
        self._submit_call(protocol.RESTORE, key, payload, checkpoint)

    def fold(self, checkpoint: bytes | None, since: Sequence[tuple[int, Event]]) -> bytes | None:
        payload = protocol.pack((checkpoint is not None, _history(since)))
        before = len(self.pending)
        call = self._submit_call(protocol.FOLD, "", payload, checkpoint)
        self.wait_for(call, START_S + self.seconds * (before + len(since)))
        folded: bytes | None = call.future.result()
        return folded

    async def fold_nothing(self) -> None:
        """Have a judge made, and give it a call that needs no event."""
        await self._submit_call(protocol.FOLD, "", protocol.pack((False, [])), None).future

    def forget(self, key: str) -> None:
        self._restores.pop(key, None)
        self.send(pack_frame(0, protocol.FORGET, protocol.pack(key)))

    def _submit_call(self, kind: int, key: str, payload: bytes, blob: bytes | None) -> PendingCall:
        number = self.next_number()
        call = PendingCall(
            number, kind, key, lambda: pack_frame(number, kind, payload, blob or b"")
        )
        self.submit(call)
        return call

    def _briefing_frame(self, number: int, briefing: Briefing) -> bytes:
        """Return a briefing's frame, after what the worker has to know first."""
        before = b""
        if briefing.registry is not self._registry:
            self._registry = briefing.registry
            before += pack_frame(0, protocol.REGISTRY, protocol.pack(dict(briefing.registry)))
        slot = 0
        if briefing.memories:
            ids = tuple(map(id, briefing.memories))
            known = self._memory_sets.get(ids)
            if known is None:
                known, frame = self._memories_frame(ids, briefing.memories)
                before += frame
            slot = known[0]
        return before + pack_frame(
            number, protocol.REASON, protocol.pack(protocol.briefing_to_tuple(briefing, slot))
        )

    def _memories_frame(
        self, ids: tuple[int, ...], memories: tuple[Memory, ...]
    ) -> tuple[tuple[int, tuple[Memory, ...]], bytes]:
        """Tell the worker of memories once, under a number; the oldest number is used again."""
        slot = self._last_slot = self._last_slot % _MEMORY_SLOTS + 1
        old = self._memory_slots[slot]
        if old is not None:
            del self._memory_sets[old]
        self._memory_slots[slot] = ids
        # The memories are kept, so that no other may get their ids.
        known = self._memory_sets[ids] = (slot, memories)
        payload = protocol.pack((slot, [protocol.memory_to_tuple(memory) for memory in memories]))
        return known, pack_frame(0, protocol.MEMORIES, payload)

    # --- as a worker handle -----------------------------------------------------------------

    def reset(self) -> None:
        self._registry, self._reason_since, self._former_handle = None, 0.0, None
        self._memory_sets, self._memory_slots, self._last_slot = {}, [None] * (_MEMORY_SLOTS + 1), 0

    def make_message(self) -> bytes:
        self._on_make(self.agent)
        spec = self._spec_of(self.agent)
        self.seconds, self.memory = spec.limits.time_us / 1e6, spec.limits.memory
        self._folder = spec.folder
        lessons = [protocol.memory_to_tuple(lesson) for lesson in spec.lessons]
        charter = protocol.to_builtin(spec.charter)
        payload = (
            spec.folder, spec.release, charter, lessons, spec.checkpoint_every, spec.takes_tasks,
        )  # fmt: skip
        return pack_frame(0, protocol.MAKE, protocol.pack(payload))

    def sandbox_reach(self) -> dict[str, Any]:
        return {"read": (str(Path(self._folder).resolve()),)}

    def on_answer(self, frame: Frame, call: PendingCall) -> None:
        if self._kill_reason:
            return  # an answer before this one had it killed: the next worker gets the call again
        self.remove(call)
        now = time.monotonic()
        if self._reason_since and call.kind == protocol.REASON:
            took, former = now - self._reason_since, self._former_handle
            if former is None:
                self._usual_s = max(took, self._usual_s * 0.98)
            else:  # by degrees: others are not to wait for the next rare one that takes long
                former._usual_s += max(0.0, took - former._usual_s) / 4
        self._reason_since = now
        if call.kind == protocol.RESTORE:
            self._restores[call.key] = call
        elif call.kind == protocol.REASON:
            self._restores.pop(call.key, None)
        try:
            if frame.kind == protocol.FAILED:
                self._on_failure(frame, call)
            elif frame.kind == protocol.NEEDS_STATE and call.kind == protocol.REASON:
                call.resolve(_NEEDS_STATE)
            elif frame.kind != protocol.DONE:
                raise BadFrame("of another kind than was asked for")
            elif call.kind == protocol.REASON:
                call.resolve(protocol.read_judgement(frame.plain, frame.blob))
            elif call.kind == protocol.FOLD:
                call.resolve(frame.blob if read_plain(frame.plain) else None)
            else:
                call.resolve(None)
        except BadFrame as error:
            self._fail_call(call, Raised(f"what the judge answered is no answer: {error}"))

    def _on_failure(self, frame: Frame, call: PendingCall) -> None:
        error, kind = read_error(frame.plain)
        if kind == "memory":
            # What is left of the worker is not to be trusted, and the event may be innocent.
            why = "went over its memory limit"
            self._fail_call(call, self._worker_lost(why))
            self.kill(why, charge=False)
        else:
            self._fail_call(call, error)

    def _worker_lost(self, why: str) -> WorkerLost:
        lost = WorkerLost(f"the worker of {self.agent} {why} at this event", mend=_MEND)
        lost.is_culprit = True
        return lost

    def _fail_call(self, call: PendingCall, error: Exception) -> None:
        """Raise an error where it is waited for: that of a state taken up, by its key's run."""
        if call.kind == protocol.RESTORE:
            call.resolve(None)
            for other in self.pending.values():
                if other.kind == protocol.REASON and other.key == call.key:
                    other.fail(error)
                    break
        else:
            call.fail(error)

    def on_loss(self, culprit: PendingCall | None, why: str) -> None:
        if culprit is not None:
            self.pending.pop(culprit.number, None)
            self._fail_call(culprit, self._worker_lost(why))
        repeated: dict[int, PendingCall] = {}
        for call in self.pending.values():
            if call.kind == protocol.REASON and call.key in self._restores:
                given = self._restores[call.key]
                repeated.setdefault(given.number, given)
            # A call that is answered or cancelled already is not sent again.
            if call.kind == protocol.RESTORE or not call.future.done():
                repeated[call.number] = call
        self.pending, self._restores = repeated, {}

    def fail_calls(self, error: Exception) -> None:
        super().fail_calls(error)
        self._restores.clear()  # their runs begin anew, and ask for state

    def check_limits(self, now: float) -> None:
        super().check_limits(now)
        if self.on_stall is None or not (self.is_ready and self._socket) or self._kill_reason:
            return
        if self.stalled_s(now) > max(_SLOW_S, _SLOW_FACTOR * self._usual_s):
            current = self.pending.get(read_progress(self._progress_fd)[0])
            if current is not None and current.kind != protocol.FOLD:
                calls = [one for one in self.pending.values() if one.key == current.key]
                if len(calls) < len(self.pending):
                    self.on_stall(self, calls)

    def _adopt(self, source: WorkerHandle) -> None:
        super()._adopt(source)
        if isinstance(source, _JudgeHandle):
            self._former_handle, self._reason_since = source, self._progress_at

    def overdue_reason(self, now: float) -> str:
        return f"took longer than {self.seconds:g} s" if self.stalled_s(now) > self.seconds else ""


def _history(since: Sequence[tuple[int, Event]]) -> list[tuple[int, tuple[Any, ...]]]:
    return [(position, protocol.event_to_tuple(event)) for position, event in since]
