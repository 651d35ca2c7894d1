"""Events of a Pub/Sub subscription: received, made durable, and only then acknowledged.

Streams (`stream`) put what they receive into an inbox (`inbox`); deliveries (`batch_delivery`) take
batches of it to the intake; what the intake answered for is acknowledged (`acknowledgement`).
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from vedette.adapters.pubsub.batch_delivery import BatchDelivery, PoisonMessages
from vedette.adapters.pubsub.client import Connection, borrow_connection, subscription_path
from vedette.adapters.pubsub.inbox import Inbox
from vedette.adapters.pubsub.stream import Pauses, PullStream
from vedette.domain.base.clock import MICROS, Clock, duration_us
from vedette.domain.base.errors import Unavailable
from vedette.domain.ports.reasoner import Metrics
from vedette.domain.ports.sources import Intake

if TYPE_CHECKING:
    from vedette.adapters.pubsub.config import PubsubFile
    from vedette.adapters.pubsub.decoder import Decoder

# Batches on their way into the store at a time, where no order has to be kept.
CONCURRENT_BATCHES = 4

# The shortest deadline that a stream may have.
_SHORTEST_S = 10
# How long the broker may take to hear that a stream is finished, and then to end it.
_FINISH_S = 0.5


class Limits(Struct, frozen=True):
    """Limits in time of a Pub/Sub source, in seconds.

    `max_lease_s`: a delivery is not extended any more after so long. `drain_s`: how long batches on
    their way may take at the end, and then as long again for the broker to be told.
    """

    max_lease_s: float = 3600
    drain_s: float = 2.0
    pauses: Pauses = field(default_factory=Pauses)


class PubsubSource:
    """One Pub/Sub subscription, pulled; never ends, and on cancel gives back what it still has.

    `is_leader` says whether this worker still runs the fleet's sources.
    """

    finite = False
    batch_delivery = BatchDelivery

    def __init__(
        self,
        plan: PubsubFile,
        decoder: Decoder,
        clock: Clock,
        metrics: Metrics,
        *,
        is_leader: Callable[[], bool] = lambda: True,
        limits: Limits | None = None,
    ) -> None:
        self.name = decoder.source
        self._plan = plan
        self._deadline_us = duration_us(plan.ack_deadline)
        self._decoder = decoder
        self._clock = clock
        self._metrics = metrics
        self._is_leader = is_leader
        self._limits = limits or Limits()
        self._path = subscription_path(plan.project, plan.subscription)
        self._client_id = str(uuid.uuid4())
        self._report: Callable[[str], None] = lambda message: None
        self._poison = PoisonMessages(plan.dead_letter_topic)
        self.inbox: Inbox | None = None

    def report_to(self, report: Callable[[str], None]) -> None:
        """Say who is told what a person has to mend."""
        self._report = report

    @property
    def outstanding(self) -> int:
        """Return how many deliveries are received and not settled."""
        return 0 if self.inbox is None else len(self.inbox.leases.active)

    async def deliver(self, intake: Intake) -> None:
        """Hand over messages until cancelled.

        Raises StoreFailed if the store fails and another worker leads.
        """
        async with AsyncExitStack() as stack:
            await self._run_streams(await self._connect(stack), intake)

    async def _connect(self, stack: AsyncExitStack) -> Connection:
        """Return a connection; without credentials ask for them again until there are some."""
        reported = False
        while True:
            try:
                return await stack.enter_async_context(borrow_connection(self._plan.streams))
            except Unavailable as error:
                if not reported:
                    reported = True
                    self._report(f"{self.name}: {error}")
            await asyncio.sleep(self._limits.pauses.refused_s)

    async def _run_streams(self, connection: Connection, intake: Intake) -> None:
        plan, limits = self._plan, self._limits
        inbox = self.inbox = Inbox(
            self.name,
            self._path,
            connection,
            max_deliveries=plan.max_messages,
            max_octets=plan.max_bytes,
            ordered=plan.ordered,
            clock=self._clock,
            metrics=self._metrics,
        )
        delivery = self.batch_delivery(
            inbox, intake, self._decoder, self._poison, self._metrics,
            is_leader=self._is_leader, report=self._report,
        )  # fmt: skip
        order_lock = asyncio.Lock()
        pulls = [self._build_stream(connection, inbox) for _ in range(plan.streams)]
        streams = [asyncio.create_task(pull.run()) for pull in pulls]
        deliveries = [
            asyncio.create_task(delivery.run(order_lock)) for _ in range(CONCURRENT_BATCHES)
        ]
        extending = inbox.extend_leases(self._deadline_us, int(limits.max_lease_s * MICROS))
        cares = [asyncio.create_task(inbox.acknowledger.run()), asyncio.create_task(extending)]
        try:
            parts = [*streams, *deliveries, *cares]
            done, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            for part in done:
                part.result()
        finally:
            # Whatever goes wrong with one part, the others come to their end, too.
            try:
                await asyncio.gather(*(pull.finish(_FINISH_S) for pull in pulls))
                await asyncio.wait(streams, timeout=_FINISH_S)
            finally:
                try:
                    await _cancel_tasks(streams)
                finally:
                    try:
                        await self._drain(inbox, deliveries)
                    finally:
                        await _cancel_tasks(cares)

    async def _drain(self, inbox: Inbox, deliveries: list[asyncio.Task[None]]) -> None:
        """Give back what nobody took, finish what is on its way, and tell the broker both."""
        inbox.close()
        await asyncio.wait(deliveries, timeout=self._limits.drain_s)
        await _cancel_tasks(deliveries)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._limits.drain_s):
                await inbox.acknowledger.flush()

    def _build_stream(self, connection: Connection, inbox: Inbox) -> PullStream:
        plan = self._plan
        first = {
            "subscription": self._path,
            "stream_ack_deadline_seconds": max(_SHORTEST_S, self._deadline_us // MICROS),
            "client_id": self._client_id,
            "max_outstanding_messages": max(1, plan.max_messages // plan.streams),
            "max_outstanding_bytes": max(1, plan.max_bytes // plan.streams),
        }
        return PullStream(
            connection,
            first,
            leases=inbox.leases,
            on_response=inbox.enqueue_response,
            report=lambda message: self._report(f"{self.name}: {self._path}: {message}"),
            on_end=inbox.on_stream_end,
            pauses=self._limits.pauses,
        )


async def _cancel_tasks(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait for their end; what they raised is not ours here."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
