"""Plans: phases whose steps are items, replaced on a trigger that the engine finds alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.cascades import let_pass
from tests.contract.app.test_judge_replay import replay_all
from tests.contract.engine.test_tasks import (
    Answer,
    add,
    close,
    finish,
    order,
    rules,
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
from vedette.domain.task_item import list_plans
from vedette.ledger.history.tasks import show_task
from vedette.testing.clock import ManualClock
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import DESK, World, toy_fleet

WORK = "{max_turns: 200, no_progress: 9, plans: true}"
DONE = "version: 1\nconditions:\n  - {name: list, items: done, at_least: 3}\n"
TWO = {"look": ["a", "b"], "write": ["c"]}


def plan(phases: Mapping[str, list[str]], reason: str = "as it is now") -> Proposal:
    given = [
        {
            "id": phase, "title": f"phase {phase}",
            "steps": [{"id": step, "title": f"step {step}"} for step in steps],
        }
        for phase, steps in phases.items()
    ]  # fmt: skip
    return Proposal("plan.set", {"phases": given, "reason": reason})


def planning_fleet(folder: Path, answer: Answer, world: World | None = None, **more: Any) -> Any:
    return working_fleet(folder, world or World(), answer, work=WORK, **{"done": DONE, **more})


def closes(briefing: Briefing) -> ReasonerJudgement:
    current = briefing.task["items"].get("current")
    return says(close(current["id"])) if current else says(finish())


def plans_first(briefing: Briefing) -> ReasonerJudgement:
    return says(plan(TWO)) if briefing.turn == 1 else closes(briefing)


def triggers(fleet: FleetHarness, run: str) -> list[str]:
    return [one.trigger for one in list_plans(fleet.app.store.runs.actions(run))]


async def test_a_plan_is_told_phase_by_phase_and_ends_by_its_items(tmp_path: Path) -> None:
    fleet, scripted = planning_fleet(tmp_path, plans_first)
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        assert run_of(fleet, run).state == "done"
        second, fourth = scripted.briefings[1].task, scripted.briefings[3].task
        assert second["plan"] == {
            "revision": 1,
            "phases": [
                {"id": "look", "title": "phase look", "state": "open", "closed": 0, "of": 2},
                {"id": "write", "title": "phase write", "state": "open", "closed": 0, "of": 1},
            ],
            "current": {
                "id": "look",
                "steps": [
                    {"id": "a", "title": "step a"},
                    {"id": "b", "title": "step b"},
                ],
            },
        }
        assert second["items"]["current"]["phase"] == "look"
        # Of the phase that is over no more than how many.
        assert fourth["plan"]["current"]["id"] == "write"
        assert fourth["plan"]["phases"][0] == {
            "id": "look", "title": "phase look", "state": "closed", "closed": 2, "of": 2,
        }  # fmt: skip
        (closed,) = fleet.entries("run.closed")
        assert (closed["items"], closed["items_done"]) == (3, 3)
        assert list(fleet.app.store.ledger.row_mismatches()) == []


async def test_a_plan_without_a_trigger_is_denied_by_name(tmp_path: Path) -> None:
    def answer(briefing: Briefing) -> ReasonerJudgement:
        if briefing.turn == 1:
            return says(plan(TWO), plan({"other": ["z"]}))
        return says(plan({"easy": ["a"]}, "I must"))

    fleet, scripted = planning_fleet(tmp_path, answer)
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        decided = rules(fleet, run, "plan.set")
        assert decided[0] == ("permit", "permit.tool")
        assert set(decided[1:]) == {("deny", "plan.no_trigger")}
        assert len(decided) > 5
        assert all("replan" not in one.task["plan"] for one in scripted.briefings[1:])
        # And none of it is progress.
        assert run_of(fleet, run).waits == "person"


@pytest.mark.parametrize(
    ("verb", "args", "trigger"),
    [
        ("steer", {"note": "otherwise"}, "person"),
        ("goal", {"goal": "Another."}, "goal"),
        ("add", {"item": "p", "title": "more"}, "input"),
    ],
)
async def test_a_persons_word_is_a_trigger_once(
    tmp_path: Path, verb: str, args: dict[str, Any], trigger: str
) -> None:
    """What is done stays done, what is left out is set aside, what a person added stays open."""

    def answer(briefing: Briefing) -> ReasonerJudgement:
        if briefing.turn == 1:
            return says(plan(TWO))
        return says(close("a")) if briefing.turn == 2 else says(final=True)

    fleet, scripted = planning_fleet(tmp_path, answer)
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        told = len(scripted.briefings)
        again = plan({"again": ["a", "c", "d"]}, "as was said")
        scripted.answer = lambda one: says(again)
        await order(fleet, verb, run=run, **args)
        await fleet.wait_until_idle()
        assert scripted.briefings[told].task["plan"]["replan"]["trigger"] == trigger
        assert "replan" not in scripted.briefings[told + 1].task["plan"]
        assert triggers(fleet, run) == ["first", trigger]
        assert set(rules(fleet, run, "plan.set")[2:]) == {("deny", "plan.no_trigger")}
        found = show_task(fleet.app.store, fleet.app.services.fleet.agents, run)
        states = {one["id"]: (one["state"], one.get("phase")) for one in found["item_list"]}
        expected = {
            "a": ("done", "look"), "b": ("set_aside", "look"), "c": ("open", "again"),
            "d": ("open", "again"),
        }  # fmt: skip
        assert states == expected | ({"p": ("open", None)} if verb == "add" else {})
        assert [(one["trigger"], one["reason"]) for one in found["plans"]] == [
            ("first", "as it is now"), (trigger, "as was said"),
        ]  # fmt: skip
        assert found["plan"]["revision"] == 2


async def test_a_finish_that_is_denied_three_times_is_a_trigger(tmp_path: Path) -> None:
    def answer(briefing: Briefing) -> ReasonerJudgement:
        if briefing.turn == 1:
            return says(plan(TWO))
        # What the first is made on is used up by it.
        return says(plan({"x": ["a"]}), plan({"y": ["a"]})) if briefing.turn > 4 else says(finish())

    fleet, scripted = planning_fleet(tmp_path, answer)
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        told = ["replan" in one.task.get("plan", {}) for one in scripted.briefings[:6]]
        assert told == [False, False, False, False, True, False]
        assert triggers(fleet, run) == ["first", "unmet"]
        assert rules(fleet, run, "plan.set")[1:3] == [
            ("permit", "permit.tool"), ("deny", "plan.no_trigger"),
        ]  # fmt: skip


async def test_a_plan_alone_is_no_progress(tmp_path: Path) -> None:
    def answer(briefing: Briefing) -> ReasonerJudgement:
        return says(plan(TWO)) if briefing.turn == 1 else says(final=True)

    work = WORK.replace("no_progress: 9", "no_progress: 2")
    fleet, _ = working_fleet(tmp_path, World(), answer, work=work, done=DONE)
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        assert (run_of(fleet, run).waits, run_of(fleet, run).turn) == ("person", 2)


async def test_plans_are_not_forced_by_finishes_and_notes(tmp_path: Path) -> None:
    """Finishes that are denied, and items made to be set aside, end with a person being asked."""

    def answer(briefing: Briefing) -> ReasonerJudgement:
        turn = str(briefing.turn)
        if briefing.turn % 4 != 1:
            return says(finish())
        return says(plan({"x": [f"s{turn}"]}), add(turn), close(turn, "set_aside"))

    fleet, _ = planning_fleet(tmp_path, answer)
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        assert (run_of(fleet, run).waits, run_of(fleet, run).turn) == ("person", 9)
        assert triggers(fleet, run) == ["first", "unmet"]


async def test_to_set_aside_what_was_there_before_is_progress(tmp_path: Path) -> None:
    def answer(briefing: Briefing) -> ReasonerJudgement:
        match briefing.turn:
            case 1:
                return says(*(add(str(at)) for at in range(1, 5)))
            case 2:
                return says(send("x"))
            case _:
                return says(close(str(briefing.turn - 2), "set_aside"))

    work = WORK.replace("no_progress: 9", "no_progress: 2")
    fleet, _ = working_fleet(tmp_path, World(), answer, work=work, done=DONE)
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        assert (run_of(fleet, run).waits, run_of(fleet, run).turn) == ("person", 8)


async def test_half_and_four_fifths_of_a_limit_are_triggers_once_each(tmp_path: Path) -> None:
    """Of the 16 actions that the run may take: at 8 and at 13."""

    def answer(briefing: Briefing) -> ReasonerJudgement:
        if briefing.turn == 1:
            return says(plan({"x": ["a"]}))
        return says(send(str(briefing.turn)), plan({"x": ["a"]}))

    fleet, scripted = planning_fleet(tmp_path, answer)
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        due = [
            (one.turn, one.task["plan"]["replan"]["trigger"])
            for one in scripted.briefings
            if "replan" in one.task.get("plan", {})
        ]
        assert [name for _, name in due] == ["spend_50", "spend_80"]
        assert triggers(fleet, run) == ["first", "spend_50", "spend_80"]


async def test_an_outcome_that_nobody_knows_is_a_trigger(tmp_path: Path) -> None:
    world = World(answer=lambda call: Outcome("unknown") if call.tool == "bell.ring" else None)

    def answer(briefing: Briefing) -> ReasonerJudgement:
        if briefing.turn == 1:
            return says(plan(TWO))
        if briefing.turn == 2:
            return says(Proposal("bell.ring", {"to": DESK, "text": "now"}))
        return says(plan({"x": ["a", "b", "c"]}, "nobody knows"))

    clock = ManualClock()
    fleet, _ = planning_fleet(tmp_path, answer, world, clock=clock)
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        await let_pass(fleet, clock, 120)
        (rung,) = [one for one in fleet.app.store.runs.actions(run) if one.tool == "bell.ring"]
        assert (rung.effect, rung.hold) == ("unknown", "open")
        await fleet.app.commands.deny(fleet.order(), rung.id)
        await fleet.wait_until_idle()
        assert triggers(fleet, run) == ["first", "unknown"]


@pytest.mark.parametrize(
    ("phases", "why"),
    [
        ({"x": ["a", "a"]}, "two steps have the id 'a'"),
        ({"x": ["a"], "y": ["a"]}, "two steps have the id 'a'"),
    ],
)
async def test_what_is_no_plan_changes_nothing(
    tmp_path: Path, phases: dict[str, list[str]], why: str
) -> None:
    def answer(briefing: Briefing) -> ReasonerJudgement:
        return says(plan(phases)) if briefing.turn == 1 else says(final=True)

    fleet, scripted = planning_fleet(tmp_path, answer)
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        (row,) = fleet.app.store.runs.actions(run)
        assert row.answer is not None
        assert why in row.answer.decode()
        assert "plan" not in scripted.briefings[-1].task
        assert scripted.briefings[-1].task["items"]["of"] == 0


async def test_an_item_may_name_a_phase_of_the_plan(tmp_path: Path) -> None:
    def of_phase(id: str, phase: str) -> Proposal:
        return Proposal("item.add", {"id": id, "title": id, "phase": phase})

    def answer(briefing: Briefing) -> ReasonerJudgement:
        if briefing.turn == 1:
            return says(plan(TWO), of_phase("late", "look"), of_phase("lost", "none"), add("free"))
        return closes(briefing)

    fleet, scripted = planning_fleet(tmp_path, answer)
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        assert run_of(fleet, run).state == "done"
        worked = [one.task["items"].get("current", {}).get("id") for one in scripted.briefings]
        # In the order of the phases, and what belongs to none at the end.
        assert worked == [None, "a", "b", "late", "c", "free", None]


async def test_a_turn_is_told_a_bounded_part_of_a_plan(tmp_path: Path) -> None:
    """Whatever is added to a phase, and whatever plans left in it."""

    def of_phase(id: str, title: str) -> Proposal:
        return Proposal("item.add", {"id": id, "title": title, "phase": "look"})

    def answer(briefing: Briefing) -> ReasonerJudgement:
        turn = briefing.turn
        if turn == 1:
            return says(plan({"look": [str(at) for at in range(45)]}))
        if turn == 2:
            return says(close("0"), *(of_phase(f"a{at}", "t" * (199 + at)) for at in range(8)))
        return says(final=True)

    fleet, scripted = planning_fleet(tmp_path, answer)
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        added = [row for row in fleet.app.store.runs.actions(run) if row.tool == "item.add"]
        assert [row.effect for row in added] == ["done", "done", *["failed"] * 6]
        assert b"title of 200" in (added[2].answer or b"")
        told = scripted.briefings[2].task["plan"]
        assert told["phases"][0]["of"] == 47
        assert [one["id"] for one in told["current"]["steps"]] == [str(at) for at in range(1, 21)]


@pytest.mark.parametrize("restart", [False, True])
async def test_a_plan_is_the_same_after_a_restart(tmp_path: Path, restart: bool) -> None:
    def answer(briefing: Briefing) -> ReasonerJudgement:
        if briefing.turn == 1:
            return says(plan({"z": ["z1"], "y": ["y1", "y2"]}))
        return says(close("y1")) if briefing.turn == 2 else says(final=True)

    fleet, scripted = planning_fleet(tmp_path, answer)
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        if restart:
            await fleet.restart()
        told = len(scripted.briefings)
        scripted.answer = closes
        await order(fleet, "resume", run=run)
        await fleet.wait_until_idle()
        assert run_of(fleet, run).state == "done"
        worked = [
            one.task["items"].get("current", {}).get("id") for one in scripted.briefings[told:]
        ]
        assert worked == ["z1", "y2", None]
        assert scripted.briefings[told].task["plan"] == scripted.briefings[told - 1].task["plan"]


JUDGE = """\
from vedette.judging import Judge as Base
from vedette.judging import Judgement, Proposal

STEPS = [{"id": "a", "title": "first"}, {"id": "b", "title": "second"}]


class Judge(Base):
    def judge(self, seen, briefing):
        return self.plan(STEPS, "as given")

    def judge_outcomes(self, briefing):
        task = briefing.task
        if "replan" in task["plan"]:
            return self.plan(STEPS[:1], task["plan"]["replan"]["why"])
        if current := task["items"].get("current"):
            close = {"id": current["id"], "state": "done", "why": task["goal"]}
            return self.say(Proposal("item.close", close))
        return self.say(Proposal("task.finish", {"summary": str(task.get("words"))}))

    def plan(self, steps, reason):
        phase = {"id": "all", "title": "all of it", "steps": steps}
        return self.say(Proposal("plan.set", {"phases": [phase], "reason": reason}))

    def say(self, proposal):
        return Judgement("at work", 1.0, (proposal,), final=False)
"""


async def test_a_judge_replans_and_each_turn_is_judged_again_from_the_record(
    tmp_path: Path,
) -> None:
    done = "version: 1\nconditions:\n  - {name: agreed, person: agrees}\n"
    fleet = toy_fleet(tmp_path, World(), work=WORK, done=done)
    (tmp_path / "content/agents/worker/judge.py").write_text(JUDGE)
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        await order(fleet, "add", run=run, item="p", title="more")
        await order(fleet, "goal", run=run, goal="Another.")
        await fleet.wait_until_idle()
        (waits,) = [one for one in fleet.app.store.runs.actions(run) if one.waits == "approval"]
        await fleet.approve(waits)
        await fleet.wait_until_idle()
        assert run_of(fleet, run).state == "done"
        assert triggers(fleet, run)[0] == "first"
        assert "goal" in triggers(fleet, run)
        report = await replay_all(fleet.app)
        assert report.to_json()["differences"] == []
        assert not report.unrecomputable
        assert report.equal == run_of(fleet, run).turn > 6
        assert list(fleet.app.store.ledger.row_mismatches()) == []
