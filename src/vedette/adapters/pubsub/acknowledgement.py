"""Acknowledgement of Pub/Sub deliveries, and of those given back or wanted for longer.

In batches of at most 1000 ids. What fails for a reason that may pass is tried again; what fails
for good is forgotten: the broker delivers it again, and the store knows it. On a subscription
with exactly-once delivery the answer names each id that failed
(https://cloud.google.com/pubsub/docs/exactly-once-delivery); elsewhere one bad id may fail its
whole batch, which is then halved until the bad one is alone.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from vedette.domain.base.failpoint import hit_failpoint
from vedette.domain.ports.reasoner import Metrics

MAX_IDS = 1000

_FIRST_S, _LAST_S = 0.1, 10.0
# How often an id is tried again before it is forgotten: about a minute.
_TRIES = 10

# Sends one batch of ids. Raises grpc.aio.AioRpcError.
Send = Callable[[Sequence[str]], Awaitable[None]]


# The statuses of what may pass by itself.
TRANSIENT_CODES = frozenset(
    {
        "ABORTED",
        "CANCELLED",
        "DEADLINE_EXCEEDED",
        "INTERNAL",
        "RESOURCE_EXHAUSTED",
        "UNAVAILABLE",
        "UNKNOWN",
    }
)


def is_transient(error: Any) -> bool:
    """Say whether what Pub/Sub's error (grpc.aio.AioRpcError) tells may pass by itself."""
    return error.code().name in TRANSIENT_CODES


def failures(error: Any) -> dict[str, str]:
    """Return the ids that Pub/Sub's exactly-once answer names, each with what it says of it."""
    from google.rpc.error_details_pb2 import ErrorInfo  # type: ignore[import-untyped]
    from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]

    for name, value in error.trailing_metadata() or ():
        if name != "grpc-status-details-bin":
            continue
        status = Status()
        status.ParseFromString(value)
        for detail in status.details:
            info = ErrorInfo()
            if detail.Unpack(info):
                return dict(info.metadata)
    return {}


async def send_batch(send: Send, ack_ids: Sequence[str]) -> tuple[list[str], list[str]]:
    """Send a batch of Pub/Sub ack ids once; return which to try again, and which are lost."""
    import grpc  # type: ignore[import-untyped]

    try:
        await send(ack_ids)
    except grpc.aio.AioRpcError as error:
        named = failures(error)
        if named:
            transient = [ack for ack in ack_ids if named.get(ack, "").startswith("TRANSIENT_")]
            return transient, [ack for ack in ack_ids if ack in named and ack not in transient]
        if is_transient(error):
            return list(ack_ids), []
        if len(ack_ids) == 1 or error.code().name != "INVALID_ARGUMENT":
            return [], list(ack_ids)
        half = len(ack_ids) // 2
        first, second = (
            await send_batch(send, ack_ids[:half]),
            await send_batch(send, ack_ids[half:]),
        )
        return first[0] + second[0], first[1] + second[1]
    return [], []


class Acknowledger:
    """Settles the deliveries of one Pub/Sub source; `on_done` is told the ids that are done with.

    Acknowledgements and what is given back are queued, and sent by `run`; `flush` waits for them.
    """

    def __init__(
        self,
        source: str,
        acknowledge: Send,
        nack: Send,
        on_done: Callable[[Sequence[str]], None],
        metrics: Metrics,
    ) -> None:
        self._source = source
        self._send: Mapping[str, Send] = {"ack": acknowledge, "nack": nack}
        self._on_done = on_done
        self._metrics = metrics
        self._queues: dict[str, list[str]] = {"ack": [], "nack": []}
        self._tries: dict[str, int] = {}
        self._generation = 0
        self._work = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def ack(self, ack_ids: Sequence[str]) -> None:
        """Acknowledge deliveries: the broker may forget them."""
        self._queue("ack", ack_ids)

    def nack(self, ack_ids: Sequence[str]) -> None:
        """Give deliveries back: the broker delivers them again, or to its dead letters."""
        self._queue("nack", ack_ids)

    def forget(self) -> None:
        """Forget what is queued or on its way: the broker does not know these ids any more."""
        self._generation += 1
        for queue in self._queues.values():
            queue.clear()
        self._tries.clear()

    async def flush(self) -> None:
        """Return when nothing is queued or on its way."""
        await self._idle.wait()

    async def run(self) -> None:
        """Send what is queued, until cancelled."""
        wait_s = _FIRST_S
        while True:
            await self._work.wait()
            retries = [await self._send_next(what) for what in self._queues]
            if not any(self._queues.values()):
                self._work.clear()
                self._idle.set()
            if any(retries):
                await asyncio.sleep(random.uniform(0, wait_s))  # noqa: S311
                wait_s = min(2 * wait_s, _LAST_S)
            else:
                wait_s = _FIRST_S

    def _queue(self, what: str, ack_ids: Sequence[str]) -> None:
        if ack_ids:
            self._queues[what] += ack_ids
            self._idle.clear()
            self._work.set()

    async def _send_next(self, what: str) -> bool:
        """Send one batch; return whether some of it must be tried again."""
        queue = self._queues[what]
        batch = queue[:MAX_IDS]
        if not batch:
            return False
        del queue[:MAX_IDS]
        void = self._generation
        hit_failpoint(f"pubsub.{what}:before")
        retries, lost = await send_batch(self._send[what], batch)
        hit_failpoint(f"pubsub.{what}:after")
        if void != self._generation:
            return False
        for ack in retries:
            self._tries[ack] = self._tries.get(ack, 0) + 1
        lost += [ack for ack in retries if self._tries[ack] > _TRIES]
        retries = [ack for ack in retries if self._tries[ack] <= _TRIES]
        rest = set(retries)
        over = [ack for ack in batch if ack not in rest] if rest else batch
        if self._tries:
            for ack in over:
                self._tries.pop(ack, None)
        self._on_done(over)
        self._count("lost", len(lost))
        self._count({"ack": "acked", "nack": "nacked"}[what], len(over) - len(lost))
        queue[:0] = retries
        return bool(retries)

    def _count(self, outcome: str, number: int) -> None:
        if number:
            self._metrics.count("pubsub_acks", number, source=self._source, outcome=outcome)
