"""A call of a model of which nobody knows what came: it counts, and gives its place back."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.contract.engine.test_model_weather import (
    MODEL,
    WeatherModel,
    fleet_of,
    let_pass,
    limit,
)

from vedette.adapters.reasoners.workers.model_client import ModelTurnSuperseded, ModelWorkerLost
from vedette.app.followers.telemetry import read_traces
from vedette.domain.base.errors import Permanent
from vedette.domain.memory import Briefing
from vedette.domain.model import Model
from vedette.domain.model_turn import UNCHARGED, ModelUse
from vedette.domain.ports.reasoner import ReasonerJudgement
from vedette.interfaces.render.explain_text import explain_text
from vedette.ledger.history.explain import explain
from vedette.testing.clock import ManualClock
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import job

# Of one call whose tokens nobody counted, by the bounds of `fleet_of`.
LOST = {"model_calls": 1, "tokens": 200}
ANSWERED = {"model_calls": 1, "tokens": 100}


class LosingModel(WeatherModel):
    """A model whose first call raises what it is given."""

    def __init__(self, clock: ManualClock, error: Exception) -> None:
        super().__init__(clock)
        self.error: Exception | None = error

    async def reason(self, briefing: Briefing) -> ReasonerJudgement:
        found = await super().reason(briefing)
        error, self.error = self.error, None
        if error is not None:
            raise error
        return found


@pytest.mark.parametrize(
    ("error", "attempts", "cost"),
    [
        (ModelWorkerLost("lost", ModelUse(1)), 1, LOST),
        (ModelTurnSuperseded("lost beside"), 0, LOST),
        (ModelWorkerLost("no worker", UNCHARGED), 1, {"model_calls": 0, "tokens": 0}),
    ],
    ids=["culprit", "beside", "not asked"],
)
async def test_a_turn_that_lost_its_worker_costs_what_was_asked(
    tmp_path: Path, error: Exception, attempts: int, cost: dict[str, int]
) -> None:
    """One place only: it is free again, and the turn is asked anew."""
    clock = ManualClock()
    async with fleet_of(tmp_path, clock, LosingModel(clock, error)) as fleet:
        limit(fleet, Model(MODEL, calls_in_flight=1))
        event = job("e")
        await fleet.send(event)
        await let_pass(fleet, clock, 5)
        (run,) = fleet.runs(event)
        assert (run.state, run.attempts) == ("done", attempts)
        spent = fleet.app.store.spend.of_run(run.id)
        assert spent == {unit: cost[unit] + ANSWERED[unit] for unit in ANSWERED}


async def test_a_failure_that_says_nothing_of_its_cost_counts_in_its_minute(tmp_path: Path) -> None:
    clock = ManualClock()
    model = LosingModel(clock, RuntimeError("of a plugin"))
    async with fleet_of(tmp_path, clock, model) as fleet:
        limit(fleet, Model(MODEL, calls_per_minute=1))
        first, second = job("e1", key="k1"), job("e2", key="k2")
        await fleet.send(first)
        await fleet.wait_until_idle()
        await fleet.send(second)
        await let_pass(fleet, clock, 50)
        assert fleet.runs(first)[0].state == "dead"
        assert len(model.asked) == 1
        await let_pass(fleet, clock, 15)
        assert fleet.runs(second)[0].state == "done"


@pytest.mark.parametrize(
    ("error", "code"),
    [(RuntimeError("of a plugin"), "error"), (Permanent("the calls differ"), "permanent")],
)
async def test_a_turn_that_failed_as_nobody_knows_is_settled_with_its_bound(
    tmp_path: Path, error: Exception, code: str
) -> None:
    clock = ManualClock()
    async with fleet_of(tmp_path, clock, LosingModel(clock, error)) as fleet:
        await fleet.send(event := job("e"))
        await fleet.wait_until_idle()
        (run,) = fleet.runs(event)
        (settled,) = fleet.entries("budget.settled")
        assert (run.state, settled["spend"]) == ("dead", LOST)
        assert settled["model_call"]["error"] == code
        assert "what" not in settled


async def test_an_answer_that_says_no_confidence_is_settled_with_what_it_used(
    tmp_path: Path,
) -> None:
    class Unsure(WeatherModel):
        async def reason(self, briefing: Briefing) -> ReasonerJudgement:
            return replace(await super().reason(briefing), confidence=2.0)

    clock = ManualClock()
    async with fleet_of(tmp_path, clock, Unsure(clock)) as fleet:
        await fleet.send(event := job("e"))
        await let_pass(fleet, clock, 5)
        (run,) = fleet.runs(event)
        settled = fleet.entries("budget.settled")
        assert run.state == "dead"
        assert {entry["what"] for entry in settled} == {"bad-confidence"}
        assert [entry["spend"] for entry in settled] == [ANSWERED] * len(settled)
        assert "error" not in settled[0]["model_call"]
        assert [s["cause"] for s in settled] == [e["seq"] for e in fleet.entries("budget.reserved")]


class StoppedModel(WeatherModel):
    """A model during whose first answer its agent is stopped."""

    fleet: FleetHarness

    async def reason(self, briefing: Briefing) -> ReasonerJudgement:
        found = await super().reason(briefing)
        if len(self.asked) == 1:
            await self.fleet.app.commands.stop(self.fleet.order(), agent="worker")
        return found


async def test_a_turn_that_was_stopped_at_its_answer_is_settled_once_and_so_is_the_next(
    tmp_path: Path,
) -> None:
    clock = ManualClock()
    model = StoppedModel(clock)
    async with fleet_of(tmp_path, clock, model) as fleet:
        model.fleet = fleet
        await fleet.send(event := job("e"))
        await fleet.wait_until_idle()
        (settled,) = fleet.entries("budget.settled")
        assert (settled["spend"], settled["what"]) == (ANSWERED, "superseded")
        assert "error" not in settled["model_call"]
        assert fleet.runs(event)[0].turn == 0, "nothing of the turn is kept"
        await fleet.app.commands.resume(fleet.order(), agent="worker")
        await let_pass(fleet, clock, 5)
        (run,) = fleet.runs(event)
        assert (run.state, len(model.asked)) == ("done", 2)
        booked, ended = (fleet.entries(f"budget.{word}") for word in ("reserved", "settled"))
        assert [entry["cause"] for entry in ended] == [entry["seq"] for entry in booked]
        spent = fleet.app.store.spend.of_run(run.id)
        assert spent == {unit: 2 * ANSWERED[unit] for unit in ANSWERED}
        spans = read_traces(fleet.app.store, 0, 1.0).spans
        assert [s.failed for s in spans if s.name == "reason"] == ["superseded", None]
        assert [s.failed for s in spans if s.name.startswith("chat ")] == [None, None]
        lines = "\n".join(line for _, line in explain_text(explain(fleet.app.store, run.id)))
        said = "turn 1: worker/agent.py, 0.0 s, 60 tokens in, 40 out"
        assert f"{said}, failed: superseded" in lines
        assert lines.count(said) == 2


async def test_what_fails_behind_a_turn_s_commit_settles_it_no_second_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: object, **more: object) -> None:
        raise RuntimeError("behind the commit")

    clock = ManualClock()
    async with fleet_of(tmp_path, clock, WeatherModel(clock)) as fleet:
        monkeypatch.setattr("vedette.engine.handle.emit_metrics", fail)
        await fleet.send(job("e"))
        await fleet.wait_until_idle()
        (settled,) = fleet.entries("budget.settled")
        assert "what" not in settled
        assert len(fleet.entries("budget.reserved")) == 1
