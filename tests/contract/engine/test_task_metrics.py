"""Metrics of tasks: what ended, how many are open, and how long they waited; no run is a label."""

from __future__ import annotations

from pathlib import Path

from tests.contract.engine.test_tasks import add, close, finish, order, says, start, working_fleet

from vedette.domain.memory import Briefing
from vedette.domain.ports.reasoner import ReasonerJudgement
from vedette.engine.task_telemetry import gauge_open_tasks
from vedette.testing.clock import ManualClock
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import World, job, send_proposal, toy_fleet

LIST = "version: 1\nconditions:\n  - {name: list, items: closed, at_least: 2}\n"
HOUR_US = 3_600_000_000


def scraped(fleet: FleetHarness) -> str:
    return fleet.app.metrics.scrape()[0].decode()


async def test_a_task_is_counted_as_it_ends_and_waits(tmp_path: Path) -> None:
    def answer(briefing: Briefing) -> ReasonerJudgement:
        if briefing.turn == 1:
            return says(add("a"), add("b"))
        if "notes" not in briefing.task:
            return says()  # it comes no further until a person says something
        current = briefing.task["items"].get("current")
        if current is None:
            return says(finish())
        return says(close(current["id"], "done" if current["id"] == "a" else "failed"))

    clock = ManualClock()
    fleet, _ = working_fleet(tmp_path, World(), answer, done=LIST, clock=clock)
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        gauge_open_tasks(fleet.app.services)
        text = scraped(fleet)
        assert 'vedette_tasks_open{agent="worker",state="waiting"} 1.0' in text
        assert "vedette_tasks_stalled 1.0" in text
        clock.advance(5 * HOUR_US)
        await order(fleet, "pause", run=run)  # it waits on, since it came to its bound
        clock.advance(HOUR_US)
        await order(fleet, "steer", run=run, note="go on")
        await fleet.wait_until_idle()
        gauge_open_tasks(fleet.app.services)
        text = scraped(fleet)
        assert 'vedette_tasks_open{agent="worker",state="waiting"} 0.0' in text
        assert "vedette_tasks_stalled 0.0" in text
        total = fleet.app.metrics.total
        assert total("tasks_ended", agent="worker", state="done") == 1
        assert total("items_closed", agent="worker", state="done") == 1
        assert total("items_closed", agent="worker", state="failed") == 1
        assert f'vedette_task_wait_seconds_sum{{agent="worker"}} {6 * 3600}.0' in text
        turns = fleet.app.store.runs.run(run)
        assert turns is not None
        assert f'vedette_task_turns_sum{{agent="worker"}} {turns.turn}.0' in text
        assert run not in text


async def test_a_fleet_without_tasks_has_no_metric_of_one(tmp_path: Path) -> None:
    async with toy_fleet(tmp_path, World()) as fleet:
        await fleet.send(job("1", send_proposal()))
        await fleet.wait_until_idle()
        gauge_open_tasks(fleet.app.services)
        names = ("task", "items_closed", "hand_offs", "drifts")
        told = [line for line in scraped(fleet).splitlines() if not line.startswith("#")]
        assert not [line for line in told if any(name in line for name in names)]
