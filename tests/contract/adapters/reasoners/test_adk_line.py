"""An agent on ADK on the whole line: several turns, holds, and crashes between the turns.

ADK's own Runner with a scripted model; gateway, Rego, store and dispatcher are the real ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from vedette.adapters.reasoners.adk.reasoner import AdkReasoner
from vedette.domain.base.errors import StoreFailed
from vedette.domain.event import Event
from vedette.domain.run import Step
from vedette.testing.clock import ManualClock
from vedette.testing.harness import FleetHarness
from vedette.testing.scripted import RecordedPrompt, ScriptedModel, ScriptEntry, ToolCall
from vedette.testing.toy_fleet import (
    World,
    block_calls,
    intercept_commits,
    job,
    toy_fleet,
    wait_until,
)

SECOND = 1_000_000
DESK = "ref:/charter/desk"
SEND = ToolCall("wire.send", {"to": DESK, "text": "hello"})
BIG = ToolCall("big.send", {"to": DESK, "text": "hello"})

Script = Sequence[ScriptEntry] | Callable[[RecordedPrompt], ScriptEntry]


@pytest.fixture
def world() -> World:
    return World()


def thinking(
    folder: Path, world: World, script: Script, *, reword: Sequence[str] = (), **given: Any
) -> tuple[FleetHarness, ScriptedModel]:
    """Return a toy fleet whose agent asks a scripted model through ADK."""
    fleet = toy_fleet(folder, world, reasoner="adk", **given)
    return fleet, ask_model(fleet, script, reword=reword)


def ask_model(
    fleet: FleetHarness, script: Script, *, reword: Sequence[str] = (), before: int = 0
) -> ScriptedModel:
    model = ScriptedModel(script, reword=reword, prompts_before=before)
    folders = {"worker": fleet.content / "agents" / "worker"}
    fleet._reasoners = {"adk": AdkReasoner(folders, model_for=model.model_for)}
    return model


def state(fleet: FleetHarness, event: Event) -> str:
    return fleet.runs(event)[0].state


async def test_permit_then_deny_then_the_end(tmp_path: Path, world: World) -> None:
    """What came of each call reaches the next turn, labelled, and no more than it may know."""
    elsewhere = ToolCall("wire.send", {"to": "ref:/outcome/0/text", "text": "again"})
    fleet, model = thinking(tmp_path, world, [["I send it.", SEND], elsewhere, "Nothing more."])
    async with fleet:
        event = job("1")
        await fleet.send(event)
        await fleet.wait_until_idle()
        assert state(fleet, event) == "done"
        sent, denied = fleet.actions(event)
        assert (sent.decided, sent.effect, sent.turn) == ("permit", "done", 1)
        assert (denied.decided, denied.rule, denied.turn) == ("deny", "origins.untrusted", 2)
        assert world.texts() == ["hello"]
        assert [len(request.answers) for request in model.prompts] == [0, 1, 2]
        done, refused = model.prompts[2].answers
        assert (done["status"], done["ref"]) == ("done", "ref:/outcome/0")
        assert dict(refused) == {"status": "not permitted"}, "no rule is told: it could be probed"
        kinds = [e["kind"] for e in fleet.entries() if e.get("run") == sent.run]
        turn = ["budget.reserved", "budget.settled", "turn.reasoned"]
        assert kinds == [
            *turn, "action.decided", "effect.intended", "effect.done",
            *turn, "action.decided",
            *turn, "run.closed",
        ]  # fmt: skip


async def test_a_held_call_waits_without_its_model(tmp_path: Path, world: World) -> None:
    fleet, model = thinking(tmp_path, world, [BIG, "Done."])
    async with fleet:
        event, other = job("1"), job("2", key="other")
        await fleet.send(event)
        await fleet.wait_until_idle()
        (row,) = fleet.actions(event)
        assert (row.decided, state(fleet, event)) == ("hold", "waiting")
        assert len(model.prompts) == 1, "nobody is asked while a person thinks"
        await fleet.restart()
        await fleet.approve(row)
        await fleet.wait_until_idle()
        assert (state(fleet, event), world.texts()) == ("done", ["hello"])
        assert len(model.prompts) == 2
        assert model.prompts[1].answers[0]["status"] == "done"

        await fleet.send(other)
        await fleet.wait_until_idle()
        await fleet.app.commands.deny(fleet.order(), fleet.actions(other)[0].id)
        await fleet.wait_until_idle()
        assert state(fleet, other) == "done"
        assert dict(model.prompts[-1].answers[0]) == {"status": "not permitted"}
        assert world.effects() == 1


async def test_other_words_after_a_crash_are_no_second_effect(tmp_path: Path, world: World) -> None:
    """The turn is recorded, its effect not yet begun: the model is not asked for it again."""
    fleet, before = thinking(tmp_path, world, [SEND, "Done."], reword=("text",))
    await fleet.open()
    try:
        stuck = block_calls(fleet)
        event = job("1")
        await fleet.send(event)
        await wait_until(lambda: bool(stuck.reached_keys))
        await fleet.close()
        after = ask_model(fleet, [SEND, "Done."], reword=("text",), before=1)
        await fleet.open()
        await fleet.wait_until_idle()
        assert state(fleet, event) == "done"
        assert world.texts() == ["hello (1)"]
        assert [*world.keys()] == stuck.reached_keys
        assert [request.turn for request in [*before.prompts, *after.prompts]] == [0, 1]
    finally:
        await fleet.close()


async def test_other_words_while_the_first_were_not_recorded_are_one_effect(
    tmp_path: Path, world: World
) -> None:
    """The control too: asked again, this model does say something else, and that is what is done.

    The crash is between the answer and its commit; the key is that of the place, not the words.
    """
    clock = ManualClock()
    fleet, model = thinking(tmp_path, world, [SEND, "Done."], reword=("text",), clock=clock)
    async with fleet:
        lost: list[str] = []

        async def lossy(step: Step) -> Step | None:
            if step.turn == 1 and not lost:
                lost.append(step.actions[0].id)
                raise StoreFailed("the disk is full")
            return None

        intercept_commits(fleet, lossy)
        event = job("1")
        await fleet.send(event)
        await fleet.wait_until_idle()
        clock.advance(SECOND)
        await fleet.wait_until_idle()
        assert state(fleet, event) == "done"
        assert world.texts() == ["hello (2)"]
        assert lost == [f"act_{key}" for key in sorted(world.keys())]
        assert [request.turn for request in model.prompts] == [0, 0, 1]


async def test_a_crash_between_an_effect_and_its_outcome_repeats_the_same_call(
    tmp_path: Path, world: World
) -> None:
    fleet, _ = thinking(tmp_path, world, [SEND, "Done."], reword=("text",))
    await fleet.open()
    try:

        async def lossy(step: Step) -> Step | None:
            if any(row.effect == "done" for row in step.actions):
                raise StoreFailed("the power failed")
            return None

        intercept_commits(fleet, lossy)
        event = job("1")
        await fleet.send(event)
        await wait_until(lambda: world.effects() == 1)
        await fleet.close()
        ask_model(fleet, [SEND, "Done."], reword=("text",), before=5)
        await fleet.open()
        await fleet.wait_until_idle()
        assert state(fleet, event) == "done"
        assert set(world.texts()) == {"hello (1)"}, "the recorded words, not new ones"
        assert len(world.keys()) == 1
    finally:
        await fleet.close()


async def test_a_made_up_tool_is_refused_and_the_rest_goes_on(tmp_path: Path, world: World) -> None:
    made_up = ToolCall("wire.shred", {"all": True})
    lost = ToolCall("wire.send", {"to": "ref:/event/data/nowhere", "text": "x"})
    fleet, model = thinking(tmp_path, world, [[made_up, lost, SEND], "Done."])
    async with fleet:
        event = job("1")
        await fleet.send(event)
        await fleet.wait_until_idle()
        assert state(fleet, event) == "done"
        assert [e["ordinal"] for e in fleet.entries("action.refused")] == [0, 1]
        assert world.texts() == ["hello"]
        assert [answer["status"] for answer in model.prompts[1].answers] == [
            "refused", "refused", "done",
        ]  # fmt: skip


async def test_a_model_that_fails_is_asked_again_and_in_the_end_given_up(
    tmp_path: Path, world: World
) -> None:
    clock = ManualClock()
    script = {"fails": 2}

    def answer(prompt: RecordedPrompt) -> ScriptEntry:
        if script["fails"]:
            script["fails"] -= 1
            return RuntimeError("429 quota")
        return "Nothing to do."

    fleet, model = thinking(tmp_path, world, answer, clock=clock)
    async with fleet:
        event, hopeless = job("1"), job("2", key="other")
        await fleet.send(event)
        for _ in range(3):
            await fleet.wait_until_idle()
            clock.advance(20 * SECOND)
        await fleet.wait_until_idle()
        assert (state(fleet, event), len(model.prompts)) == ("done", 3)
        script["fails"] = 1000
        await fleet.send(hopeless)
        for _ in range(8):
            await fleet.wait_until_idle()
            clock.advance(60 * SECOND)
        await fleet.wait_until_idle()
        assert state(fleet, hopeless) == "dead"
        (dead,) = fleet.entries("run.dead")
        assert "failed: RuntimeError" in fleet.body(dead["seq"])["why"]


async def test_a_model_that_never_ends_is_a_dead_letter(tmp_path: Path, world: World) -> None:
    fleet, model = thinking(tmp_path, world, lambda request: SEND, max_turns=3)
    async with fleet:
        event = job("1")
        await fleet.send(event)
        await fleet.wait_until_idle()
        assert state(fleet, event) == "dead"
        assert (len(model.prompts), world.effects()) == (3, 3)
