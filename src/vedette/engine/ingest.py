"""Ingest: the first step of an event's path. No delivery is answered before it is durable."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

import orjson
from msgspec.structs import replace

from vedette.domain.base.errors import BadEvent
from vedette.domain.event import (
    CALL_TYPE,
    CORRECTION_TYPE,
    EFFECT_ENVELOPE,
    ENGINE_ONLY,
    TASK_TYPE,
    TICK_TYPE,
    UNDO_TYPE,
    Event,
    check_event,
    subject_of,
)
from vedette.domain.ports.run_store import AcceptedEvent, AcceptResult, Arrival
from vedette.domain.ports.sources import Receipt, Refused
from vedette.domain.readers import ReaderRule, event_readers
from vedette.engine.scheduler.backpressure import Charge
from vedette.engine.scheduler.dispatcher import Dispatcher
from vedette.engine.services import Services

# How many deliveries go into the store at once: a large batch must not hold up all commits, least
# of all while there are agents that ask for little.
LARGE_BATCH = 256
SMALL_BATCH = 8

# Types that no source may bring, whatever it says of itself, and why.
_NO_SOURCES = {
    CORRECTION_TYPE: "only a person's order makes corrections: see `vedette correct`",
    CALL_TYPE: "only an agent's client makes calls: see docs/guides/agents-from-outside.md",
    TASK_TYPE: "only a person's order gives tasks: see `vedette work start`",
}


class EventIntake:
    """Checks, matches and stores what sources hand over; see `vedette.domain.ports.sources`."""

    def __init__(
        self,
        services: Services,
        dispatcher: Dispatcher,
        *,
        max_event_bytes: int,
        secrecy: Sequence[ReaderRule] = (),
    ) -> None:
        self._services = services
        self._buffer, self._scheduler = dispatcher.buffer, dispatcher.scheduler
        self._wakeups = dispatcher.wakeups
        self._max_event_bytes = max_event_bytes
        self._secrecy = secrecy
        self._in_flight: set[asyncio.Task[list[Receipt]]] = set()

    async def accept(
        self, deliveries: Sequence[Event | Refused], *, position: tuple[str, str] | None = None
    ) -> list[Receipt]:
        """Make a batch durable; wait while the engine has more than it can hold.

        A delivery that is no event becomes a recorded refusal; the rest of its batch goes on. A
        large batch becomes durable in parts, the position with the last of them.
        Raises StoreFailed if nothing of the batch is durable: the source must deliver it again.
        """
        receipts: list[Receipt] = []
        start = 0
        while start == 0 or start < len(deliveries):
            light = self._scheduler.has_light_agent(self._services.clock.monotonic_us())
            end = start + (SMALL_BATCH if light else LARGE_BATCH)
            last = end >= len(deliveries)
            receipts += await self._accept_batch(deliveries[start:end], position if last else None)
            start = end
        self._count(receipts)
        return receipts

    async def _accept_batch(
        self, deliveries: Sequence[Event | Refused], position: tuple[str, str] | None
    ) -> list[Receipt]:
        return await self._admit([self._check_delivery(item) for item in deliveries], position)

    async def accept_own(self, event: Event) -> Receipt:
        """Make an event of the engine's own durable, as `accept` does: a call, or a task.

        Whoever hands it over has authenticated the agent, or the person; no source brings these.
        """
        receipts = await self._admit([self._check(event)], None)
        self._count(receipts)
        return receipts[0]

    async def accept_child(self, event: Event) -> Receipt:
        """Make the event of a task durable that an agent gives another; raises BadEvent.

        It waits for no room: whoever handles a run would wait for others that do.
        """
        steps = self._services.store.steps

        async def commit(arrival: Arrival) -> AcceptResult:
            (found,) = await steps.accept([arrival], None)
            return found

        return await self.accept_with(event, subject_of(event), commit)

    def _check_delivery(self, item: Event | Refused) -> Arrival | Refused:
        if isinstance(item, Event) and (why := _NO_SOURCES.get(item.type)) is not None:
            return _refusal(item, why)
        return self._check(item)

    async def _admit(
        self, arrivals: list[Arrival | Refused], position: tuple[str, str] | None
    ) -> list[Receipt]:
        charges = [charge for a in arrivals if isinstance(a, Arrival) for charge in _charges_of(a)]
        await self._buffer.wait_and_charge(charges)
        return await self._run_shielded(self._store_arrivals(arrivals, position, charges))

    async def _run_shielded(self, work: Coroutine[Any, Any, list[Receipt]]) -> list[Receipt]:
        """Do work to its end though whoever waits here is cancelled, its client gone.

        What is on its way into the store is taken up all the same, or it would lie there until the
        next start.
        """
        task = asyncio.create_task(work)
        self._in_flight.add(task)
        task.add_done_callback(self._discard_task)
        return await asyncio.shield(task)

    async def accept_with(
        self,
        event: Event,
        subject: str | None,
        commit: Callable[[Arrival], Awaitable[AcceptResult]],
    ) -> Receipt:
        """Accept an event of the engine's own within somebody else's commit, and hand it over.

        `subject` is what its content is found by. Raises what `commit` raises, and BadEvent.
        """
        arrival = self._check(event)
        if isinstance(arrival, Refused):
            raise BadEvent(arrival.why)
        own = replace(arrival, subject=subject)
        charges = _charges_of(own)
        self._buffer.charge(charges)

        async def store() -> list[AcceptResult]:
            return [await commit(own)]

        (receipt,) = await self._run_shielded(self._enqueue_runs([own], charges, store()))
        self._count([receipt])
        return receipt

    def _discard_task(self, task: asyncio.Task[list[Receipt]]) -> None:
        self._in_flight.discard(task)
        if not task.cancelled():
            task.exception()

    async def _store_arrivals(
        self,
        arrivals: list[Arrival | Refused],
        position: tuple[str, str] | None,
        charges: list[Charge],
    ) -> list[Receipt]:
        """Make arrivals durable and hand over their runs."""
        store = self._services.store.steps.accept(arrivals, position)
        return await self._enqueue_runs(arrivals, charges, store)

    async def _enqueue_runs(
        self,
        arrivals: Sequence[Arrival | Refused],
        charges: list[Charge],
        commit: Awaitable[list[AcceptResult]],
    ) -> list[Receipt]:
        try:
            accepted = await commit
        except BaseException:
            self._buffer.refund(charges)
            raise
        receipts: list[Receipt] = []
        for arrival, answer in zip(arrivals, accepted, strict=True):
            if isinstance(arrival, Refused):
                receipts.append(Receipt("refused", error=arrival.why))
                self._services.metrics.count("events", outcome="refused")
                continue
            status = "duplicate" if answer.duplicate else "accepted"
            runs = tuple(run.id for run in answer.runs)
            receipts.append(Receipt(status, answer.event, runs))
            event = AcceptedEvent(arrival.event, len(arrival.body), answer.at_us)
            for run in answer.runs:
                self._buffer.offer(run, event)
            if answer.woken:
                self._wakeups.load_due(answer.woken)
            if answer.duplicate:
                self._buffer.refund(_charges_of(arrival))
        self._buffer.load_offered()
        return receipts

    def _check(self, item: Event | Refused) -> Arrival | Refused:
        if isinstance(item, Refused):
            return item
        if item.type not in (TICK_TYPE, UNDO_TYPE, TASK_TYPE):
            # Whatever a source says of it: what came from outside is never our own word, and what
            # an agent wrote is no better for coming back through an authenticated sender.
            may = (
                item.vouched & EFFECT_ENVELOPE
                if item.lineage or item.hops
                else item.vouched - ENGINE_ONLY
            )
            item = replace(item, vouched=may) if may != item.vouched else item
        if self._secrecy:
            readers = event_readers(self._secrecy, item.source, item.type, item.readers)
            item = item if readers == item.readers else replace(item, readers=readers)
        try:
            payload = check_event(item, max_bytes=self._max_event_bytes)
            fleet = self._services.fleet
            wakes = tuple(
                (name, fleet.agents[name].key_of(item)) for name in fleet.matching_agents(item)
            )
        except BadEvent as error:
            return _refusal(item, str(error))
        # From here on everybody sees the event as it was stored: fractions as decimal strings.
        stored = Event.from_body(orjson.loads(payload))
        far = stored.hops > fleet.max_hops
        return Arrival(stored, payload, wakes, subject_of(stored), stored.cause, far)

    def _count(self, receipts: Sequence[Receipt]) -> None:
        for outcome in ("accepted", "duplicate"):
            number = sum(1 for receipt in receipts if receipt.status == outcome)
            if number:
                self._services.metrics.count("events", number, outcome=outcome)

    def position(self, source: str) -> str | None:
        """Return where a source was as of its last durable batch."""
        return self._services.store.runs.source_position(source)


def _charges_of(arrival: Arrival) -> list[Charge]:
    """Return what an event counts for against each agent that it wakes."""
    return [(agent, len(arrival.body)) for agent, _ in arrival.wakes]


def _refusal(event: Event, why: str) -> Refused:
    """Return the refusal of an event, found by its key and its subject as far as these are sound.

    Where they are not, its entry is found by place alone.
    """
    where = f"{event.source} {event.id}"[:2048].encode("utf-8", "replace").decode("utf-8")
    key = event.key if _is_searchable(event.source) and _is_searchable(event.id) else None
    subject = subject_of(event)
    return Refused(where, why, event=key, subject=subject if _is_searchable(subject) else None)


def _is_searchable(text: object) -> bool:
    """Say whether this is text that an event may be found by."""
    if not isinstance(text, str) or len(text) > 1024 or "\0" in text:
        return False
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
