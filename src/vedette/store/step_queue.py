"""Events and steps on their way into the store's groups."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from vedette.domain.ports.run_store import AcceptResult, Arrival, StateHistory
from vedette.domain.ports.sources import Refused
from vedette.domain.run import CommitResult, Step
from vedette.store.group_commit import GroupWriter
from vedette.store.meta import write_meta
from vedette.store.states import keep_state
from vedette.store.write_parts import WriteParts

# How many bytes are as much work as a step.
_STEP_BYTES = 16_384
# How many characters are written to find out whether the store commits again.
_PROBE_CHARS = 65_536
# What a call that was made can have come to: nobody else knows, so it is recorded first.
_CALL_OUTCOMES = ("done", "failed", "unknown")


class StepQueue:
    """The queue of events and steps into the store's groups. Fits `ports.run_store.StepQueue`."""

    def __init__(self, writer: GroupWriter, parts: WriteParts) -> None:
        self._writer = writer
        self._parts = parts

    @property
    def is_ready(self) -> bool:
        return self._writer.is_ready

    async def probe(self) -> None:
        database, now_us = self._parts.database, self._parts.now_us

        def work() -> None:
            # What fits into room that is left here and there says nothing of the next step.
            write_meta(database, "probed", "0" * _PROBE_CHARS)
            write_meta(database, "probed", now_us())

        await self._writer.submit(work)

    async def accept(
        self, arrivals: Sequence[Arrival | Refused], position: tuple[str, str] | None
    ) -> list[AcceptResult]:
        held = sum(len(each.raw if isinstance(each, Refused) else each.body) for each in arrivals)
        return await self._writer.enqueue(
            lambda: self._parts.steps.accept(arrivals, position),
            in_savepoint=False,
            size=len(arrivals) + held // _STEP_BYTES,
        )

    def send(self, step: Step) -> asyncio.Future[CommitResult]:
        held = 0
        for draft in step.drafts:
            if draft.body is not None:
                held += len(draft.body.data)
        # A decision is new work, also where a row of the fleet's own is done with it at once.
        vital = step.policy_rev is None and any(
            row.effect in _CALL_OUTCOMES for row in step.actions
        )
        return self._writer.enqueue(
            lambda: self._parts.steps.commit(step),
            in_savepoint=False,
            size=1 + held // _STEP_BYTES,
            vital=vital,
            step=step,
        )

    async def commit(self, step: Step) -> CommitResult:
        return await self.send(step)

    async def keep_state(self, agent: str, key: str, history: StateHistory, blob: bytes) -> bool:
        database = self._parts.database
        return await self._writer.submit(lambda: keep_state(database, agent, key, history, blob))

    def is_signed(self, data: bytes, signature: bytes) -> bool:
        return self._parts.ledger.is_signed(data, signature)
