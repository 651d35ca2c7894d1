"""What a person says of a task while one of its effects is being called, or its model thinks."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.contract.engine.test_tasks import (
    DONE_YAML,
    Answer,
    Scripted,
    finish,
    order,
    run_of,
    says,
    send,
    start,
    working_fleet,
)

from vedette.domain.effect import Outcome
from vedette.domain.memory import Briefing
from vedette.domain.ports.reasoner import ReasonerJudgement
from vedette.testing.toy_fleet import World, toy_fleet


class SlowWorld(World):
    """A world whose first effect takes until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.gate = threading.Event(), threading.Event()
        self.answer = self._wait

    def _wait(self, _call: Any) -> Outcome | None:
        if not self.begun.is_set():
            self.begun.set()
            self.gate.wait(30)
        return None


@pytest.mark.parametrize("verb", ["cancel", "pause", "steer"])
async def test_a_word_during_a_call_is_heard_before_the_next(tmp_path: Path, verb: str) -> None:
    world = SlowWorld()

    def answer(briefing: Briefing) -> ReasonerJudgement:
        return says(send("first"), send("second")) if briefing.turn == 1 else says(finish())

    fleet, scripted = working_fleet(tmp_path, world, answer)
    async with fleet:
        run = await start(fleet)
        await asyncio.to_thread(world.begun.wait, 30)
        more = {"note": "the second is the last"} if verb == "steer" else {}
        await order(fleet, verb, run=run, **more)
        world.gate.set()
        await fleet.wait_until_idle()
        found, effects = run_of(fleet, run), world.effects("wire.send")
        first, second = fleet.app.store.runs.actions(run)[:2]
        assert first.effect == "done"  # it was begun, and is recorded
        if verb == "steer":
            # What was permitted goes on; the next turn has the note.
            assert (found.state, effects) == ("done", 2)
            (note,) = scripted.briefings[1].task["notes"]
            assert note["note"] == "the second is the last"
        elif verb == "pause":
            assert (found.state, found.waits, effects) == ("waiting", "person", 1)
            assert len(scripted.briefings) == 1
            await order(fleet, "resume", run=run)
            await fleet.wait_until_idle()
            assert (run_of(fleet, run).state, world.effects("wire.send")) == ("done", 2)
        else:
            assert (found.state, effects, second.effect) == ("done", 1, "cancelled")
            (closed,) = fleet.entries("run.closed")
            assert closed["what"] == "cancelled"
            assert len(scripted.briefings) == 1
        assert list(fleet.app.store.ledger.row_mismatches()) == []


async def test_a_word_during_the_last_call_is_heard_before_the_next_turn(tmp_path: Path) -> None:
    world = SlowWorld()
    done = DONE_YAML.replace("at_least: 2", "at_least: 7")
    fleet, scripted = working_fleet(
        tmp_path, world, lambda briefing: says(send(f"{briefing.turn}")), done=done
    )
    async with fleet:
        run = await start(fleet)
        await asyncio.to_thread(world.begun.wait, 30)
        await order(fleet, "cancel", run=run)
        world.gate.set()
        await fleet.wait_until_idle()
        assert run_of(fleet, run).state == "done"
        assert (len(scripted.briefings), world.effects("wire.send")) == (1, 1)


class SlowModel(Scripted):
    """A model whose first answer takes until it is let go."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer)
        self.begun, self.gate = asyncio.Event(), asyncio.Event()

    async def reason(self, briefing: Briefing) -> ReasonerJudgement:
        self.briefings.append(briefing)
        if len(self.briefings) == 1:
            self.begun.set()
            await self.gate.wait()
        return self.answer(briefing)


@pytest.mark.parametrize("verb", ["steer", "pause", "cancel"])
async def test_what_a_model_thought_meanwhile_is_kept_or_settled(tmp_path: Path, verb: str) -> None:
    world = World()
    model = SlowModel(
        lambda briefing: says(send("1"), send("2")) if briefing.turn == 1 else says(finish())
    )
    fleet = toy_fleet(
        tmp_path, world, reasoner="adk", reasoners={"adk": model}, work="{}", done=DONE_YAML,
        model_calls=100,
    )  # fmt: skip
    async with fleet:
        run = await start(fleet)
        await model.begun.wait()
        await order(fleet, verb, run=run, **({"note": "go on"} if verb == "steer" else {}))
        model.gate.set()
        await fleet.wait_until_idle()
        booked, settled = fleet.entries("budget.reserved"), fleet.entries("budget.settled")
        assert len(booked) == len(settled) > 0
        if verb == "steer":
            assert [one.turn for one in model.briefings] == [1, 2]  # no answer was thrown away
            (note,) = model.briefings[1].task["notes"]
            assert note["note"] == "go on"
            assert (run_of(fleet, run).state, world.effects("wire.send")) == ("done", 2)
        else:
            assert (len(model.briefings), world.record) == (1, [])
            assert run_of(fleet, run).turn == 0
            assert run_of(fleet, run).state == ("done" if verb == "cancel" else "waiting")
        assert list(fleet.app.store.ledger.row_mismatches()) == []
