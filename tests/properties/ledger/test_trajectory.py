"""The report of each day, and each task's trajectory, agree with the ledger's raw entries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.task_days import (
    DAY_US,
    START_US,
    TaskDays,
    entries_of,
    plain_counts,
    told_counts,
)

from vedette.ledger.history.report import report
from vedette.ledger.history.trajectory import Trajectory, read_trajectory
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import World, job, send_proposal, toy_fleet

DAYS, TASKS = 3, 12


def spend_of(course: Trajectory) -> Counter[str]:
    found: Counter[str] = Counter(course.booked())
    for (what, unit), amount in course.counts.items():
        if what == "spend":
            found[unit] += amount
    return found


def check_days(fleet: FleetHarness, runs: Sequence[str]) -> Counter[str]:
    """Compare each day's report with its entries; return what the days come to."""
    entries, total = entries_of(fleet), Counter[str]()
    for day in range(DAYS):
        since = START_US + day * DAY_US
        found = report(fleet.app.store, since, since + DAY_US)
        (agent,) = found["tasks"]["agents"]
        told = told_counts(agent, agent["tasks"])
        assert told == plain_counts(entries, since, since + DAY_US)
        spent = {one["unit"]: one["spent"] for one in found["budgets"]["spent"]}
        others = Counter[str]()  # what no task spent
        for one in entries:
            if one["kind"] == "budget.settled" and since <= one["at"] < since + DAY_US:
                others.update({} if one["run"] in runs else one["spend"])
        for unit in ("model_calls", "tokens"):
            assert agent["spend"][unit] + others[unit] == spent[unit]
        total.update(told)
    return total


@pytest.mark.parametrize("seed", [0, 3])
async def test_each_day_and_each_task_agree_with_the_ledger(tmp_path: Path, seed: int) -> None:
    days = TaskDays(tmp_path, seed)
    async with days.fleet as fleet:
        await days.play(DAYS, TASKS)
        total = check_days(fleet, days.runs)
        whole, items = Counter[str](), Counter[str]()
        for run in days.runs:
            course = read_trajectory(fleet.app.store.ledger, run)
            assert course.is_task
            # The spend ledger has what was booked and never settled in full.
            assert +spend_of(course) == +Counter(fleet.app.store.spend.of_run(run))
            by_item = Counter(course.other_spend())
            for item in course.items():
                by_item.update(item.spend)
                items[item.item["state"]] += 1
            by_item.update(course.booked())
            assert +by_item == +spend_of(course)
            ended = {"done": int(course.state == "done"), "cancelled": course.state == "cancelled"}
            whole.update(told_counts(course.to_json(), ended))
            if course.closed_items is not None:
                rows = [one.item["state"] for one in course.items()]
                assert course.closed_items == (rows.count("done"), len(rows))
        assert +whole == +total
        assert {state for state in items if items[state]} >= {"done", "failed"}
        assert total["repeated"]
        assert total["waited"]
        assert total["recovered effects"]
        assert total["recovered items"]
        await erase_one(fleet, days.runs)
        left = Counter[str]()
        for day in range(DAYS):
            since = START_US + day * DAY_US
            (agent,) = report(fleet.app.store, since, since + DAY_US)["tasks"]["agents"]
            left.update(told_counts(agent, agent["tasks"]))
        kept = (
            "turns",
            "actions",
            "effect.",
            "spend ",
            "item added",
            "task.",
            "ended ",
            "repeated",
        )
        assert {name: n for name, n in left.items() if name.startswith(kept)} == {
            name: n for name, n in total.items() if name.startswith(kept)
        }


async def erase_one(fleet: FleetHarness, runs: Sequence[str]) -> None:
    """Erase the content of a task that has ended, with all its turns."""
    for name in runs:
        run = fleet.app.store.runs.run(name)
        if run is not None and run.state == "done":
            await fleet.app.commands.erase(fleet.order(), event=run.event)
            return
    raise AssertionError("no task has ended")


async def test_a_fleet_without_tasks_has_a_report_without_tasks(tmp_path: Path) -> None:
    async with toy_fleet(tmp_path, World()) as fleet:
        await fleet.send(job("1", send_proposal()))
        await fleet.wait_until_idle()
        found = report(fleet.app.store, 0, 2**60)
        assert found["tasks"] == {
            "agents": [], "runs": [], "drifts": [], "left_out": {"runs": 0, "drifts": 0},
        }  # fmt: skip
