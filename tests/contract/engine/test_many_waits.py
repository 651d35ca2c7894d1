"""Many runs wait: the right ones wake, once, soon, and at rest they cost next to nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.bench import sleep

RUNS = 200


async def test_two_hundred_wait_for_30_days_and_wake_once_each(tmp_path: Path) -> None:
    """The bench says of each that it woke once, by what it waited for, or raises."""
    filled = await sleep.fill(tmp_path, RUNS)
    assert filled["waiting"] == RUNS
    rested = await sleep.rest(tmp_path, 0.2)
    assert rested["in_memory"] == 0  # a start reads none of them
    found = await sleep.days(tmp_path, RUNS, 0, step_h=24)
    assert found["woken"] == {"time": 100, "event": 100}
    assert (found["matched"], found["left"]) == (100, 0)
    assert found["core"] < sleep.CORE


def test_the_bench_finds_what_wakes_by_anothers_event(
    tmp_path: Path,
) -> None:
    """Control: with an index that knows no values every run wakes at the first event."""
    code = (
        "import asyncio, pathlib, sys\n"
        "from tests.bench import sleep\n"
        "from vedette.domain import event_wait\n"
        "from vedette.engine import task_wait\n"
        "event_wait._digest = lambda values: '0' * 64\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "asyncio.run(sleep.fill(folder, 12))\n"
        "asyncio.run(sleep.days(folder, 12, 0, step_h=24))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert "woken by another's event" in done.stderr
