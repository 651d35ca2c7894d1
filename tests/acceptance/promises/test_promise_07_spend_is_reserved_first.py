"""Promise 7: spend is reserved first; with a control that shows the test can fail."""

from __future__ import annotations

import asyncio
from pathlib import Path

import orjson
import pytest
from msgspec.structs import replace
from tests.acceptance.promises.common import WIDE
from tests.cascades import cascade

from vedette.domain.budget import DAY_US, HOUR_US
from vedette.domain.memory import Briefing
from vedette.domain.ports.reasoner import ReasonerJudgement
from vedette.domain.run import Step
from vedette.domain.spend import SpendTotal
from vedette.store.sqlite import SqliteReader
from vedette.testing.clock import ManualClock
from vedette.testing.harness import FleetHarness
from vedette.testing.scripted import ScriptedReasoner
from vedette.testing.toy_fleet import World, intercept_commits, job, send_proposal, toy_fleet


async def spend(fleet: FleetHarness, thinks: ScriptedReasoner, number: int) -> tuple[int, bool]:
    """Let many runs think at once; return the calls made and whether each was booked before."""
    booked: list[bool] = []

    async def reason(briefing: Briefing) -> ReasonerJudgement:
        store = SqliteReader(fleet.folder / "state")
        document = [orjson.loads(raw) for _, raw, _ in store.ledger.entries("run", briefing.run)]
        store.close()
        booked.append(any(entry["kind"] == "budget.reserved" for entry in document))
        thinks.briefings.append(briefing)
        await asyncio.sleep(0)
        return ReasonerJudgement(model_calls=2)

    thinks.reason = reason  # type: ignore[method-assign]
    await fleet.send(*(job(str(n), key=str(n)) for n in range(number)))
    await fleet.wait_until_idle()
    return 2 * len(thinks.briefings), all(booked)


async def test_promise_07_spend_is_reserved_first(
    tmp_path: Path, world: World, clock: ManualClock
) -> None:
    """Model calls of an agent; the contract's tests of budgets have every unit, scope, window."""
    thinks = ScriptedReasoner([])
    fleet = toy_fleet(
        tmp_path, world, reasoner="adk", reasoners={"adk": thinks}, model_calls=10, clock=clock
    )
    async with fleet:
        assert await spend(fleet, thinks, 40) == (10, True)
        await fleet.restart()
        await fleet.wait_until_idle()
        await fleet.send(job("after the restart", key="more"))
        await fleet.wait_until_idle()
        assert len(thinks.briefings) == 5, "what was spent is remembered"
        clock.advance(DAY_US)
        await fleet.wait_until_idle()
        assert len(thinks.briefings) == 10, "what had no room waits, and is not lost"


@pytest.mark.parametrize("limit", [9, 10, 11, 13])
async def test_promise_07_a_limit_is_not_passed_by_one(
    tmp_path: Path, world: World, clock: ManualClock, limit: int
) -> None:
    """A turn books two calls at once: where one is left it waits."""
    thinks = ScriptedReasoner([])
    fleet = toy_fleet(
        tmp_path, world, reasoner="adk", reasoners={"adk": thinks}, model_calls=limit, clock=clock
    )
    async with fleet:
        assert await spend(fleet, thinks, 20) == (limit // 2 * 2, True)


@pytest.mark.parametrize(("used", "turns"), [(0, 10), (1, 9), (2, 5), (3, 3), (10, 1)])
async def test_promise_07_what_a_turn_really_spent_is_what_counts(
    tmp_path: Path, world: World, clock: ManualClock, used: int, turns: int
) -> None:
    """Less than was booked gives just the rest back; more is counted, since it is gone.

    Ten events under a limit of ten calls, one after the other, two booked for each.
    """
    thinks = ScriptedReasoner([ReasonerJudgement(model_calls=used)])
    fleet = toy_fleet(
        tmp_path, world, reasoner="adk", reasoners={"adk": thinks}, model_calls=10, clock=clock
    )
    async with fleet:
        for n in range(10):
            await fleet.send(job(str(n), key=str(n)))
            await fleet.wait_until_idle()
        assert len(thinks.briefings) == turns


async def test_promise_07_agents_share_what_the_fleet_has_and_a_clock_set_back_makes_no_room(
    tmp_path: Path, world: World, clock: ManualClock
) -> None:
    limits = "fleet: {actions: {hour: 7}}\nagents: {}\nprices: {}\ncomplete: true\n"
    fleet = toy_fleet(
        tmp_path, world, agents=("worker", "helper"), clock=clock,
        extra={"budgets/data.yaml": limits, "limits/data.yaml": WIDE},
    )  # fmt: skip
    async with fleet:
        for agent in ("worker", "helper"):
            await fleet.send(
                *(
                    job(f"{agent}{n}", send_proposal(str(n)), key=str(n), agent=agent)
                    for n in range(5)
                )
            )
        await fleet.wait_until_idle()
        assert len(world.calls) == 7
        clock.set_wall(clock.now_us() - 3 * HOUR_US)
        await fleet.send(job("late", send_proposal("late"), key="late"))
        await fleet.wait_until_idle()
        assert len(world.calls) == 7


def test_promise_07_a_worker_whose_clock_is_behind_finds_no_room_in_what_was_spent_later() -> None:
    spent = SpendTotal()
    spent.add(5 * HOUR_US, 7)
    assert [spent.amount_at("hour", hour * HOUR_US) for hour in (2, 5, 6)] == [7, 7, 0]


async def test_promise_07_64_at_once_hold_the_ceiling_exactly(
    tmp_path: Path, world: World, clock: ManualClock
) -> None:
    thinks = ScriptedReasoner([])
    fleet = toy_fleet(
        tmp_path, world, reasoner="adk", reasoners={"adk": thinks}, model_calls=30, clock=clock
    )
    async with fleet:
        assert await spend(fleet, thinks, 64) == (30, True)
        assert fleet.app.store.tables.wait_counts() == {"budget": 49}


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
        await fleet.send(*(job(str(n), send_proposal(str(n)), key=str(n)) for n in range(64)))
        await fleet.wait_until_idle()
        assert len(world.calls) == 7
        assert fleet.app.store.tables.wait_counts() == {"budget": 57}
        clock.advance(HOUR_US)
        await fleet.wait_until_idle()
        assert len(world.calls) == 14, "what had no room waits, and is not lost"


async def test_promise_07_no_two_runs_share_the_last_place_of_a_limit(
    tmp_path: Path, world: World, clock: ManualClock
) -> None:
    extra = {"limits/data.yaml": WIDE.replace("minute: 100000", "minute: 7")}
    async with toy_fleet(tmp_path, world, extra=extra, clock=clock) as fleet:
        await fleet.send(*(job(str(n), send_proposal(str(n)), key=str(n)) for n in range(50)))
        await fleet.wait_until_idle()
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

        intercept_commits(fleet, careless)
        calls, _ = await spend(fleet, thinks, 40)
        assert calls == 80


async def test_promise_07_what_a_judge_is_sure_of_spends_nothing(
    tmp_path: Path, world: World
) -> None:
    """In a cascade no model is asked, and nothing is booked; of the next event it is."""
    fleet, model = cascade(tmp_path, world, lambda p: "Nothing to do.")
    async with fleet:
        await fleet.send(job("1", send_proposal(), confidence=0.9))
        await fleet.wait_until_idle()
        assert (model.prompts, fleet.entries("budget.reserved")) == ([], [])
        assert world.effects() == 1
        await fleet.send(job("2", send_proposal(), confidence=0.8))
        await fleet.wait_until_idle()
        assert (len(model.prompts), len(fleet.entries("budget.reserved"))) == (1, 1)
        assert world.effects() == 1
