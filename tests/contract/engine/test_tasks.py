"""Tasks: a run with a goal ends when its done conditions hold, and by nothing that a model says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vedette.domain.action import Proposal
from vedette.domain.base.errors import BadCommand, Forbidden
from vedette.domain.event import ENVELOPE, TASK_TYPE, Event
from vedette.domain.memory import Briefing
from vedette.domain.ports.reasoner import ReasonerJudgement
from vedette.domain.run import Run
from vedette.interfaces.http.command_dispatch import dispatch
from vedette.testing.harness import FleetHarness
from vedette.testing.scripted import ScriptedReasoner
from vedette.testing.toy_fleet import DESK, World, job, toy_fleet

GOAL = 'Bring "both" letters away,\n  word for word <data> \u00e4 \u202e.'
DONE_YAML = """\
version: 1
conditions:
  - {name: sent, action: wire.send, at_least: 2}
"""
Answer = Callable[[Briefing], ReasonerJudgement]


def says(*proposals: Proposal, final: bool = False) -> ReasonerJudgement:
    return ReasonerJudgement(label="at work", confidence=1.0, proposals=proposals, final=final)


def send(text: str) -> Proposal:
    return Proposal("wire.send", {"to": DESK, "text": text})


def finish(text: str = "all done") -> Proposal:
    return Proposal("task.finish", {"summary": text})


def add(id: str) -> Proposal:
    return Proposal("item.add", {"id": id, "title": f"letter {id}"})


def close(id: str, state: str = "done", why: str = "sent") -> Proposal:
    return Proposal("item.close", {"id": id, "state": state, "why": why})


class Scripted(ScriptedReasoner):
    """Answers every turn by one function."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(())
        self.answer = answer

    async def reason(self, briefing: Briefing) -> ReasonerJudgement:
        self.briefings.append(briefing)
        return self.answer(briefing)


def working_fleet(
    folder: Path,
    world: World,
    answer: Answer,
    *,
    kind: str = "judge",
    work: str = "{max_turns: 200, no_progress: 5}",
    done: str = DONE_YAML,
    **more: Any,
) -> tuple[FleetHarness, Scripted]:
    scripted = Scripted(answer)
    fleet = toy_fleet(
        folder, world, reasoner=kind, reasoners={kind: scripted}, work=work, done=done,
        model_calls=10_000, **more,
    )  # fmt: skip
    return fleet, scripted


async def order(fleet: FleetHarness, verb: str, **args: Any) -> dict[str, Any]:
    return await dispatch(fleet.app.commands, f"work_{verb}", fleet.order(), args)


async def start(fleet: FleetHarness, goal: str = GOAL, **more: Any) -> str:
    run: str = (await order(fleet, "start", agent="worker", goal=goal, **more))["run"]
    return run


def run_of(fleet: FleetHarness, run: str) -> Run:
    found = fleet.app.store.runs.run(run)
    assert found is not None
    return found


def rules(fleet: FleetHarness, run: str, tool: str) -> list[tuple[str | None, str]]:
    rows = fleet.app.store.runs.actions(run)
    return [(row.decided, row.rule) for row in rows if row.tool == tool]


@pytest.mark.parametrize("kind", ["judge", "adk"])
async def test_a_task_ends_when_its_conditions_hold(tmp_path: Path, kind: str) -> None:
    world = World()

    def answer(briefing: Briefing) -> ReasonerJudgement:
        if briefing.turn <= 2:
            return says(send(f"letter {briefing.turn}"))
        return says(finish())

    fleet, scripted = working_fleet(tmp_path, world, answer, kind=kind)
    async with fleet:
        run = await start(fleet, inputs={"who": "both"})
        await fleet.wait_until_idle()
        assert (run_of(fleet, run).state, run_of(fleet, run).turn) == ("done", 3)
        assert world.effects("wire.send") == 2
        assert rules(fleet, run, "task.finish") == [("permit", "permit.tool")]
        (closed,) = fleet.entries("run.closed")
        assert (closed["items"], closed["items_done"], closed["settled"]) == (0, 0, 3)
        assert [b.task["goal"] for b in scripted.briefings] == [GOAL] * 3
        assert [b.task["conditions"][0]["held"] for b in scripted.briefings] == [False, False, True]
        assert scripted.briefings[0].task["inputs"] == {"who": "both"}
        assert list(fleet.app.store.ledger.row_mismatches()) == []


@pytest.mark.parametrize("kind", ["judge", "adk"])
async def test_a_hundred_early_claims_of_done_end_nothing(tmp_path: Path, kind: str) -> None:
    world = World()

    def answer(briefing: Briefing) -> ReasonerJudgement:
        # By text, by a final judgement, and by the proposal itself.
        return says(finish()) if briefing.turn % 2 else says(final=True)

    work = "{max_turns: 100, no_progress: 1000}"
    fleet, _ = working_fleet(tmp_path, world, answer, kind=kind, work=work, extra=None)
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle(60)
        found = run_of(fleet, run)
        assert (found.state, found.waits, found.turn) == ("waiting", "person", 100)
        assert rules(fleet, run, "task.finish") == [("deny", "task.unmet")] * 50
        assert fleet.entries("run.closed") == []
        assert fleet.entries("run.dead") == []
