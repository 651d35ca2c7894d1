"""Batch delivery of Pub/Sub messages to the intake, and what the broker may be told of them.

A message is acknowledged when the intake has answered for it. While the store fails, messages are
kept and tried again here: to give them back would let the broker count attempts, and dead-letter
sound events over our own trouble.

A message that is no event is recorded once, by its message id; then it is given back where the
broker counts attempts for a dead-letter topic, and acknowledged otherwise.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct, field

from vedette.adapters.pubsub.decoder import Decoder
from vedette.adapters.pubsub.inbox import Delivery, Inbox
from vedette.domain.base.clock import MICROS
from vedette.domain.base.errors import StoreFailed
from vedette.domain.event import Event
from vedette.domain.ports.reasoner import Metrics
from vedette.domain.ports.sources import Intake, Receipt, Refused

# What is handed over at once; the intake makes parts of it where others wait.
BATCH = 256

# Strict JSON of so much takes tens of milliseconds, in which nothing else runs.
_YIELD_BYTES = 1 << 20

_STORE_FIRST_S, _STORE_LAST_S = 0.1, 5.0


class PoisonMessages(Struct):
    """The Pub/Sub messages that were no event, by message id: each is recorded once.

    `limit` are remembered. `topic` says that the subscription ought to have dead letters.
    """

    topic: str | None
    limit: int = 10_000
    ids: OrderedDict[str, None] = field(default_factory=OrderedDict)
    reported: bool = False

    def add(self, message_id: str) -> None:
        """Remember a message."""
        self.ids[message_id] = None
        if len(self.ids) > self.limit:
            self.ids.popitem(last=False)


class BatchDelivery:
    """Hands the intake the batches of one Pub/Sub inbox until it ends.

    `is_leader` says whether this worker still runs the fleet's sources: while the store fails,
    whoever does not lets go. `report` is told what a person has to mend.
    """

    def __init__(
        self,
        inbox: Inbox,
        intake: Intake,
        decoder: Decoder,
        poison: PoisonMessages,
        metrics: Metrics,
        *,
        is_leader: Callable[[], bool],
        report: Callable[[str], None],
    ) -> None:
        self.inbox = inbox
        self._intake = intake
        self._decoder = decoder
        self._poison = poison
        self._metrics = metrics
        self._is_leader = is_leader
        self._report = report

    async def run(self, order_lock: asyncio.Lock) -> None:
        """Hand over batches; where order is kept, one hand of all that share `order_lock` at a
        time.

        Raises StoreFailed if the store fails and another worker leads.
        """
        while not self.inbox.closed:
            # The broker says that it keeps an order with what it sends first: who asked before
            # something has come would not know of it.
            await self.inbox.wait_for_delivery()
            if self.inbox.ordered:
                async with order_lock:
                    await self._hand_over()
            else:
                await self._hand_over()

    async def _hand_over(self) -> None:
        batch = self.inbox.next_batch(BATCH)
        if not batch:
            return
        try:
            await self.accept(batch)
        except BaseException:
            self.inbox.nack(batch)
            raise

    async def accept(self, batch: list[Delivery]) -> None:
        """Make a batch durable and settle it."""
        poison, fresh = [], batch
        known = self._poison.ids
        if known:
            poison = [each for each in batch if each.message.message_id in known]
            fresh = [each for each in batch if each.message.message_id not in known]
        good = fresh
        if fresh:
            receipts = await self._store_batch(fresh)
            if receipts is None:
                self.inbox.nack(batch)
                return
            statuses = [receipt.status for receipt in receipts]
            if repeats := statuses.count("duplicate"):
                self._metrics.count("pubsub_redelivered", repeats, source=self._decoder.source)
            if "refused" in statuses:
                answered = list(zip(fresh, statuses, strict=True))
                poison = [*poison, *(each for each, status in answered if status == "refused")]
                good = [each for each, status in answered if status != "refused"]
        self.inbox.ack(good)
        if poison:
            self._refuse(poison)

    async def _store_batch(self, batch: Sequence[Delivery]) -> list[Receipt] | None:
        """Make a batch durable, however often the store fails; None if it ends before that."""
        deliveries: list[Event | Refused] | None = None
        wait_s = _STORE_FIRST_S
        reported = False
        while True:
            try:
                if deliveries is None:
                    deliveries = await self._decode_batch(batch)
                return await self._intake.accept(deliveries)
            except StoreFailed as error:
                if not self._is_leader():
                    raise
                if not reported:
                    reported = True
                    self._report(f"{self._decoder.source}: {error}")
            if self.inbox.closed:
                return None
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _STORE_LAST_S)

    async def _decode_batch(self, batch: Sequence[Delivery]) -> list[Event | Refused]:
        """Decode a batch, and let others run after each part of it. Raises StoreFailed."""
        found, octets = [], 0
        for each in batch:
            found.append(self._decode_message(each.message))
            octets += len(each.message.data)
            if octets >= _YIELD_BYTES:
                octets = 0
                await asyncio.sleep(0)
        return found

    def _decode_message(self, message: Any) -> Event | Refused:
        published = message.publish_time
        try:
            return self._decoder.decode(
                message.message_id,
                message.data,
                dict(message.attributes),
                message.ordering_key,
                published.seconds * MICROS + published.nanos // 1000,
            )
        except StoreFailed:
            raise  # a scheduler's message asks the store; that it is away is not the message's
        except Exception as error:
            # Whatever somebody may publish must not end the source, or it comes for ever.
            where = f"{self._decoder.source} message {message.message_id}"
            return Refused(where, f"cannot be read: {type(error).__name__}: {error}")

    def _refuse(self, deliveries: Sequence[Delivery]) -> None:
        """Be rid of what is no event and is recorded as that."""
        poison = self._poison
        for each in deliveries:
            poison.add(each.message.message_id)
        source = self._decoder.source
        self._metrics.count("pubsub_poison", len(deliveries), source=source)
        # An attempt of 0 says that the broker counts none: given back, it would come for ever.
        dead = [each for each in deliveries if poison.topic and each.attempts]
        over = [each for each in deliveries if not (poison.topic and each.attempts)]
        self.inbox.nack(dead)
        self.inbox.ack(over)
        if over and poison.topic and not poison.reported:
            poison.reported = True
            self._report(
                f"{source}: its subscription has no dead-letter policy, so what is no event is "
                "recorded and dropped (run `vedette pubsub --apply`)"
            )
