"""No ratchet downwards: nothing that an agent proposes makes its own task easier to end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.contract.engine.test_tasks import (
    Answer,
    Scripted,
    add,
    close,
    finish,
    rules,
    run_of,
    says,
    send,
    start,
    working_fleet,
)

from vedette.domain.action import Proposal
from vedette.domain.base.errors import Forbidden
from vedette.domain.identity import ENGINE, Principal
from vedette.domain.memory import Briefing
from vedette.domain.ports.reasoner import ReasonerJudgement
from vedette.domain.task_item import list_items
from vedette.interfaces.http.command_dispatch import dispatch
from vedette.ledger.history.tasks import show_task
from vedette.operations.commands import Order
from vedette.policy.replay import replay
from vedette.testing.harness import FleetHarness, TrustingStage
from vedette.testing.toy_fleet import World

WORK = "{max_turns: 200, no_progress: 5, proposes_conditions: true, plans: true}"
SENT = {"name": "sent", "action": "wire.send", "at_least": 1}
EASY = {"name": "easy", "items": "closed", "at_least": 0}
DONE = "version: 1\nconditions:\n  - {name: sent, action: wire.send, at_least: 2}\n"


def proposes(*conditions: dict[str, Any]) -> Proposal:
    return Proposal("task.conditions", {"conditions": list(conditions)})


def own_conditions(folder: Path, answer: Answer, done: str = "") -> tuple[FleetHarness, Scripted]:
    return working_fleet(folder, World(), answer, work=WORK, done=done)


def names(briefing: Briefing) -> list[str]:
    return [one["name"] for one in briefing.task["conditions"]]


@pytest.mark.parametrize("restart", [False, True])
async def test_what_the_first_turn_proposes_stands_from_then_on(
    tmp_path: Path, restart: bool
) -> None:
    def answer(briefing: Briefing) -> ReasonerJudgement:
        if briefing.turn == 1:
            return says(proposes(SENT), finish())
        return says(send("x")) if briefing.turn == 9 else says(final=True)

    fleet, scripted = own_conditions(tmp_path, answer)
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        assert rules(fleet, run, "task.conditions") == [("permit", "permit.tool")]
        # They hold for the finish of the same turn already, and no person is asked any more.
        assert rules(fleet, run, "task.finish") == [("deny", "task.unmet")]
        assert names(scripted.briefings[0]) == ["approved"]
        assert {tuple(names(one)) for one in scripted.briefings[1:]} == {("sent",)}
        if restart:
            await fleet.restart()
        before = run_of(fleet, run).turn
        scripted.answer = lambda one: says(send("x") if one.turn == before + 1 else finish())
        await dispatch(fleet.app.commands, "work_resume", fleet.order(), {"run": run})
        await fleet.wait_until_idle()
        assert run_of(fleet, run).state == "done"
        found = show_task(fleet.app.store, fleet.app.services.fleet.agents, run)
        assert found["proposed"] == ["sent"]
        assert list(fleet.app.store.ledger.row_mismatches()) == []


async def test_given_conditions_are_added_to_alone(tmp_path: Path) -> None:
    def answer(briefing: Briefing) -> ReasonerJudgement:
        return says(proposes({**EASY, "at_least": 1})) if briefing.turn == 1 else says(final=True)

    fleet, scripted = own_conditions(tmp_path, answer, DONE)
    async with fleet:
        run = await start(fleet, conditions=[{"name": "asked", "person": "asks"}])
        await fleet.wait_until_idle()
        assert run_of(fleet, run).waits == "person"
        assert sorted(names(scripted.briefings[-1])) == ["asked", "easy", "sent"]


@pytest.mark.parametrize(
    ("turn", "proposed", "rule"),
    [
        (2, SENT, "conditions.fixed"),
        (5, EASY, "conditions.fixed"),
        (1, {**EASY, "name": "sent"}, "conditions.given"),
        (1, {**EASY, "name": "asked"}, "conditions.given"),
    ],
)
async def test_other_conditions_are_denied_by_name(
    tmp_path: Path, turn: int, proposed: dict[str, Any], rule: str
) -> None:
    def answer(briefing: Briefing) -> ReasonerJudgement:
        own = [proposes(proposed)] if briefing.turn == turn else []
        return says(*own, finish())

    fleet, scripted = own_conditions(tmp_path, answer, DONE)
    async with fleet:
        run = await start(fleet, conditions=[{"name": "asked", "person": "asks"}])
        await fleet.wait_until_idle()
        assert rules(fleet, run, "task.conditions") == [("deny", rule)]
        assert sorted(names(scripted.briefings[-1])) == ["asked", "sent"]
        assert set(rules(fleet, run, "task.finish")) == {("deny", "task.unmet")}
        # The denial is a function of its question: it replays without the task.
        decided = next(
            one for one in fleet.entries("action.decided") if one["tool"] == "task.conditions"
        )
        assert fleet.body(decided["seq"])["question"]["context"]["refuses"] == rule
        assert rule in fleet.body(decided["seq"])["decision"]["reasons"]
        report = replay(fleet.app.store, TrustingStage().load)
        assert report.ok


@pytest.mark.parametrize(
    ("proposed", "why"),
    [
        ({"name": "x", "items": "closed", "at_least": 0}, "nothing would be left to do"),
        ({"name": "x", "action": "item.add"}, "'item.add' is not a tool"),
        ({"name": "x", "action": "history.read"}, "'history.read' is not a tool"),
        ({"name": "x", "action": "no.such"}, "conditions[0]['action']: 'no.such' is not a tool"),
        ({"name": "x"}, "says nothing that is to hold"),
        ({"name": "x", "artefacts": "wire.send"}, "has no artefacts"),
        ({"name": "actions_over", "person": "x"}, "the engine's own"),
    ],
)
async def test_what_is_no_condition_is_not_taken_and_a_person_is_asked(
    tmp_path: Path, proposed: dict[str, Any], why: str
) -> None:
    def answer(briefing: Briefing) -> ReasonerJudgement:
        return says(proposes(proposed)) if briefing.turn == 1 else says(finish())

    fleet, _ = own_conditions(tmp_path, answer)
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        (row, finished) = fleet.app.store.runs.actions(run)
        assert row.effect == "failed"
        assert row.answer is not None
        assert why in row.answer.decode()
        assert finished.rule == "task.person"


CLOSED = {"name": "list", "items": "closed"}


@pytest.mark.parametrize("turns", [1, 2])
@pytest.mark.parametrize("restart", [False, True])
async def test_what_an_agent_meets_by_its_own_notes_ends_nothing_without_a_person(
    tmp_path: Path, turns: int, restart: bool
) -> None:
    """Where nobody said when it is done: an item that it added, set aside and so closed."""
    notes = [add("i"), close("i", "set_aside"), finish()]

    def answer(briefing: Briefing) -> ReasonerJudgement:
        if briefing.turn == 1:
            return says(proposes(CLOSED), *(notes if turns == 1 else ()))
        return says(*notes) if briefing.turn == turns else says(final=True)

    fleet, scripted = own_conditions(tmp_path, answer)
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        assert rules(fleet, run, "task.conditions") == [("permit", "permit.tool")]
        assert rules(fleet, run, "task.finish") == [("hold", "task.person")]
        if restart:
            await fleet.restart()
            scripted.answer = lambda one: says(finish())
            await dispatch(
                fleet.app.commands, "work_steer", fleet.order(), {"run": run, "note": "n"}
            )
            await fleet.wait_until_idle()
            assert names(scripted.briefings[-1]) == ["list", "approved"]
        assert run_of(fleet, run).state == "waiting"
        assert {rule for _, rule in rules(fleet, run, "task.finish")} <= {
            "task.person", "task.unmet",
        }  # fmt: skip


async def test_the_persons_place_is_taken_by_no_name(tmp_path: Path) -> None:
    fleet, _ = own_conditions(tmp_path, lambda one: says(proposes({**CLOSED, "name": "approved"})))
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        assert rules(fleet, run, "task.conditions")[0] == ("deny", "conditions.given")


async def test_another_goal_ends_by_nothing_that_was_proposed_for_the_one_before(
    tmp_path: Path,
) -> None:
    def answer(briefing: Briefing) -> ReasonerJudgement:
        if briefing.turn <= 2:
            return says(proposes(SENT) if briefing.turn == 1 else send("x"))
        return says(finish()) if briefing.task.get("revision") else says(final=True)

    fleet, scripted = own_conditions(tmp_path, answer)
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        assert names(scripted.briefings[-1]) == ["sent"]
        goal = {"run": run, "goal": "Quite another."}
        answered = await dispatch(fleet.app.commands, "work_goal", fleet.order(), goal)
        assert answered["dropped"] == ["sent"]
        await fleet.wait_until_idle()
        assert names(scripted.briefings[-1]) == ["approved"]
        assert rules(fleet, run, "task.finish") == [("hold", "task.person")]


async def test_without_leave_in_agent_yaml_nothing_is_proposed(tmp_path: Path) -> None:
    fleet, _ = working_fleet(tmp_path, World(), lambda one: says(proposes(SENT)), done="")
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        assert fleet.app.store.runs.actions(run) == []
        assert "no tool" in fleet.body(fleet.entries("action.refused")[0]["seq"])["why"]


REACHES = (
    "agent.release", "agent.edit", "policy.apply", "policy.publish", "eval.add", "memory.approve",
    "memory_approve", "mode", "work.goal", "work_goal", "work_add", "task.revised", "budget.raise",
)  # fmt: skip


async def test_no_proposal_reaches_folder_policy_evals_memory_or_history(tmp_path: Path) -> None:
    """Each is no tool of the agent, whatever its name: refused, and nothing of it changed."""
    later = [close("a", "failed", "no"), Proposal("item.add", {"id": "a", "title": "easier"})]

    def answer(briefing: Briefing) -> ReasonerJudgement:
        if briefing.turn == 1:
            return says(add("a"), close("a"))
        if briefing.turn == 2:
            return says(*later, *(Proposal(name, {"name": "worker"}) for name in REACHES))
        return says(final=True)

    fleet, _ = own_conditions(tmp_path, answer, DONE)
    async with fleet:
        before = {path: path.read_bytes() for path in fleet.content.rglob("*") if path.is_file()}
        revision = fleet.app.services.gateway.policy_rev
        run = await start(fleet)
        await fleet.wait_until_idle()
        refused = [fleet.body(one["seq"])["why"] for one in fleet.entries("action.refused")]
        assert len(refused) == len(REACHES)
        assert all(name in why for name, why in zip(REACHES, refused, strict=True))
        rows = fleet.app.store.runs.actions(run)
        assert [row.effect for row in rows if row.turn == 2] == ["failed", "failed"]
        (item,) = list_items(rows)
        assert (item["state"], item["title"]) == ("done", "letter a")
        assert fleet.app.services.gateway.policy_rev == revision
        after = {path: path.read_bytes() for path in fleet.content.rglob("*") if path.is_file()}
        assert after == before


@pytest.mark.parametrize("by", [ENGINE, Principal("person", "worker")], ids=["engine", "no role"])
@pytest.mark.parametrize(
    ("verb", "args"),
    [
        ("work_goal", {"goal": "less"}),
        ("work_add", {"item": "x", "title": "y"}),
        ("work_steer", {"note": "n"}),
        ("work_resume", {}),
    ],
)
async def test_only_a_person_with_the_role_says_anything_of_a_task(
    tmp_path: Path, verb: str, args: dict[str, Any], by: Principal
) -> None:
    fleet, _ = own_conditions(tmp_path, lambda one: says(add("a")), DONE)
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        before = run_of(fleet, run)
        with pytest.raises(Forbidden):
            await dispatch(fleet.app.commands, verb, Order(by, "I say so"), {"run": run, **args})
        assert run_of(fleet, run) == before
