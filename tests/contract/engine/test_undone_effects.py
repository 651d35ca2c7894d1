"""An effect that was undone counts for no done condition, and may be done again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.artefacts import edit_agent
from tests.contract.engine.test_tasks import (
    Answer,
    add,
    finish,
    order,
    run_of,
    says,
    send,
    start,
    working_fleet,
)

from vedette.domain.done_condition import ArtefactsMade
from vedette.domain.effect import Outcome
from vedette.domain.memory import Briefing
from vedette.domain.ports.reasoner import ReasonerJudgement
from vedette.domain.run import ActionRow
from vedette.engine.task_facts import FactReader
from vedette.interfaces.http.command_dispatch import dispatch
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import World

DONE = """\
version: 1
conditions:
  - {name: sent, action: wire.send}
  - {name: agreed, person: agrees}
"""
SEND = "settles: idempotent, function: act, target: world, attempts: 3,\n     timeout: 30s}"
ORDER = SEND.replace("idempotent, function: act", "queryable, function: act, query: ask")


def undoing_fleet(folder: Path, answer: Answer, world: World | None = None) -> FleetHarness:
    """Return a fleet whose sending an order takes back, and whose order a sending."""
    fleet, _ = working_fleet(folder, world or World(), answer, done=DONE)
    edit_agent(fleet, "worker", ORDER, ORDER.replace("timeout", "inverse: wire.send, timeout"))
    edit_agent(fleet, "worker", SEND, SEND.replace("timeout", "inverse: order.place, timeout"))
    return fleet


async def undo(fleet: FleetHarness, row: ActionRow) -> ActionRow:
    """Have an effect taken back; return the action that did it."""
    args = {"effect": row.id.replace("act_", "eff_")}
    done = await dispatch(fleet.app.commands, "undo", fleet.order("wrong"), args)
    await fleet.wait_until_idle()
    (inverse,) = fleet.app.store.runs.actions(done["run"])
    return inverse


def actions(fleet: FleetHarness, run: str, tool: str) -> list[ActionRow]:
    return [row for row in fleet.app.store.runs.actions(run) if row.tool == tool]


def told(fleet: FleetHarness, row: ActionRow) -> list[dict[str, Any]]:
    """Return what was found of the conditions when an action was decided last."""
    decided = [one for one in fleet.entries("action.decided") if one["action"] == row.id]
    question = fleet.body(decided[-1]["seq"])["question"]
    conditions: list[dict[str, Any]] = question["context"]["task"]["conditions"]
    return conditions


@pytest.mark.parametrize("again", [False, True], ids=["undone", "undone and that undone"])
async def test_what_was_undone_does_not_count(tmp_path: Path, again: bool) -> None:
    """A person takes back what the finish rests on, while that waits for them."""

    def answer(briefing: Briefing) -> ReasonerJudgement:
        return says(send("letter")) if briefing.turn == 1 else says(finish())

    async with undoing_fleet(tmp_path, answer) as fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        (sent,), (finished,) = (actions(fleet, run, one) for one in ("wire.send", "task.finish"))
        assert finished.waits == "approval"
        inverse = await undo(fleet, sent)
        assert inverse.effect == "done"
        if again:
            assert (await undo(fleet, inverse)).effect == "done"
        await fleet.approve(finished)
        await fleet.wait_until_idle()
        if again:
            assert run_of(fleet, run).state == "done"
        else:
            assert run_of(fleet, run).state == "waiting"
            (finished, *_) = actions(fleet, run, "task.finish")
            assert (finished.decided, finished.rule) == ("deny", "task.unmet")
            assert told(fleet, finished)[0] == {
                "name": "sent", "held": False, "why": "wire.send was done 0 of 1 times",
            }  # fmt: skip


async def test_an_undo_that_came_to_nothing_changes_nothing(tmp_path: Path) -> None:
    world = World()

    def fail(call: Any) -> Outcome | None:
        return Outcome("failed", error="no") if call.tool == "order.place" else None

    def answer(briefing: Briefing) -> ReasonerJudgement:
        return says(send("letter")) if briefing.turn == 1 else says(finish())

    world.answer = fail
    async with undoing_fleet(tmp_path, answer, world) as fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        (sent,), (finished,) = (actions(fleet, run, one) for one in ("wire.send", "task.finish"))
        assert (await undo(fleet, sent)).effect == "failed"
        await fleet.approve(finished)
        await fleet.wait_until_idle()
        assert run_of(fleet, run).state == "done"


async def test_what_was_undone_may_be_done_again_for_its_item(tmp_path: Path) -> None:
    def answer(briefing: Briefing) -> ReasonerJudgement:
        match briefing.turn:
            case 1:
                return says(add("a"))
            case 2 | 4 | 5:
                return says(send("letter"))
            case _:
                return says(final=True)

    world = World()
    async with undoing_fleet(tmp_path, answer, world) as fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        # Turns 4 and 5 were told that it was done before.
        assert len(actions(fleet, run, "wire.send")) == 1
        assert world.effects("wire.send") == 1
        await undo(fleet, actions(fleet, run, "wire.send")[0])
        before = run_of(fleet, run).turn
        again = {before + 1, before + 2}
        script = fleet.app.services.reasoners["judge"]
        script.answer = lambda one: says(send("letter")) if one.turn in again else says(final=True)  # type: ignore[attr-defined]
        await order(fleet, "steer", run=run, note="send it again, once")
        await fleet.wait_until_idle()
        assert [row.turn for row in actions(fleet, run, "wire.send")] == [2, before + 1]
        assert world.effects("wire.send") == 2
        assert list(fleet.app.store.ledger.row_mismatches()) == []


@pytest.mark.parametrize("state", ["unknown", "undone and that unknown"])
async def test_what_may_be_undone_neither_counts_nor_is_done_again(
    tmp_path: Path, state: str
) -> None:
    """A person let go of a call that nobody knows the end of: the undo, or what undoes that."""
    lost = "order.place" if state == "unknown" else "wire.send"
    world = World()

    def answer(briefing: Briefing) -> ReasonerJudgement:
        if briefing.turn == 1:
            return says(add("a"))
        return says(send("letter")) if briefing.turn == 2 else says(finish())

    async with undoing_fleet(tmp_path, answer, world) as fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        (sent,), (finished,) = (actions(fleet, run, one) for one in ("wire.send", "task.finish"))
        if lost == "wire.send":
            inverse = await undo(fleet, sent)
            assert inverse.effect == "done"
        else:
            inverse = sent
        reader = FactReader(fleet.app.store, fleet.app.services.fleet.name, run)
        agent = fleet.app.services.fleet.agents["worker"]
        world.answer = lambda call: Outcome("unknown") if call.tool == lost else None
        unsure = await undo(fleet, inverse)
        assert unsure.effect not in ("done", "failed", "cancelled")
        assert reader.find_undone([sent], agent) == {sent.id: "unknown"}
        effects = world.effects("wire.send")
        before = run_of(fleet, run).turn
        script = fleet.app.services.reasoners["judge"]
        script.answer = lambda one: (  # type: ignore[attr-defined]
            says(send("letter")) if one.turn == before + 1 else says(finish())
        )
        await order(fleet, "steer", run=run, note="go on")
        await fleet.wait_until_idle()
        assert world.effects("wire.send") == effects
        whys = [fleet.body(one["seq"])["why"] for one in fleet.entries("action.refused")]
        assert any("nobody knows whether this was done" in why for why in whys)
        (*_, finished) = actions(fleet, run, "task.finish")
        assert told(fleet, finished)[0]["held"] is False


async def test_between_finishes_an_action_is_looked_at_once(tmp_path: Path) -> None:
    def answer(briefing: Briefing) -> ReasonerJudgement:
        return says(send(str(briefing.turn))) if briefing.turn < 4 else says(finish())

    async with undoing_fleet(tmp_path, answer) as fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        agent = fleet.app.services.fleet.agents["worker"]
        assert agent.work is not None
        conditions = agent.work.conditions
        rows = actions(fleet, run, "wire.send")
        store = CountingStore(fleet.app.store)
        reader = FactReader(store, fleet.app.services.fleet.name, run)  # type: ignore[arg-type]

        def count(rows: list[ActionRow], *, anew: bool) -> tuple[int, int]:
            before = store.runs.looked
            counted = reader.list_counted(conditions, rows, agent, anew=anew)
            return len(counted), store.runs.looked - before

        assert count(rows[:2], anew=False) == (2, 2)
        assert count(rows, anew=False) == (3, 1)  # the new one alone
        await undo(fleet, rows[0])
        assert count(rows, anew=False) == (3, 0)
        assert count(rows, anew=True)[0] == 2
        assert count(rows, anew=False) == (2, 0)
        artefacts = (ArtefactsMade("a", "text/plain"),)
        for _ in range(2):
            reader.list_artefacts(artefacts, rows, anew=False)
        assert store.runs.after == [0, max(row.last for row in rows)]


class CountingRuns:
    """Counts the runs of undos that are looked at, and notes where artefacts are looked for."""

    def __init__(self, runs: Any) -> None:
        self._runs = runs
        self.looked = 0
        self.after: list[int] = []

    def run(self, run: str) -> Any:
        self.looked += 1
        return self._runs.run(run)

    def artefact_heads(self, run: str, after: int) -> Any:
        self.after.append(after)
        return self._runs.artefact_heads(run, after)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runs, name)


class CountingStore:
    def __init__(self, store: Any) -> None:
        self.runs = CountingRuns(store.runs)
