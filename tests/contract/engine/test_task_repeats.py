"""What is done for an item is done once: also in one turn, and where nobody knows."""

from __future__ import annotations

from pathlib import Path

from tests.cascades import let_pass
from tests.contract.engine.test_tasks import (
    add,
    close,
    finish,
    run_of,
    says,
    send,
    start,
    working_fleet,
)

from vedette.domain.action import Proposal
from vedette.domain.effect import Outcome
from vedette.domain.memory import Briefing
from vedette.domain.ports.reasoner import ReasonerJudgement
from vedette.testing.clock import ManualClock
from vedette.testing.toy_fleet import DESK, World

CLOSED = "version: 1\nconditions:\n  - {name: list, items: closed}\n"


async def test_two_equal_proposals_of_one_turn_are_done_once(tmp_path: Path) -> None:
    world = World()

    def answer(briefing: Briefing) -> ReasonerJudgement:
        if briefing.turn == 1:
            return says(add("a"))
        if briefing.turn == 2:
            return says(send("same"), send("other"), send("same"))
        return says(close("a"), finish())

    fleet, _ = working_fleet(tmp_path, world, answer, done=CLOSED)
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        assert run_of(fleet, run).state == "done"
        assert sorted(world.texts()) == ["other", "same"]
        (refused,) = fleet.entries("action.refused")
        assert "before in this turn" in fleet.body(refused["seq"])["why"]


async def test_what_may_have_been_done_is_not_proposed_again(tmp_path: Path) -> None:
    world = World()
    world.answer = lambda call: Outcome("unknown")
    ring = Proposal("bell.ring", {"to": DESK, "text": "once"})

    def answer(briefing: Briefing) -> ReasonerJudgement:
        if briefing.turn == 1:
            return says(add("a"))
        if briefing.turn < 4:
            return says(ring)
        return says(close("a", "failed"), finish())

    clock = ManualClock()
    fleet, _ = working_fleet(tmp_path, world, answer, done=CLOSED, clock=clock)
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        await let_pass(fleet, clock, 120)
        row = fleet.app.store.runs.actions(run)[-1]
        assert (row.tool, row.effect, row.hold) == ("bell.ring", "unknown", "open")
        await fleet.app.commands.deny(fleet.order(), row.id)
        await fleet.wait_until_idle()
        assert run_of(fleet, run).state == "done"
        (refused,) = fleet.entries("action.refused")
        assert "nobody knows whether" in fleet.body(refused["seq"])["why"]
        assert len(world.calls) == 1


async def test_a_judge_is_told_of_its_last_turns(tmp_path: Path) -> None:
    def answer(briefing: Briefing) -> ReasonerJudgement:
        return says(add(f"{briefing.turn}")) if briefing.turn <= 20 else says(finish())

    done = "version: 1\nconditions:\n  - {name: list, items: closed, at_least: 0}\n"
    fleet, scripted = working_fleet(tmp_path, World(), answer, done=done, work="{no_progress: 100}")
    async with fleet:
        await start(fleet)
        await fleet.wait_until_idle()
        last = next(one for one in scripted.briefings if one.turn == 21)
        assert [turn["answers"][0]["ref"] for turn in last.turns] == [
            f"/outcome/{at}" for at in range(4, 20)
        ]
