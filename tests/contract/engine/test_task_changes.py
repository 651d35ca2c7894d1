"""What people change of a task while it runs: an item more, another goal with its conditions."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.contract.engine.test_task_words import SlowModel
from tests.contract.engine.test_tasks import (
    GOAL,
    add,
    close,
    finish,
    order,
    run_of,
    says,
    send,
    start,
    working_fleet,
)

from vedette.domain.action import Proposal
from vedette.domain.base.errors import BadCommand, Forbidden, Permanent
from vedette.domain.identity import Principal
from vedette.domain.memory import Briefing
from vedette.domain.origin import Ref
from vedette.domain.ports.reasoner import ReasonerJudgement
from vedette.engine.task_progress import read_words
from vedette.interfaces.http.command_dispatch import dispatch
from vedette.ledger.history.tasks import show_task
from vedette.operations.commands import Order
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import World, toy_fleet

CLOSED = "version: 1\nconditions:\n  - {name: list, items: closed}\n"
AGREED = CLOSED + "  - {name: agreed, person: agrees}\n"
OTHER = 'Bring "three" away,\n  <not two>  \u202e.'
INPUTS = {"to": "ada", "n": 2}


def finishes(fleet: FleetHarness, run: str) -> list[tuple[str | None, str, str | None]]:
    rows = fleet.app.store.runs.actions(run)
    return [(one.decided, one.rule, one.effect) for one in rows if one.tool == "task.finish"]


def unmet(fleet: FleetHarness) -> list[str]:
    """Return the conditions that did not hold when a finish was denied first."""
    decided = [one for one in fleet.entries("action.decided") if one["outcome"] == "deny"]
    question = fleet.body(decided[0]["seq"])["question"]
    return [one["name"] for one in question["context"]["task"]["conditions"] if not one["held"]]


def shown(fleet: FleetHarness, run: str) -> dict[str, Any]:
    return show_task(fleet.app.store, fleet.app.services.fleet.agents, run)


def closes_all(briefing: Briefing) -> ReasonerJudgement:
    """Add an item, close whatever is current, and finish when nothing is."""
    if briefing.turn == 1:
        return says(add("a"))
    current = briefing.task["items"].get("current")
    return says(close(current["id"])) if current else says(finish())


async def test_an_item_that_a_person_adds_is_told_worked_on_and_counted(tmp_path: Path) -> None:
    fleet, scripted = working_fleet(tmp_path, World(), closes_all, done=AGREED)
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        assert finishes(fleet, run)[-1][0] == "hold"
        await order(fleet, "add", run=run, item="late", title="one more", inputs=INPUTS)
        await fleet.wait_until_idle()
        # The finish that waited did not hear of it, and the next is of a turn that did.
        assert finishes(fleet, run)[0] == ("deny", "task.unmet", None)
        assert unmet(fleet) == ["list", "words_told"]
        current = next(
            one.task["items"]["current"]
            for one in scripted.briefings
            if one.task["items"].get("current", {}).get("id") == "late"
        )
        by = fleet.entries("task.added")[0]["actor"]
        assert current == {
            "id": "late", "title": "one more", "inputs": INPUTS, "by": by, "attempts": 0,
            "place": "/item/late/inputs",
        }  # fmt: skip
        found = shown(fleet, run)
        assert found["items"] == {"of": 2, "done": 2}
        assert [one["kind"] for one in found["said"]] == ["task.added"]
        (waits,) = [row for row in fleet.app.store.runs.actions(run) if row.waits == "approval"]
        await fleet.approve(waits)
        await fleet.wait_until_idle()
        (closed,) = fleet.entries("run.closed")
        assert (closed["items"], closed["items_done"]) == (2, 2)
        assert list(fleet.app.store.ledger.row_mismatches()) == []


@pytest.mark.parametrize(
    ("to", "decided", "origin"),
    [
        (Ref("/item/late/inputs/to"), "permit", "trusted"),
        (Ref("/item/late~/inputs/to"), None, None),
        ("ada@example.org", "deny", "derived"),
    ],
    ids=["by reference", "of no item", "by value"],
)
async def test_a_persons_item_has_that_persons_trust(
    tmp_path: Path, to: Any, decided: str | None, origin: str | None
) -> None:
    """Where it is drawn by reference; a value that a model writes down is its own."""
    fleet, scripted = working_fleet(tmp_path, World(), adds_and_idles, done=CLOSED)
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        letter = Proposal("wire.send", {"to": to, "text": "x"})
        scripted.answer = lambda one: says(letter)
        inputs = {"to": "ada@example.org"}
        await order(fleet, "add", run=run, item="late", title="write to ada", inputs=inputs)
        await fleet.wait_until_idle()
        sent = [row for row in fleet.app.store.runs.actions(run) if row.tool == "wire.send"]
        assert {row.decided for row in sent[:1]} == ({decided} if decided else set())
        if origin:
            assert orjson.loads(sent[0].record)["origins"]["/to"] == origin
            assert orjson.loads(sent[0].record)["args"]["to"] == "ada@example.org"


def adds_and_idles(briefing: Briefing) -> ReasonerJudgement:
    return says(add("a")) if briefing.turn == 1 else says(final=True)


async def test_an_item_added_is_there_after_a_restart(tmp_path: Path) -> None:
    fleet, scripted = working_fleet(tmp_path, World(), adds_and_idles, done=CLOSED)
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        await order(fleet, "add", run=run, item="b", title="late")
        await fleet.wait_until_idle()
        assert run_of(fleet, run).waits == "person"
        await fleet.restart()
        told = len(scripted.briefings)
        scripted.answer = closes_all
        await order(fleet, "resume", run=run)
        await fleet.wait_until_idle()
        assert run_of(fleet, run).state == "done"
        assert scripted.briefings[told].task["items"]["of"] == 2
        assert shown(fleet, run)["items"] == {"of": 2, "done": 2}


@pytest.mark.parametrize(
    ("args", "what"),
    [
        ({"item": "a", "title": "again"}, "an item 'a' already: it is open"),
        ({"item": "", "title": "x"}, "an item has an id"),
        ({"item": "b", "title": ""}, "a short title"),
        ({"item": "b", "title": "x", "inputs": {"x": "y" * 20_000}}, "inputs are 10000 bytes"),
    ],
)
async def test_what_is_no_item_is_refused_and_nothing_applied(
    tmp_path: Path, args: dict[str, Any], what: str
) -> None:
    fleet, _ = working_fleet(tmp_path, World(), lambda one: says(add("a")), done=CLOSED)
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        before = run_of(fleet, run)
        with pytest.raises(BadCommand, match=what):
            await order(fleet, "add", run=run, **args)
        assert run_of(fleet, run) == before


# --- another goal ---------------------------------------------------------------------------------


def sends_then_finishes(briefing: Briefing) -> ReasonerJudgement:
    return says(send("letter")) if briefing.turn == 1 else says(finish())


async def test_a_changed_goal_is_told_word_for_word_and_decides_the_finish(tmp_path: Path) -> None:
    """The finish that waits was thought under the old goal, and does not end the new."""
    done = "version: 1\nconditions:\n  - {name: agreed, person: agrees}\n"
    fleet, scripted = working_fleet(tmp_path, World(), sends_then_finishes, done=done)
    async with fleet:
        given = [{"name": "one", "action": "wire.send"}]
        run = await start(fleet, conditions=given)
        await fleet.wait_until_idle()
        (held,) = [row for row in fleet.app.store.runs.actions(run) if row.waits == "approval"]
        conditions = [{"name": "three", "action": "wire.send", "at_least": 3}]
        scripted.answer = lambda one: says(send(f"{one.turn}")) if one.turn < 5 else says(finish())
        await order(fleet, "goal", run=run, goal=OTHER, conditions=conditions)
        await fleet.wait_until_idle()
        # The old finish is denied by what it did not hear, whatever a person had said of it.
        assert finishes(fleet, run)[0] == ("deny", "task.unmet", None)
        assert unmet(fleet) == ["three", "words_told"]
        with pytest.raises(BadCommand):
            await fleet.approve(held)
        before = [one for one in scripted.briefings if one.turn <= 2]
        after = [one for one in scripted.briefings if one.turn > 2]
        assert {one.task["goal"] for one in before} == {GOAL}
        assert {one.task["goal"] for one in after} == {OTHER}
        assert {one.task["revision"] for one in after} == {2}
        # What came with the event is replaced; what done.yaml says stays.
        assert [one["name"] for one in after[-1].task["conditions"]] == ["three", "agreed"]
        found = shown(fleet, run)
        assert (found["goal"], found["revision"], found["waits"]) == (OTHER, 2, "approval")
        (word,) = found["said"]
        assert word["by"].startswith("person:")
        assert OTHER in word["why"]
        (waits,) = [row for row in fleet.app.store.runs.actions(run) if row.waits == "approval"]
        await fleet.approve(waits)
        await fleet.wait_until_idle()
        assert run_of(fleet, run).state == "done"
        assert list(fleet.app.store.ledger.row_mismatches()) == []


async def test_a_goal_without_conditions_keeps_them_and_items_stay(tmp_path: Path) -> None:
    fleet, scripted = working_fleet(tmp_path, World(), closes_all, done=AGREED)
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        await order(fleet, "goal", run=run, goal=OTHER)
        await order(fleet, "goal", run=run, goal=GOAL)
        await fleet.wait_until_idle()
        assert scripted.briefings[-1].task["goal"] == GOAL
        assert scripted.briefings[-1].task["revision"] == 3
        found = shown(fleet, run)
        assert [one["name"] for one in found["conditions"]] == ["list", "agreed"]
        assert found["items"] == {"of": 1, "done": 1}


async def test_a_revision_is_there_after_a_restart(tmp_path: Path) -> None:
    fleet, scripted = working_fleet(tmp_path, World(), adds_and_idles, done="")
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        conditions = [{"name": "two", "action": "wire.send", "at_least": 2}]
        await order(fleet, "goal", run=run, goal=OTHER, conditions=conditions)
        await fleet.wait_until_idle()
        await fleet.restart()
        before = run_of(fleet, run).turn
        scripted.answer = lambda one: says(
            send(f"{one.turn}") if one.turn < before + 3 else finish()
        )
        await order(fleet, "resume", run=run)
        await fleet.wait_until_idle()
        after = [one for one in scripted.briefings if one.turn > before]
        assert [one.task["goal"] for one in after] == [OTHER] * 3
        assert [one["name"] for one in after[0].task["conditions"]] == ["two"]
        assert run_of(fleet, run).state == "done"


@pytest.mark.parametrize(
    ("args", "what"),
    [
        ({"goal": " "}, "a goal has"),
        ({"goal": "x", "conditions": [{"name": "x"}]}, "says nothing that is to hold"),
        ({"goal": "x", "conditions": [{"name": "x", "action": "no.such"}]}, "is not a tool"),
        ({"goal": "x", "conditions": [{"name": "list", "items": "closed"}]}, "which holds too"),
    ],
)
async def test_what_is_no_revision_is_refused(
    tmp_path: Path, args: dict[str, Any], what: str
) -> None:
    fleet, _ = working_fleet(tmp_path, World(), lambda one: says(add("a")), done=CLOSED)
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        before = run_of(fleet, run)
        with pytest.raises(BadCommand, match=what):
            await order(fleet, "goal", run=run, **args)
        assert run_of(fleet, run) == before


@pytest.mark.parametrize(
    ("before", "after", "refused"),
    [
        ([{"name": "legal", "person": "signs"}], [{"name": "x", "items": "closed"}], "legal"),
        ([{"name": "legal", "person": "signs"}], [{"name": "other", "person": "?"}], "legal"),
        (None, [{"name": "x", "items": "closed"}], "approved"),
        (None, [{"name": "x", "person": "whoever"}], ""),
        ([{"name": "legal", "person": "signs"}], None, ""),
    ],
)
async def test_who_may_not_approve_drops_no_approval(
    tmp_path: Path, before: Any, after: Any, refused: str
) -> None:
    fleet, _ = working_fleet(tmp_path, World(), lambda one: says(final=True), done="")
    operator = Order(Principal("person", "op", frozenset({"operator"})), "because")
    both = Order(Principal("person", "all", frozenset({"operator", "approver"})), "because")
    async with fleet:
        run = await start(fleet, **({} if before is None else {"conditions": before}))
        await fleet.wait_until_idle()
        args = {"run": run, "goal": OTHER, **({} if after is None else {"conditions": after})}
        if refused:
            with pytest.raises(Forbidden, match=f"'{refused}' of a person, which needs approver"):
                await dispatch(fleet.app.commands, "work_goal", operator, args)
            assert shown(fleet, run)["revision"] == 1
            await dispatch(fleet.app.commands, "work_goal", both, args)
        else:
            await dispatch(fleet.app.commands, "work_goal", operator, args)
        await fleet.wait_until_idle()
        assert shown(fleet, run)["revision"] == 2


async def test_conditions_of_a_revision_stay_with_the_next_goal(tmp_path: Path) -> None:
    fleet, scripted = working_fleet(tmp_path, World(), lambda one: says(final=True), done=CLOSED)
    async with fleet:
        run = await start(fleet, conditions=[{"name": "first", "items": "done"}])
        await fleet.wait_until_idle()
        conditions = [{"name": "second", "items": "done"}]
        await order(fleet, "goal", run=run, goal=OTHER, conditions=conditions)
        await order(fleet, "goal", run=run, goal=GOAL)
        await fleet.wait_until_idle()
        told = scripted.briefings[-1].task["conditions"]
        assert [one["name"] for one in told] == ["second", "list"]


async def test_an_edited_word_of_a_person_is_not_taken(tmp_path: Path) -> None:
    fleet, _ = working_fleet(tmp_path, World(), lambda one: says(add("a")), done=CLOSED)
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        await order(fleet, "pause", run=run)
        await order(fleet, "goal", run=run, goal=OTHER)
        assert read_words(fleet.app.store, run).revision is not None
        event = fleet.app.store.runs.event(run_of(fleet, run).event)
        assert event is not None
        await fleet.app.commands.erase(fleet.order(), subject=event.subject, deny_holds=True)
        with pytest.raises(Permanent, match="erased, or edited"):
            read_words(fleet.app.store, run)


@pytest.mark.parametrize("verb", ["add", "goal"])
async def test_what_a_model_thinks_meanwhile(tmp_path: Path, verb: str) -> None:
    """It stands after an item, and its finish ends nothing; after another goal it is dropped."""

    def answer(briefing: Briefing) -> ReasonerJudgement:
        current = briefing.task["items"].get("current")
        return says(close(current["id"])) if current else says(finish())

    model = SlowModel(answer)
    done = CLOSED.replace("closed", "closed, at_least: 0")
    fleet = toy_fleet(
        tmp_path, World(), reasoner="adk", reasoners={"adk": model}, work="{}", done=done,
        extra=None,
    )  # fmt: skip
    async with fleet:
        run = await start(fleet)
        await model.begun.wait()
        if verb == "add":
            await order(fleet, "add", run=run, item="late", title="one more")
        else:
            await order(fleet, "goal", run=run, goal=OTHER)
        model.gate.set()
        await fleet.wait_until_idle()
        assert run_of(fleet, run).state == "done"
        goals = [one.task["goal"] for one in model.briefings]
        if verb == "add":
            assert finishes(fleet, run)[0] == ("deny", "task.unmet", None)
            assert unmet(fleet) == ["list", "words_told"]
            assert model.briefings[1].turn == 2
            assert model.briefings[1].turns[0]["answers"][0]["unmet"] == ["list"]
            (closed,) = fleet.entries("run.closed")
            assert (closed["items"], closed["items_done"]) == (1, 1)
        else:
            assert [one.turn for one in model.briefings] == [1, 1]
            assert goals == [GOAL, OTHER]
            assert [one[0] for one in finishes(fleet, run)] == ["permit"]
        assert list(fleet.app.store.ledger.row_mismatches()) == []


async def test_people_and_an_agent_that_goes_on_do_not_lose_one_another(tmp_path: Path) -> None:
    """Ten people add items while turns are taken: each is there once, and each is closed."""
    fleet, _ = working_fleet(
        tmp_path, World(), closes_all, done=CLOSED.replace("closed", "closed, at_least: 11")
    )
    async with fleet:
        run = await start(fleet)
        await asyncio.gather(
            *(order(fleet, "add", run=run, item=f"p{at}", title="more") for at in range(10))
        )
        await fleet.wait_until_idle()
        found = shown(fleet, run)
        assert found["items"] == {"of": 11, "done": 11}
        assert sorted(one["id"] for one in found["item_list"]) == [
            "a",
            *(f"p{n}" for n in range(10)),
        ]
        assert run_of(fleet, run).state == "done"
