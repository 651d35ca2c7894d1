"""A cascade: the judge settles what it is sure of, the model the rest, a person what neither may.

The toy judge is as sure as the event says; the model is scripted and speaks through ADK.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.cascades import (
    MANY,
    SEND,
    TAKEOVER,
    AwayModel,
    always,
    answer_holds,
    ask,
    cascade,
    correct_all,
    holds,
    let_pass,
    stated,
    takeover,
)
from tests.contract.app.test_judge_replay import replay_all
from tests.pg import server

from vedette.config.settings import StorePlan
from vedette.domain.action import Proposal
from vedette.domain.base.errors import StoreFailed
from vedette.domain.memory import Briefing
from vedette.domain.model_turn import ModelTurn
from vedette.domain.origin import Ref
from vedette.domain.ports.reasoner import ReasonerJudgement, StatelessReasoner
from vedette.domain.run import Step
from vedette.interfaces.cli.hold_text import hold_lines
from vedette.interfaces.render.report_text import report_text
from vedette.ledger.history.report import report
from vedette.testing.clock import ManualClock
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import (
    World,
    drop_bars,
    intercept_commits,
    job,
    send_proposal,
    toy_fleet,
    wait_until,
)

MINUTE = 60_000_000


@pytest.fixture
def world() -> World:
    return World()


def kinds(fleet: FleetHarness, event: Any) -> list[str]:
    (run,) = fleet.runs(event)
    return [entry["kind"] for entry in fleet.entries() if entry.get("run") == run.id]


async def test_a_judge_that_is_sure_costs_what_a_judge_costs(tmp_path: Path, world: World) -> None:
    """No call, no reservation: entry for entry what an agent with a judge alone leaves."""
    event, quiet = job("1", send_proposal(), confidence=0.9), job("2", confidence=1, key="q")
    alone = toy_fleet(tmp_path / "alone", World())
    fleet, model = cascade(tmp_path / "both", world, [SEND])
    found = []
    for one in (alone, fleet):
        async with one:
            await one.send(event, quiet)
            await one.wait_until_idle()
            entries = [e for e in one.entries() if e.get("run")]
            found.append(
                [{k: v for k, v in e.items() if k not in ("release", "at")} for e in entries]
            )
            bodies = [one.body(e["seq"]) for e in entries if e["kind"] == "turn.reasoned"]
            found[-1].append({"bodies": bodies})
    names = ("kind", "about", "run", "n", "event", "turn", "label", "confidence_milli", "bodies")
    first, second = ([{n: e.get(n) for n in names} for e in one] for one in found)
    assert first == second
    assert model.prompts == []
    assert world.texts() == ["hello"]


async def test_what_the_judge_is_not_sure_of_the_model_takes(tmp_path: Path, world: World) -> None:
    fleet, model = cascade(tmp_path, world, [SEND, "Done."], extra=drop_bars("worker"))
    async with fleet:
        event = job("1", send_proposal("by the judge"), confidence=0.89)
        await fleet.send(event)
        await fleet.wait_until_idle()
        assert world.texts() == ["by the model"]
        assert kinds(fleet, event) == [
            "turn.reasoned", "budget.reserved", "budget.settled", "turn.reasoned",
            "action.decided", "effect.intended", "effect.done",
            "budget.reserved", "budget.settled", "turn.reasoned", "run.closed",
        ]  # fmt: skip
        (row,) = fleet.actions(event)
        assert row.turn == 2
        judged = fleet.entries("turn.reasoned")[0]
        assert (judged["what"], judged["confidence_milli"]) == ("deferred", 890)
        # The model is told, as data, and not as what it had said itself.
        prompt = model.prompts[0]
        assert prompt.turn == 0
        (told,) = [text for text in prompt.texts if '<data name="opinion"' in text]
        assert '"confidence":"0.89"' in told
        assert "by the judge" in told


async def test_unmeasured_is_held_and_both_opinions_are_shown(tmp_path: Path, world: World) -> None:
    fleet, _ = cascade(tmp_path, world, [SEND, "Done."])
    async with fleet:
        event = job("1", send_proposal("by the judge"), confidence=0.7)
        await fleet.send(event)
        await fleet.wait_until_idle()
        (row,) = fleet.actions(event)
        assert (row.decided, row.rule) == ("hold", "confidence.low")
        (item,) = holds(fleet)
        assert (item["label"], item["confidence_milli"]) == ("wire.send", 0)
        assert item["opinion"] == {
            "label": "sum 0 of 1", "confidence_milli": 700,
            "actions": [{"tool": "wire.send", "arguments": {
                "to": {"ref": "/charter/desk"}, "text": {"value": "by the judge"},
            }}],
        }  # fmt: skip
        await fleet.approve(row)
        await fleet.wait_until_idle()
        assert world.texts() == ["by the model"]
        assert fleet.runs(event)[0].state == "done"


async def test_a_key_is_judged_in_order_while_its_runs_wait_for_the_model(
    tmp_path: Path, world: World
) -> None:
    """Held, deferred and settled events of a key: each is observed once, in order."""
    fleet, _ = cascade(tmp_path, world, lambda prompt: "Nothing to do.")
    events = [job(str(n), value=n, confidence=0.5 + 0.5 * (n % 2)) for n in range(1, 9)]
    async with fleet:
        await fleet.send(*events)
        await fleet.wait_until_idle()
        await fleet.restart()
        last = job("9", value=100)
        await fleet.send(last)
        await fleet.wait_until_idle()
        labels = {e["event"]: e["label"] for e in fleet.entries("turn.reasoned", "run.closed")
                  if "sum" in str(e.get("label"))}  # fmt: skip
        sums = [labels[fleet.runs(event)[0].event] for event in [*events, last]]
        expected = [f"sum {sum(range(1, n + 1))} of {n}" for n in range(1, 9)]
        assert sums == [*expected, "sum 136 of 9"]
        report = await replay_all(fleet.app)
        assert (report.differences, report.unrecomputable) == ([], {})
        assert report.equal == 9


class LateModel(StatelessReasoner):
    """A model that answers when it is let to."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()

    async def reason(self, briefing: Briefing) -> ReasonerJudgement:
        await self.gate.wait()
        return ReasonerJudgement("fine", 0.0, model_calls=1)


async def test_a_model_that_answers_late_moves_no_judge_back(tmp_path: Path, world: World) -> None:
    """Nothing is observed in its turn: the key's next event is judged from the last one."""
    fleet, late = toy_fleet(tmp_path, world, reasoner="[judge, model]"), LateModel()
    ask(fleet, late)
    async with fleet:
        unsure, sure = job("1", value=1, confidence=0.5), job("2", value=2, confidence=1)
        await fleet.send(unsure, sure)
        await wait_until(lambda: fleet.runs(sure)[0].state == "done")
        assert fleet.runs(unsure)[0].state == "ready"
        late.gate.set()
        await wait_until(lambda: fleet.runs(unsure)[0].state == "done")
        keys, newest = fleet.app.services.keys, fleet.runs(sure)[0].position
        assert keys.previous_position("worker", "k", newest + 1) == newest


@pytest.mark.parametrize("lost", [0, 1, 2])
async def test_a_lost_commit_teaches_the_judge_nothing_twice(
    tmp_path: Path, world: World, lost: int
) -> None:
    """The judge's turn, the reservation, the model's turn: each may fail to be stored."""
    fleet, _ = cascade(tmp_path, world, [SEND, "Done."], extra=drop_bars("worker"))
    seen = 0
    async with fleet:

        async def fail(step: Step) -> None:
            nonlocal seen
            if step.run is not None:
                seen += 1
                if seen == lost + 1:
                    raise StoreFailed("the store is away")

        intercept_commits(fleet, fail)
        events = [job("1", value=1, confidence=0.5), job("2", value=2, confidence=1)]
        await fleet.send(*events)
        await wait_until(lambda: all(fleet.runs(one)[0].state == "done" for one in events))
        assert seen > lost
        labels = [
            e["label"] for e in fleet.entries("turn.reasoned", "run.closed") if e.get("label")
        ]
        assert sorted(one for one in labels if "sum" in one) == ["sum 1 of 1", "sum 3 of 2"]
        assert world.texts() == ["by the model"]


# --- a person takes over ----------------------------------------------------------------------


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("bar", [True, False])
async def test_a_person_takes_over_from_a_model_that_is_away_too_long(
    tmp_path: Path, world: World, restart: bool, bar: bool
) -> None:
    """Whatever the bar of the policy: with none, too."""
    extra = {} if bar else drop_bars("worker")
    fleet, clock = takeover(tmp_path, world, AwayModel(), extra=extra)
    # Above the bar of the policy, and below its own: it may not settle it, so nobody does.
    events = [job(str(n), send_proposal(), key=str(n), confidence=0.85) for n in range(12)]
    async with fleet:
        await fleet.send(*events)
        await fleet.wait_until_idle()
        await let_pass(fleet, clock, 1_500)
        if restart:
            await fleet.restart()
        await fleet.wait_until_idle()
        assert {r.waits for event in events for r in fleet.runs(event)} == {"model"}
        await let_pass(fleet, clock, 600)
        rows = [fleet.actions(event) for event in events]
        assert {(row.decided, row.rule) for (row,) in rows} == {("hold", "cascade.person")}
        assert fleet.entries("run.dead", "stop.set") == []
        (item, *_) = holds(fleet)
        args = {"to": {"ref": "/charter/desk"}, "text": {"value": "hello"}}
        assert item["opinion"]["label"] == "sum 0 of 1"
        assert item["opinion"]["confidence_milli"] == 850
        assert item["opinion"]["actions"] == [{"tool": "wire.send", "arguments": args}]
        assert any("it would wire.send" in line for line in hold_lines(item))
        await fleet.approve(rows[0][0])
        await fleet.wait_until_idle()
        assert world.texts() == ["hello"]
        assert fleet.runs(events[0])[0].state == "done"
        report = await replay_all(fleet.app)
        assert report.differences == []


class OnceModel(AwayModel):
    """A model that acts at its first turn, and then is away."""

    async def reason(self, briefing: Briefing) -> ReasonerJudgement:
        if self.asked:
            return await super().reason(briefing)
        self.asked += 1
        turn = ModelTurn("script", "a" * 64, "first", "", (), "", "{}")
        wanted = Proposal("wire.send", {"to": Ref("/charter/desk"), "text": "hello"})
        return ReasonerJudgement("x", 0.0, (wanted,), model_calls=1, final=False, model_turn=turn)


async def test_what_the_model_did_no_person_is_asked_to_do_again(
    tmp_path: Path, world: World
) -> None:
    fleet, clock = takeover(tmp_path, world, OnceModel(), extra=drop_bars("worker"))
    event = job("1", send_proposal("hello"), confidence=0.5)
    async with fleet:
        await fleet.send(event)
        await fleet.wait_until_idle()
        assert world.texts() == ["hello"]
        await let_pass(fleet, clock, 2_400)
        assert [(r.state, r.waits) for r in fleet.runs(event)] == [("waiting", "model")]
        assert (holds(fleet), len(fleet.actions(event))) == ([], 1)


async def test_a_run_that_is_older_than_its_cascade_waits(tmp_path: Path, world: World) -> None:
    """Its agent had a model alone: there is no opinion, and nothing to take over."""
    fleet, clock = takeover(tmp_path, world, OnceModel(), extra=drop_bars("worker"))
    path = fleet.content / "agents/worker/agent.yaml"
    text = path.read_text("utf-8")
    path.write_text(text.replace("reasoner: [judge, model]", "reasoner: adk").replace(TAKEOVER, ""))
    event = job("1", confidence=0.5)
    async with fleet:
        await fleet.send(event)
        await fleet.wait_until_idle()
        assert (fleet.runs(event)[0].turn, fleet.runs(event)[0].waits) == (1, "model")
        await fleet.close()
        path.write_text(text)
        await fleet.open()
        await let_pass(fleet, clock, 2_400)
        assert [(r.state, r.waits) for r in fleet.runs(event)] == [("waiting", "model")]
        assert fleet.entries("run.dead") == []


async def test_where_nothing_is_proposed_there_is_nothing_to_take_over(
    tmp_path: Path, world: World
) -> None:
    fleet, clock = takeover(tmp_path, world, AwayModel())
    event = job("1", confidence=0.5)
    async with fleet:
        await fleet.send(event)
        await fleet.wait_until_idle()
        await let_pass(fleet, clock, 2_400)
        assert [(r.state, r.waits) for r in fleet.runs(event)] == [("waiting", "model")]
        (one,) = report(fleet.app.store, 0, 2**62)["wakeups"]
        assert (one["runs"], one["by_model"], one["model_calls"]) == (0, 0, 0)


@pytest.mark.parametrize("how", ["stopped", "closed"])
@pytest.mark.parametrize("is_back", [True, False])
async def test_who_comes_back_asks_once_more_before_it_is_a_persons(
    tmp_path: Path, world: World, how: str, is_back: bool
) -> None:
    """The model was away for a moment, and nobody could try again for an hour."""
    model = AwayModel()
    fleet, clock = takeover(tmp_path, world, model)
    event = job("1", send_proposal(), confidence=0.5)
    async with fleet:
        await fleet.send(event)
        await fleet.wait_until_idle()
        if how == "stopped":
            await fleet.app.commands.stop(fleet.order(), agent="worker")
        else:
            await fleet.close()
        clock.advance(60 * MINUTE)
        model.is_back, asked = is_back, model.asked
        if how == "stopped":
            await fleet.app.commands.resume(fleet.order(), agent="worker")
        else:
            await fleet.open()
        await fleet.wait_until_idle()
        await let_pass(fleet, clock, 30)
        assert model.asked == asked + 1
        assert len(fleet.actions(event)) == (not is_back)
        assert [item["reasons"] for item in holds(fleet)] == (
            [] if is_back else [["cascade.person", "confidence.low"]]
        )
        assert (fleet.runs(event)[0].state == "done") == is_back


async def test_a_model_that_answers_others_meanwhile_was_not_away(
    tmp_path: Path, world: World
) -> None:
    model = AwayModel()
    fleet, clock = takeover(tmp_path, world, model)
    first, other = [job(n, send_proposal(), key=n, confidence=0.5) for n in ("1", "2")]
    async with fleet:
        await fleet.send(first)
        await fleet.wait_until_idle()
        calls = next(iter(fleet.app.services.models.in_use()))
        await let_pass(fleet, clock, 1_200)
        assert calls.answered_us == 0
        # Its own turn fails all the while; others are answered in between.
        calls.answered_us = clock.now_us()
        await let_pass(fleet, clock, 900)
        assert fleet.runs(first)[0].waits == "model"
        await let_pass(fleet, clock, 1_200)
        assert [item["reasons"] for item in holds(fleet)] == [["cascade.person", "confidence.low"]]
        model.is_back = True
        await fleet.send(other)
        await let_pass(fleet, clock, 120)
        assert fleet.runs(other)[0].state == "done"
        assert calls.answered_us > 0


async def test_without_an_instant_a_run_goes_on_waiting(tmp_path: Path, world: World) -> None:
    clock, model = ManualClock(), AwayModel()
    fleet = toy_fleet(tmp_path, world, reasoner="[judge, model]", clock=clock)
    ask(fleet, model)
    event = job("1", send_proposal(), confidence=0.5)
    async with fleet:
        await fleet.send(event)
        await fleet.wait_until_idle()
        for _ in range(200):
            clock.advance(MINUTE)
            await fleet.wait_until_idle()
        assert [(r.state, r.waits) for r in fleet.runs(event)] == [("waiting", "model")]
        model.is_back = True
        for _ in range(10):
            clock.advance(MINUTE)
            await fleet.wait_until_idle()
        assert fleet.runs(event)[0].state == "done"


async def test_the_report_says_who_settled_what_and_at_what_cost(
    tmp_path: Path, world: World
) -> None:
    fleet, _ = cascade(tmp_path, world, always, extra=drop_bars("worker"))
    async with fleet:
        await correct_all(fleet, 4)
        sure = [job(f"s{n}", send_proposal(), key=f"s{n}", confidence=1) for n in range(5)]
        await fleet.send(*sure, job("q", key="q", confidence=1))
        await fleet.wait_until_idle()
        found = report(fleet.app.store, 0, 2**62)
        (one,) = found["wakeups"]
        assert one["agent"] == "worker"
        assert (one["runs"], one["at_no_cost"], one["by_model"], one["dead"]) == (10, 6, 4, 0)
        assert (one["model_calls"], one["useful"]) == (8, 9)
        assert one["calls_per_useful"] == "0.89"
        line = next(line for line in report_text(found) if "at no cost" in line)
        assert "worker: 10 runs, 6 at no cost, 4 by its model, 0 by people" in line
        assert "8 calls for 9 actions done (0.89 for each)" in line


class IdleModel(StatelessReasoner):
    """Settles its events without a call."""

    async def reason(self, briefing: Briefing) -> ReasonerJudgement:
        return ReasonerJudgement("fine", 0.0, model_calls=0)


async def test_a_run_that_made_no_call_is_none_that_its_model_settled(
    tmp_path: Path, world: World
) -> None:
    fleet = toy_fleet(tmp_path, world, reasoner="[judge, model]")
    ask(fleet, IdleModel())
    async with fleet:
        await fleet.send(job("1", confidence=0.5))
        await fleet.wait_until_idle()
        assert len(fleet.entries("budget.settled")) == 1
        (one,) = report(fleet.app.store, 0, 2**62)["wakeups"]
        assert (one["runs"], one["at_no_cost"], one["by_model"]) == (1, 1, 0)


async def test_the_report_counts_dead_letters(tmp_path: Path, world: World) -> None:
    """What nothing settled is no run that its model settled."""
    fleet, _ = cascade(tmp_path, world, lambda p: SEND, max_turns=2, extra=drop_bars("worker"))
    async with fleet:
        await fleet.send(job("d", confidence=0.1))
        await wait_until(lambda: bool(fleet.entries("run.dead")))
        (one,) = report(fleet.app.store, 0, 2**62)["wakeups"]
        assert (one["runs"], one["dead"], one["by_model"]) == (1, 1, 0)


# --- other stores, other processes ------------------------------------------------------------


async def test_workers_of_one_store_share_what_people_answered(
    tmp_path: Path, world: World
) -> None:
    """On PostgreSQL: what was answered at one worker makes the other's model as sure."""
    url_file = tmp_path / "url"
    url_file.write_text(server(fsync=False).fresh())
    plan = StorePlan("postgresql", url_file=str(url_file), lease_us=2_000_000)
    one, _ = cascade(tmp_path / "one", world, always, MANY)
    other, _ = cascade(tmp_path / "other", world, always, MANY)
    one._store = other._store = plan
    async with one:
        await answer_holds(one)
        await one.send(*(job(f"k{n}", value=n, confidence=0.5) for n in range(3)))
        await one.wait_until_idle()
        labels = [e["label"] for e in one.entries("turn.reasoned") if e.get("what")]
        assert labels[-3:] == ["sum 0 of 1", "sum 1 of 2", "sum 3 of 3"]
        (tmp_path / "other/state").mkdir()
        shutil.copy(tmp_path / "one/state/ledger.key", tmp_path / "other/state/ledger.key")
        async with other:
            await one.close()  # so it is the other that handles it
            event = job("last", key="last", confidence=0.1)
            await other.send(event)
            await wait_until(lambda: bool(other.actions(event)), 30)
            assert stated(other.actions(event)[0]) == 990


async def test_another_release_brings_its_judge_and_its_model_at_once(
    tmp_path: Path, world: World
) -> None:
    """The judge of the one never runs beside the instruction of the other."""
    fleet, model = cascade(tmp_path, world, lambda p: "Nothing to do.")
    async with fleet:
        # What the harness asks is no part of a release; what loads one is that of the fleet.
        folder = fleet.content / "agents/worker"
        await fleet.send(job("1", value=3, confidence=0.5))
        await fleet.wait_until_idle()
        text = (folder / "judge.py").read_text("utf-8")
        (folder / "judge.py").write_text(text.replace('f"sum {sum', 'f"total {sum'))
        (folder / "instruction.md").write_text("Do it better.\n")
        await fleet.app.releases.release(fleet.order(), "worker")
        await fleet.send(job("2", value=4, confidence=0.5))
        await fleet.wait_until_idle()
        labels = [e["label"] for e in fleet.entries("turn.reasoned") if e.get("what")]
        assert labels == ["sum 3 of 1", "total 7 of 2"]
        first, second = [prompt.instruction for prompt in model.prompts]
        assert "Do what is asked." in first + second  # of agent.py, which did not change
        assert len({e["release"] for e in fleet.entries("turn.reasoned")}) == 2
