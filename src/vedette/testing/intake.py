"""ListIntake: an Intake for tests of sources, which keeps all it was given."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from vedette.domain.base.errors import BadEvent
from vedette.domain.event import Event, check_event
from vedette.domain.ports.sources import Receipt, Refused


class ListIntake:
    """An Intake for tests: records deliveries, knows an event by its key, and keeps positions.

    `failure` is raised by `accept` before anything is kept. While `gate` is not set, `accept`
    waits, as a loaded fleet does.
    """

    def __init__(self, *, max_event_bytes: int = 262_144) -> None:
        self.events: list[Event] = []
        self.refusals: list[Refused] = []
        self.batches: list[list[Event | Refused]] = []
        self.positions: dict[str, str] = {}
        self.failure: Exception | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self._max_event_bytes = max_event_bytes
        self._known_keys: set[str] = set()

    async def accept(
        self, deliveries: Sequence[Event | Refused], *, position: tuple[str, str] | None = None
    ) -> list[Receipt]:
        """Keep a batch and its position; answer each delivery."""
        await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        self.batches.append(list(deliveries))
        receipts = [self._record_delivery(delivery) for delivery in deliveries]
        if position is not None:
            self.positions[position[0]] = position[1]
        return receipts

    def position(self, source: str) -> str | None:
        """Return the position that came with the last batch of `source`."""
        return self.positions.get(source)

    def _record_delivery(self, delivery: Event | Refused) -> Receipt:
        if isinstance(delivery, Refused):
            self.refusals.append(delivery)
            return Receipt("refused", error=delivery.why)
        try:
            check_event(delivery, max_bytes=self._max_event_bytes)
        except BadEvent as error:
            where = f"{delivery.source} {delivery.id}"
            self.refusals.append(Refused(where, str(error)))
            return Receipt("refused", error=str(error))
        if delivery.key in self._known_keys:
            return Receipt("duplicate", event=delivery.key)
        self._known_keys.add(delivery.key)
        self.events.append(delivery)
        return Receipt("accepted", event=delivery.key)
