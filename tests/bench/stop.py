"""`python -m tests.bench.stop`: how soon a stop is in force, at 500 events a second.

A fleet as `vedette run` starts it, with a source at a steady pace and a target that notes the
moment of each call. Stops are ordered over the local interface, one after the other, and lifted
again; a few by `vedette stop`, from the start of its process. A call that the target noted after
a stop was answered is a call too many. Last, the fleet is stopped, killed with -9 and started
again: nothing may be called until the stop is lifted, and then everything is done.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from tests.bench.calibrate import calibrate
from tests.bench.machine import described, percentile
from tests.bench.start import VEDETTE, installed, noted, running, until
from tests.bench.start_fleet import SmallFleet, events, small_fleet
from tests.bench.verdict import Verdict, print_verdicts

from vedette.interfaces.http.local_client import LocalClient
from vedette.store.sqlite import SqliteReader

P99_MS = 1000.0
# How long is looked for calls after a stop, and how long a fleet goes on between two.
LOOK_S, BETWEEN_S = 0.1, 0.2


@dataclass(slots=True)
class Stopped:
    """What came of it. Times in ms; calls are those that the target noted.

    `engine_ms` is the part of a stop's time that the fleet itself counted, once it had the order.

    `late` came after a stop was answered, `after_restart` in a restarted fleet under a stop,
    `lost` events brought no effect in the end.
    """

    took_ms: list[float] = field(default_factory=list)
    typed_ms: list[float] = field(default_factory=list)
    engine_ms: list[float] = field(default_factory=list)
    between: list[int] = field(default_factory=list)
    late: int = 0
    after_restart: int = 0
    accepted_stopped: int = 0
    lost: int = 0
    per_s: float = 0.0
    cpu_us: float = 0.0

    def line(self) -> str:
        """Return it for people."""
        times = [
            f"{name} p50 {percentile(sorted(took), 0.5):.1f} ms, "
            f"p99 {percentile(sorted(took), 0.99):.1f} ms, most {max(took):.1f} ms ({len(took)})"
            for name, took in (
                ("ordered", self.took_ms),
                ("in the engine", self.engine_ms),
                ("typed", self.typed_ms),
            )
            if took
        ]
        return (
            f"time to stop: {'; '.join(times)}; {self.late} calls after the answer, "
            f"{self.after_restart} after a restart; {self.per_s:,.0f} events/s meanwhile, "
            f"CPU {self.cpu_us:,.0f} us/event of the fleet, "
            f"{self.accepted_stopped:,} accepted while stopped and done later, {self.lost} lost"
        )


@dataclass(frozen=True, slots=True)
class One:
    """One stop: ms until its answer, as the fleet counted it, calls before and after it."""

    took_ms: float
    engine_ms: float
    between: int
    late: int


def one_stop(fleet: SmallFleet, client: LocalClient, *, typed: bool) -> One:
    """Stop all, look for calls, and resume."""
    before = len(noted(fleet.record))
    time.sleep(BETWEEN_S)
    began, engine_us = time.time(), 0
    if typed:
        _typed(fleet, "stop")
    else:
        engine_us = client.send_command("stop", "bench", {"all": True})["took_us"]
    answered = time.time()
    time.sleep(LOOK_S)
    calls = noted(fleet.record)
    client.send_command("resume", "bench", {"all": True})
    late = sum(at > answered for at in calls)
    return One((answered - began) * 1000, engine_us / 1000, len(calls) - before, late)


def _typed(fleet: SmallFleet, verb: str) -> None:
    order = [str(VEDETTE), "--config", str(fleet.config), verb, "--all", "--reason", "bench"]
    subprocess.run(order, check=True, capture_output=True, env=installed())


def measure(folder: Path, stops: int, typed: int, rate: float) -> Stopped:
    """Run a fleet below `folder` and stop it so often. Raises RuntimeError if it ends by itself."""
    # More than will be needed: a source that has run out is no load.
    number = int(rate * (5 + stops * (LOOK_S + BETWEEN_S + 0.5) + typed * 3))
    fleet = small_fleet(folder, events(number))
    settings = fleet.config.read_text()
    assert "rate = 0\n" in settings
    fleet.config.write_text(settings.replace("rate = 0\n", f"rate = {rate:g}\n"))
    client, found = LocalClient(fleet.state), Stopped()
    with running(fleet.config) as (process, _):
        until(lambda: len(noted(fleet.record)) > rate / 4 and client.is_alive(), process)
        first, began, cpu = _accepted(fleet.state), time.monotonic(), _cpu(process.pid)
        for each in range(stops + typed):
            one = one_stop(fleet, client, typed=each >= stops)
            if each >= stops:
                found.typed_ms.append(one.took_ms)
            else:
                found.took_ms.append(one.took_ms)
                found.engine_ms.append(one.engine_ms)
            found.between.append(one.between)
            found.late += one.late
        count = _accepted(fleet.state) - first
        found.per_s = count / (time.monotonic() - began)
        found.cpu_us = 1e6 * (_cpu(process.pid) - cpu) / max(1, count)
        client.send_command("stop", "bench", {"all": True})
        calls, accepted = len(noted(fleet.record)), _accepted(fleet.state)
        time.sleep(LOOK_S)
        found.late += len(noted(fleet.record)) - calls
        # What has no outcome yet may be called again after a kill: not what is measured here.
        until(lambda: _open(fleet.state) == 0, process)
        until(lambda: _accepted(fleet.state) > accepted or accepted == number, process)
    calls = len(noted(fleet.record))
    # What is left over is handed over at once.
    fleet.config.write_text(settings)
    with running(fleet.config) as (process, _):
        until(client.is_alive, process)
        time.sleep(1.0)
        found.after_restart = len(noted(fleet.record)) - calls
        found.accepted_stopped = _accepted(fleet.state) - calls
        client.send_command("resume", "bench", {"all": True})
        until(lambda: _done(fleet.state) == number, process, 600)
    found.lost = number - len(noted(fleet.record))
    return found


def _cpu(pid: int) -> float:
    """Return the CPU seconds of a process and its children that live."""
    spent = 0.0
    for each in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            times = each.cpu_times()
            spent += times.user + times.system
    return spent


def _accepted(state: Path) -> int:
    store = SqliteReader(state)
    try:
        counts = store.tables.counts().get("beacon", {})
    finally:
        store.close()
    return sum(each for name, each in counts.items() if name.startswith("run."))


def _count(state: Path, name: str) -> int:
    store = SqliteReader(state)
    try:
        return store.tables.counts().get("beacon", {}).get(name, 0)
    finally:
        store.close()


def _done(state: Path) -> int:
    return _count(state, "run.done")


def _open(state: Path) -> int:
    return _count(state, "effect.started")


def verdicts(found: Stopped, rate: float) -> list[Verdict]:
    """Hold what came of it against the promise."""
    return [
        Verdict("pace kept", found.per_s, 0.95 * rate, "events/s", least=True),
        Verdict("time to stop, p99", percentile(sorted(found.took_ms), 0.99), P99_MS, "ms"),
        Verdict("time to stop as typed, most", max(found.typed_ms, default=0.0), P99_MS, "ms"),
        Verdict("fewest calls before a stop", min(found.between), 1, least=True),
        Verdict("calls after a stop was answered", found.late, 0),
        Verdict("calls under a stop after kill -9 and restart", found.after_restart, 0),
        Verdict("events lost", max(0, found.lost), 0),
    ]


def main(argv: list[str] | None = None) -> int:
    """Print numbers and verdicts; 1 if a promise is not met."""
    parser = argparse.ArgumentParser(prog="tests.bench.stop", description=__doc__)
    parser.add_argument("--stops", type=int, default=100)
    parser.add_argument("--typed", type=int, default=5)
    parser.add_argument("--rate", type=float, default=500.0, help="events/s")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    if not options.json:
        print(described())
    with tempfile.TemporaryDirectory(prefix="vedette-bench-") as made:
        raw = asyncio.run(calibrate(Path(made)))
        found = measure(Path(made), options.stops, options.typed, options.rate)
    held = verdicts(found, options.rate)
    if options.json:
        print(json.dumps({"line": found.line(), "met": {each.what: each.met for each in held}}))
        return int(not all(each.met for each in held))
    print(raw.line())
    print(found.line())
    return print_verdicts(held)


if __name__ == "__main__":
    sys.exit(main())
