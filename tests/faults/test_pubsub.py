"""What Pub/Sub does to its readers costs no event and doubles no effect: the real emulator."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.contract.adapters.pubsub.test_pubsub_source import QUICK, plan
from tests.pubsub import Broker, Emulator, broker, giving_back, message_of

from vedette.adapters.pubsub.decoder import Decoder
from vedette.adapters.pubsub.source import PubsubSource
from vedette.app.composition_root import App
from vedette.domain.event import Event
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import World, job, send_proposal, toy_fleet, wait_until


def jobs(count: int, *, wake: int = 1) -> list[Event]:
    """Return events of which every so-manieth wakes an agent that has an effect."""
    return [
        job(
            f"n{n}",
            send_proposal(f"n{n}"),
            key=f"k{n % 50}",
            agent="nobody" if n % wake else "worker",
        )
        for n in range(count)
    ]


@asynccontextmanager
async def receiving(here: Broker, app: App, decoder: Decoder | None = None) -> AsyncIterator[None]:
    """Let a source deliver to a fleet."""
    given = plan(here.project, type=None, max_messages=150)
    decoder = decoder or Decoder("jobs")
    source = PubsubSource(given, decoder, app.services.clock, app.metrics, limits=QUICK)
    task = asyncio.create_task(source.deliver(app.intake))
    try:
        yield
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.wait([task])


async def made(here: Broker) -> None:
    await here.topic("jobs")
    await here.subscription("sub", "jobs")


def accepted(fleet: FleetHarness) -> list[str]:
    return [entry["event"] for entry in fleet.entries("event.accepted")]


# --- redelivery -----------------------------------------------------------------------------


async def test_redelivered_messages_cause_no_second_effect(
    tmp_path: Path, pubsub_emulator: Emulator
) -> None:
    world = World()
    async with broker(pubsub_emulator) as here, toy_fleet(tmp_path, world) as fleet:
        await made(here)
        await here.publish("jobs", *[message_of(here.connection, event) for event in jobs(120)])
        metrics = fleet.app.metrics
        with giving_back(0.5, 60):
            async with receiving(here, fleet.app):
                await wait_until(lambda: metrics.total("pubsub_acks", outcome="acked") == 120, 30)
        await fleet.wait_until_idle()
        assert metrics.total("pubsub_redelivered") == 60
        assert sorted(accepted(fleet)) == sorted(event.key for event in jobs(120))
    assert len(world.keys("wire.send")) == 120
    assert set(world.keys("wire.send").values()) == {1}


class Forgetful(Decoder):
    """Negative control: takes the same message for another event each time it comes."""

    count = 0

    def decode(self, id: str, data: bytes, attributes: Any, *rest: Any) -> Any:
        self.count += 1
        return super().decode(id, data, {**attributes, "ce-id": f"c{self.count}"}, *rest)


async def test_without_the_publishers_id_there_would_be_second_effects(
    tmp_path: Path, pubsub_emulator: Emulator
) -> None:
    world = World()
    async with broker(pubsub_emulator) as here, toy_fleet(tmp_path, world) as fleet:
        await made(here)
        await here.publish("jobs", *[message_of(here.connection, event) for event in jobs(20)])
        metrics = fleet.app.metrics
        with giving_back(0.5, 10):
            async with receiving(here, fleet.app, Forgetful("jobs")):
                await wait_until(lambda: metrics.total("pubsub_acks", outcome="acked") == 20, 30)
        await fleet.wait_until_idle()
    assert world.effects("wire.send") == 30


# --- the emulator killed --------------------------------------------------------------------


async def test_an_emulator_that_forgot_everything_loses_and_doubles_nothing(
    tmp_path: Path, pubsub_emulator: Emulator
) -> None:
    """Killed in mid-stream with kill -9; made anew; what was not accepted is published again.

    So are 1,000 that were. The source is not restarted, and finds everything by itself.
    """
    world, events = World(), jobs(1400, wake=10)
    project = pubsub_emulator.project()
    async with toy_fleet(tmp_path, world) as fleet:
        metrics = fleet.app.metrics

        def known() -> int:
            return metrics.total("events", outcome="accepted")

        async with broker(pubsub_emulator, project) as here:
            await made(here)
            await here.publish("jobs", *[message_of(here.connection, event) for event in events])
            async with receiving(here, fleet.app):
                await wait_until(lambda: known() >= 1000, 60)
                pubsub_emulator.kill()
                before = set(accepted(fleet))
                await asyncio.to_thread(pubsub_emulator.start)
                async with broker(pubsub_emulator, project) as repeat:
                    await made(repeat)
                    first = [event for event in events if event.key in before]
                    rest = [event for event in events if event.key not in before]
                    assert len(before) < len(events), "it was not killed in mid-stream"
                    republished = [*rest, *first[:1000]]
                    await repeat.publish(
                        "jobs", *[message_of(repeat.connection, event) for event in republished]
                    )
                    await wait_until(lambda: known() == len(events), 60)
                    await wait_until(lambda: metrics.total("pubsub_redelivered") >= 1000, 60)
        await fleet.wait_until_idle()
        after = accepted(fleet)
    assert before <= set(after), "an accepted event was lost"
    assert sorted(after) == sorted(event.key for event in events)
    assert metrics.total("pubsub_streams_ended") >= 1
    assert len(world.keys("wire.send")) == len(events) / 10
    assert set(world.keys("wire.send").values()) == {1}
