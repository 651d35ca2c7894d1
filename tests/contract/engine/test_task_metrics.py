"""Metrics of tasks: what ended, how many are open, and how long they waited; no run is a label."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.contract.engine.test_tasks import add, close, finish, order, says, start, working_fleet

from vedette.adapters.telemetry.prometheus import PrometheusMetrics
from vedette.domain.base.canonical import canonical_json
from vedette.domain.base.errors import AlreadyDone, BadCommand, Permanent
from vedette.domain.entry import Body, Draft
from vedette.domain.memory import Briefing
from vedette.domain.ports.reasoner import ReasonerJudgement
from vedette.domain.run import Step
from vedette.engine.task_telemetry import TaskGauges, count_step
from vedette.interfaces.http.command_dispatch import dispatch
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
        gauges = TaskGauges(fleet.app.services)
        gauges.update()
        text = scraped(fleet)
        assert 'vedette_tasks_open{agent="worker",state="waiting"} 1.0' in text
        assert "vedette_tasks_stalled 1.0" in text
        clock.advance(5 * HOUR_US)
        await order(fleet, "pause", run=run)  # it waits on, since it came to its bound
        clock.advance(HOUR_US)
        steered = await order(fleet, "steer", run=run, note="go on")
        assert steered["said"] == "task.steered"
        await fleet.wait_until_idle()
        gauges.update()
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
        TaskGauges(fleet.app.services).update()
        names = ("task", "items_closed", "hand_offs", "drifts")
        told = [line for line in scraped(fleet).splitlines() if not line.startswith("#")]
        assert not [line for line in told if any(name in line for name in names)]


async def test_gauges_are_asked_for_once_a_minute_and_end_with_their_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    fleet, _ = working_fleet(tmp_path, World(), lambda _: says(), done=LIST, clock=clock)
    async with fleet:
        await start(fleet)
        await fleet.wait_until_idle()
        services, asked = fleet.app.services, list[int]()
        tables = type(services.store.tables)
        counts = tables.open_counts

        def counted(self: Any) -> Any:
            asked.append(1)
            return counts(self)

        monkeypatch.setattr(tables, "open_counts", counted)
        gauges = TaskGauges(services)
        for _ in range(12):  # as the watchdog looks
            gauges.update()
            clock.advance(5_000_000)
        assert len(asked) == 1
        gauges.update()
        assert len(asked) == 2
        assert 'vedette_tasks_open{agent="worker",state="waiting"} 1.0' in scraped(fleet)
        assert "vedette_tasks_stalled 1.0" in scraped(fleet)
        clock.advance(60_000_000)
        worker = services.fleet.agents["worker"]
        services.fleet.agents["worker"] = replace(worker, work=None)
        gauges.update()
        assert 'vedette_tasks_open{agent="worker",state="waiting"} 0.0' in scraped(fleet)
        assert "vedette_tasks_stalled 0.0" in scraped(fleet)
        clock.advance(60_000_000)
        gauges.update()
        assert len(asked) == 3


async def test_a_word_that_is_said_again_ends_no_wait(tmp_path: Path) -> None:
    clock = ManualClock()
    fleet, _ = working_fleet(tmp_path, World(), lambda _: says(), done=LIST, clock=clock)
    async with fleet:
        run = await start(fleet)
        await fleet.wait_until_idle()
        clock.advance(HOUR_US)
        said = replace(fleet.order(), command_id="once")
        await dispatch(fleet.app.commands, "work_resume", said, {"run": run})
        await fleet.wait_until_idle()  # it stalls again
        clock.advance(HOUR_US)
        with pytest.raises(AlreadyDone):
            await dispatch(fleet.app.commands, "work_resume", said, {"run": run})
        count = 'vedette_task_wait_seconds_count{agent="worker"}'
        assert f"{count} 1.0" in scraped(fleet)
        await order(fleet, "cancel", run=run)
        with suppress(BadCommand):  # it may have ended by now
            await order(fleet, "cancel", run=run)
        assert f"{count} 2.0" in scraped(fleet)
        assert f'vedette_task_wait_seconds_sum{{agent="worker"}} {2 * 3600}.0' in scraped(fleet)


async def test_a_task_that_is_given_up_has_ended(tmp_path: Path) -> None:
    def answer(briefing: Briefing) -> ReasonerJudgement:
        raise Permanent("it cannot be")

    fleet, _ = working_fleet(tmp_path, World(), answer, done=LIST)
    async with fleet:
        await start(fleet)
        await fleet.wait_until_idle()
        assert fleet.app.metrics.total("tasks_ended", agent="worker", state="dead") == 1


def test_what_only_names_a_hand_off_is_none() -> None:
    """Arguments of a turn may have any names."""
    metrics = PrometheusMetrics()

    def turn(**more: Any) -> Draft:
        return Draft("turn.reasoned", {}, body=Body(canonical_json(more)))

    said = {"proposals": [{"args": {"opens": "hand-off"}}], "model": {"opens": ""}}
    told = {"model": {"opens": "hand-off"}, "briefed": {"hand_off": {"turn": 3, "by": "model"}}}
    for one in (said, told):
        step = Step([turn(**one)])
        count_step(metrics, "worker", step)
    assert metrics.total("hand_offs", agent="worker", by="model") == 1
    assert metrics.total("hand_offs") == 1
