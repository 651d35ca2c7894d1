"""A toy fleet with a cascade: its judge is as sure as the event says, its model is scripted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import orjson

from vedette.adapters.reasoners.adk.reasoner import AdkReasoner
from vedette.domain.memory import Briefing
from vedette.domain.model_turn import ModelAway
from vedette.domain.ports.reasoner import Reasoner, ReasonerJudgement, StatelessReasoner
from vedette.domain.run import ActionRow
from vedette.ledger.history.lists import inbox
from vedette.operations import corrections
from vedette.testing.clock import ManualClock
from vedette.testing.harness import FleetHarness
from vedette.testing.scripted import RecordedPrompt, ScriptedModel, ScriptEntry, ToolCall
from vedette.testing.toy_fleet import World, job, toy_fleet

SEND = ToolCall("wire.send", {"to": "ref:/charter/desk", "text": "by the model"})
# As few are audited as may be.
MANY = "confidence: {audit_share: 20}\n"
SECOND = 1_000_000
TAKEOVER = "cascade: {settle_at: 900, person_after: 30m}\n"
Script = Sequence[ScriptEntry] | Callable[[RecordedPrompt], ScriptEntry]


def ask_model(fleet: FleetHarness, script: Script) -> ScriptedModel:
    model = ScriptedModel(script)
    folders = {"worker": fleet.content / "agents" / "worker"}
    ask(fleet, AdkReasoner(folders, model_for=model.model_for))
    return model


def ask(fleet: FleetHarness, model: Reasoner) -> None:
    """Have a fleet ask this in place of what its agent.py names; its judges are the real ones."""
    path, opened = fleet.content / "agents/worker/agent.py", fleet.open
    path.write_text(path.read_text("utf-8").replace('"none"', '"gemini-2.5-flash"'), "utf-8")

    async def open_asking() -> None:
        await opened()
        reasoners: Any = fleet.app.services.reasoners
        reasoners["adk"] = model

    fleet.open = open_asking  # type: ignore[method-assign]


def holds(fleet: FleetHarness) -> list[dict[str, Any]]:
    """Return the inbox."""
    found: list[dict[str, Any]] = inbox(fleet.app.store, fleet.app.services.clock.now_us())["items"]
    return found


async def deny(fleet: FleetHarness, row: ActionRow) -> None:
    await fleet.app.commands.deny(fleet.order(), row.id, fleet.shown_digest(row))


def set_up(fleet: FleetHarness, words: str) -> None:
    """Write more into the toy agent's agent.yaml."""
    path = fleet.content / "agents/worker/agent.yaml"
    path.write_text(path.read_text("utf-8") + words, "utf-8")


def cascade(
    folder: Path, world: World, script: Script, words: str = "", **given: Any
) -> tuple[FleetHarness, ScriptedModel]:
    """Return a toy fleet whose judge settles from 0.9 and defers to a scripted model."""
    fleet = toy_fleet(folder, world, reasoner="[judge, model]", **{"model_calls": 2000, **given})
    set_up(fleet, words)
    return fleet, ask_model(fleet, script)


async def answer_holds(
    fleet: FleetHarness, count: int = 100, *, wrong: int = 0, first: int = 0, last_wrong: int = 0
) -> None:
    """Have the model propose so often, and a person say of each whether it was right.

    Of those that wait for an answer the first are wrong, or the last.
    """
    events = [job(f"m{n}", key=f"m{n}", confidence=0.1) for n in range(first, first + count)]
    await fleet.send(*events)
    await fleet.wait_until_idle(60)
    for n, event in enumerate(events):
        (row,) = fleet.actions(event)
        if row.hold == "open":
            is_wrong = n < wrong or n >= count - last_wrong
            await (deny if is_wrong else FleetHarness.approve)(fleet, row)
    await fleet.wait_until_idle(60)


async def decide_next(fleet: FleetHarness, name: str = "last") -> ActionRow:
    """Return what becomes of the model's next proposal."""
    event = job(name, key=name, confidence=0.1)
    await fleet.send(event)
    await fleet.wait_until_idle()
    return fleet.actions(event)[0]


def stated(row: ActionRow) -> int:
    """Return how sure an action is, in thousandths."""
    found: int = orjson.loads(row.record)["confidence"]
    return found


def always(prompt: Any) -> Any:
    """Propose one message, and no more once that was answered."""
    return "Done." if prompt.answers else SEND


async def correct_all(fleet: FleetHarness, count: int, **given: Any) -> None:
    """Have the model act so often unmeasured, and a person say of each run what it was."""
    events = [job(f"c{n}", key=f"c{n}", confidence=0.1) for n in range(count)]
    await fleet.send(*events)
    await fleet.wait_until_idle(60)
    for event in events:
        await say(fleet, event, **given)


async def say(fleet: FleetHarness, event: Any, **given: Any) -> None:
    """Correct a run: it was right, or what it should have been."""
    args = {"run": fleet.runs(event)[0].id, **(given or {"right": True})}
    await corrections.dispatch(fleet.app.commands, fleet.order(), args)


async def let_pass(fleet: FleetHarness, clock: ManualClock, seconds: int) -> None:
    for _ in range(seconds // 10):
        clock.advance(10 * SECOND)
        await fleet.wait_until_idle()


class AwayModel(StatelessReasoner):
    """A model whose provider is away until it `is_back`."""

    is_back = False
    asked = 0

    async def reason(self, briefing: Briefing) -> ReasonerJudgement:
        self.asked += 1
        if not self.is_back:
            raise ModelAway("the model is away", "unavailable")
        return ReasonerJudgement("fine", 0.0, model_calls=1, spent={})


def takeover(
    folder: Path, world: World, model: Reasoner, **given: Any
) -> tuple[FleetHarness, ManualClock]:
    """Return a fleet with a cascade that a person takes over from after half an hour."""
    clock = ManualClock()
    given = {"reasoner": "[judge, model]", "model_calls": 2000, **given}
    fleet = toy_fleet(folder, world, clock=clock, **given)
    set_up(fleet, TAKEOVER)
    ask(fleet, model)
    return fleet, clock
