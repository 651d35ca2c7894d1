"""What a fleet costs while nothing happens, and how soon a large one is ready.

`python -m tests.bench.idle [--seconds N] [--agents N] [--against CHECKOUT] [--rounds N]`.

- idle: four agents, each of which has handled one event and has nothing else to do. Counted over
  `--seconds`, for the engine and all processes below it: CPU as a share of one core, and how often
  the kernel woke one of their threads (voluntary context switches), with the processes that are
  there and their memory (PSS). Once right after the work, and once after the agents' processes
  were let go (`isolation.idle`, shortened for that).
- ready: from the start of `vedette run` to the first 200 of /readyz, `--agents` agents, on a
  state folder that is there (a restart) and on an empty one.

With `--against` another checkout (with its own .venv) is measured in turns with this one: A B A B.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
from tests.bench.machine import described
from tests.bench.start_fleet import ROOT, Crowd, crowd, events

WITHIN_S = 120.0
# By the beginning of what is measured: at most so much.
BARS = {"core, at rest": 0.2, "wakeups/s, at rest": 5.0, "200 agents ready": 2.0}


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one second of a fleet at rest: share of a core, wakeups; processes, and their MiB."""

    core: float
    wakeups: float
    processes: int
    mib: float


@contextmanager
def running(checkout: Path, fleet: Crowd) -> Iterator[subprocess.Popen[bytes]]:
    """Run a fleet by a checkout's own program, and stop it."""
    process = subprocess.Popen(
        [str(checkout / ".venv/bin/vedette"), "--config", str(fleet.config), "run", "--plain"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=checkout,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def address(fleet: Crowd, process: subprocess.Popen[bytes]) -> float:
    """Wait until /readyz answers 200; return when."""
    end = time.monotonic() + WITHIN_S
    while time.monotonic() < end:
        if process.poll() is not None:
            raise RuntimeError(f"the fleet ended with {process.returncode}")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{fleet.port}/readyz", timeout=5) as got:
                if got.status == 200:
                    return time.time()
        except OSError:
            pass
        time.sleep(0.01)
    raise RuntimeError("the fleet is not ready in time")


def cost(process: subprocess.Popen[bytes], seconds: float) -> Cost:
    """Measure the engine and everything below it."""
    engine = psutil.Process(process.pid)
    before, began = _spent(engine), time.monotonic()
    time.sleep(seconds)
    after, took = _spent(engine), time.monotonic() - began
    both = before.keys() & after.keys()
    cpu = sum(after[one][0] - before[one][0] for one in both) / 1e9
    woken = sum(after[one][1] - before[one][1] for one in both)
    family = [engine, *engine.children(recursive=True)]
    mib = sum(one.memory_full_info().pss for one in family) / 2**20
    return Cost(cpu / took, woken / took, len(family), mib)


def _spent(engine: psutil.Process) -> dict[tuple[int, int], tuple[int, int]]:
    """Return nanoseconds on a CPU, and voluntary switches, of every thread."""
    found = {}
    for one in [engine, *engine.children(recursive=True)]:
        for task in Path(f"/proc/{one.pid}/task").iterdir():
            try:
                ran = int((task / "schedstat").read_text().split()[0])
                status = (task / "status").read_text()
            except OSError:
                continue
            (line,) = (x for x in status.splitlines() if x.startswith("voluntary"))
            found[one.pid, int(task.name)] = ran, int(line.split()[1])
    return found


def at_rest(checkout: Path, folder: Path, seconds: float) -> tuple[Cost, Cost]:
    """Return what four agents cost after their work, and after their processes were let go."""
    fleet = crowd(folder, 4, idle="30s")
    fleet.events.write_text("".join(events(1, type=kind) for kind in fleet.types))
    with running(checkout, fleet) as process:
        address(fleet, process)
        end = time.monotonic() + WITHIN_S
        while not fleet.record.exists() or len(fleet.record.read_text().split()) < 4:
            if time.monotonic() > end:
                raise RuntimeError("the four agents do not act")
            time.sleep(0.1)
        time.sleep(5)
        warm = cost(process, seconds)
        time.sleep(max(0.0, 100 - seconds))
        return warm, cost(process, seconds)


def ready(checkout: Path, folder: Path, agents: int) -> tuple[float, float]:
    """Return the seconds until a fleet of so many agents is ready: first start, restart."""
    fleet = crowd(folder, agents)
    fleet.events.touch()
    took = []
    for _ in range(2):
        began = time.time()
        with running(checkout, fleet) as process:
            took.append(address(fleet, process) - began)
    return took[0], took[1]


def main() -> int:
    """Measure and print."""
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--seconds", type=float, default=30)
    given.add_argument("--agents", type=int, default=200)
    given.add_argument("--rounds", type=int, default=2)
    given.add_argument("--against", type=Path)
    given.add_argument("--only", choices=("idle", "ready"))
    given.add_argument("--json", type=Path)
    options = given.parse_args()
    here = {"here": ROOT} | ({"against": options.against.resolve()} if options.against else {})
    print(f"bench-idle: {described()}", flush=True)
    kept: dict[str, dict[str, list[float]]] = {name: {} for name in here}

    def keep(name: str, what: str, value: float) -> None:
        kept[name].setdefault(what, []).append(value)

    for _ in range(options.rounds):
        for name, checkout in here.items():
            with tempfile.TemporaryDirectory() as made:
                if options.only != "ready":
                    warm, rest = at_rest(checkout, Path(made) / "idle", options.seconds)
                    for when, one in (("after work", warm), ("at rest", rest)):
                        keep(name, f"core, {when} %", one.core * 100)
                        keep(name, f"wakeups/s, {when}", one.wakeups)
                        keep(name, f"processes, {when}", one.processes)
                        keep(name, f"PSS MiB, {when}", one.mib)
                if options.only != "idle":
                    first, repeat = ready(checkout, Path(made) / "ready", options.agents)
                    keep(name, f"{options.agents} agents ready, first start s", first)
                    keep(name, f"{options.agents} agents ready, restart s", repeat)
    for what in kept["here"]:
        line = f"{what:<40}"
        for name in here:
            line += f"  {name} {statistics.median(kept[name][what]):8.2f}"
        bar = next((bar for name, bar in BARS.items() if what.startswith(name)), None)
        print(line if bar is None else f"{line}  (bar {bar:g})", flush=True)
    if options.json:
        options.json.write_text(json.dumps(kept))
    return 0


if __name__ == "__main__":
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.exit(main())
