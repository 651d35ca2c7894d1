"""How long a start takes: `python -m tests.bench.start [--rounds N] [--backlog N] [--only NAME]`.

Counted from just before `vedette run` is started (fork and exec) to what the effect target itself
noted, by the machine's one wall clock; an effect begins only once its decision is durable, so the
first is a bound for both. Two fleets: `small`, one agent with a judge of its own under the shipped
policies with their tests; and `shipped`, the content of this repository with its samples.

- first: on an empty state folder, so the policy is tried out first.
- restart: after kill -9, with an empty backlog, to the first effect of an event that came after.
- backlog: after kill -9, with that many accepted runs that have not been judged.

Bytecode is there, as where a package is installed: one start that is not counted makes it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from tests.bench.start_fleet import ROOT, events, small_fleet

from vedette.store.sqlite import SqliteReader

VEDETTE = Path(sys.executable).with_name("vedette")
WITHIN_S = 120.0
BARS = {"first": 0.5, "restart": 0.3, "backlog": 1.0}


@cache
def _bytecode() -> tempfile.TemporaryDirectory[str]:
    """Make a folder for bytecode that lasts as long as this process."""
    return tempfile.TemporaryDirectory()


def installed() -> dict[str, str]:
    """Return an environment in which bytecode is kept, as where a package was installed.

    In a folder of its own, so that nothing is written into the tree that is measured.
    """
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return kept | {"PYTHONPYCACHEPREFIX": _bytecode().name}


@contextmanager
def running(config: Path) -> Iterator[tuple[subprocess.Popen[bytes], float]]:
    """Start the fleet, yield it with the moment before its start, and kill it."""
    began = time.time()
    process = subprocess.Popen(
        [str(VEDETTE), "--config", str(config), "run", "--plain"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=installed(),
    )
    try:
        yield process, began
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.communicate()


def until(
    true: Callable[[], object], process: subprocess.Popen[bytes], within_s: float = WITHIN_S
) -> None:
    """Wait until something is true. Raises RuntimeError if the fleet ended or it took too long."""
    end = time.monotonic() + within_s
    while not true():
        if process.poll() is not None:
            text = process.stderr.read().decode() if process.stderr else ""
            raise RuntimeError(f"the fleet ended: {text[-2000:]}")
        if time.monotonic() > end:
            raise RuntimeError("nothing happened in time")
        time.sleep(0.02)


def noted(record: Path) -> list[float]:
    """Return when the target was called, in seconds since the epoch."""
    return [float(line) for line in record.read_text().split()] if record.exists() else []


def small_first(folder: Path) -> float:
    """Return the time of a first start in seconds."""
    fleet = small_fleet(folder, events(20))
    with running(fleet.config) as (process, began):
        until(lambda: noted(fleet.record), process)
    return noted(fleet.record)[0] - began


def small_restart(folder: Path) -> float:
    """Return the time of a restart with nothing left to do, to the effect of a new event."""
    fleet = small_fleet(folder, events(20))
    with running(fleet.config) as (process, _):
        until(lambda: len(noted(fleet.record)) == 20, process)
        until(lambda: _counted(fleet.state, "effect.done") == 20, process)
    with fleet.events.open("a") as more:
        more.write(events(1, first=20))
    with running(fleet.config) as (process, began):
        until(lambda: len(noted(fleet.record)) > 20, process)
    return noted(fleet.record)[20] - began


def small_backlog(folder: Path, size: int) -> float:
    """Return the time of a restart with `size` runs waiting, to the first new effect."""
    fleet = small_fleet(folder, events(size))
    order = [str(VEDETTE), "--config", str(fleet.config)]
    subprocess.run([*order, "stop", "--all", "--reason", "bench"], check=True, capture_output=True)
    with running(fleet.config) as (process, _):
        until(lambda: _ready(fleet.state) >= size, process, 1200)
    subprocess.run([*order, "resume", "--all", "--reason", "x"], check=True, capture_output=True)
    # Once more killed in its work, so that the store is not as a clean end leaves it.
    with running(fleet.config) as (process, _):
        until(lambda: noted(fleet.record), process)
    known = len(noted(fleet.record))
    with running(fleet.config) as (process, began):
        until(lambda: len(noted(fleet.record)) > known, process)
    return noted(fleet.record)[known] - began


def shipped(folder: Path) -> tuple[float, float, float]:
    """Return the seconds to the shipped fleet's first closed run, decision, and done effect."""
    for name in ("agents", "policies", "memory", "samples", "vedette.toml"):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder / name)
    state = folder / ".vedette"
    with running(folder / "vedette.toml") as (process, began):
        until(lambda: _counted(state, "effect.done"), process)
    return (
        _first(state, "run.closed") - began,
        _first(state, "action.decided") - began,
        _first(state, "effect.done") - began,
    )


def _counted(state: Path, kind: str) -> int:
    return sum(1 for _ in _entries(state, kind))


def _first(state: Path, kind: str) -> float:
    return min(entry["at"] for entry in _entries(state, kind)) / 1e6


def _entries(state: Path, kind: str) -> Iterator[dict[str, int]]:
    if not (state / "store.db").exists():
        return
    try:
        store = SqliteReader(state)
    except Exception:  # the file is there before what is in it
        return
    try:
        for _, raw, _, _ in store.ledger.walk((kind,)):
            yield json.loads(raw)
    finally:
        store.close()


def _ready(state: Path) -> int:
    if not (state / "store.db").exists():
        return 0
    store = SqliteReader(state)
    try:
        return sum(found.get("run.ready", 0) for found in store.tables.counts().values())
    finally:
        store.close()


def bare() -> float:
    """Return how long this machine takes to start a Python that does nothing."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], check=True, env=installed())
    return time.perf_counter() - began


def imports(most: int = 15) -> list[str]:
    """Return what a start imports until it is ready, dearest first (microseconds of its own)."""
    with tempfile.TemporaryDirectory() as made:
        fleet = small_fleet(Path(made), events(1))
        order = [sys.executable, "-X", "importtime", "-m", "vedette", "--config", str(fleet.config)]
        process = subprocess.Popen(
            [*order, "run", "--plain"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=installed(),
        )
        assert process.stderr is not None
        lines: list[str] = []
        for line in process.stderr:
            # What is imported after this is imported after the first event.
            if "starlette" in line or "anyio" in line:
                break
            if line.startswith("import time:") and "imported package" not in line:
                lines.append(line.removeprefix("import time:").rstrip())
        process.kill()
        process.communicate()
    lines.sort(key=lambda line: -int(line.split("|")[0]))
    return lines[:most]


def print_times(name: str, measured: list[float]) -> None:
    """Print what was measured of one thing."""
    bar = BARS.get(name.rpartition(" ")[2])
    middle = statistics.median(measured)
    said = f"   bar {bar:.1f} s: {'kept' if middle <= bar else 'MISSED'}" if bar else ""
    print(f"{name:<28} p50 {middle:6.3f} s   best {min(measured):6.3f} s{said}", flush=True)


def main() -> int:
    """Measure and print."""
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--rounds", type=int, default=5)
    given.add_argument("--backlog", type=int, default=100_000)
    given.add_argument("--only", choices=("first", "restart", "backlog", "shipped", "imports"))
    options = given.parse_args()

    def wanted(name: str) -> bool:
        return options.only in (None, name)

    def rounds(measure: Callable[[Path], float]) -> list[float]:
        found = []
        for _ in range(options.rounds):
            with tempfile.TemporaryDirectory() as made:
                found.append(measure(Path(made)))
        return found

    print(f"load {os.getloadavg()[0]:.2f} on {os.cpu_count()} processors; p50 of {options.rounds}")
    print_times("python -c pass", [bare() for _ in range(9)])
    with tempfile.TemporaryDirectory() as made:
        small_first(Path(made))
    if wanted("first"):
        print_times("small: first", rounds(small_first))
    if wanted("restart"):
        print_times("small: restart", rounds(small_restart))
    if wanted("backlog"):
        with tempfile.TemporaryDirectory() as made:
            print_times("small: backlog", [small_backlog(Path(made), options.backlog)])
    if wanted("shipped"):
        found = []
        for _ in range(options.rounds):
            with tempfile.TemporaryDirectory() as made:
                found.append(shipped(Path(made)))
        for at, name in enumerate(("closed run", "decision", "effect")):
            print_times(f"shipped: first start, {name}", [each[at] for each in found])
    if wanted("imports"):
        print("dearest imports before the first event (us of its own | with what it imports):")
        for line in imports():
            print(f"  {line}")
    print(f"load {os.getloadavg()[0]:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
