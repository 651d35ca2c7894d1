"""Accept: the first step of the way. No delivery is answered before it is durable."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

import orjson

from vedette.domain.base.errors import BadEvent
from vedette.domain.compensation import cause_of
from vedette.domain.event import CARRIED, OURS, Event, check_event, subject_of
from vedette.domain.ports import Accepted, Arrival, Receipt, Refused
from vedette.domain.readers import Rule, of_event
from vedette.domain.trigger import CORRECTION_TYPE, TICK_TYPE, UNDO_TYPE
from vedette.engine.scheduler.dispatcher import Dispatcher
from vedette.engine.services import Line

# How many deliveries go into the store at once: a large batch must not hold up all commits, least
# of all while there are agents that ask for little.
LARGE = 256
SMALL = 8


class LineIntake:
    """Checks, matches and stores what sources hand over; see `vedette.domain.ports.Intake`."""

    def __init__(
        self,
        line: Line,
        dispatcher: Dispatcher,
        *,
        max_event_bytes: int,
        secrecy: Sequence[Rule] = (),
    ) -> None:
        self._line = line
        self._dispatcher = dispatcher
        self._max_event_bytes = max_event_bytes
        self._secrecy = secrecy
        self._on_their_way: set[asyncio.Task[list[Receipt]]] = set()

    async def accept(
        self, deliveries: Sequence[Event | Refused], *, position: tuple[str, str] | None = None
    ) -> list[Receipt]:
        """Make a batch durable; wait while the line has more than it can hold.

        A delivery that is no event becomes a recorded refusal; the rest of its batch goes on. A
        large batch becomes durable in parts, the position with the last of them.
        Raises StoreFailed if nothing of the batch is durable: the source must deliver it again.
        """
        receipts: list[Receipt] = []
        start = 0
        while start == 0 or start < len(deliveries):
            end = start + (SMALL if self._dispatcher.others_about() else LARGE)
            last = end >= len(deliveries)
            receipts += await self._accept(deliveries[start:end], position if last else None)
            start = end
        self._count(receipts)
        return receipts

    async def _accept(
        self, deliveries: Sequence[Event | Refused], position: tuple[str, str] | None
    ) -> list[Receipt]:
        arrivals: list[Arrival | Refused] = [
            _refused(item, "only a person's order makes corrections: see `vedette correct`")
            if isinstance(item, Event) and item.type == CORRECTION_TYPE
            else self._check(item)
            for item in deliveries
        ]
        supply = self._dispatcher.supply
        woken = [
            (agent, len(a.payload))
            for a in arrivals
            if isinstance(a, Arrival)
            for agent, _ in a.wakes
        ]
        await supply.space(sorted({agent for agent, _ in woken}))
        for agent, octets in woken:
            supply.credits.take(agent, octets)
        return await self._through(self._take_in(arrivals, position, woken))

    async def _through(self, work: Coroutine[Any, Any, list[Receipt]]) -> list[Receipt]:
        """See work through.

        Whoever waits here may be cancelled, its client gone. What is on its way into the store is
        taken up all the same, or it would lie there until the next start.
        """
        task = asyncio.create_task(work)
        self._on_their_way.add(task)
        task.add_done_callback(self._came)
        return await asyncio.shield(task)

    async def along(
        self, event: Event, subject: str | None, commit: Callable[[Arrival], Awaitable[Accepted]]
    ) -> Receipt:
        """Accept an event of the engine's own within somebody else's commit, and hand it over.

        `subject` is what its content is found by. Raises what `commit` raises, and BadEvent.
        """
        arrival = self._check(event)
        if isinstance(arrival, Refused):
            raise BadEvent(arrival.why)
        own = replace(arrival, subject=subject)
        woken = [(agent, len(own.payload)) for agent, _ in own.wakes]
        supply = self._dispatcher.supply
        for agent, octets in woken:
            supply.credits.take(agent, octets)

        async def store() -> list[Accepted]:
            return [await commit(own)]

        (receipt,) = await self._through(self._hand_over([own], woken, store()))
        self._count([receipt])
        return receipt

    def _came(self, task: asyncio.Task[list[Receipt]]) -> None:
        self._on_their_way.discard(task)
        if not task.cancelled():
            task.exception()

    async def _take_in(
        self,
        arrivals: list[Arrival | Refused],
        position: tuple[str, str] | None,
        woken: list[tuple[str, int]],
    ) -> list[Receipt]:
        """Make arrivals durable and hand over their runs."""
        store = self._line.store.accept(arrivals, position)
        return await self._hand_over(arrivals, woken, store)

    async def _hand_over(
        self,
        arrivals: Sequence[Arrival | Refused],
        woken: list[tuple[str, int]],
        store: Awaitable[list[Accepted]],
    ) -> list[Receipt]:
        supply = self._dispatcher.supply
        try:
            accepted = await store
        except BaseException:
            for agent, octets in woken:
                supply.credits.give(agent, octets)
            raise
        receipts: list[Receipt] = []
        for arrival, answer in zip(arrivals, accepted, strict=True):
            if isinstance(arrival, Refused):
                receipts.append(Receipt("refused", error=arrival.why))
                self._line.metrics.count("events", outcome="refused")
                continue
            status = "duplicate" if answer.duplicate else "accepted"
            runs = tuple(run.id for run in answer.runs)
            receipts.append(Receipt(status, answer.event, runs))
            octets = len(arrival.payload)
            for run in answer.runs:
                supply.offer(run, arrival.event, octets)
            if answer.duplicate:
                for agent, _ in arrival.wakes:
                    supply.credits.give(agent, octets)
        return receipts

    def _check(self, item: Event | Refused) -> Arrival | Refused:
        if isinstance(item, Refused):
            return item
        if item.type not in (TICK_TYPE, UNDO_TYPE):
            # Whatever a source says of it: what came from outside is never our own word, and what
            # an agent wrote is no better for coming back through an authenticated sender.
            may = item.vouched & CARRIED if item.lineage or item.hops else item.vouched - OURS
            item = replace(item, vouched=may) if may != item.vouched else item
        if self._secrecy:
            readers = of_event(self._secrecy, item.source, item.type, item.readers)
            item = item if readers == item.readers else replace(item, readers=readers)
        try:
            payload = check_event(item, max_bytes=self._max_event_bytes)
        except BadEvent as error:
            return _refused(item, str(error))
        fleet = self._line.fleet
        wakes = tuple((name, fleet.agents[name].key_of(item)) for name in fleet.wakes(item))
        # From here on everybody sees the event as it was stored: fractions as decimal strings.
        stored = Event.from_payload(orjson.loads(payload))
        return Arrival(stored, payload, wakes, subject_of(stored), cause_of(stored))

    def _count(self, receipts: Sequence[Receipt]) -> None:
        for outcome in ("accepted", "duplicate"):
            number = sum(1 for receipt in receipts if receipt.status == outcome)
            if number:
                self._line.metrics.count("events", number, outcome=outcome)

    def position(self, source: str) -> str | None:
        """Return where a source was as of its last durable batch."""
        return self._line.store.position(source)


def _refused(event: Event, why: str) -> Refused:
    """Return the refusal of an event, found by its key and its subject as far as these are sound.

    Where they are not, its entry is found by place alone.
    """
    where = f"{event.source} {event.id}"[:2048].encode("utf-8", "replace").decode("utf-8")
    key = event.key if _sound(event.source) and _sound(event.id) else None
    subject = subject_of(event)
    return Refused(where, why, event=key, subject=subject if _sound(subject) else None)


def _sound(text: object) -> bool:
    """Say whether this is text that an event may be found by."""
    if not isinstance(text, str) or len(text) > 1024 or "\0" in text:
        return False
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
