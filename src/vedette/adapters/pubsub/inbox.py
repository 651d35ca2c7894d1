"""Inbox of a Pub/Sub source, for what is received and not settled: a queue, leases, answers.

What is queued, in hand or not yet acknowledged counts against the source's bounds, in messages and
in bytes, and its leases are extended until the broker has been told what became of it. What is
queued or in hand counts without a lease, too: leases end while the store is away for long.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct

from vedette.adapters.pubsub.acknowledgement import MAX_IDS, Acknowledger, send_batch
from vedette.adapters.pubsub.client import Connection
from vedette.adapters.pubsub.leases import Leases
from vedette.domain.base.clock import MICROS, Clock
from vedette.domain.ports.reasoner import Metrics

# How often one extension is tried before the next round of them.
_TRIES = 3


class Delivery(Struct, frozen=True):
    """One Pub/Sub message as it came; `generation` is the broker's life that its ack id is of.

    `attempts` is how often the broker delivered it, 0 where the broker does not count.
    """

    ack_id: str
    message: Any
    attempts: int
    generation: int


class Inbox:
    """Takes what Pub/Sub streams receive, and gives it out in batches.

    `path` is the subscription's full name, `max_deliveries` and `max_octets` are the bounds.
    `ordered` turns true when the broker says that it keeps an order.
    """

    def __init__(
        self,
        source: str,
        path: str,
        connection: Connection,
        *,
        max_deliveries: int,
        max_octets: int,
        ordered: bool,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self.ordered = ordered
        self.closed = False
        self.leases = Leases(max_deliveries, max_octets)
        self._source = source
        self._path = path
        self._connection = connection
        self._clock = clock
        self._metrics = metrics
        self._queue: deque[Delivery] = deque()
        self._has_deliveries = asyncio.Event()
        self._generation = 0
        self.acknowledger = Acknowledger(
            source,
            lambda ids: connection.acknowledge(path, ids),
            lambda ids: connection.modify_deadline(path, ids, 0),
            self._drop_leases,
            metrics,
        )

    # --- in -------------------------------------------------------------------------------------

    def enqueue_response(self, response: Any) -> None:
        """Queue what came on a stream."""
        if response.subscription_properties.message_ordering_enabled:
            self.ordered = True
        now_us = self._clock.monotonic_us()
        came = response.received_messages
        for each in came:
            message = each.message
            octets = message.ByteSize()
            self.leases.add_lease(each.ack_id, octets, now_us)
            self.leases.add_message((self._generation, each.ack_id), octets)
            self._queue.append(
                Delivery(each.ack_id, message, each.delivery_attempt, self._generation)
            )
        if came:
            self._metrics.count("pubsub_messages", len(came), source=self._source)
            self._report_outstanding()
            self._has_deliveries.set()

    def on_stream_end(self, code: str) -> None:
        """Count the end of a stream, and forget ack ids that mean nothing any more.

        A subscription that is gone may be made again. An emulator that died numbers its ack ids
        from one again: an old one would acknowledge another message. What is here is handed over
        all the same, since nobody may have it but us.
        """
        self._metrics.count("pubsub_streams_ended", source=self._source, code=code)
        if code == "NOT_FOUND" or (self._connection.emulated and code == "UNAVAILABLE"):
            self._generation += 1
            self.acknowledger.forget()
            self.leases.clear_leases()

    # --- out ------------------------------------------------------------------------------------

    async def wait_for_delivery(self) -> None:
        """Return when something is queued, or at the end."""
        await self._has_deliveries.wait()

    def next_batch(self, limit: int) -> list[Delivery]:
        """Return what is queued, up to `limit`. Each has to be acknowledged or given back once."""
        queue = self._queue
        found = [queue.popleft() for _ in range(min(limit, len(queue)))]
        if not queue and not self.closed:
            self._has_deliveries.clear()
        return found

    def ack(self, deliveries: Iterable[Delivery]) -> None:
        """Acknowledge: the broker may forget them."""
        self.acknowledger.ack(self._release(deliveries))

    def nack(self, deliveries: Iterable[Delivery]) -> None:
        """Give back: the broker delivers them again, or to its dead letters."""
        self.acknowledger.nack(self._release(deliveries))

    def _release(self, deliveries: Iterable[Delivery]) -> list[str]:
        """Let go of messages; return the ack ids of those that the broker still knows by them."""
        found = []
        for each in deliveries:
            self.leases.drop_message((each.generation, each.ack_id))
            if each.generation == self._generation:
                found.append(each.ack_id)
        return found

    def close(self) -> None:
        """Give back what is queued; from now on batches are empty."""
        self.closed = True
        self._has_deliveries.set()
        self.nack(self._queue)
        self._queue.clear()

    # --- leases ---------------------------------------------------------------------------------

    async def extend_leases(self, deadline_us: int, longest_us: int) -> None:
        """Extend leases, until cancelled: each is asked for again by two thirds of its time.

        What came more than `longest_us` ago is left to the broker; it stays here, too, and is
        known to the store when it comes again.
        """
        third_us, seconds = deadline_us // 3, deadline_us // MICROS

        async def send(ids: Sequence[str]) -> None:
            await self._connection.modify_deadline(self._path, ids, seconds, timeout_s=5)

        while True:
            await asyncio.sleep(third_us / MICROS)
            now_us = self._clock.monotonic_us()
            due, expired = self.leases.select_due(now_us, age_us=third_us, oldest_us=longest_us)
            lost = len(expired)
            for at in range(0, len(due), MAX_IDS):
                batch: list[str] = due[at : at + MAX_IDS]
                for _ in range(_TRIES):
                    batch, expired = await send_batch(send, batch)
                    lost += len(expired)
                    if not batch:
                        break
            if lost:
                self._metrics.count("pubsub_leases_lost", lost, source=self._source)

    def _drop_leases(self, ack_ids: Sequence[str]) -> None:
        for ack_id in ack_ids:
            self.leases.drop_lease(ack_id)
        self._report_outstanding()

    def _report_outstanding(self) -> None:
        self._metrics.gauge("pubsub_outstanding", len(self.leases.active), source=self._source)
