"""`vedette work`: tasks given and looked at by people, with no fleet running and with one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.work_fleet import write_work_fleet

from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import World

_START = [sys.executable, "-c", "from vedette.interfaces.cli import main; main()"]

pytestmark = pytest.mark.slow


def vedette(fleet: Path, *words: str, code: int = 0) -> Any:
    done = subprocess.run(
        [*_START, *words, "--json"], cwd=fleet, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout if code == 0 else done.stderr)


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    return write_work_fleet(tmp_path / "fleet")


def test_a_task_is_given_looked_at_and_steered_with_no_fleet_running(fleet: Path) -> None:
    given = [
        *("work", "start", "worker", "--goal", "Read\nthe letter", "--input", "number=7"),
        *("--input", "who=ada", "--done", "done.yaml", "--deadline", "3d"),
        *("--reason", "it came", "--command-id", "one"),
    ]
    run = vedette(fleet, *given)["run"]
    assert vedette(fleet, *given)["already_done"]
    (line,) = vedette(fleet, "work", "list")["items"]
    assert (line["run"], line["state"], line["waits"]) == (run, "ready", None)
    vedette(fleet, "work", "steer", run, "--note", "begin with the end", "--reason", "faster")
    shown = vedette(fleet, "work", "show", run)
    assert shown["goal"] == "Read\nthe letter"
    assert shown["inputs"] == {"number": 7, "who": "ada"}
    assert [(one["kind"], one["why"]) for one in shown["said"]] == [
        ("task.steered", "begin with the end")
    ]
    item = ("--item", "late", "--title", "one more", "--input", "n=2", "--reason", "it came")
    assert vedette(fleet, "work", "add", run, *item)["said"] == "task.added"
    told = vedette(fleet, "work", "add", run, *item, code=2)
    assert "an item 'late' already" in told["error"]["what"]
    goal = ("--goal", "Read\nboth", "--done", "done.yaml", "--reason", "two came")
    assert vedette(fleet, "work", "goal", run, *goal)["said"] == "task.revised"
    shown = vedette(fleet, "work", "show", run)
    assert (shown["goal"], shown["revision"]) == ("Read\nboth", 2)
    assert shown["items"] == {"of": 1, "open": 1}
    assert [one["why"] for one in shown["said"][1:]] == [
        "late: one more", "two came: Read\nboth",
    ]  # fmt: skip
    told = vedette(fleet, "work", "start", "nobody", "--goal", "x", "--reason", "y", code=2)
    assert "no agent 'nobody'" in told["error"]["what"]
    vedette(fleet, "verify")


async def test_a_running_fleet_works_on_it_to_its_end(fleet: Path, tmp_path: Path) -> None:
    given = ("work", "start", "worker", "--goal", "Read", "--done", "done.yaml", "--reason", "r")
    run = vedette(fleet, *given)["run"]
    state = fleet / ".vedette"
    harness = FleetHarness(
        tmp_path, content=fleet, policies=fleet / "policies",
        targets={"world": {"kind": "world", "world": World()}},
    )  # fmt: skip
    state.rename(tmp_path / "state")
    async with harness:
        await harness.wait_until_idle()
        found = harness.app.store.runs.run(run)
        assert found is not None
        assert (found.state, found.turn) == ("done", 3)
    (tmp_path / "state").rename(state)
    assert vedette(fleet, "work", "list")["items"] == []
    (line,) = vedette(fleet, "work", "list", "--all")["items"]
    assert line["items"] == {"of": 1, "done": 1}
    shown = vedette(fleet, "work", "show", run)
    assert [one["held"] for one in shown["conditions"]] == [True]
    vedette(fleet, "verify")
