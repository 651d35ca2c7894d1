"""What a Pub/Sub source does with what it received, without a broker: order, bounds, its end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from google.pubsub_v1.types import pubsub

from vedette.adapters.pubsub.batch_delivery import BatchDelivery, PoisonMessages
from vedette.adapters.pubsub.config import PubsubFile
from vedette.adapters.pubsub.decoder import Decoder
from vedette.adapters.pubsub.inbox import Inbox
from vedette.adapters.pubsub.source import CONCURRENT_BATCHES, Limits, PubsubSource
from vedette.adapters.telemetry.prometheus import PrometheusMetrics
from vedette.domain.base.clock import SystemClock
from vedette.domain.base.errors import StoreFailed
from vedette.testing.intake import ListIntake

RESPONSE = pubsub.StreamingPullResponse.pb()


class NoBroker:
    """Takes whatever it is told."""

    emulated = False

    async def modify_deadline(self, *given: Any, **more: Any) -> None:
        return None

    acknowledge = modify_deadline


def inbox(*, most: int = 2000) -> Inbox:
    given: Any = NoBroker()
    return Inbox(
        "pubsub:jobs", "sub", given, max_deliveries=most, max_octets=1 << 26, ordered=False,
        clock=SystemClock(), metrics=PrometheusMetrics(),
    )  # fmt: skip


def response(numbers: Sequence[int], *, ordered: bool = False, data: bytes = b"{}") -> Any:
    """Return what a stream brings: messages with their number as id."""
    made = RESPONSE()
    made.subscription_properties.message_ordering_enabled = ordered
    for number in numbers:
        one = made.received_messages.add()
        one.ack_id = f"a{number}"
        one.message.message_id = f"{number}"
        one.message.data = data
    return made


@asynccontextmanager
async def delivery_of(
    received: Inbox, intake: ListIntake, decoder: Decoder | None = None
) -> AsyncIterator[None]:
    """Run the hands of a source, and what settles and extends."""
    tool = BatchDelivery(
        received,
        intake,
        decoder or Decoder("jobs", type="job"),
        PoisonMessages(None),
        PrometheusMetrics(),
        is_leader=lambda: True,
        report=lambda message: None,
    )
    turn = asyncio.Lock()
    tasks = [asyncio.create_task(tool.run(turn)) for _ in range(CONCURRENT_BATCHES)]
    tasks.append(asyncio.create_task(received.acknowledger.run()))
    try:
        await asyncio.sleep(0)
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def until(true: Any) -> None:
    async with asyncio.timeout(10):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


class Fails(ListIntake):
    """Fails once, for the first batch, and counts how many are at work."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = self.now = self.most = 0

    async def accept(self, deliveries: Any, *, position: Any = None) -> Any:
        self.calls += 1
        self.now += 1
        self.most = max(self.most, self.now)
        first = self.calls == 1
        try:
            await asyncio.sleep(0.01)
            if first:
                raise StoreFailed("the disk is full")
            return await super().accept(deliveries, position=position)
        finally:
            self.now -= 1


@pytest.mark.parametrize("ordered", [True, False])
async def test_order_that_the_broker_tells_of_holds_from_the_first_message(ordered: bool) -> None:
    """All hands wait already when it says so. The control: without a word of it they go at once."""
    received, intake = inbox(), Fails()
    async with delivery_of(received, intake):
        received.enqueue_response(response(range(1000), ordered=ordered))
        await until(lambda: len(intake.events) == 1000)
    numbers = [int(event.id) for event in intake.events]
    assert (numbers == sorted(numbers)) is ordered
    assert intake.most == (1 if ordered else CONCURRENT_BATCHES)


@pytest.mark.parametrize("how", ["late", "a new life of the broker"])
async def test_the_bound_holds_when_leases_end_while_the_store_is_away(how: str) -> None:
    """The messages stay, and are events when the store is back; nothing more is read meanwhile."""
    received, intake = inbox(most=50), ListIntake()
    intake.failure = StoreFailed("away")
    count = 0

    async def stream() -> None:
        nonlocal count
        while True:
            await received.leases.wait_for_room()
            received.enqueue_response(response([count]))
            count += 1
            await asyncio.sleep(0)

    # An hour is a twentieth of a second here.
    extending = asyncio.create_task(received.extend_leases(30_000, 50_000))
    reading = asyncio.create_task(stream())
    async with delivery_of(received, intake):
        await until(lambda: count == 50)
        for _ in range(3):
            if how == "late":
                await until(lambda: not received.leases.active)
            else:
                received.on_stream_end("NOT_FOUND")
            await asyncio.sleep(0.02)
        assert (count, received.leases.is_full) == (50, True)
        reading.cancel()
        intake.failure = None
        await until(lambda: not received.leases.messages)
        assert sorted(int(event.id) for event in intake.events) == list(range(50))
        assert not received.leases.is_full, "and there is room again"
    extending.cancel()
    await asyncio.gather(extending, reading, return_exceptions=True)
    assert received.leases.message_octets == 0


async def test_others_run_while_a_large_batch_is_decoded() -> None:
    """After each MiB. The control is a small batch, which nothing comes between."""
    between = {}
    for octets in (1 << 19, 1 << 8):
        received, intake, ticks, seen = inbox(), ListIntake(), 0, []

        class Seen(Decoder):
            def decode(self, *given: Any) -> Any:
                seen.append(ticks)  # noqa: B023
                return super().decode(*given)

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        ticking = asyncio.create_task(tick())
        async with delivery_of(received, intake, Seen("jobs", type="job", max_bytes=1 << 20)):
            data = b'"' + b"x" * (octets - 2) + b'"'
            received.enqueue_response(response(range(8), data=data))
            await until(lambda: len(seen) == 8)  # noqa: B023
        ticking.cancel()
        between[octets] = len(set(seen))
    assert between == {1 << 19: 4, 1 << 8: 1}


async def test_a_store_that_is_away_while_a_tick_is_looked_up_is_not_the_messages_fault() -> None:
    """A late tick asks the store whether it ran. The control: any other error is a refusal."""
    for error, refused in ((StoreFailed("away"), 0), (RuntimeError("a bug"), 1)):
        received, intake, left = inbox(), ListIntake(), [error]

        class Asks(Decoder):
            def decode(self, *given: Any) -> Any:
                if left:  # noqa: B023
                    raise left.pop()  # noqa: B023
                return super().decode(*given)

        async with delivery_of(received, intake, Asks("jobs", type="job")):
            received.enqueue_response(response([1]))
            await until(lambda: intake.batches)  # noqa: B023
        assert (len(intake.refusals), len(intake.events)) == (refused, 1 - refused)


async def test_a_broker_that_takes_connections_and_says_nothing_does_not_hold_up_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = PubsubFile(
        name="jobs", project="p", subscription="sub", ack_deadline="10s", max_messages=100,
        max_bytes=1 << 20, streams=2, type="job",
    )  # fmt: skip
    before = asyncio.all_tasks()
    with socket.create_server(("127.0.0.1", 0)) as dumb:
        monkeypatch.setenv("PUBSUB_EMULATOR_HOST", f"127.0.0.1:{dumb.getsockname()[1]}")
        source = PubsubSource(
            plan, Decoder("jobs", type="job"), SystemClock(), PrometheusMetrics(),
            limits=Limits(drain_s=0.5),
        )  # fmt: skip
        task = asyncio.create_task(source.deliver(ListIntake()))
        await until(lambda: source.inbox is not None)
        await asyncio.sleep(0.1)  # its streams are on a channel that connects
        task.cancel()
        done, _ = await asyncio.wait([task], timeout=8)
    assert done, "gRPC itself would wait 20 s"
    assert task.cancelled(), "and ends by what ended it"
    assert asyncio.all_tasks() <= before, "no part of it is left"
