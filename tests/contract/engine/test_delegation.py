"""Delegation: an agent asks another, which may do no more than both; it is told what came of it."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import orjson
import pytest
from msgspec.structs import replace
from tests.delegation_fleet import (
    CHIEF,
    CLERK,
    INTERN,
    Answer,
    ask,
    asks_of,
    delegation_fleet,
    finish,
    grants_of,
    order,
    run_of,
    runs_of,
    says,
    send,
    start,
    total,
)

from vedette.domain.action import Proposal
from vedette.domain.base.canonical import canonical_json
from vedette.domain.base.errors import Permanent, StoreFailed
from vedette.domain.decision import evaluate_request
from vedette.domain.event import Event
from vedette.domain.memory import Briefing
from vedette.domain.origin import Ref
from vedette.domain.ports.reasoner import ReasonerJudgement
from vedette.domain.ports.sources import Receipt
from vedette.domain.run import Step
from vedette.engine.tool_calls import answer_data
from vedette.ledger.history.tasks import show_task
from vedette.testing.clock import ManualClock
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import World, intercept_commits, wait_until

HOUR_US = 3_600_000_000
DAY_US = 24 * HOUR_US


def first(*proposals: Any, then: str = "all done") -> Answer:
    """Propose in the first turn, and finish in the next."""

    def answer(briefing: Briefing) -> ReasonerJudgement:
        return says(*proposals) if briefing.turn == 1 else says(finish(then))

    return answer


def rules(fleet: FleetHarness, run: str, tool: str) -> list[tuple[str | None, str]]:
    rows = fleet.app.store.runs.actions(run)
    return [(row.decided, row.rule) for row in rows if row.tool == tool]


async def test_a_child_does_its_part_and_its_words_come_back(tmp_path: Path) -> None:
    world = World()
    asked = ask(CLERK, "Send one letter.", inputs={"who": "Ada"})
    fleet, team = delegation_fleet(
        tmp_path,
        {CHIEF: first(asked), CLERK: first(send("a letter"), then="One letter is sent.")},
        world=world,
    )
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        (child,) = runs_of(fleet, CLERK)
        assert (run_of(fleet, run).state, child.state) == ("done", "done")
        assert world.texts() == ["a letter"]
        (row,) = asks_of(fleet, run)
        told = {
            "run": child.id, "state": "done", "items": {"of": 0, "done": 0},
            "summary": "One letter is sent.", "spent": {"actions": 1},
        }  # fmt: skip
        assert (row.effect, answer_data(row)) == ("done", told)
        second = team.of(CHIEF)[1]
        assert second.turns[0]["answers"][0]["data"] == told
        assert team.of(CLERK)[0].task["goal"] == "Send one letter."
        assert team.of(CLERK)[0].task["asked_by"] == CHIEF
        event = fleet.app.store.runs.event(child.event)
        assert event is not None
        assert (event.lineage, event.hops) == ((CHIEF,), 1)
        assert list(fleet.app.store.ledger.row_mismatches()) == []
        # Set aside, and what was not spent came back, once.
        (escrowed,), (returned,) = (
            fleet.entries("budget.escrowed"),
            fleet.entries("budget.returned"),
        )
        assert (escrowed["spend"], returned["spend"]) == ({"actions": 4}, {"actions": 3})
        permits = len([row for row in fleet.app.store.runs.actions(run) if row.decided == "permit"])
        assert total(fleet, CHIEF, "actions") == permits + 1
        own = len(fleet.app.store.runs.actions(child.id))
        assert total(fleet, CLERK, "actions") == own
        assert total(fleet, "", "actions") == permits + own


async def test_no_child_does_what_its_parent_may_not(tmp_path: Path) -> None:
    world = World()
    fleet, _ = delegation_fleet(
        tmp_path,
        {CHIEF: first(ask(CLERK)), CLERK: first(send("a letter"), then="I could not.")},
        world=world,
        grants=grants_of(chief=("wire.send", "slow.send", "big.send")),
    )
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        (child,) = runs_of(fleet, CLERK)
        assert rules(fleet, child.id, "wire.send") == [("deny", "delegation.cover")]
        assert world.effects() == 0
        assert run_of(fleet, run).state == "done"
        # By itself it may.
        alone = await start(fleet, agent=CLERK)
        await fleet.wait_until_idle()
        assert rules(fleet, alone, "wire.send") == [("permit", "permit.tool")]


async def test_a_parent_that_needs_a_person_has_its_child_need_one(tmp_path: Path) -> None:
    world = World()
    fleet, _ = delegation_fleet(
        tmp_path,
        {CHIEF: first(ask(CLERK)), CLERK: first(send("a letter"))},
        world=world,
        grants=grants_of(chief=("wire.send", "slow.send")),
    )
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        (child,) = runs_of(fleet, CLERK)
        assert rules(fleet, child.id, "wire.send") == [("hold", "delegation.ask")]
        assert (run_of(fleet, run).state, run_of(fleet, run).waits) == ("waiting", "child")
        (held,) = [row for row in fleet.app.store.runs.actions(child.id) if row.hold == "open"]
        await fleet.approve(held)
        await fleet.wait_until_idle()
        assert (world.effects(), run_of(fleet, run).state) == (1, "done")


async def test_what_a_parent_declares_as_high_has_its_child_ask(tmp_path: Path) -> None:
    world = World()

    def careful(name: str, text: str) -> str:
        high = text.replace("{name: wire.send, ", "{name: wire.send, high_impact: true, ")
        return high.replace("{name: slow.send, ", "{name: slow.send, high_impact: true, ") \
            if name == CHIEF else text  # fmt: skip

    fleet, _ = delegation_fleet(
        tmp_path,
        {CHIEF: first(ask(CLERK)), CLERK: first(send("a letter"))},
        world=world,
        edit=careful,
    )
    async with fleet:
        await start(fleet)
        await fleet.wait_until_idle()
        (child,) = runs_of(fleet, CLERK)
        assert rules(fleet, child.id, "wire.send") == [("hold", "delegation.ask")]
        assert world.effects() == 0


async def test_a_parent_whose_owner_is_not_the_one_of_policy_covers_nothing(
    tmp_path: Path,
) -> None:
    world = World()
    fleet, _ = delegation_fleet(
        tmp_path,
        {CHIEF: first(ask(CLERK)), CLERK: first(send("a letter", "big.send"), then="Denied.")},
        world=world,
    )
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        (child,) = runs_of(fleet, CLERK)
        path = Path(fleet.policies) / "grants/data.yaml"
        owned = path.read_text().replace("chief:\n", "chief:\n  owner: somebody@else\n", 1)
        path.write_text(owned)
        await fleet.apply_policy(Path(fleet.policies))
        (held,) = [row for row in fleet.app.store.runs.actions(child.id) if row.hold == "open"]
        await fleet.approve(held)
        await fleet.wait_until_idle()
        assert rules(fleet, child.id, "big.send") == [("deny", "delegation.cover")]
        assert world.effects() == 0
        assert run_of(fleet, run).waits != "approval"


async def test_a_child_may_spend_what_was_set_aside_and_no_more(tmp_path: Path) -> None:
    world = World()
    letters = [send(f"letter {at}") for at in range(4)]
    fleet, _ = delegation_fleet(
        tmp_path,
        {CHIEF: first(ask(CLERK, budget={"actions": 2})), CLERK: first(*letters)},
        world=world,
    )
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        (child,) = runs_of(fleet, CLERK)
        assert rules(fleet, child.id, "wire.send") == [
            *[("permit", "permit.tool")] * 2, *[("deny", "delegation.budget")] * 2,
        ]  # fmt: skip
        assert world.effects() == 2
        (row,) = asks_of(fleet, run)
        assert answer_data(row)["spent"] == {"actions": 2}
        assert fleet.entries("budget.returned") == []


async def test_an_ask_beyond_its_run_is_refused(tmp_path: Path) -> None:
    asks = [ask(CLERK, "first", {"actions": 10}), ask(INTERN, "second", {"actions": 7})]
    fleet, _ = delegation_fleet(tmp_path, {CHIEF: first(*asks)})
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        first_ask, second = asks_of(fleet, run)
        assert (first_ask.effect, second.rule) == ("done", "delegation.budget")
        assert run_of(fleet, run).state == "done"


async def test_an_ask_waits_for_room_in_its_day(tmp_path: Path) -> None:
    def tight(name: str, text: str) -> str:
        return text.replace("actions_per_run: 16", "actions_per_run: 16, actions_per_day: 20")

    clock = ManualClock()
    fleet, _ = delegation_fleet(
        tmp_path,
        {
            CHIEF: first(ask(CLERK, budget={"actions": 10})),
            CLERK: first(send("a letter", "big.send")),
        },
        edit=lambda name, text: tight(name, text) if name == CHIEF else text,
        clock=clock,
    )

    async def begin() -> str:
        clock.advance(1_000_000)  # two orders of one instant are the same
        run = await start(fleet)
        await fleet.wait_until_idle()
        return run

    async with fleet:
        one, two = await begin(), await begin()
        assert [run_of(fleet, run).waits for run in (one, two)] == ["child", "budget"]
        assert total(fleet, CHIEF, "actions") == 11
        assert len(runs_of(fleet, CLERK)) == 1
        # What the first gives back is room for the second.
        (held,) = [row for row in fleet.app.store.runs.holds_page(after=0, limit=9)
                   if row.tool == "big.send"]  # fmt: skip
        await fleet.approve(held)
        await wait_until(lambda: run_of(fleet, two).waits == "child")
        assert run_of(fleet, one).state == "done"
        assert len(runs_of(fleet, CLERK)) == 2
        # And the next day for the third.
        three = await begin()
        assert run_of(fleet, three).waits == "budget"
        clock.advance(DAY_US - clock.now_us() % DAY_US)
        await wait_until(lambda: run_of(fleet, three).waits == "child")
        assert total(fleet, CHIEF, "actions") == 11


LIMITS = """
hops: 8
actions:
  default: {minute: 1000, hour: 1000, day: 1000}
  agents: {chief: {minute: 1000, hour: 1000, day: 8}}
confidence_milli: {default: 0, agents: {}}
complete: true
"""


async def test_what_an_ask_sets_aside_counts_for_the_askers_limits_until_it_is_back(
    tmp_path: Path,
) -> None:
    asks = [ask(CLERK, budget={"actions": 8}), ask(INTERN, budget={"actions": 6}), send("own")]
    clock = ManualClock()
    fleet, _ = delegation_fleet(
        tmp_path,
        {CHIEF: first(*asks), INTERN: first(send("a letter"), send("big", "big.send"))},
        extra={"limits/data.yaml": LIMITS},
        clock=clock,
    )

    def counted() -> int:
        counts, now = fleet.app.services.gateway.counts, fleet.app.services.clock.now_us()
        return counts.totals(CHIEF, "actions", now)["day"]

    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        # The first would pass the limit with what it sets aside; the second just does not.
        assert [row.decided for row in asks_of(fleet, run)] == ["hold", "permit"]
        assert [one for one, _ in rules(fleet, run, "wire.send")] == ["permit"]
        assert counted() == 8
        await fleet.restart()
        assert counted() == 8
        (child,) = runs_of(fleet, INTERN)
        await order(fleet, "cancel", run=child.id)
        await fleet.wait_until_idle()
        # Its ask, its letter, and the one letter of its child; the other waits for another day.
        assert (run_of(fleet, run).state, run_of(fleet, run).waits) == ("waiting", "time")
        assert counted() == total(fleet, CHIEF, "actions") == 3


async def test_a_run_has_so_many_open_asks_and_no_more(tmp_path: Path) -> None:
    asks = [ask(CLERK, f"part {at}", {}) for at in range(18)]
    fleet, _ = delegation_fleet(tmp_path, {CHIEF: first(*asks)})
    async with fleet:
        run = await start(fleet)
        await wait_until(lambda: run_of(fleet, run).state == "done")
        rows = asks_of(fleet, run)
        assert [(row.decided, row.rule) for row in rows[16:]] == [("deny", "delegation.asks")] * 2
        assert {row.effect for row in rows[:16]} == {"done"}
        assert len(runs_of(fleet, CLERK)) == 16


@pytest.mark.parametrize(
    ("proposed", "why"),
    [
        (ask("desk"), "does not say that it asks 'desk'"),
        (ask(CLERK, " "), "a goal has 1 to"),
        (ask(CLERK, inputs={"text": "x" * 100_000}), "the inputs are too large"),
        (ask(CLERK, deadline_s=0), "ahead"),
        (ask(CLERK, budget={"coins": 1}), "is no unit of a budget"),
    ],
)
async def test_what_is_no_ask_is_refused(tmp_path: Path, proposed: Proposal, why: str) -> None:
    fleet, _ = delegation_fleet(tmp_path, {CHIEF: first(proposed)})
    async with fleet:
        await start(fleet)
        await fleet.wait_until_idle()
        (refused,) = fleet.entries("action.refused")
        assert why in fleet.body(refused["seq"])["why"]
        assert runs_of(fleet, CLERK) == []


async def test_nobody_asks_an_agent_above_it(tmp_path: Path) -> None:
    fleet, _ = delegation_fleet(
        tmp_path, {CHIEF: first(ask(CLERK)), CLERK: first(ask(CHIEF, budget={}))}
    )
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        (child,) = runs_of(fleet, CLERK)
        (row,) = asks_of(fleet, child.id)
        assert (row.effect, answer_data(row)["state"]) == ("failed", "refused")
        assert len(runs_of(fleet, CHIEF)) == 1
        assert run_of(fleet, run).state == "done"


async def test_a_value_has_in_the_child_the_origin_that_it_had_in_the_parent(
    tmp_path: Path,
) -> None:
    inputs = {
        "charter": Ref("/charter/desk"), "person": Ref("/event/data/inputs/to"),
        "bare": "desk@example.org", "made": "elsewhere@example.org",
    }  # fmt: skip

    def clerk(briefing: Briefing) -> ReasonerJudgement:
        if briefing.turn > 1:
            return says(finish())
        places = [Ref(f"/event/data/inputs/{name}") for name in (*inputs, "nested/0")]
        places += [Ref("/event/data/goal"), Ref("/event/subject")]
        return says(*(_to(place) for place in places))

    given = {**inputs, "nested": [Ref("/event/data/inputs/to"), "b"]}
    fleet, _ = delegation_fleet(
        tmp_path,
        {
            CHIEF: first(ask(CLERK, Ref("/event/data/goal"), {"actions": 16}, inputs=given)),
            CLERK: clerk,
        },
    )
    async with fleet:
        await start(fleet, "to@example.org", inputs={"to": "person@example.org"})
        await fleet.wait_until_idle()
        (child,) = runs_of(fleet, CLERK)
        origins = {}
        for row in fleet.app.store.runs.actions(child.id):
            if row.tool == "wire.send":
                record = orjson.loads(row.record)
                origins[record["sources"]["/to"]] = record["origins"]["/to"]
        assert origins == {
            "/event/data/inputs/charter": "trusted",
            "/event/data/inputs/person": "trusted",
            "/event/data/inputs/bare": "untrusted",
            "/event/data/inputs/made": "untrusted",
            "/event/data/inputs/nested/0": "trusted",
            "/event/data/goal": "trusted",
            "/event/subject": "untrusted",
        }


def _to(place: Ref) -> Any:
    return Proposal("wire.send", {"to": place, "text": "x"})


async def test_a_cancel_ends_those_below_and_gives_back(tmp_path: Path) -> None:
    world = World()
    held = first(send("a letter", "big.send"))
    fleet, _ = delegation_fleet(
        tmp_path,
        {CHIEF: first(ask(CLERK)), CLERK: first(ask(INTERN, budget={"actions": 2})), INTERN: held},
        world=world,
    )
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        (clerk,), (intern,) = runs_of(fleet, CLERK), runs_of(fleet, INTERN)
        assert [one.waits for one in (run_of(fleet, run), clerk, intern)] == [
            "child", "child", "approval",
        ]  # fmt: skip
        await order(fleet, "cancel", run=run)
        await fleet.wait_until_idle()
        assert [run_of(fleet, one.id).state for one in (clerk, intern)] == ["done", "done"]
        assert [one["what"] for one in fleet.entries("run.closed")] == ["cancelled"] * 3
        assert world.effects() == 0
        assert total(fleet, CHIEF, "actions") == 1
        assert list(fleet.app.store.ledger.row_mismatches()) == []


async def test_a_restart_at_any_moment_starts_one_child(tmp_path: Path) -> None:
    fleet, _ = delegation_fleet(
        tmp_path, {CHIEF: first(ask(CLERK)), CLERK: first(send("a letter", "big.send"))}
    )
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        await fleet.restart()
        await fleet.wait_until_idle()
        assert len(runs_of(fleet, CLERK)) == 1
        (child,) = runs_of(fleet, CLERK)
        (held,) = [row for row in fleet.app.store.runs.actions(child.id) if row.hold == "open"]
        await fleet.approve(held)
        await fleet.wait_until_idle()
        assert run_of(fleet, run).state == "done"
        assert len(fleet.entries("budget.returned")) == 1


async def test_a_child_that_hangs_costs_its_parent_one_outcome(tmp_path: Path) -> None:
    world, clock = World(), ManualClock()
    # It never says that it is done, and its own bound waits for a person.
    hanging = delegation_fleet(
        tmp_path,
        {
            CHIEF: first(ask(CLERK, deadline_s=3600), ask(INTERN)),
            CLERK: lambda briefing: says(),
            INTERN: first(send("a letter"), then="Sent."),
        },
        world=world,
        clock=clock,
    )
    async with (fleet := hanging[0]):
        run = await start(fleet)
        await fleet.wait_until_idle()
        (child,) = runs_of(fleet, CLERK)
        assert (run_of(fleet, run).waits, child.waits) == ("child", "person")
        late, done = asks_of(fleet, run)
        assert (late.effect, done.effect) == ("started", "done")
        clock.advance(HOUR_US - 60_000_000)
        await fleet.wait_until_idle()
        assert run_of(fleet, run).state == "waiting"
        clock.advance(120_000_000)
        await fleet.wait_until_idle()
        late, done = asks_of(fleet, run)
        assert (late.effect, answer_data(late)["state"]) == ("failed", "deadline")
        told = hanging[1].of(CHIEF)[1].turns[0]["answers"]
        assert [one["status"] for one in told] == ["failed", "done"]
        assert told[0]["data"]["state"] == "deadline"
        assert [run_of(fleet, one).state for one in (run, child.id)] == ["done", "done"]
        assert [one["spend"] for one in fleet.entries("budget.returned")] == [
            {"actions": 3}, {"actions": 4},
        ]  # fmt: skip


async def test_a_child_that_dies_is_told_of_and_does_not_come_back(tmp_path: Path) -> None:
    def clerk(briefing: Briefing) -> ReasonerJudgement:
        raise Permanent("no such desk")

    fleet, _ = delegation_fleet(tmp_path, {CHIEF: first(ask(CLERK)), CLERK: clerk})
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        (child,) = runs_of(fleet, CLERK)
        (row,) = asks_of(fleet, run)
        assert (child.state, run_of(fleet, run).state) == ("dead", "done")
        assert (row.effect, answer_data(row)["state"]) == ("failed", "dead")
        assert answer_data(row)["spent"] == {"actions": 0}
        # A person who has it taken up again brings nobody back who waits for it.
        await fleet.app.commands.redrive(fleet.order(), [child.id])
        await wait_until(lambda: run_of(fleet, child.id).state == "done")
        assert fleet.entries("run.closed")[-1]["what"] == "unasked"
        assert len(fleet.entries("budget.returned")) == 1


async def test_a_child_whose_content_is_erased_is_told_of(tmp_path: Path) -> None:
    asked = ask(CLERK, budget={"actions": 5})
    fleet, _ = delegation_fleet(
        tmp_path, {CHIEF: first(asked), CLERK: first(send("a letter", "big.send"))}
    )
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        (child,) = runs_of(fleet, CLERK)
        await fleet.app.commands.erase(fleet.order(), event=child.event, deny_holds=True)
        assert run_of(fleet, child.id).state == "done"
        await wait_until(lambda: run_of(fleet, run).state == "done")
        (row,) = asks_of(fleet, run)
        assert (row.effect, answer_data(row)["state"]) == ("failed", "dead")
        assert list(fleet.app.store.ledger.row_mismatches()) == []


async def test_what_a_parent_said_to_those_below_is_erased_with_it(tmp_path: Path) -> None:
    fleet, _ = delegation_fleet(
        tmp_path,
        {CHIEF: first(ask(CLERK, "Tell Ada.")), CLERK: first(ask(INTERN, "Tell Ada.", {}))},
    )
    async with fleet:
        run, other = await start(fleet), await start(fleet, "Another.", INTERN)
        await fleet.wait_until_idle()
        (child,), (_, below) = runs_of(fleet, CLERK), runs_of(fleet, INTERN)
        store = fleet.app.store.runs
        assert None not in [store.event(one) for one in (child.event, below.event)]
        await fleet.app.commands.erase(fleet.order(), event=run_of(fleet, run).event)
        assert [store.event(one) for one in (child.event, below.event)] == [None, None]
        assert store.event(run_of(fleet, other).event) is not None
        assert "Tell Ada." not in str([row.record for row in store.actions(child.id)])


async def test_a_stop_above_stops_turns_and_effects_below(tmp_path: Path) -> None:
    world = World()
    gate = asyncio.Event()

    def clerk(briefing: Briefing) -> ReasonerJudgement:
        if briefing.turn < 4:
            return says(send(f"letter {briefing.turn}"))
        return says(finish())

    def stopping(call: Any) -> None:
        if call.args["text"] == "letter 1":
            gate.set()
            released.wait(10)

    released = threading.Event()
    world.answer = stopping
    fleet, team = delegation_fleet(tmp_path, {CHIEF: first(ask(CLERK)), CLERK: clerk}, world=world)
    async with fleet:
        run = await start(fleet)
        await asyncio.wait_for(gate.wait(), 10)
        await fleet.app.commands.stop(fleet.order(), agent=CHIEF)
        released.set()
        await fleet.wait_until_idle()
        (child,) = runs_of(fleet, CLERK)
        # The call under way was recorded; no other began, and no turn.
        assert world.texts() == ["letter 1"]
        assert len(team.of(CLERK)) == 1
        assert (child.state, child.waits) == ("waiting", "resume")
        await fleet.app.commands.resume(fleet.order(), agent=CHIEF)
        await fleet.wait_until_idle()
        assert world.texts() == ["letter 1", "letter 2", "letter 3"]
        assert run_of(fleet, run).state == "done"


async def test_a_pause_of_a_parent_pauses_its_child(tmp_path: Path) -> None:
    def chief(briefing: Briefing) -> ReasonerJudgement:
        return says(ask(CLERK)) if briefing.turn == 1 else says(finish())

    fleet, _ = delegation_fleet(tmp_path, {CHIEF: chief, CLERK: first(send("x", "big.send"))})
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        (child,) = runs_of(fleet, CLERK)
        await order(fleet, "pause", run=run)
        (held,) = [row for row in fleet.app.store.runs.actions(child.id) if row.hold == "open"]
        await fleet.approve(held)
        await fleet.wait_until_idle()
        assert run_of(fleet, child.id).waits == "person"
        assert run_of(fleet, child.id).turn == 1
        await order(fleet, "resume", run=run)
        await fleet.wait_until_idle()
        assert [run_of(fleet, one).state for one in (run, child.id)] == ["done", "done"]


async def test_what_a_child_read_is_as_secret_in_its_parent(tmp_path: Path) -> None:
    world = World()

    def chief(briefing: Briefing) -> ReasonerJudgement:
        if briefing.turn == 1:
            return says(ask(CLERK))
        return says(send("what I heard")) if briefing.turn == 2 else says(finish())

    def secret(name: str, text: str) -> str:
        look = "- {name: book.look, "
        assert look in text
        label = f"{look}permitted_readers: [someone@example.org], "
        return text.replace(look, label) if name == CLERK else text

    look = Proposal("book.look", {"name": Ref("/charter/note")})
    fleet, _ = delegation_fleet(
        tmp_path, {CHIEF: chief, CLERK: first(look, then="s" * 10_000)}, world=world, edit=secret
    )
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        (row,) = asks_of(fleet, run)
        told = answer_data(row)
        assert told["readers"] == ["someone@example.org"]
        assert told["summary"] == f"{'s' * 4000}… (cut: 10000 characters)"
        assert rules(fleet, run, "wire.send") == [("deny", "secrecy.readers")]
        assert world.effects("wire.send") == 0


async def test_a_child_of_a_model_is_over_when_its_budget_is(tmp_path: Path) -> None:
    def budgets(name: str, text: str) -> str:
        # The coordinator's own turns and what it sets aside are of one budget.
        return text.replace("model_calls_per_turn: 2", "model_calls_per_turn: 1")

    def calling(answer: Answer) -> Answer:
        return lambda briefing: replace(answer(briefing), model_calls=1)

    asked = ask(CLERK, budget={"actions": 9, "model_calls": 3})
    answers = {CHIEF: calling(first(asked)), CLERK: calling(lambda briefing: says())}
    fleet, team = delegation_fleet(tmp_path, answers, kind="adk", edit=budgets)
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        (child,) = runs_of(fleet, CLERK)
        (row,) = asks_of(fleet, run)
        assert (child.state, answer_data(row)["state"]) == ("done", "budget")
        assert len(team.of(CLERK)) == 3
        assert answer_data(row)["spent"]["model_calls"] == 3
        assert run_of(fleet, run).state == "done"
        turns = len(team.of(CHIEF))
        assert total(fleet, CHIEF, "model_calls") == turns + 3
        assert total(fleet, CLERK, "model_calls") == 3
        assert total(fleet, "", "model_calls") == turns + 3


async def test_a_decision_of_a_child_is_made_again_from_the_record(tmp_path: Path) -> None:
    fleet, _ = delegation_fleet(
        tmp_path,
        {CHIEF: first(ask(CLERK)), CLERK: first(send("a letter"))},
        grants=grants_of(chief=("wire.send", "slow.send", "big.send")),
    )
    async with fleet:
        await start(fleet)
        await fleet.wait_until_idle()
        found = {
            (one["tool"], one["agent"]): fleet.body(one["seq"])
            for one in fleet.entries("action.decided")
        }
        body = found["wire.send", CLERK]
        assert body["question"]["context"]["delegation"] == {
            "ancestors": [
                {
                    "agent": CHIEF,
                    "cover": "none",
                    "owner": "desk@example.org",
                    "requested_mode": "act",
                }
            ],
            "room": True,
        }
        assert "delegation" not in found["agent.ask", CHIEF]["question"]["context"]
        for entry in found.values():
            raw = canonical_json(entry["question"])
            again = evaluate_request(fleet.app.services.gateway.engine, raw)
            assert again.to_json() == entry["decision"]


async def test_people_see_who_was_asked_and_who_asked(tmp_path: Path) -> None:
    fleet, _ = delegation_fleet(
        tmp_path, {CHIEF: first(ask(CLERK)), CLERK: first(send("a letter", "big.send"))}
    )
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        (child,) = runs_of(fleet, CLERK)
        agents = fleet.app.services.fleet.agents
        (shown,) = show_task(fleet.app.store, agents, run)["asks"]
        assert (shown["state"], shown["run"], shown["waits"]) == ("started", child.id, "approval")
        assert show_task(fleet.app.store, agents, child.id)["asked_by"] == {
            "run": run, "agents": [CHIEF],
        }  # fmt: skip
        entry = fleet.app.store.ledger.entry(child.position)
        assert entry is not None
        cause = orjson.loads(entry[1])["cause"]
        (started,) = [one for one in fleet.entries("effect.started") if one["tool"] == "agent.ask"]
        assert started["seq"] == cause


async def test_a_child_that_ends_while_an_outcome_is_recorded_is_not_missed(
    tmp_path: Path,
) -> None:
    world, ended = World(), threading.Event()

    def late(call: Any) -> None:
        # The child's end wakes the parent while this is called: its outcome is taken in with that.
        if call.args["text"] == "slow":
            ended.wait(10)

    world.answer = late
    fleet, _ = delegation_fleet(tmp_path, {CHIEF: first(ask(CLERK), send("slow"))}, world=world)
    async with fleet:
        run = await start(fleet)
        await wait_until(lambda: [one.state for one in runs_of(fleet, CLERK)] == ["done"])
        ended.set()
        await wait_until(lambda: run_of(fleet, run).state == "done")


@pytest.mark.parametrize("still_asks", [True, False])
async def test_a_fleet_that_ends_before_a_childs_event_is_accepted_starts_it_later(
    tmp_path: Path, still_asks: bool
) -> None:
    fleet, _ = delegation_fleet(tmp_path, {CHIEF: first(ask(CLERK)), CLERK: first(send("x"))})
    async with fleet:
        reached = asyncio.Event()

        async def cut(event: Event) -> Receipt:
            reached.set()
            await asyncio.Event().wait()
            raise AssertionError

        fleet.app.services.accept_child = cut
        run = await start(fleet)
        await asyncio.wait_for(reached.wait(), 10)
        assert fleet.entries("effect.started")
        if not still_asks:
            path = fleet.content / "agents" / CHIEF / "agent.yaml"
            path.write_text(path.read_text().replace("asks: [clerk, intern]", "asks: [intern]"))
        await fleet.restart()
        await wait_until(lambda: run_of(fleet, run).state == "done")
        assert len(runs_of(fleet, CLERK)) == still_asks
        (row,) = asks_of(fleet, run)
        assert answer_data(row)["state"] == ("done" if still_asks else "refused")


@pytest.mark.parametrize("after", [2, 4, 7, 9])
async def test_a_fleet_that_ends_at_any_commit_asks_once_and_gives_back_once(
    tmp_path: Path, after: int
) -> None:
    world = World()
    fleet, _ = delegation_fleet(
        tmp_path,
        {CHIEF: first(ask(CLERK)), CLERK: first(ask(INTERN, budget={"actions": 2})),
         INTERN: first(send("a letter"))},
        world=world,
    )  # fmt: skip
    async with fleet:
        run, commits = await start(fleet), 0

        async def cut(step: Step) -> None:
            nonlocal commits
            commits += 1
            if commits > after:
                raise StoreFailed("the fleet ended")

        intercept_commits(fleet, cut)
        await wait_until(lambda: commits > after or run_of(fleet, run).state == "done")
        assert commits > after
        await fleet.restart()
        await wait_until(lambda: run_of(fleet, run).state == "done", 30)
        assert [len(runs_of(fleet, agent)) for agent in (CLERK, INTERN)] == [1, 1]
        assert len(world.keys()) == 1  # a repeat has the same key
        returned = [one["spend"] for one in fleet.entries("budget.returned")]
        assert returned == [{"actions": 1}, {"actions": 3}]
        assert len(fleet.entries("budget.escrowed")) == 2
        assert list(fleet.app.store.ledger.row_mismatches()) == []
