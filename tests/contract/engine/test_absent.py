"""What is sure not to have happened has an entry that says so: rows, entries and view agree."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from tests.contract.engine.test_dead_letters import clock as clock
from tests.contract.engine.test_dead_letters import fleet as fleet
from tests.contract.engine.test_dead_letters import view_agrees
from tests.contract.engine.test_dead_letters import world as world

from vedette.domain.effect import Call, Outcome
from vedette.testing.clock import ManualClock
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import World, job, send_proposal, wait_until

MINUTE_US = 60_000_000
TOOL = "order.place"


@pytest.fixture
def closed(fleet: FleetHarness) -> Iterator[threading.Event]:
    """A gate that keeps a call at its target; it opens at the end in any case."""
    gate = threading.Event()
    yield gate
    gate.set()


def assert_noticed(fleet: FleetHarness, *ways: str) -> None:
    """Hold how effects turned out not to have happened against the entries, and those to rows."""
    assert tuple(entry["what"] for entry in fleet.entries("effect.absent")) == ways
    view_agrees(fleet)


async def test_a_target_that_is_asked_knows_nothing_of_it(
    fleet: FleetHarness, world: World, clock: ManualClock, closed: threading.Event
) -> None:
    def answer(call: Call) -> Outcome | BaseException | None:
        if len(world.calls) == 1:
            return ConnectionError("lost")
        closed.wait(20)
        return Outcome("retry", error="closed on mondays")

    world.answer = answer
    event = job("1", send_proposal(tool=TOOL))
    await fleet.send(event)
    await fleet.wait_until_idle()
    clock.advance(MINUTE_US)
    await wait_until(lambda: len(world.calls) == 2)
    assert fleet.actions(event)[0].effect == "started"
    assert_noticed(fleet, "asked")
    closed.set()
    await fleet.wait_until_idle()
    assert fleet.actions(event)[0].effect == "intended"
    assert_noticed(fleet, "asked", "answered")


async def test_a_target_turns_the_call_away(fleet: FleetHarness, world: World) -> None:
    world.answer = lambda _: Outcome("retry", error="closed on mondays")
    event = job("1", send_proposal(tool=TOOL))
    await fleet.send(event)
    await fleet.wait_until_idle()
    assert (fleet.actions(event)[0].effect, fleet.actions(event)[0].tries) == ("intended", 1)
    assert_noticed(fleet, "answered")


def open_breaker(fleet: FleetHarness, clock: ManualClock) -> None:
    """Have the target given up, and due for a trial."""
    breaker = fleet.app.services.breakers.for_target("world")
    while breaker.state == "closed":
        leave = breaker.acquire(clock.now_us())
        assert leave is not None
        breaker.release(leave, False, clock.now_us())
    clock.advance(MINUTE_US)


async def test_a_target_that_is_tried_turns_the_call_away(
    fleet: FleetHarness, world: World, clock: ManualClock
) -> None:
    open_breaker(fleet, clock)
    world.answer = lambda _: Outcome("retry", error="closed on mondays")
    await fleet.send(job("1", send_proposal(tool=TOOL)))
    await fleet.wait_until_idle()
    assert len(world.calls) == 1
    assert_noticed(fleet, "answered")


async def test_a_start_was_made_durable_and_another_call_tries_the_target_meanwhile(
    fleet: FleetHarness, world: World, clock: ManualClock, closed: threading.Event
) -> None:
    open_breaker(fleet, clock)
    world.answer = lambda _: (closed.wait(20), None)[1]
    events = [job(name, send_proposal(tool=TOOL), key=name) for name in ("a", "b")]
    await fleet.send(*events)
    await wait_until(lambda: bool(fleet.entries("effect.absent")) and len(world.calls) == 1)
    assert sorted(str(fleet.actions(event)[0].effect) for event in events) == [
        "intended", "started",
    ]  # fmt: skip
    assert_noticed(fleet, "uncalled")
