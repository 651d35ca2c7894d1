"""Promise 7: spend is reserved first; with a control that shows the test can fail."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import orjson
from tests.acceptance.promises.common import WIDE

from vedette.adapters.sqlite import OpenedStore
from vedette.budget import DAY_US, HOUR_US
from vedette.memory import Briefing
from vedette.ports import Thought
from vedette.run import Step
from vedette.testing.clock import ManualClock
from vedette.testing.harness import FleetHarness
from vedette.testing.scripted import ScriptedReasoner
from vedette.testing.toy import (
    World,
    before_commit,
    job,
    send,
    toy_fleet,
)


async def spend(fleet: FleetHarness, thinks: ScriptedReasoner, number: int) -> tuple[int, bool]:
    """Let many runs think at once; return the calls made and whether each was booked before."""
    booked: list[bool] = []

    async def reason(briefing: Briefing) -> Thought:
        store = OpenedStore(fleet.folder / "state")
        told = [orjson.loads(raw) for _, raw, _ in store.entries("run", briefing.run)]
        store.close()
        booked.append(any(entry["kind"] == "budget.reserved" for entry in told))
        thinks.briefings.append(briefing)
        await asyncio.sleep(0)
        return Thought(model_calls=2)

    thinks.reason = reason  # type: ignore[method-assign]
    await fleet.send(*(job(str(n), key=str(n)) for n in range(number)))
    await fleet.settle()
    return 2 * len(thinks.briefings), all(booked)


async def test_promise_07_spend_is_reserved_first(
    tmp_path: Path, world: World, clock: ManualClock
) -> None:
    """Model calls of an agent; tests/contract/test_budgets.py has every unit, scope and window."""
    thinks = ScriptedReasoner([])
    fleet = toy_fleet(
        tmp_path, world, reasoner="adk", reasoners={"adk": thinks}, model_calls=10, clock=clock
    )
    async with fleet:
        assert await spend(fleet, thinks, 40) == (10, True)
        await fleet.restart()
        await fleet.settle()
        assert len(thinks.briefings) == 5
        clock.advance(DAY_US)
        await fleet.settle()
        assert len(thinks.briefings) == 10, "what had no room waits, and is not lost"


async def test_promise_07_64_at_once_hold_the_ceiling_exactly(
    tmp_path: Path, world: World, clock: ManualClock
) -> None:
    thinks = ScriptedReasoner([])
    fleet = toy_fleet(
        tmp_path, world, reasoner="adk", reasoners={"adk": thinks}, model_calls=30, clock=clock
    )
    async with fleet:
        assert await spend(fleet, thinks, 64) == (30, True)
        assert fleet.app.store.waiting() == {"budget": 49}


async def test_promise_07_no_action_passes_its_agents_hour(
    tmp_path: Path, world: World, clock: ManualClock
) -> None:
    fleet = toy_fleet(
        tmp_path, world, clock=clock,
        extra={
            "budgets/data.yaml": "fleet: {}\nagents: {worker: {actions: {hour: 7}}}\n"
            "prices: {}\ncomplete: true\n",
            "limits/data.yaml": WIDE,
        },
    )  # fmt: skip
    async with fleet:
        await fleet.send(*(job(str(n), send(str(n)), key=str(n)) for n in range(64)))
        await fleet.settle()
        assert len(world.calls) == 7
        assert fleet.app.store.waiting() == {"budget": 57}
        clock.advance(HOUR_US)
        await fleet.settle()
        assert len(world.calls) == 14, "what had no room waits, and is not lost"


async def test_promise_07_no_two_runs_share_the_last_place_of_a_limit(
    tmp_path: Path, world: World, clock: ManualClock
) -> None:
    extra = {"limits/data.yaml": WIDE.replace("minute: 100000", "minute: 7")}
    async with toy_fleet(tmp_path, world, extra=extra, clock=clock) as fleet:
        await fleet.send(*(job(str(n), send(str(n)), key=str(n)) for n in range(50)))
        await fleet.settle()
        assert len(world.calls) == 7
        assert fleet.outcomes() == {"permit": 7, "hold": 43}


async def test_promise_07_control_spending_without_a_reservation_is_seen(
    tmp_path: Path, world: World, clock: ManualClock
) -> None:
    thinks = ScriptedReasoner([])
    fleet = toy_fleet(
        tmp_path, world, reasoner="adk", reasoners={"adk": thinks}, model_calls=10, clock=clock
    )
    async with fleet:

        async def careless(step: Step) -> Step | None:
            return replace(step, limits=())

        before_commit(fleet, careless)
        calls, _ = await spend(fleet, thinks, 40)
        assert calls == 80
