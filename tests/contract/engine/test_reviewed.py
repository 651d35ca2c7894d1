"""Defects that a careful reader found in the line under load, each with the way to it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import vedette.engine.key_state
from vedette.domain.budget import HOUR_US, BudgetCap
from vedette.domain.effect import Outcome
from vedette.domain.run import CommitResult, Step
from vedette.domain.spend import SpendCache, SpendTotal
from vedette.testing.clock import ManualClock
from vedette.testing.toy_fleet import (
    World,
    job,
    note_proposal,
    send_proposal,
    toy_fleet,
    wait_until,
)


@pytest.fixture
def world() -> World:
    return World()


async def test_a_query_that_answers_retry_is_no_leave_to_call_again(
    tmp_path: Path, world: World
) -> None:
    """The call happened and its outcome was lost; the target is busy when it is asked."""
    clock = ManualClock()
    fleet = toy_fleet(tmp_path, world, clock=clock)
    async with fleet:
        store: Any = fleet.app.store
        onward = store.steps.send

        def lost(step: Step) -> asyncio.Future[CommitResult]:
            if any(draft.kind == "effect.done" for draft in step.drafts):
                return asyncio.get_running_loop().create_future()
            answer: asyncio.Future[CommitResult] = onward(step)
            return answer

        store.steps.send = lost
        event = job("1", send_proposal("once", tool="order.place"), key="a")
        await fleet.send(event)
        await wait_until(lambda: world.effects("order.place") == 1)
        busy = [Outcome("retry", error="503")]
        world.query = lambda call: busy.pop() if busy else Outcome("done", {"id": call.key})
        await fleet.restart()
        for _ in range(2):
            await fleet.wait_until_idle()
            clock.advance(40_000_000)
        await fleet.wait_until_idle()
        assert fleet.actions(event)[0].effect == "done"
        assert not busy
        assert world.effects("order.place") == 1


async def test_stop_and_resume_under_load_leave_every_part_alive(
    tmp_path: Path, world: World
) -> None:
    """What was judged ahead is refused by the stop; its lane must not be parked and gone."""
    async with toy_fleet(tmp_path, world) as fleet:
        dispatcher = fleet.app.dispatcher
        events = []
        for round in range(3):
            batch = [
                job(f"{round}-{n}-{key}", note_proposal("a"), key=f"k{key}")
                for n in range(4)
                for key in range(150)
            ]
            events += batch
            sending = asyncio.create_task(fleet.send(*batch))
            for _ in range(100):
                await asyncio.sleep(0.001)
                if len(dispatcher._lanes) > 50:
                    break
            await fleet.app.commands.stop(fleet.order(), agent="worker")
            assert not [key for key in dispatcher._parked_until if key not in dispatcher._lanes]
            await asyncio.sleep(0.1)
            await fleet.app.commands.resume(fleet.order(), agent="worker")
            await sending
        await fleet.wait_until_idle(60)
        assert not [task for task in dispatcher._tasks if task.done()]
        # Those beyond the minute's limit wait for the next; none is left behind.
        left = [fleet.runs(event)[0] for event in events]
        assert {run.waits for run in left if run.state != "done"} <= {"time"}


@pytest.mark.parametrize("tool", ["wire.send", "order.place", "bell.ring"])
async def test_a_ceiling_that_is_reached_stops_no_event_loop(
    tmp_path: Path, world: World, tool: str
) -> None:
    fleet = toy_fleet(tmp_path, world)
    file = fleet.content / "agents" / "worker" / "agent.yaml"
    text = file.read_text()
    file.write_text(text.replace("budget: {", "ceilings: {effects_per_minute: 1}\nbudget: {", 1))
    async with fleet:
        await fleet.send(job("1", send_proposal("a", tool), key="a"))
        await fleet.wait_until_idle()
        second = job("2", send_proposal("b", tool), key="b")
        await fleet.send(second)
        await wait_until(lambda: bool(fleet.app.services.stops.list_scopes()))
        async with asyncio.timeout(5):
            for _ in range(20):
                await asyncio.sleep(0.01)
        assert len(world.calls) == 1
        assert {row.effect for row in fleet.actions(second)} <= {"intended", "cancelled", None}


async def test_keys_that_nothing_is_under_way_for_are_let_go(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vedette.engine.key_state, "KEYS", 20)
    async with toy_fleet(tmp_path, world) as fleet:
        for part in range(3):
            await fleet.send(
                *(
                    job(f"{part}-{n}", note_proposal("x"), key=f"{part}-{n}", value=n)
                    for n in range(60)
                )
            )
            await fleet.wait_until_idle()
        assert len(fleet.app.services.keys) <= 22
        # What was let go is taken up again from the store.
        repeat = job("again", note_proposal("y"), key="0-7", value=1)
        await fleet.send(repeat)
        await fleet.wait_until_idle()
        (run,) = fleet.runs(repeat)
        assert fleet.app.store.runs.turns(run.id)[0]["label"] == "sum 8 of 2"
        assert fleet.app.store.runs.row("worker_notes", "0-7") == {"texts": ["x", "y"]}


def test_what_comes_back_of_an_hour_that_is_over_makes_no_room_in_this_one() -> None:
    now = 10 * HOUR_US
    totals = SpendCache(
        lambda name, unit: SpendTotal.from_row((now - HOUR_US, 5, 0), (0, 5, 0)), lambda at: ()
    )
    caps = (BudgetCap("agent", "actions", "hour", 1),)
    returns = [("actions", now - HOUR_US, 1)]
    assert totals.find_shortage("a", caps, {"actions": 1}, returns, now) is None
    assert totals.find_shortage("a", caps, {"actions": 2}, returns, now) is not None
