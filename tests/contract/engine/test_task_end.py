"""How a task ends: nothing beside its finish, and no finish without every condition."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.contract.engine.test_tasks import (
    GOAL,
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
from tools.real_fleet import ROOT

from vedette.domain.action import Proposal
from vedette.domain.base.errors import BadCommand
from vedette.domain.memory import Briefing
from vedette.domain.ports.reasoner import ReasonerJudgement
from vedette.domain.task_item import list_items
from vedette.ledger.history.tasks import list_tasks
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import World, job

CLOSED = "version: 1\nconditions:\n  - {name: list, items: closed}\n"
ZERO = "version: 1\nconditions:\n  - {name: list, items: closed, at_least: 0}\n"


def states(fleet: FleetHarness, run: str) -> dict[str, str]:
    return {item["id"]: item["state"] for item in list_items(fleet.app.store.runs.actions(run))}


async def test_nothing_follows_a_finish_in_its_turn(tmp_path: Path) -> None:
    world = World()

    def answer(briefing: Briefing) -> ReasonerJudgement:
        if briefing.turn == 1:
            return says(add("a"))
        return says(close("a"), finish(), add("b"), send("late"), finish("again"))

    fleet, _ = working_fleet(tmp_path, world, answer, done=CLOSED)
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        assert run_of(fleet, run).state == "done"
        assert states(fleet, run) == {"a": "done"}
        assert rules(fleet, run, "task.finish") == [("permit", "permit.tool")]
        refused = [fleet.body(one["seq"])["why"] for one in fleet.entries("action.refused")]
        assert refused == ["nothing follows task.finish in its turn"] * 3
        assert world.record == []
        assert list(fleet.app.store.ledger.row_mismatches()) == []


async def test_a_finish_is_denied_while_another_action_is_open(tmp_path: Path) -> None:
    def answer(briefing: Briefing) -> ReasonerJudgement:
        return says(send("a"), finish()) if briefing.turn == 1 else says(finish())

    world = World()
    fleet, _ = working_fleet(tmp_path, world, answer, done=ZERO, mode="ask")
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        sent, finished = fleet.app.store.runs.actions(run)
        assert (sent.waits, finished.decided) == ("approval", "deny")
        decided = [one for one in fleet.entries("action.decided") if one["outcome"] == "deny"][-1]
        assert fleet.body(decided["seq"])["question"]["context"]["task"]["conditions"][-1] == {
            "name": "actions_over", "held": False, "why": "1 other actions are not over",
        }  # fmt: skip
        await fleet.approve(sent)
        await fleet.wait_until_idle()
        assert run_of(fleet, run).turn == 2
        assert world.effects("wire.send") == 1


async def test_items_done_is_not_met_by_what_was_set_aside(tmp_path: Path) -> None:
    def answer(briefing: Briefing) -> ReasonerJudgement:
        if briefing.turn == 1:
            return says(add("x"), close("x", "set_aside", "no"), finish())
        return says(finish())

    for kind, state in (("closed", "done"), ("done", "waiting")):
        done = CLOSED.replace("closed", kind)
        fleet, _ = working_fleet(tmp_path / kind, World(), answer, done=done)
        async with fleet:
            run = await start(fleet)
            await fleet.wait_until_idle()
            assert run_of(fleet, run).state == state


@pytest.mark.parametrize("done", [CLOSED, ""], ids=["unmet", "a person"])
async def test_no_bundle_ends_a_task_early(tmp_path: Path, done: str) -> None:
    """Nor does one that knows no tasks: what must hold is the engine's own rule, too."""
    page = (ROOT / "policies/vedette/gateway/decide.rego").read_text()
    lines = [line for line in page.splitlines(keepends=True) if "vedette.done" not in line]
    assert len(lines) < len(page.splitlines())
    extra = {"vedette/gateway/decide.rego": "".join(lines)}
    fleet, _ = working_fleet(
        tmp_path, World(), lambda briefing: says(finish()), done=done, extra=extra
    )
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        assert run_of(fleet, run).state == "waiting"
        expected = ("deny", "task.unmet") if done else ("hold", "task.person")
        assert set(rules(fleet, run, "task.finish")) == {expected}


async def test_items_are_erased_with_their_event(tmp_path: Path) -> None:
    secret = "Solveig"

    def answer(briefing: Briefing) -> ReasonerJudgement:
        if briefing.turn == 1:
            args = {"id": secret, "title": f"{secret} owes", "inputs": {"iban": f"{secret} 1"}}
            return says(Proposal("item.add", args))
        return says(close(secret, why=f"{secret} paid"), finish())

    fleet, _ = working_fleet(tmp_path, World(), answer, done=CLOSED)
    async with fleet:
        run = await start(fleet, goal=f"bill {secret}")
        await fleet.wait_until_idle()
        assert states(fleet, run) == {secret: "done"}
        event = fleet.app.store.runs.event(run_of(fleet, run).event)
        assert event is not None
        assert secret in stored_text(tmp_path, fleet)
        await fleet.app.commands.erase(fleet.order(), subject=event.subject)
        assert states(fleet, run) == {}
        assert secret not in stored_text(tmp_path, fleet)
        assert list(fleet.app.store.ledger.row_mismatches()) == []


def stored_text(folder: Path, fleet: FleetHarness) -> str:
    """Return all that is in the tables of rows, actions and bodies."""
    database = fleet.app.store.parts.database
    found = [
        repr(row) for name in ("row", "action") for row in database.rows(f'SELECT * FROM "{name}"')
    ]
    for entry in fleet.entries():
        if "body" in entry:
            found.append(repr(fleet.app.store.ledger.entry(entry["seq"])))
    return "\n".join(found)


async def test_an_item_that_a_row_says_is_done_is_not(tmp_path: Path) -> None:
    """Items are proved by the ledger: an edited answer ends the run, and finishes nothing."""
    done = CLOSED.replace("closed", "closed, at_least: 2")

    def answer(briefing: Briefing) -> ReasonerJudgement:
        return says(add("a"), add("b")) if briefing.turn == 1 else says(finish())

    fleet, _ = working_fleet(
        tmp_path, World(), answer, done=done, work="{max_turns: 50, no_progress: 2}"
    )
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        assert run_of(fleet, run).waits == "person"
        database = fleet.app.store.parts.database
        edit = (
            "UPDATE action SET answer=CAST(REPLACE(CAST(answer AS TEXT), 'open', 'done') AS BLOB)"
        )
        database.execute(edit)
        await fleet.restart()
        await order(fleet, "resume", run=run)
        await fleet.wait_until_idle()
        assert run_of(fleet, run).state == "dead"
        assert ("permit", "permit.tool") not in rules(fleet, run, "task.finish")


AGENT = "agents/worker/agent.yaml"
WORK = "work: {max_turns: 200, no_progress: 5}\n"


async def test_a_task_ends_by_the_conditions_that_it_began_with(tmp_path: Path) -> None:
    """Whatever done.yaml says by then: conditions are of the turn that began it."""
    world = World()
    fleet, scripted = working_fleet(tmp_path, world, lambda briefing: says(final=True), done=CLOSED)
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        assert run_of(fleet, run).waits == "person"
        (fleet.content / "agents/worker/done.yaml").write_text(ZERO)
        await fleet.restart()
        scripted.answer = lambda briefing: says(finish())
        await order(fleet, "resume", run=run)
        await fleet.wait_until_idle()
        assert set(rules(fleet, run, "task.finish")) == {("deny", "task.unmet")}
        assert run_of(fleet, run).waits == "person"


async def test_a_task_is_one_after_its_agent_takes_none(tmp_path: Path) -> None:
    """Nothing that is said to be final ends it; people find it, steer it and cancel it."""
    fleet, scripted = working_fleet(
        tmp_path, World(), lambda briefing: says(final=True), done=CLOSED
    )
    page = fleet.content / AGENT
    text = page.read_text()
    assert "{on: worker.job}" in text
    assert WORK in text
    page.write_text(text.replace("{on: worker.job}", "{on: worker.job, goal: do it}"))
    event = job("1")
    async with fleet:
        given = await start(fleet)
        await fleet.send(event)
        await fleet.wait_until_idle()
        (run,) = fleet.runs(event)
        assert (run.waits, run.turn) == ("person", 5)
        # Without the goal it goes on as it began.
        page.write_text(text)
        await fleet.restart()
        await order(fleet, "steer", run=run.id, note="once more")
        await fleet.wait_until_idle()
        assert (run_of(fleet, run.id).waits, run_of(fleet, run.id).turn) == ("person", 10)
        assert scripted.briefings[-1].task["goal"] == "do it"
        # Without work: it waits.
        page.write_text(text.replace(WORK, ""))
        (fleet.content / "agents/worker/done.yaml").unlink()
        await fleet.restart()
        for id, turns in ((run.id, 10), (given, 5)):
            await order(fleet, "resume", run=id)
            await fleet.wait_until_idle()
            assert (run_of(fleet, id).waits, run_of(fleet, id).turn) == ("person", turns)
        stalled = fleet.entries("task.stalled")[-1]
        assert fleet.body(stalled["seq"]) == {"why": "its agent takes no tasks any more"}
        found = list_tasks(fleet.app.store, fleet.app.services.fleet.agents, ended=False, limit=9)
        assert {one["run"]: one["goal"] for one in found} == {run.id: "do it", given: GOAL}
        await order(fleet, "cancel", run=run.id)
        await fleet.wait_until_idle()
        assert run_of(fleet, run.id).state == "done"
        (closed,) = fleet.entries("run.closed")
        assert closed["what"] == "cancelled"


async def test_conditions_of_an_order_are_beside_those_of_the_agent(tmp_path: Path) -> None:
    fleet, _ = working_fleet(tmp_path, World(), lambda briefing: says(finish()), done=CLOSED)
    async with fleet:
        with pytest.raises(BadCommand, match="has a condition 'list'"):
            await start(fleet, conditions=[{"name": "list", "items": "closed", "at_least": 0}])
        run = await start(fleet, conditions=[{"name": "own", "items": "closed", "at_least": 0}])
        await fleet.wait_until_idle()
        (first, *_) = fleet.app.store.runs.turns(run)
        held = {one["name"]: one["held"] for one in first["task"]["conditions"]}
        assert held == {"own": True, "list": False}
        assert set(rules(fleet, run, "task.finish")) == {("deny", "task.unmet")}


async def test_an_item_has_small_inputs(tmp_path: Path) -> None:
    args = {"id": "a", "title": "a", "inputs": {"text": "x" * 10_000}}

    def answer(briefing: Briefing) -> ReasonerJudgement:
        return says(Proposal("item.add", args)) if briefing.turn == 1 else says(finish())

    fleet, _ = working_fleet(tmp_path, World(), answer, done=ZERO)
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        assert states(fleet, run) == {}
        assert fleet.app.store.runs.actions(run)[0].effect == "failed"
