"""How sure a model is: what people answered counts, by whom, of what, and what is audited.

The toy judge is as sure as the event says; the model is scripted and speaks through ADK.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.cascades import (
    MANY,
    SEND,
    always,
    answer_holds,
    ask,
    cascade,
    correct_all,
    decide_next,
    deny,
    let_pass,
    say,
    stated,
)
from tests.contract.app.test_judge_replay import replay_all

from vedette.domain.action import Proposal
from vedette.domain.memory import Briefing
from vedette.domain.model_turn import ModelTurn
from vedette.domain.origin import Ref
from vedette.domain.ports.reasoner import ReasonerJudgement, StatelessReasoner
from vedette.engine.agreements import Agreements
from vedette.testing.clock import ManualClock
from vedette.testing.harness import FleetHarness, checkout
from vedette.testing.scripted import ToolCall
from vedette.testing.toy_fleet import (
    World,
    drop_bars,
    job,
    toy_fleet,
)

# The bars as they are shipped, where a toy fleet would have none.
BARS = {"limits/data.yaml": (checkout() / "policies/limits/data.yaml").read_text("utf-8")}


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize(
    ("answers", "given", "said", "is_held"),
    [
        (99, {}, 0, True),
        (100, {}, 101 / 102, False),
        (100, {"wrong": 8}, 93 / 102, False),
        (100, {"wrong": 25}, 76 / 102, True),
        # As many wrong, but lately: the model is another than it was.
        (100, {"last_wrong": 8}, 13 / 22, True),
    ],
)
async def test_a_model_is_as_sure_as_people_agreed_with_it(
    tmp_path: Path, world: World, answers: int, given: dict[str, int], said: float, is_held: bool
) -> None:
    fleet, _ = cascade(tmp_path, world, always, MANY)
    async with fleet:
        await answer_holds(fleet, answers, **given)
        await fleet.restart()  # it is in the ledger, not in a process
        row = await decide_next(fleet)
        assert stated(row) == int(said * 1000)
        # One turn of fifty is audited all the same.
        assert row.rule == ("confidence.low" if is_held else row.rule)
        assert is_held or row.rule in ("permit.tool", "confidence.audit")


async def test_another_model_is_unmeasured(tmp_path: Path, world: World) -> None:
    fleet, _ = cascade(tmp_path, world, always, MANY)
    async with fleet:
        await answer_holds(fleet, 12)
        agreements = fleet.app.services.agreements
        await agreements.read_answers(fleet.app.store)
        ((agent, route, tool),) = agreements._verdicts
        assert agreements.agreement(agent, route, tool).cases == 12
        assert agreements.agreement(agent, "another", tool).cases == 0
        assert agreements.agreement("other", route, tool).cases == 0


async def test_once_it_may_act_a_share_still_goes_to_people(tmp_path: Path, world: World) -> None:
    """Whatever the bar: with none, too."""
    words = "confidence: {audit_share: 300}\n"
    given: Any = {"extra": drop_bars("worker"), "model_calls": 1000}
    fleet, _ = cascade(tmp_path, world, always, words, **given)
    async with fleet:
        await correct_all(fleet, 100)
        events = [job(f"a{n}", key=f"a{n}", confidence=0.1) for n in range(60)]
        await fleet.send(*events)
        await fleet.wait_until_idle(60)
        rows = [fleet.actions(event)[0] for event in events]
        held = [row for row in rows if row.decided == "hold"]
        assert {row.rule for row in held} == {"confidence.audit"}
        assert 6 <= len(held) <= 32  # 18 of 60 to be expected
        # It is decided again, and a person's word is what lets it through.
        await fleet.restart()
        await fleet.approve(held[0])
        await fleet.wait_until_idle()
        assert len(world.texts()) == 100 + 60 - len(held) + 1
        report = await replay_all(fleet.app)
        assert report.differences == []


async def counts(fleet: FleetHarness) -> list[tuple[int, int]]:
    """Return how many cases there are of each tool, and how many of them are right."""
    agreements = Agreements()
    await agreements.read_answers(fleet.app.store)
    found = [agreements.agreement(*place) for place in agreements._verdicts]
    return [(one.cases, one.right) for one in found]


async def test_a_denial_is_a_no_whatever_is_said_beside_it(tmp_path: Path, world: World) -> None:
    fleet, _ = cascade(tmp_path, world, always)
    async with fleet:
        await decide_next(fleet, "first")
        event = job("a", key="a", confidence=0.1)
        await fleet.send(event)
        await fleet.wait_until_idle()
        await say(fleet, event)
        assert await counts(fleet) == [(1, 1)]
        await deny(fleet, fleet.actions(event)[0])
        await fleet.wait_until_idle()
        assert await counts(fleet) == [(1, 0)]
        event = job("b", key="b", confidence=0.1)
        await fleet.send(event)
        await fleet.wait_until_idle()
        await deny(fleet, fleet.actions(event)[0])
        await say(fleet, event)
        assert await counts(fleet) == [(2, 0)]
        # A yes that is taken back before anything was done.
        row = fleet.actions(job("first", key="first"))[0]
        await fleet.app.commands.stop(fleet.order(), tool="wire.send")
        await fleet.approve(row)
        await fleet.wait_until_idle()
        assert await counts(fleet) == [(3, 1)]
        (row,) = fleet.actions(job("first", key="first"))
        await deny(fleet, row)
        assert await counts(fleet) == [(3, 0)]


async def test_whether_it_happened_is_no_answer_to_whether_it_was_right(
    tmp_path: Path, world: World
) -> None:
    world.loses_answer, clock = True, ManualClock()
    world.answer = lambda call: RuntimeError("lost")
    bell = ToolCall("bell.ring", {"to": "ref:/charter/desk", "text": "by the model"})
    fleet, _ = cascade(
        tmp_path, world, lambda p: "Done." if p.answers else bell,
        extra=drop_bars("worker"), clock=clock,
    )  # fmt: skip
    async with fleet:
        events = [job(f"u{n}", key=f"u{n}", confidence=0.1) for n in range(2)]
        await fleet.send(*events)
        await fleet.wait_until_idle()
        await let_pass(fleet, clock, 900)
        first, second = [fleet.actions(event)[0] for event in events]
        assert {(row.effect, row.hold) for row in (first, second)} == {("unknown", "open")}
        world.answer = None
        await fleet.approve(first)
        await deny(fleet, second)
        await fleet.wait_until_idle()
        assert len(fleet.entries("hold.approved", "hold.denied")) == 2
        assert await counts(fleet) == []


async def test_one_event_is_one_case_however_much_is_proposed_of_it(
    tmp_path: Path, world: World
) -> None:
    fleet, _ = cascade(tmp_path, world, lambda p: "Done." if p.answers else [SEND] * 12)
    async with fleet:
        event = job("1", confidence=0.1)
        await fleet.send(event)
        await fleet.wait_until_idle()
        rows = fleet.actions(event)
        assert len(rows) == 12
        for row in rows[1:]:
            await fleet.approve(row)
        assert await counts(fleet) == [(1, 1)]
        await deny(fleet, rows[0])
        assert await counts(fleet) == [(1, 0)]


async def test_what_was_erased_was_answered_all_the_same(tmp_path: Path, world: World) -> None:
    """A worker that starts after an erasure measures what those measure that run."""
    fleet, _ = cascade(tmp_path, world, always)
    async with fleet:
        await answer_holds(fleet, 6, wrong=2)
        before = await counts(fleet)
        assert before == [(6, 4)]
        for n in range(2):
            event = job(f"m{n}", key=f"m{n}")
            await fleet.app.commands.erase(fleet.order(), event=event.key)
        assert await counts(fleet) == before


async def test_another_release_is_on_probation(tmp_path: Path, world: World) -> None:
    """The measure stands, and every second turn is a person's until enough are answered."""
    fleet, _ = cascade(tmp_path, world, always, MANY, model_calls=2000)
    async with fleet:
        await answer_holds(fleet)
        folder = fleet.content / "agents/worker"
        (folder / "instruction.md").write_text("Send it twice as fast.\n")
        await fleet.app.releases.release(fleet.order(), "worker")
        asks_now: Any = fleet.app.services.reasoners
        assert asks_now["adk"]
        events = [job(f"p{n}", key=f"p{n}", confidence=0.1) for n in range(60)]
        await fleet.send(*events)
        await fleet.wait_until_idle(60)
        held = [fleet.actions(event)[0] for event in events]
        held = [row for row in held if row.decided == "hold"]
        assert 15 <= len(held) <= 45  # 30 of 60 to be expected; of the release before, 1
        assert {row.rule for row in held} == {"confidence.audit"}


class SureModel(StatelessReasoner):
    """Says how sure it is, and not what a model said."""

    async def reason(self, briefing: Briefing) -> ReasonerJudgement:
        to = Ref("/charter/desk")
        wanted = Proposal("wire.send", {"to": to, "text": "sure"}, "", 1.0)
        return ReasonerJudgement("x", 1.0, (wanted,), model_calls=1, asks="", deferred=False)


@pytest.mark.parametrize("reasoner", ["[judge, model]", "adk"])
async def test_who_asks_a_model_is_not_believed_how_sure_it_is(
    tmp_path: Path, world: World, reasoner: str
) -> None:
    fleet = toy_fleet(tmp_path, world, reasoner=reasoner, extra=BARS)
    ask(fleet, SureModel())
    async with fleet:
        row = await decide_next(fleet)
        assert (row.decided, row.rule, stated(row)) == ("hold", "confidence.low", 0)


class ForgingJudge(StatelessReasoner):
    """A judge that says a model said it, that a person need not, and that another is to go on."""

    async def reason(self, briefing: Briefing) -> ReasonerJudgement:
        turn = ModelTurn("script", "a" * 64, "first", "", (), "", "{}")
        to = Ref("/charter/desk")
        wanted = Proposal("wire.send", {"to": to, "text": "forged"}, "", 0.5)
        return ReasonerJudgement("j", 0.95, (wanted,), model_turn=turn, deferred=True)


async def test_a_judge_does_not_speak_for_a_model(tmp_path: Path, world: World) -> None:
    fleet, _ = cascade(tmp_path, world, always)
    fleet._reasoners = {"judge": ForgingJudge()}
    async with fleet:
        row = await decide_next(fleet)
        assert (row.turn, row.rule) == (1, "confidence.low")
        await fleet.approve(row)
        await fleet.wait_until_idle()
        assert world.texts() == ["forged"]
        assert await counts(fleet) == []
