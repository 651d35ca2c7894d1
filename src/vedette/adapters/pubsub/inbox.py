"""What a source has received of its subscription and not settled: a queue, leases, answers.

What is queued, in hand or not yet acknowledged counts against the source's bounds, in messages and
in bytes, and its leases are extended until the broker has been told what became of it. What is
queued or in hand counts without a lease, too: leases end while the store is away for long.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from vedette.adapters.pubsub.acknowledgement import IDS, Settler, attempt
from vedette.adapters.pubsub.client import Connection
from vedette.adapters.pubsub.leases import Leases
from vedette.domain.base.clock import MICROS, Clock
from vedette.domain.base.dataclass import dataclass
from vedette.domain.ports import Metrics

# How often one extension is tried before the next round of them.
_TRIES = 3


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message as it came; `era` says in which of the broker's lives its ack id means it.

    `attempts` is how often the broker delivered it, 0 where the broker does not count.
    """

    ack_id: str
    message: Any
    attempts: int
    era: int


class Inbox:
    """Takes what streams receive, and gives it out in batches.

    `path` is the subscription's full name, `most` and `most_octets` are the bounds. `ordered`
    turns true when the broker says that it keeps an order.
    """

    def __init__(
        self,
        source: str,
        path: str,
        connection: Connection,
        *,
        most: int,
        most_octets: int,
        ordered: bool,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self.ordered = ordered
        self.ending = False
        self.leases = Leases(most, most_octets)
        self._source = source
        self._path = path
        self._connection = connection
        self._clock = clock
        self._metrics = metrics
        self._queue: deque[Delivery] = deque()
        self._come = asyncio.Event()
        self._era = 0
        self.settler = Settler(
            source,
            lambda ids: connection.acknowledge(path, ids),
            lambda ids: connection.modify(path, ids, 0),
            self._over,
            metrics,
        )

    # --- in -------------------------------------------------------------------------------------

    def take(self, response: Any) -> None:
        """Queue what came on a stream."""
        if response.subscription_properties.message_ordering_enabled:
            self.ordered = True
        now_us = self._clock.monotonic_us()
        came = response.received_messages
        for each in came:
            message = each.message
            octets = message.ByteSize()
            self.leases.take(each.ack_id, octets, now_us)
            self.leases.keep((self._era, each.ack_id), octets)
            self._queue.append(Delivery(each.ack_id, message, each.delivery_attempt, self._era))
        if came:
            self._metrics.count("pubsub_messages", len(came), source=self._source)
            self._gauge()
            self._come.set()

    def ended(self, code: str) -> None:
        """Count the end of a stream, and forget ack ids that mean nothing any more.

        A subscription that is gone may be made again. An emulator that died numbers its ack ids
        from one again: an old one would acknowledge another message. What is here is handed over
        all the same, since nobody may have it but us.
        """
        self._metrics.count("pubsub_streams_ended", source=self._source, code=code)
        if code == "NOT_FOUND" or (self._connection.emulated and code == "UNAVAILABLE"):
            self._era += 1
            self.settler.forget()
            self.leases.clear()

    # --- out ------------------------------------------------------------------------------------

    async def come(self) -> None:
        """Return when something is queued, or at the end."""
        await self._come.wait()

    def batch(self, most: int) -> list[Delivery]:
        """Return what is queued, up to `most`. Each has to be acknowledged or given back once."""
        queue = self._queue
        found = [queue.popleft() for _ in range(min(most, len(queue)))]
        if not queue and not self.ending:
            self._come.clear()
        return found

    def ack(self, deliveries: Iterable[Delivery]) -> None:
        """Acknowledge: the broker may forget them."""
        self.settler.ack(self._let_go(deliveries))

    def nack(self, deliveries: Iterable[Delivery]) -> None:
        """Give back: the broker delivers them again, or to its dead letters."""
        self.settler.nack(self._let_go(deliveries))

    def _let_go(self, deliveries: Iterable[Delivery]) -> list[str]:
        """Let go of messages; return the ack ids of those that the broker still knows by them."""
        found = []
        for each in deliveries:
            self.leases.let_go((each.era, each.ack_id))
            if each.era == self._era:
                found.append(each.ack_id)
        return found

    def end(self) -> None:
        """Give back what is queued; from now on batches are empty."""
        self.ending = True
        self._come.set()
        self.nack(self._queue)
        self._queue.clear()

    # --- leases ---------------------------------------------------------------------------------

    async def extend(self, deadline_us: int, longest_us: int) -> None:
        """Extend leases, until cancelled: each is asked for again by two thirds of its time.

        What came more than `longest_us` ago is left to the broker; it stays here, too, and is
        known to the store when it comes again.
        """
        third_us, seconds = deadline_us // 3, deadline_us // MICROS

        async def send(ids: Sequence[str]) -> None:
            await self._connection.modify(self._path, ids, seconds, timeout_s=5)

        while True:
            await asyncio.sleep(third_us / MICROS)
            now_us = self._clock.monotonic_us()
            due, late = self.leases.due(now_us, age_us=third_us, oldest_us=longest_us)
            lost = len(late)
            for at in range(0, len(due), IDS):
                batch: list[str] = due[at : at + IDS]
                for _ in range(_TRIES):
                    batch, gone = await attempt(send, batch)
                    lost += len(gone)
                    if not batch:
                        break
            if lost:
                self._metrics.count("pubsub_leases_lost", lost, source=self._source)

    def _over(self, ack_ids: Sequence[str]) -> None:
        for ack_id in ack_ids:
            self.leases.drop(ack_id)
        self._gauge()

    def _gauge(self) -> None:
        self._metrics.gauge("pubsub_outstanding", len(self.leases.held), source=self._source)
