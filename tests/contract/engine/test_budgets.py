"""Budgets on the whole line: reserved first, kept exactly, waited for, raised, settled.

Agents and target are those of the toy fleet; gateway, Rego and store are the real ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from vedette.domain.base.errors import BadCommand, BadFleet
from vedette.domain.budget import DAY_US, FLEET, HOUR_US, MODEL_CALLS, MONEY, TOKENS
from vedette.domain.event import Event
from vedette.domain.memory import Briefing
from vedette.domain.ports.reasoner import Reasoner, ReasonerJudgement
from vedette.domain.run import Step
from vedette.store.sqlite import SqliteReader
from vedette.testing.clock import ManualClock
from vedette.testing.harness import FleetHarness
from vedette.testing.scripted import ScriptedReasoner
from vedette.testing.toy_fleet import (
    World,
    intercept_commits,
    job,
    note_proposal,
    send_proposal,
    toy_fleet,
    wait_until,
)

LIMITS = "fleet: {}\nagents: {}\nprices: {}\ncomplete: true\n"
BOUNDED = "input_tokens_per_call: 900, output_tokens_per_call: 100"


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def fleet_with(
    folder: Path, world: World, clock: ManualClock, *, budget: str = "", limits: str = LIMITS,
    agents: tuple[str, ...] = ("worker",), reasoners: Mapping[str, Reasoner] | None = None,
    model_calls: int = 100, max_turns: int = 4,
) -> FleetHarness:  # fmt: skip
    """Return a toy fleet whose agents ask for more than the toy's own budget."""
    fleet = toy_fleet(
        folder, world, agents=agents, reasoner="adk" if reasoners else "judge",
        reasoners=reasoners, extra={"budgets/data.yaml": limits}, clock=clock,
        model_calls=model_calls, max_turns=max_turns,
    )  # fmt: skip
    for path in (folder / "content" / "agents").glob("*/agent.yaml"):
        text = path.read_text()
        assert text.count("actions_per_run: 16") == 1
        more = f"actions_per_run: 16, {budget}" if budget else "actions_per_run: 16"
        path.write_text(text.replace("actions_per_run: 16", more))
    return fleet


def states(fleet: FleetHarness) -> dict[str, int]:
    found: dict[str, int] = {}
    for run in fleet.app.store.runs.runs_page(agent=None, state=None, before=None, limit=1000):
        word = f"{run.state} {run.waits}" if run.waits else run.state
        found[word] = found.get(word, 0) + 1
    return found


async def thirty(fleet: FleetHarness, agent: str = "worker", number: int = 30) -> list[Event]:
    events = [job(f"{agent}{n}", send_proposal(f"{agent}{n}"), key=f"k{n % 7}", agent=agent)
              for n in range(number)]  # fmt: skip
    await fleet.send(*events)
    await fleet.wait_until_idle()
    return events


async def raised(fleet: FleetHarness, agent: str | None = "worker", **more: Any) -> dict[str, Any]:
    order = replace(fleet.order("a busy day"), command_id=more.pop("command_id", None))
    return await fleet.app.commands.budget_raise(order, 2 * HOUR_US, agent=agent, **more)


# --- actions ------------------------------------------------------------------------------------


async def test_actions_beyond_an_hours_limit_wait_and_none_is_lost(
    tmp_path: Path, world: World, clock: ManualClock
) -> None:
    async with fleet_with(tmp_path, world, clock, budget="actions_per_hour: 10") as fleet:
        await thirty(fleet)
        assert len(world.calls) == 10
        assert states(fleet) == {"done": 10, "waiting budget": 20}
        refused = fleet.entries("budget.refused")
        assert len(refused) == 20
        assert {(e["rule"], e["scope"], e["limit"], e["wait"]) for e in refused} == {
            ("budget.agent.actions.hour", "agent", 10, "budget")
        }
        decided = {e["seq"]: e["outcome"] for e in fleet.entries("action.decided")}
        assert {decided[e["cause"]] for e in refused} == {"permit"}, "its answer stands"
        for expected in (20, 30):
            await fleet.restart()
            await fleet.wait_until_idle()
            assert len(world.calls) == expected - 10, "what was spent is remembered"
            clock.advance(HOUR_US)
            await fleet.wait_until_idle()
            assert len(world.calls) == expected
        assert states(fleet) == {"done": 30}
        assert len(world.keys()) == 30


async def test_agents_share_what_the_fleet_has(
    tmp_path: Path, world: World, clock: ManualClock
) -> None:
    limits = LIMITS.replace("fleet: {}", "fleet: {actions: {day: 25}}")
    limits = limits.replace("agents: {}", "agents: {second: {actions: {day: 5}}}")
    both = ("worker", "second")
    async with fleet_with(tmp_path, world, clock, limits=limits, agents=both) as fleet:
        await thirty(fleet, "second")
        assert len(world.calls) == 5, "policy gives one agent less"
        await thirty(fleet, "worker")
        assert len(world.calls) == 25
        rules = [entry["rule"] for entry in fleet.entries("budget.refused")]
        assert sorted(set(rules)) == ["budget.agent.actions.day", "budget.fleet.actions.day"]
        totals = {(n, u): total.day.total for n, u, total in fleet.app.store.spend.totals()}
        assert totals == {
            ("worker", "actions"): 20,
            ("second", "actions"): 5,
            (FLEET, "actions"): 25,
        }


async def test_several_actions_of_one_turn_take_the_places_there_are(
    tmp_path: Path, world: World, clock: ManualClock
) -> None:
    async with fleet_with(tmp_path, world, clock, budget="actions_per_day: 3") as fleet:
        event = job(
            "1",
            note_proposal("a"),
            send_proposal("b"),
            send_proposal("c"),
            note_proposal("d"),
            send_proposal("e"),
        )
        await fleet.send(event)
        await fleet.wait_until_idle()
        assert [row.waits for row in fleet.actions(event)] == [None] * 3 + ["budget"] * 2
        assert world.texts() == ["b", "c"]
        row = fleet.app.store.runs.row("worker_notes", "k")
        assert row is not None
        assert "d" not in str(row), "a row is not written either"
        clock.advance(DAY_US)
        await fleet.wait_until_idle()
        assert world.texts() == ["b", "c", "e"]
        assert states(fleet) == {"done": 1}


async def test_an_approval_is_kept_while_there_is_no_room(
    tmp_path: Path, world: World, clock: ManualClock
) -> None:
    async with fleet_with(tmp_path, world, clock, budget="actions_per_hour: 1") as fleet:
        event = job("1", send_proposal("big", tool="big.send"))
        await fleet.send(event, job("2", send_proposal("small"), key="other"))
        await fleet.wait_until_idle()
        assert world.texts() == ["small"]
        held = fleet.actions(event)[0]
        assert held.waits == "approval"
        await fleet.approve(held)
        await fleet.wait_until_idle()
        held = fleet.actions(event)[0]
        assert (held.waits, held.hold, held.decided) == ("budget", "approved", "hold")
        clock.advance(HOUR_US)
        await fleet.wait_until_idle()
        assert world.texts() == ["small", "big"]
        assert fleet.actions(event)[0].hold == "used"


async def test_a_decision_made_again_keeps_the_place_it_has(
    tmp_path: Path, world: World, clock: ManualClock
) -> None:
    """A permitted action that could not be done yet does not take a second place, nor lose its."""
    async with fleet_with(tmp_path, world, clock, budget="actions_per_day: 2") as fleet:
        await fleet.app.commands.stop(fleet.order(), tool="wire.send")
        event = job("1", send_proposal("a"))
        await fleet.send(event)
        await fleet.wait_until_idle()
        assert fleet.actions(event)[0].waits == "resume"
        await fleet.app.commands.resume(fleet.order(), tool="wire.send")
        await fleet.wait_until_idle()
        assert {u: total.day.total for _, u, total in fleet.app.store.spend.totals()} == {
            "actions": 1
        }


# --- raise --------------------------------------------------------------------------------------


async def test_a_raise_lets_what_waits_go_on_at_once_and_ends_by_itself(
    tmp_path: Path, world: World, clock: ManualClock
) -> None:
    async with fleet_with(tmp_path, world, clock, budget="actions_per_day: 10") as fleet:
        await thirty(fleet)
        assert len(world.calls) == 10
        done = await raised(fleet, by=7, command_id="c1")
        assert done["raised"] == {"actions.day": 7}
        await fleet.wait_until_idle()
        assert len(world.calls) == 17
        (entry,) = fleet.entries("budget.raised")
        assert (entry["actor"], entry["agent"]) == ("person:tester", "worker")
        assert entry["until"] == clock.now_us() + 2 * HOUR_US
        assert fleet.body(entry["seq"])["reason"] == "a busy day"
        with pytest.raises(Exception, match="carried out before"):
            await raised(fleet, by=7, command_id="c1")
        await fleet.restart()
        await raised(fleet)
        await fleet.wait_until_idle()
        assert len(world.calls) == 27, "raises add up, and outlast a restart"
        clock.advance(2 * HOUR_US)
        await raised(fleet, by=1)
        await fleet.wait_until_idle()
        assert len(world.calls) == 27, "the earlier raises have ended: 27 of 11 are taken"
        clock.advance(DAY_US)
        await fleet.wait_until_idle()
        assert states(fleet) == {"done": 30}


async def test_the_fleets_own_limit_can_be_raised_and_only_limits_that_are_there(
    tmp_path: Path, world: World, clock: ManualClock
) -> None:
    limits = LIMITS.replace("fleet: {}", "fleet: {actions: {day: 4}}")
    async with fleet_with(tmp_path, world, clock, limits=limits) as fleet:
        await thirty(fleet)
        assert len(world.calls) == 4
        with pytest.raises(BadCommand, match="worker has no such limit"):
            await raised(fleet, unit="actions")
        with pytest.raises(BadCommand, match="no agent 'nobody'"):
            await raised(fleet, "nobody")
        with pytest.raises(BadCommand, match="up to 31 days"):
            await fleet.app.commands.budget_raise(fleet.order(), 0)
        await raised(fleet, None)
        await fleet.wait_until_idle()
        assert len(world.calls) == 8


# --- what a model spends ------------------------------------------------------------------------


def spending(tokens: int, **more: Any) -> ScriptedReasoner:
    """Return a model whose every run is one turn of one call of so many tokens."""
    spent = {"input_tokens": tokens - 1, "output_tokens": 1}
    return ScriptedReasoner([ReasonerJudgement(model_calls=1, spent=spent, **more)])


async def test_tokens_and_money_are_booked_at_worst_and_settled(
    tmp_path: Path, world: World, clock: ManualClock
) -> None:
    thinks = spending(100)
    limits = LIMITS.replace("prices: {}", "prices: {m: {input: 1000000, output: 2000000}}")
    budget = f"{BOUNDED}, tokens_per_day: 2500, money_micros_per_day: 1000000, price: m"
    fleet = fleet_with(
        tmp_path, world, clock, budget=budget, limits=limits, reasoners={"adk": thinks}
    )
    async with fleet:
        await fleet.send(*(job(str(n), key=str(n)) for n in range(10)))
        await fleet.wait_until_idle()
        reserved, settled = (fleet.entries(f"budget.{what}") for what in ("reserved", "settled"))
        worst = {MODEL_CALLS: 2, TOKENS: 2000, MONEY: 2 * 900 + 2 * 2 * 100}
        assert {str(entry["spend"]) for entry in reserved} == {str(dict(sorted(worst.items())))}
        cost = {MODEL_CALLS: 1, MONEY: 101, TOKENS: 100}
        assert {str(entry["spend"]) for entry in settled} == {str(cost)}
        assert {e["cause"] for e in settled} == {e["seq"] for e in reserved[: len(settled)]}
        # A turn may need 2000: after six that used 100 each there is no room for a seventh.
        assert len(thinks.briefings) == 6
        totals = {
            u: total.day.total for n, u, total in fleet.app.store.spend.totals() if n == "worker"
        }
        assert totals == {MODEL_CALLS: 6, TOKENS: 600, MONEY: 606}
        assert states(fleet) == {"done": 6, "waiting budget": 4}
        clock.advance(DAY_US)
        await fleet.wait_until_idle()
        assert states(fleet) == {"done": 10}


async def test_room_that_a_turn_gives_back_wakes_who_waits_for_it(
    tmp_path: Path, world: World, clock: ManualClock
) -> None:
    """All ask at once, so most find it all booked; nobody has to wait for the next day."""
    thinks = spending(10)
    fleet = fleet_with(
        tmp_path, world, clock, budget=f"{BOUNDED}, tokens_per_day: 4500", reasoners={"adk": thinks}
    )
    async with fleet:
        gate, answer = asyncio.Event(), thinks.reason

        async def late(briefing: Briefing) -> ReasonerJudgement:
            await gate.wait()
            return await answer(briefing)

        thinks.reason = late  # type: ignore[method-assign]
        await fleet.send(*(job(str(n), key=str(n)) for n in range(40)))
        await wait_until(lambda: states(fleet) == {"ready": 2, "waiting budget": 38})
        gate.set()
        await fleet.wait_until_idle()
        assert states(fleet) == {"done": 40}


async def test_a_runs_own_limit_waits_for_a_person(
    tmp_path: Path, world: World, clock: ManualClock
) -> None:
    turn = ReasonerJudgement(
        model_calls=2, final=False
    )  # nobody counted its tokens: they cost the worst
    thinks = ScriptedReasoner([turn, turn, turn, ReasonerJudgement()])
    fleet = fleet_with(
        tmp_path, world, clock, budget="tokens_per_run: 5000, " + BOUNDED, reasoners={"adk": thinks}
    )
    async with fleet:
        event = job("1")
        await fleet.send(event)
        await fleet.wait_until_idle()
        assert len(thinks.briefings) == 2, "4000 of 5000 are used, a turn may need 2000"
        clock.advance(7 * DAY_US)
        await fleet.wait_until_idle()
        (refused,) = fleet.entries("budget.refused")
        assert refused["rule"] == "budget.run.tokens.run"
        assert states(fleet) == {"waiting budget": 1}
        await raised(fleet, unit="tokens", window="run")
        await fleet.wait_until_idle()
        assert states(fleet) == {"done": 1}
        assert len(thinks.briefings) == 4


async def test_what_a_killed_turn_had_booked_stays_booked(
    tmp_path: Path, world: World, clock: ManualClock
) -> None:
    thinks = spending(100)
    fleet = fleet_with(
        tmp_path, world, clock, budget=f"{BOUNDED}, tokens_per_day: 5000", reasoners={"adk": thinks}
    )
    async with fleet:
        request, answer = asyncio.Event(), thinks.reason

        async def never(briefing: Briefing) -> ReasonerJudgement:
            request.set()
            await asyncio.Event().wait()
            raise AssertionError("nobody sets it")

        thinks.reason = never  # type: ignore[method-assign]
        await fleet.send(job("1"))
        await request.wait()
        thinks.reason = answer  # type: ignore[method-assign]
        await fleet.restart()
        await fleet.wait_until_idle()
        assert states(fleet) == {"done": 1}
        totals = {
            u: total.day.total for n, u, total in fleet.app.store.spend.totals() if n == FLEET
        }
        assert totals[TOKENS] == 2000 + 100, "nobody knows what the first call cost"
        run = fleet.runs(job("1"))[0]
        assert fleet.app.store.spend.of_run(run.id)[TOKENS] == 2100


async def test_more_than_the_worst_case_is_counted_all_the_same(
    tmp_path: Path, world: World, clock: ManualClock
) -> None:
    thinks = ScriptedReasoner([ReasonerJudgement(model_calls=5)])
    fleet = fleet_with(tmp_path, world, clock, reasoners={"adk": thinks}, model_calls=6)
    async with fleet:
        for n in range(3):
            await fleet.send(job(str(n), key=str(n)))
            await fleet.wait_until_idle()
        assert len(thinks.briefings) == 1
        assert states(fleet) == {"done": 1, "waiting budget": 2}


# --- the ceiling --------------------------------------------------------------------------------


async def at_once(fleet: FleetHarness, thinks: ScriptedReasoner, number: int) -> tuple[int, int]:
    """Let many turns be reserved at once; return calls made and the most tokens booked at once."""
    most = 0

    async def reason(briefing: Briefing) -> ReasonerJudgement:
        nonlocal most
        store = SqliteReader(fleet.folder / "state")
        most = max(
            most, *(total.day.total for n, u, total in store.spend.totals() if u == TOKENS and n)
        )
        store.close()
        thinks.briefings.append(briefing)
        await asyncio.sleep(0)
        return ReasonerJudgement(model_calls=2, confidence=1.0)

    thinks.reason = reason  # type: ignore[method-assign]
    await fleet.send(*(job(str(n), key=str(n)) for n in range(number)))
    await fleet.wait_until_idle()
    return 2 * len(thinks.briefings), most


async def test_64_reservations_at_once_hold_the_ceiling_exactly(
    tmp_path: Path, world: World, clock: ManualClock
) -> None:
    thinks = ScriptedReasoner([])
    budget = f"{BOUNDED}, tokens_per_day: 34000"
    fleet = fleet_with(tmp_path, world, clock, budget=budget, reasoners={"adk": thinks})
    async with fleet:
        assert await at_once(fleet, thinks, 64) == (34, 34_000)
        assert states(fleet) == {"done": 17, "waiting budget": 47}


async def test_control_without_limits_the_ceiling_is_passed(
    tmp_path: Path, world: World, clock: ManualClock
) -> None:
    thinks = ScriptedReasoner([])
    budget = f"{BOUNDED}, tokens_per_day: 34000"
    fleet = fleet_with(tmp_path, world, clock, budget=budget, reasoners={"adk": thinks},
                       model_calls=1000)  # fmt: skip
    async with fleet:

        async def careless(step: Step) -> Step | None:
            return replace(step, limits=())

        intercept_commits(fleet, careless)
        calls, most = await at_once(fleet, thinks, 64)
        assert calls == 128
        assert most > 34_000


# --- alert, policy, refusal at load ---------------------------------------------------------------


async def test_most_of_a_limit_is_told_once_in_its_window(
    tmp_path: Path, world: World, clock: ManualClock
) -> None:
    async with fleet_with(tmp_path, world, clock, budget="actions_per_hour: 10") as fleet:
        await thirty(fleet, number=7)
        assert fleet.entries("budget.alerted") == []
        await fleet.send(*(job(f"more{n}", send_proposal(f"more{n}")) for n in range(9)))
        await fleet.wait_until_idle()
        (alert,) = fleet.entries("budget.alerted")
        assert (alert["agent"], alert["unit"], alert["window"]) == ("worker", "actions", "hour")
        assert (alert["amount"], alert["limit"]) == (8, 10)
        fields = {"agent": "worker", "unit": "actions", "window": "hour"}
        assert fleet.app.metrics.total("budget_alerts", **fields) == 1
        clock.advance(HOUR_US)
        await fleet.wait_until_idle()
        await thirty(fleet, "worker", 20)
        assert len(fleet.entries("budget.alerted")) == 2


async def test_a_policy_that_gives_less_counts_from_its_revision_on(
    tmp_path: Path, world: World, clock: ManualClock
) -> None:
    async with fleet_with(tmp_path, world, clock, budget="actions_per_day: 20") as fleet:
        await thirty(fleet, number=8)
        less = LIMITS.replace("agents: {}", "agents: {worker: {actions: {day: 12}}}")
        (fleet.policies / "budgets" / "data.yaml").write_text(less)
        assert (await fleet.apply_policy(fleet.policies))["ok"]
        await fleet.send(*(job(f"more{n}", send_proposal(f"more{n}")) for n in range(9)))
        await fleet.wait_until_idle()
        assert len(world.calls) == 12


async def test_limits_nobody_can_keep_are_refused(
    tmp_path: Path, world: World, clock: ManualClock
) -> None:
    fleet = fleet_with(tmp_path, world, clock, reasoners={"adk": ScriptedReasoner([])})
    async with fleet:
        limits = fleet.policies / "budgets" / "data.yaml"
        for text, said in (
            (LIMITS.replace("fleet: {}", "fleet: {tokens: {day: 5}}"), "how many tokens"),
            (LIMITS.replace("fleet: {}", "fleet: {tokens: {week: 5}}"), "has no 'week'"),
        ):
            limits.write_text(text)
            done = await fleet.apply_policy(fleet.policies)
            assert not done["ok"]
            assert said in done["findings"][0]
        live = fleet.app.rollout.live.number
    path = tmp_path / "content" / "agents" / "worker" / "agent.yaml"
    path.write_text(path.read_text().replace("actions_per_run", "price: gold, actions_per_run"))
    limits.write_text(LIMITS)
    with pytest.raises(BadFleet, match="'gold' is not in the price list"):
        await fleet.open()
    assert live == 1


async def test_budgets_that_were_cut_permit_nothing(
    tmp_path: Path, world: World, clock: ManualClock
) -> None:
    cut = LIMITS.replace("complete: true\n", "")
    async with fleet_with(tmp_path, world, clock, limits=cut) as fleet:
        await thirty(fleet, number=3)
        assert world.calls == []
        assert fleet.outcomes() == {"deny": 3}


async def test_waiting_for_a_budget_keeps_the_order_of_a_key(
    tmp_path: Path, world: World, clock: ManualClock
) -> None:
    thinks = ScriptedReasoner([ReasonerJudgement(model_calls=2)])
    fleet = fleet_with(tmp_path, world, clock, reasoners={"adk": thinks}, model_calls=2)
    async with fleet:
        await fleet.send(*(job(str(n), key="one") for n in range(5)))
        await fleet.wait_until_idle()
        for number in range(2, 6):
            clock.advance(DAY_US)
            await fleet.wait_until_idle()
            assert len(thinks.briefings) == number
        order = [briefing.position for briefing in thinks.briefings]
        assert order == sorted(order)
        assert states(fleet) == {"done": 5}


async def test_many_of_a_key_that_are_woken_at_once_are_asked_once_each_in_order(
    tmp_path: Path, world: World, clock: ManualClock
) -> None:
    thinks = ScriptedReasoner([ReasonerJudgement(model_calls=2)])
    fleet = fleet_with(tmp_path, world, clock, reasoners={"adk": thinks}, model_calls=20)
    async with fleet:
        answer = thinks.reason

        async def slow(briefing: Briefing) -> ReasonerJudgement:
            await asyncio.sleep(0.001)
            return await answer(briefing)

        thinks.reason = slow  # type: ignore[method-assign]
        await fleet.send(*(job(str(n), key=f"k{n % 3}") for n in range(28)))
        await fleet.wait_until_idle()
        assert len(thinks.briefings) == 10
        await raised(fleet, by=100, window="day")
        await fleet.wait_until_idle()
        assert states(fleet) == {"done": 28}
        assert len(thinks.briefings) == 28, "nobody was asked twice"
        for key in ("k0", "k1", "k2"):
            order = [b.position for b in thinks.briefings if b.key == key]
            assert order == sorted(order)
