"""An unreliable source: an at-least-once broker that does, by a seed, all that brokers may do.

It redelivers what was acknowledged, loses acknowledgements, lets them expire while they are on
their way (and delivers to a second reader meanwhile), delays, mixes keys, splits batches and resets
its streams. As brokers with ordering keys do, it never shows an event for the first time before the
one before it in its key was acknowledged.

    source = UnreliableSource("unreliable", events, seed=3)
    await source.deliver(intake)
    assert source.did["lost ack"]
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence

from msgspec import Struct, field

from vedette.domain.event import Event
from vedette.domain.ports.sources import Intake

KINDS = ("duplicate", "lost ack", "expired", "delay", "reorder", "split", "reset")

_YIELDS = 40  # at most so many turns of the loop go by while a delivery is delayed


class UnreliableSource(Struct):
    """A Source for tests (fits `ports.Source`); ends once every event is acknowledged.

    `fault_rate` is the chance of each fault at each delivery (0: a plain source), `fault_counts`
    counts those that happened. `after_delivery` is called after each delivery, with the draw: there
    a test sets clocks or stops agents. What the intake raises counts as no acknowledgement and is
    kept in `errors`.
    """

    name: str
    events: Sequence[Event]
    seed: int
    fault_rate: float = 0.2
    batch: int = 8
    after_delivery: Callable[[random.Random], None] | None = None
    finite: bool = True
    fault_counts: Counter[str] = field(default_factory=Counter)
    errors: list[Exception] = field(default_factory=list)
    _acked_keys: set[str] = field(default_factory=set)

    async def deliver(self, intake: Intake) -> None:
        """Deliver until the last event is acknowledged."""
        draw = random.Random(self.seed)  # noqa: S311 - drawn again from the same seed
        while open_now := [event for event in self.events if event.key not in self._acked_keys]:
            batches = self._draw_batches(open_now, draw)
            if len(batches) > 1 and self._draw_fault("expired", draw):
                # The first reader is slow; the broker gives its batch to a second one too.
                batches.append(batches[0])
            await asyncio.gather(*(self._deliver_batch(intake, b, draw) for b in batches))
            if self.after_delivery is not None:
                self.after_delivery(draw)

    def _draw_fault(self, kind: str, draw: random.Random) -> bool:
        happens = draw.random() < self.fault_rate
        self.fault_counts[kind] += happens
        return happens

    def _draw_batches(self, open_now: list[Event], draw: random.Random) -> list[list[Event]]:
        """Return what is delivered next: the first events of each key, never one key in two."""
        batch = open_now[: draw.randint(1, self.batch)]
        if self._draw_fault("reorder", draw):
            batch = _mix_keys(batch, draw)
        if self._acked_keys and self._draw_fault("duplicate", draw):
            old = [event for event in self.events if event.key in self._acked_keys]
            batch = [*draw.sample(old, min(len(old), 3)), *batch]
        if len(batch) > 1 and self._draw_fault("split", draw):
            keys = sorted({_key(event) for event in batch})
            first = set(draw.sample(keys, len(keys) // 2))
            parts = [[e for e in batch if (_key(e) in first) is side] for side in (True, False)]
            return [part for part in parts if part]
        return [batch]

    async def _deliver_batch(self, intake: Intake, batch: list[Event], draw: random.Random) -> None:
        if self._draw_fault("delay", draw):
            for _ in range(draw.randint(1, _YIELDS)):
                await asyncio.sleep(0)
        if self._draw_fault("reset", draw):
            return  # the stream broke before the batch came
        try:
            receipts = await intake.accept(batch)
        except Exception as error:
            self.errors.append(error)
            return
        if self._draw_fault("lost ack", draw):
            return
        accepted = {receipt.event for receipt in receipts if receipt.status != "refused"}
        self._acked_keys |= {event.key for event in batch if event.key in accepted}


def _key(event: Event) -> str:
    return event.subject or ""


def _mix_keys(batch: Sequence[Event], draw: random.Random) -> list[Event]:
    """Return a batch in another order, each key's events still in theirs."""
    lanes: dict[str, list[Event]] = {}
    for event in batch:
        lanes.setdefault(_key(event), []).append(event)
    order = [_key(event) for event in batch]
    draw.shuffle(order)
    return [lanes[key].pop(0) for key in order]
