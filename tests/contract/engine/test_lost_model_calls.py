"""A call of a model of which nobody knows what came: it counts, and gives its place back."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.contract.engine.test_model_weather import (
    MODEL,
    WeatherModel,
    fleet_of,
    let_pass,
    limit,
)

from vedette.adapters.reasoners.workers.model_client import ModelTurnSuperseded, ModelWorkerLost
from vedette.domain.memory import Briefing
from vedette.domain.model import Model
from vedette.domain.model_turn import UNCHARGED, ModelUse
from vedette.domain.ports.reasoner import ReasonerJudgement
from vedette.testing.clock import ManualClock
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
