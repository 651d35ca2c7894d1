"""The shipped weekly review in a real `vedette run`, killed twice with -9: its report is whole.

Twelve papers in the gate; `make long` reads the two hundred of the sample week.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import apsw
import orjson
import pytest
from tests.faults.kill import VEDETTE, judged_again, run_to_end, start
from tests.weekly_review import (
    GOAL,
    SAMPLES,
    TWELVE,
    WEEK,
    check_report,
    read_report,
    sent,
    week_target,
    write_content,
    write_small_week,
)

from vedette.domain.base.errors import BadStore
from vedette.store.sqlite import SqliteReader

READ = "SELECT COUNT(*) FROM action WHERE tool='document.read' AND effect='done'"
KILLS = 2


def write_fleet(folder: Path, weeks: Path) -> Path:
    """Write a fleet of the shipped agent over these weeks; return its settings file."""
    content, state = write_content(folder), folder / "state"
    lines = [
        'fleet = "harbour"', f"state = {json.dumps(str(state))}", "[content]",
        *(f"{name} = {json.dumps(str(content / name))}"
          for name in ("agents", "policies", "memory")),
        "[serve]", 'http = ""', "[targets.week]",
        *(f"{name} = {json.dumps(value)}" for name, value in week_target(state, weeks).items()),
    ]  # fmt: skip
    config = folder / "vedette.toml"
    config.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return config


def vedette(config: Path, *words: str) -> Any:
    """Return what a verb answers."""
    verb = [str(VEDETTE), "--config", str(config), *words, "--json"]
    done = subprocess.run(verb, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def count_read(state: Path) -> int:
    """Return how many papers were read, by the store of a fleet that may be running."""
    try:
        store = SqliteReader(state)
    except (BadStore, apsw.Error):
        return 0
    try:
        return int(store.database.rows(READ)[0][0])
    except apsw.Error:
        return 0
    finally:
        store.close()


def kill_when_read(config: Path, state: Path, number: int) -> None:
    """Run the fleet and kill it with -9 when so many papers were read."""
    process = start(config)
    try:
        end = time.monotonic() + 90
        while count_read(state) < number:
            assert process.poll() is None, "it ended before it was killed"
            assert time.monotonic() < end, f"{number} papers were never read"
            time.sleep(0.01)
        os.kill(process.pid, 9)
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("papers", [12, 200], ids=["twelve", "two-hundred"])
def test_killed_twice_it_ends_with_a_report_whose_sources_are_so(
    tmp_path: Path, papers: int
) -> None:
    weeks = write_small_week(tmp_path) if papers == len(TWELVE) else SAMPLES
    config, state = write_fleet(tmp_path, weeks), tmp_path / "state"
    run = vedette(
        config, "work", "start", "weekly_review", "--goal", GOAL, "--input", f"week={WEEK}",
        "--reason", "it is Monday", "--command-id", "one",
    )["run"]  # fmt: skip
    for number in sorted(random.Random(papers).sample(range(1, papers - 1), KILLS)):
        kill_when_read(config, state, number)
    run_to_end(config)
    (hold,) = vedette(config, "hold")["items"]
    assert hold["tool"] == "follow_up.send"
    shown = ("--digest", hold["shown_digest"])
    vedette(config, "approve", hold["hold"], *shown, "--reason", "they have to know")
    run_to_end(config)
    report = read_report(state)
    assert check_report(report, weeks)
    assert f"{papers - 1} of {papers} papers read" in report
    store = SqliteReader(state)
    try:
        actions, ended = store.runs.actions(run), store.runs.run(run)
        (closed_by,) = [
            orjson.loads(raw) for _, raw, _ in store.ledger.run_entries(run, ("run.closed",))
        ]
    finally:
        store.close()
    assert ended is not None
    assert ended.state == "done"
    assert (closed_by["items"], closed_by["items_done"]) == (papers, papers - 1)
    # No paper was taken up twice, whatever died in between; nothing was closed twice, or left out.
    closed = Counter(orjson.loads(one.answer or b"")["data"]["item"]["id"] for one in actions
                     if one.tool == "item.close" and one.effect == "done")  # fmt: skip
    assert (len(closed), closed.total()) == (papers, papers)
    done = Counter(one.tool for one in actions if one.effect == "done")
    assert (done["document.read"], done["report.write"], done["follow_up.file"]) == (papers, 1, 1)
    assert len(sent(state)) == done["follow_up.send"] == 1
    if papers > len(TWELVE):  # of twelve `fleet/test_weekly_review.py` judges again
        judged = judged_again(config)
        assert judged["ok"], judged["differences"]
