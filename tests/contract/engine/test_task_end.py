"""How a task ends: nothing beside its finish, and no finish without every condition."""

from __future__ import annotations

from pathlib import Path

from tests.contract.engine.test_tasks import (
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
from vedette.domain.memory import Briefing
from vedette.domain.ports.reasoner import ReasonerJudgement
from vedette.domain.task_item import list_items
from vedette.interfaces.http.command_dispatch import dispatch
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import World

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


async def test_a_person_who_became_a_condition_is_asked(tmp_path: Path) -> None:
    """Also of a finish that was bound before, and waited."""
    fleet, _ = working_fleet(tmp_path, World(), lambda briefing: says(finish()), done=ZERO)
    async with fleet:
        commands = fleet.app.commands
        await dispatch(commands, "stop", fleet.order(), {"tool": "task.finish"})
        run = await start(fleet)
        await fleet.wait_until_idle()
        assert run_of(fleet, run).waits == "resume"
        page = fleet.content / "agents/worker/done.yaml"
        page.write_text(ZERO + "  - {name: ok, person: says yes}\n")
        await fleet.restart()
        await dispatch(fleet.app.commands, "resume", fleet.order(), {"tool": "task.finish"})
        await fleet.wait_until_idle()
        assert run_of(fleet, run).waits == "approval"
        (row,) = fleet.app.store.runs.actions(run)
        assert (row.decided, row.rule) == ("hold", "task.person")
        await fleet.approve(row)
        await fleet.wait_until_idle()
        assert run_of(fleet, run).state == "done"


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
