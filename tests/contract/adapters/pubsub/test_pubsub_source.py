"""The Pub/Sub source against the real emulator: durable before acked, once each, in bounds."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.pubsub import Broker, Emulator, broker, find_emulator

from vedette.adapters.pubsub.acknowledgement import Acknowledger
from vedette.adapters.pubsub.batch_delivery import BatchDelivery
from vedette.adapters.pubsub.client import connect
from vedette.adapters.pubsub.config import PubsubFile
from vedette.adapters.pubsub.decoder import Decoder
from vedette.adapters.pubsub.inbox import Delivery
from vedette.adapters.pubsub.source import Limits, PubsubSource
from vedette.adapters.pubsub.stream import Pauses
from vedette.adapters.telemetry.prometheus import PrometheusMetrics
from vedette.domain.base.clock import SystemClock
from vedette.domain.base.errors import StoreFailed, Unavailable
from vedette.domain.event import Event
from vedette.testing.intake import ListIntake

QUICK = Limits(drain_s=1.0, pauses=Pauses(first_s=0.02, last_s=0.1, refused_s=0.05))


@pytest.fixture
async def here(pubsub_emulator: Emulator) -> AsyncIterator[Broker]:
    """Return a project with the topics `jobs` and `dead`."""
    async with broker(pubsub_emulator) as made:
        await made.topic("jobs")
        await made.topic("dead")
        yield made


class Received:
    """One source at work on the subscription `sub`, with what it counted and told."""

    def __init__(self, here: Broker, intake: ListIntake, **given: Any) -> None:
        limits = given.pop("limits", QUICK)
        make = given.pop("make", PubsubSource)
        self.metrics = PrometheusMetrics()
        self.reports: list[str] = []
        self.intake = intake
        self.plan = plan(here.project, **given)
        decoder = Decoder("jobs", type=self.plan.type)
        self.source = make(self.plan, decoder, SystemClock(), self.metrics, limits=limits)
        self.source.report_to(self.reports.append)
        self.task = asyncio.create_task(self.source.deliver(intake))

    @property
    def held(self) -> list[str]:
        """Return the ack ids of what is received and not settled."""
        assert self.source.inbox is not None
        return list(self.source.inbox.leases.active)

    async def until(self, true: Callable[[], bool], within_s: float = 10) -> None:
        """Return when something has become true. Raises what ended the source, or TimeoutError."""
        async with asyncio.timeout(within_s):
            while not true():
                if self.task.done():
                    self.task.result()
                await asyncio.sleep(0.005)

    async def got(self, count: int) -> None:
        """Return when so many events were accepted and everything is settled."""
        await self.until(lambda: len(self.intake.events) >= count and not self.source.outstanding)

    async def end(self) -> None:
        """Cancel the source, as the end of a run does."""
        if not self.task.cancelling():
            self.task.cancel()
        await asyncio.wait([self.task])


@asynccontextmanager
async def receiving(here: Broker, intake: ListIntake, **given: Any) -> AsyncIterator[Received]:
    received = Received(here, intake, **given)
    try:
        yield received
    finally:
        await received.end()


def plan(project: str, **given: Any) -> PubsubFile:
    usual: dict[str, Any] = {
        "kind": "pubsub", "name": "jobs", "project": project, "subscription": "sub",
        "topic": "jobs", "ack_deadline": "10s", "max_messages": 1000, "max_bytes": 1 << 20,
        "type": "job",
    }  # fmt: skip
    return PubsubFile(**{**usual, **given})


def jobs(here: Broker, count: int, *, key: Callable[[int], str] = lambda n: "") -> list[Any]:
    """Return messages that carry their number, with ids of their own."""
    return [
        here.connection.message(json.dumps({"n": n}).encode(), {"event_id": f"e{n}"}, key(n))
        for n in range(count)
    ]


def numbers(events: Iterable[Event]) -> list[int]:
    return [event.data["n"] for event in events]


def test_a_missing_emulator_is_a_skip_for_a_person_and_a_failure_in_ci() -> None:
    with pytest.raises(pytest.skip.Exception, match="VEDETTE_PUBSUB_EMULATOR"):
        find_emulator({"PATH": ""})
    with pytest.raises(pytest.fail.Exception, match="VEDETTE_PUBSUB_EMULATOR"):
        find_emulator({"PATH": "", "CI": "true"})


# --- received, durable, acknowledged --------------------------------------------------------


@pytest.mark.parametrize("streams", [1, 3])
async def test_every_message_is_accepted_and_then_acknowledged(here: Broker, streams: int) -> None:
    await here.subscription("sub", "jobs")
    await here.publish("jobs", *jobs(here, 500))
    intake = ListIntake()
    async with receiving(here, intake, streams=streams) as received:
        await received.got(500)
    assert sorted(numbers(intake.events)) == list(range(500))
    assert received.metrics.total("pubsub_acks", outcome="acked") == 500
    assert await here.waiting("sub") == []
    assert received.reports == []


class DeliveryThatAcksFirst(BatchDelivery):
    async def accept(self, batch: list[Delivery]) -> None:
        self.inbox.ack(batch)
        await self.inbox.acknowledger.flush()
        await super().accept(batch)


class AcksEarly(PubsubSource):
    """Negative control: acknowledges what it received, and then makes it durable."""

    batch_delivery = DeliveryThatAcksFirst


@pytest.mark.parametrize(("make", "lost"), [(PubsubSource, 0), (AcksEarly, 40)])
async def test_nothing_is_acknowledged_before_it_is_durable(
    here: Broker, make: type[PubsubSource], lost: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed while the store works: the broker must still have everything."""
    await here.subscription("sub", "jobs")
    await here.publish("jobs", *jobs(here, 40))
    intake = ListIntake()
    intake.gate.clear()
    received = Received(here, intake, make=make)
    await received.until(lambda: received.metrics.total("pubsub_messages") == 40)
    await asyncio.sleep(0.1)
    held = received.held
    with monkeypatch.context() as killed:
        # A killed process gives nothing back: what it held comes again when its leases run out.
        killed.setattr(Acknowledger, "nack", lambda *given: None)
        await received.end()
    if held:
        await here.connection.modify_deadline(here.subscription_path("sub"), held, 0)
    assert intake.events == []
    second = ListIntake()
    async with receiving(here, second) as received:
        with_all = received.got(40)
        if lost:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(with_all, 0.5)
        else:
            await with_all
    assert 40 - len(second.events) == lost


async def test_what_comes_again_is_known_and_acknowledged(here: Broker) -> None:
    await here.subscription("sub", "jobs")
    await here.publish("jobs", *jobs(here, 50), *jobs(here, 50))
    intake = ListIntake()
    async with receiving(here, intake) as received:
        await received.until(lambda: received.metrics.total("pubsub_acks") == 100)
    assert sorted(numbers(intake.events)) == list(range(50))
    assert received.metrics.total("pubsub_redelivered") == 50


async def test_order_is_kept_within_a_key(here: Broker) -> None:
    await here.subscription("sub", "jobs", enable_message_ordering=True)
    await here.publish("jobs", *jobs(here, 400, key=lambda n: f"k{n % 4}"))
    intake = Slow()
    async with receiving(here, intake, ordered=True, streams=2) as received:
        await received.got(400)
    assert disorder(intake.events) == 0


async def test_hands_side_by_side_would_not_keep_it(
    here: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: what keeps the order above is that one hand hands over at a time."""
    monkeypatch.setattr("vedette.adapters.pubsub.batch_delivery.BATCH", 8)
    await here.subscription("sub", "jobs")
    await here.publish("jobs", *jobs(here, 400, key=lambda n: f"k{n % 4}"))
    intake = Slow()
    async with receiving(here, intake) as received:
        await received.got(400)
    assert disorder(intake.events) > 0


class Slow(ListIntake):
    """Takes longest for the first of three batches, as a store may."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    async def accept(self, deliveries: Any, *, position: Any = None) -> Any:
        self.calls += 1
        await asyncio.sleep(0.03 if self.calls % 3 == 1 else 0.001)
        return await super().accept(deliveries, position=position)


def disorder(events: Sequence[Event]) -> int:
    """Count events that came after a later one of their key."""
    last: Counter[str] = Counter()
    found = 0
    for event in events:
        key, number = event.subject or "", event.data["n"]
        found += number < last[key]
        last[key] = max(last[key], number)
    return found


# --- bounds, leases, the end ----------------------------------------------------------------

# What one answer of the emulator holds at most: it does not heed the bounds it is told.
ANSWER = 100


@pytest.mark.parametrize(
    ("bounds", "most"),
    [({"max_messages": 50}, 50), ({"max_bytes": 50 * 40}, 50), ({}, 500)],
)
async def test_no_more_is_received_than_there_is_room_for(
    here: Broker, bounds: dict[str, int], most: int
) -> None:
    """The last case is the control: without a bound all of it comes."""
    await here.subscription("sub", "jobs")
    await here.publish("jobs", *jobs(here, 500))
    intake = ListIntake()
    intake.gate.clear()
    async with receiving(here, intake, **bounds) as received:
        await received.until(lambda: received.source.outstanding >= most)
        await asyncio.sleep(0.3)
        assert most <= received.source.outstanding <= most + ANSWER
        intake.gate.set()
        await received.got(500)


async def test_leases_are_extended_for_as_long_as_the_store_takes(here: Broker) -> None:
    """Of 3 s, over 5 s; beside it a source that holds nothing for that long."""
    await here.subscription("sub", "jobs")
    await here.subscription("other", "jobs")
    await here.publish("jobs", *jobs(here, 20))
    patient, hasty = ListIntake(), ListIntake()
    patient.gate.clear()
    hasty.gate.clear()
    # A stream's first deadline is 10 s at least; the first extension makes it what is asked for.
    short = {"ack_deadline": "3s"}
    longest = Limits(max_lease_s=2.5, drain_s=1.0)
    async with (
        receiving(here, patient, **short) as received,
        receiving(here, hasty, subscription="other", limits=longest, **short) as repeat,
    ):
        await repeat.until(lambda: repeat.metrics.total("pubsub_messages") >= 40)
        assert received.metrics.total("pubsub_messages") == 20
        patient.gate.set()
        await received.got(20)
    assert repeat.metrics.total("pubsub_leases_lost") >= 20
    assert await here.waiting("sub", within_s=0.1) == []


async def test_at_the_end_what_nobody_took_is_given_back_at_once(here: Broker) -> None:
    await here.subscription("sub", "jobs")
    await here.publish("jobs", *jobs(here, 300))
    first, second = ListIntake(), ListIntake()
    async with receiving(here, first) as received:
        await received.got(300)
        first.gate.clear()
        await here.publish("jobs", *jobs(here, 420)[300:])
        await received.until(lambda: received.source.outstanding == 120)
        received.task.cancel()
        await asyncio.sleep(0.05)
        first.gate.set()  # the batch on its way becomes durable while the source ends
    assert received.metrics.total("pubsub_acks", outcome="acked") == len(first.events)
    async with receiving(here, second) as received:
        await received.got(420 - len(first.events))
    assert sorted(numbers(first.events) + numbers(second.events)) == list(range(420))


# --- what goes wrong ------------------------------------------------------------------------


async def test_while_the_store_fails_messages_are_kept_and_not_given_back(here: Broker) -> None:
    """Or the broker would count attempts, and dead-letter sound events."""
    await here.subscription("sub", "jobs", dead_letter="dead")
    await here.publish("jobs", *jobs(here, 30))
    intake = ListIntake()
    intake.failure = StoreFailed("the disk is full")
    async with receiving(here, intake, dead_letter_topic="dead") as received:
        await received.until(lambda: bool(received.reports))
        await asyncio.sleep(0.2)
        intake.failure = None
        await received.got(30)
        assert received.metrics.total("pubsub_messages") == 30
    assert received.reports == ["pubsub:jobs: the disk is full"]


async def test_a_worker_that_leads_no_more_lets_go(here: Broker) -> None:
    await here.subscription("sub", "jobs")
    await here.publish("jobs", *jobs(here, 30))
    intake, second = ListIntake(), ListIntake()
    intake.failure = StoreFailed("another worker leads")

    def make(*given: Any, **more: Any) -> PubsubSource:
        return PubsubSource(*given, is_leader=lambda: False, **more)

    async with receiving(here, intake, make=make) as received:
        with pytest.raises(StoreFailed):
            await received.task
    async with receiving(here, second) as received:
        await received.got(30)


async def test_what_is_no_event_is_recorded_once_and_dead_lettered(here: Broker) -> None:
    await here.subscription("sub", "jobs", dead_letter="dead")
    await here.subscription("graves", "dead")
    big = here.connection.message(b'"' + b"x" * 300_000 + b'"', {})
    await here.publish("jobs", here.connection.message(b"nonsense", {}), big, *jobs(here, 20))
    intake = ListIntake()
    async with receiving(here, intake, dead_letter_topic="dead") as received:
        await received.until(lambda: received.metrics.total("pubsub_poison") == 10)
        await received.got(20)
        graves = await here.waiting("graves", within_s=10, enough=2)
    assert sorted(refused.why.split()[0] for refused in intake.refusals) == ["event", "not"]
    assert len(graves) == 2
    assert all("CloudPubSubDeadLetterSourceSubscription" in g.message.attributes for g in graves)
    assert await here.waiting("sub") == []


@pytest.mark.parametrize("topic", [None, "dead"])
async def test_what_is_no_event_is_over_where_there_is_no_dead_letter_policy(
    here: Broker, topic: str | None
) -> None:
    await here.subscription("sub", "jobs")
    await here.publish("jobs", here.connection.message(b"nonsense", {}), *jobs(here, 3))
    intake = ListIntake()
    async with receiving(here, intake, dead_letter_topic=topic) as received:
        await received.got(3)
        await received.until(lambda: received.metrics.total("pubsub_acks", outcome="acked") == 4)
    assert len(intake.refusals) == 1
    assert bool(received.reports) is (topic is not None)
    assert await here.waiting("sub") == []


async def test_a_message_that_breaks_the_decoder_ends_nothing(here: Broker) -> None:
    await here.subscription("sub", "jobs")
    await here.publish("jobs", *jobs(here, 3))
    intake = ListIntake()
    async with receiving(here, intake) as received:
        await received.got(3)
        decode = received.source._decoder.decode

        def broken(*given: Any) -> Any:
            raise RuntimeError("nobody thought of that")

        received.source._decoder.decode = broken
        await here.publish("jobs", *jobs(here, 1))
        await received.until(lambda: bool(intake.refusals))
        received.source._decoder.decode = decode
        await here.publish("jobs", *jobs(here, 5))
        await received.got(5)
    assert "RuntimeError" in intake.refusals[0].why


async def test_a_subscription_that_is_made_later_is_found_and_one_told(here: Broker) -> None:
    intake = ListIntake()
    async with receiving(here, intake) as received:
        await received.until(lambda: bool(received.reports))
        await here.subscription("sub", "jobs")
        await here.publish("jobs", *jobs(here, 5))
        await received.got(5)
    assert ["NOT_FOUND" in message for message in received.reports] == [True, False]
    assert "there again" in received.reports[1]


async def test_credentials_that_are_missing_are_asked_for_again(
    here: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await here.subscription("sub", "jobs")
    await here.publish("jobs", *jobs(here, 5))
    left = [2]

    async def later(host: str | None = None) -> Any:
        left[0] -= 1
        if left[0] >= 0:
            raise Unavailable("no credentials for Pub/Sub")
        return await connect(host)

    monkeypatch.setattr("vedette.adapters.pubsub.client.connect", later)
    intake = ListIntake()
    async with receiving(here, intake) as received:
        await received.got(5)
    assert received.reports == ["pubsub:jobs: no credentials for Pub/Sub"]


async def test_a_stale_ack_of_an_exactly_once_subscription_is_forgotten(here: Broker) -> None:
    path = await here.subscription("sub", "jobs", enable_exactly_once_delivery=True)
    await here.publish("jobs", *jobs(here, 20))
    intake = ListIntake()
    intake.gate.clear()
    async with receiving(here, intake, exactly_once=True) as received:
        await received.until(lambda: received.source.outstanding == 20)
        # Half of the leases end behind its back, as they do when they run out: they come again.
        stale = received.held[:10]
        await here.connection.modify_deadline(path, stale, 0)
        await received.until(lambda: received.metrics.total("pubsub_messages") == 30)
        intake.gate.set()
        await received.got(20)
    assert received.metrics.total("pubsub_acks", outcome="lost") == 10
    assert received.metrics.total("pubsub_acks", outcome="acked") == 20
    assert sorted(numbers(intake.events)) == list(range(20))
    assert await here.waiting("sub") == []
