"""Ctrl-C with calls on their way: the fleet ends soon and whole; a second one ends it at once."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.faults.kill import effects, run_to_end, start
from tools.real_fleet import ROOT, lay_out, receiver

from vedette.interfaces.http.unix_socket import socket_of
from vedette.judging.series import generate
from vedette.store.sqlite import SqliteReader

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

SERIES = 6
CALL_S = 3.0
# The promise is two seconds; a loaded machine gets a little more, and any call would take longer.
SOON_S = 2.5


def fleet(folder: Path, hook: str) -> Path:
    """Six pumps that fail, so that the people on call are told six times."""
    series = folder / "series"
    series.mkdir()
    begin = datetime(2026, 3, 2, tzinfo=UTC)
    for number in range(SERIES):
        values = generate(
            {"n": 1010, "seed": 6 + number, "base": 20, "noise": 1, "shift_at": 1000, "shift": 40}
        )
        rows = [
            f"{begin + timedelta(minutes=at):%FT%TZ},{value}" for at, value in enumerate(values)
        ]
        (series / f"pump_{number}.csv").write_text("\n".join(["timestamp,value", *rows]) + "\n")
    return lay_out(folder, series=series, mailbox=ROOT / "samples" / "mailbox", hook=hook).config


def until_calls_are_out(state: Path, process: subprocess.Popen[bytes]) -> None:
    """Wait until every call to the webhook is intended, and so on its way."""
    end = time.monotonic() + 60
    while on_their_way(state) < SERIES:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.02)
    time.sleep(0.2)


def on_their_way(state: Path) -> int:
    if not socket_of(state).exists():
        return 0  # it is still being opened
    store = SqliteReader(state)
    try:
        document = [json.loads(raw) for _, raw, _, _ in store.ledger.walk(("effect.intended",))]
        return sum(entry["tool"] == "incident.notify" for entry in document)
    finally:
        store.close()


def test_the_first_signal_waits_for_no_call_and_closes_the_store(tmp_path: Path) -> None:
    record, state = tmp_path / "receiver.jsonl", tmp_path / "state"
    with receiver(record, "--delay-ms", str(int(CALL_S * 1000))) as hook:
        config = fleet(tmp_path, hook)
        process = start(config)
        try:
            until_calls_are_out(state, process)
            began = time.monotonic()
            process.send_signal(signal.SIGTERM)
            _, output = process.communicate(timeout=30)
            took = time.monotonic() - began
        finally:
            process.kill()
        assert (process.returncode, took < SOON_S) == (0, True), (took, output.decode())
        assert b"Traceback" not in output
        # SQLite takes its log away when the last connection is closed, and not before.
        assert not (state / "store.db-wal").exists()
        run_to_end(config)
    assert list(effects(record).values()) == [1] * SERIES


def test_the_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    record, state = tmp_path / "receiver.jsonl", tmp_path / "state"
    with receiver(record, "--delay-ms", str(int(CALL_S * 1000))) as hook:
        config = fleet(tmp_path, hook)
        process = start(config)
        try:
            until_calls_are_out(state, process)
            began = time.monotonic()
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=30)
            took = time.monotonic() - began
        finally:
            process.kill()
        assert (process.returncode, took < 1.0) == (130, True), took
        # Control of the test above: nobody closed this one. The next run takes it up all the same.
        assert (state / "store.db-wal").exists()
        run_to_end(config)
    assert list(effects(record).values()) == [1] * SERIES
