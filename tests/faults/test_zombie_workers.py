"""Several `vedette run` on one database, one of them killed -9: nothing lost, nothing twice."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.faults.kill import judged_again
from tests.pg import server
from tools.real_fleet import lay_out, receiver

from vedette.adapters.ledger_export import verify_store
from vedette.judging.series import generate
from vedette.store.postgres import PostgresReader

VEDETTE = Path(sys.executable).with_name("vedette")
SERIES = 4
ROWS = 1150
STORE = '[store]\nkind = "postgresql"\nurl_env = "WORKERS_URL"\nlease = "1s"\n[content]'


@pytest.fixture
def series(tmp_path: Path) -> Path:
    """Some pumps whose pressure falls and comes back: incidents, and webhook calls for each."""
    folder = tmp_path / "series"
    folder.mkdir()
    start = datetime(2026, 3, 2, tzinfo=UTC)
    for number in range(SERIES):
        values = generate(
            {"n": ROWS, "seed": 100 + number, "base": 3.2, "noise": 0.04}
            | {"shift_at": 1000 + 9 * number, "shift_until": 1060 + 9 * number, "shift": -1.3}
        )
        lines = [
            f"{start + timedelta(minutes=row):%Y-%m-%dT%H:%M:%SZ},{value}"
            for row, value in enumerate(values)
        ]
        (folder / f"pump_{number:02}.csv").write_text("timestamp,value\n" + "\n".join(lines) + "\n")
    return folder


def lay(folder: Path, series: Path, hook: str, like: Path | None = None) -> Path:
    """Lay out one worker of the fleet; they share a database and a signing key."""
    config = lay_out(folder, series=series, hook=hook).config
    config.write_text(config.read_text().replace("[content]", STORE, 1))
    if like is not None:
        (folder / "state").mkdir()
        shutil.copy(like / "state" / "ledger.key", folder / "state" / "ledger.key")
    return config


def run(config: Path, url: str) -> subprocess.Popen[bytes]:
    with (config.parent / "told").open("wb") as file:
        return subprocess.Popen(
            [str(VEDETTE), "--config", str(config), "run", "--until-idle", "--plain"],
            stdout=file, stderr=file, env={**os.environ, "WORKERS_URL": url},
        )  # fmt: skip


def count_calls(record: Path) -> Counter[str]:
    """Return how often each idempotency key took effect at the target, by its own record."""
    counts: Counter[str] = Counter()
    if record.exists():
        for line in record.read_bytes().splitlines():
            call = json.loads(line)
            counts[call["key"]] += bool(call["effect"])
    return counts


def wait_for(what: str, condition: object, process: subprocess.Popen[bytes]) -> None:
    assert callable(condition)
    end = time.monotonic() + 120
    while not condition():
        assert process.poll() is None, f"ended before {what}"
        assert time.monotonic() < end, f"never: {what}"
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_killed_worker_loses_nothing_and_repeats_nothing(tmp_path: Path, series: Path) -> None:
    url = server().fresh()
    record = tmp_path / "receiver.jsonl"
    with receiver(record, "--delay-ms", "200") as hook:
        first = run(lay(tmp_path / "one", series, hook), url)
        key = tmp_path / "one" / "state" / "ledger.key"
        wait_for("its key", key.exists, first)
        second = run(lay(tmp_path / "two", series, hook, tmp_path / "one"), url)
        try:
            # In the thick of it: calls are on their way, of either worker.
            wait_for("calls", lambda: len(count_calls(record)) >= 2, second)
            first.send_signal(signal.SIGKILL)
            second.wait(200)
        finally:
            for process in (first, second):
                process.kill()
                process.wait()
    assert second.returncode == 0, (tmp_path / "two" / "told").read_text()[-2000:]
    store = PostgresReader(url)
    assert store.tables.event_counts()[0] == SERIES * ROWS
    assert store.schedule.ready_runs(0, 10) == []
    done = {
        run.id: store.runs.actions(run.id)
        for run in store.runs.runs_page(agent=None, state="done", before=None, limit=10**5)
    }
    called = {
        row.id.removeprefix("act_")
        for rows in done.values()
        for row in rows
        if row.effect == "done" and row.tool == "incident.notify"
    }
    line = (tmp_path / "two" / "state" / "ledger.pub").read_text().strip()
    for name in ("one", "two"):
        report = verify_store(store.ledger, line, tmp_path / name / "state" / "witness.log")
        assert report.findings == ()
    store.close()
    judged = judged_again(tmp_path / "two" / "vedette.toml", {**os.environ, "WORKERS_URL": url})
    assert judged["ok"], judged["differences"]
    assert judged["equal"] == SERIES * ROWS
    counts = count_calls(record)
    assert called, "the test needs calls"
    assert counts.keys() == called
    assert set(counts.values()) == {1}
