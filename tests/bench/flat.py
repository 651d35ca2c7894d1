"""`python -m tests.bench.flat FOLDER`: whether an event costs the same however long the ledger is.

For each size the store of FOLDER is filled up to that many ledger entries (`flat_fill`), with a
thousand declared agents and up to a hundred thousand runs that wait for a person (at most one for
ten entries). Then a process of its own opens the fleet and puts events through the whole line:
events/s, CPU per event, latency, and the memory of the process. What was done is kept in
FOLDER/flat.json and not done again, so a run that was broken off goes on where it was.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import psutil
from tests.bench.calibrate import calibrate
from tests.bench.databases import following
from tests.bench.flat_fill import Filler
from tests.bench.flat_fleet import open_flat_fleet
from tests.bench.flat_plot import plot
from tests.bench.latency import named, put_through
from tests.bench.line import Load
from tests.bench.machine import described
from tests.bench.target import marks_file
from tests.bench.verdict import Verdict, print_verdicts

from vedette.testing.harness import FleetHarness

SIZES = (10_000, 1_000_000, 5_000_000)
# What counts as flat: the last size beside the first. Memory may grow by the store's page cache,
# which is bounded (64 MiB) and not full yet where the ledger is small.
SLOWER, CACHE_MB = 1.25, 64.0
# How many rounds are measured; the best by CPU per event counts, for all sizes alike.
ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Plan:
    """What to fill in and to measure."""

    folder: Path
    sizes: tuple[int, ...] = SIZES
    agents: int = 1000
    waiting: int = 100_000
    events: int = 4000
    keys: int = 200

    def waits(self, size: int) -> int:
        """Return how many runs wait in a store of a size."""
        return min(self.waiting, size // 10)

    def load(self, size: int) -> Load:
        """Return what is put through in a round at a size: little where it would grow much."""
        events = min(self.events, max(self.events // 4, size // 10))
        return Load(events=events, in_flight=1024, keys=self.keys)


@dataclass(frozen=True, slots=True)
class Size:
    """What was measured at one size. Memory in MiB: once opened, and the most under load.

    `entries` is the ledger's length when measuring began; `fill_s` is what filling took.
    """

    size: int
    entries: int
    waiting: int
    agents: int
    file_mb: float
    fill_s: float
    open_s: float
    events_per_s: float
    cpu_us: float
    p50_ms: float
    p99_ms: float
    opened_mb: float
    peak_mb: float
    lost: int
    repeated: int
    raw_per_s: float
    sync_p50_us: float
    load: float

    def line(self) -> str:
        """Return it for people."""
        return (
            f"{self.entries:>9,} entries, {self.waiting:,} waiting, {self.file_mb:,.0f} MiB: "
            f"{self.events_per_s:,.0f} events/s, CPU {self.cpu_us:,.0f} us/event, "
            f"p50 {self.p50_ms:.0f} ms, p99 {self.p99_ms:.0f} ms (a queue), "
            f"memory {self.opened_mb:.0f} MiB opened, {self.peak_mb:.0f} MiB at most; "
            f"opened in {self.open_s:.2f} s, filled in {self.fill_s:.0f} s; "
            f"fsync p50 {self.sync_p50_us:.0f} us, raw {self.raw_per_s:,.0f}/s, "
            f"load {self.load:.1f}"
        )


async def fill(plan: Plan, size: int) -> float:
    """Fill the store up to a size; return the seconds it took."""
    began = time.monotonic()
    async with open_flat_fleet(plan.folder, plan.agents) as fleet:
        filler = await Filler.of(fleet, plan.agents)
        await filler.waiting(plan.waits(size))
        await filler.entries(size)
    return time.monotonic() - began


def memory_mb() -> float:
    """Return how much memory this process has in use, in MiB."""
    return float(psutil.Process().memory_info().rss) / 2**20


async def measure(plan: Plan, size: int) -> dict[str, Any]:
    """Open the filled fleet here and measure it: a process measures one size only."""
    raw = await calibrate(plan.folder)
    marks = marks_file(plan.folder)
    began = time.monotonic()
    async with open_flat_fleet(plan.folder, plan.agents) as fleet:
        await fleet.wait_until_idle(120)
        open_s, opened_mb = time.monotonic() - began, memory_mb()
        entries, epoch = fleet.app.store.ledger.last_seq(), fleet.app.store.cluster.epoch
        load = plan.load(size)
        warm = replace(load, events=2 * plan.keys)
        # As `vedette run` has it: the read model is made by a process beside this one.
        async with following(fleet.app):
            waiting = _waiting(fleet)
            await put_through(fleet, marks, named(f"warm-{epoch}-", warm), warm)
            peak = [memory_mb()]
            watching = asyncio.create_task(_watch(peak))
            rounds = [
                await put_through(fleet, marks, named(f"{epoch}-{number}-", load), load)
                for number in range(ROUNDS)
            ]
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching
    best = min(rounds, key=lambda each: each.cpu_us)
    return asdict(
        Size(
            size, entries, waiting, plan.agents, _file_mb(plan.folder), 0.0, open_s,
            max(each.per_s for each in rounds), best.cpu_us, best.share(0.5), best.share(0.99),
            opened_mb, max(peak), sum(each.lost for each in rounds),
            sum(each.repeated for each in rounds), raw.per_s, raw.sync_p50_us, os.getloadavg()[0],
        )
    )  # fmt: skip


async def _watch(peak: list[float]) -> None:
    while True:
        await asyncio.sleep(0.1)
        peak.append(memory_mb())


def _waiting(fleet: FleetHarness) -> int:
    counts = fleet.app.store.tables.counts().values()
    return sum(each.get("run.waiting", 0) for each in counts)


def _file_mb(folder: Path) -> float:
    return (folder / "state" / "store.db").stat().st_size / 2**20


def in_its_own_process(plan: Plan, size: int) -> Size:
    """Measure a size in a process that did nothing else. Raises CalledProcessError."""
    order = [
        sys.executable, "-m", "tests.bench.flat", str(plan.folder), "--measure", str(size),
        "--agents", str(plan.agents), "--waiting", str(plan.waiting),
        "--events", str(plan.events), "--keys", str(plan.keys),
    ]  # fmt: skip
    done = subprocess.run(order, check=True, stdout=subprocess.PIPE, text=True)
    return Size(**json.loads(done.stdout))


def soak(plan: Plan) -> list[Size]:
    """Fill and measure size after size; what FOLDER/flat.json has is not done again."""
    kept = plan.folder / "flat.json"
    found = [Size(**each) for each in json.loads(kept.read_text())] if kept.exists() else []
    for size in plan.sizes:
        if any(each.size == size for each in found):
            continue
        if found and found[-1].size > size:
            raise SystemExit(f"flat: {plan.folder} is filled beyond {size:,} entries already")
        fill_s = asyncio.run(fill(plan, size))
        found.append(replace(in_its_own_process(plan, size), fill_s=fill_s))
        print(found[-1].line(), flush=True)
        kept.write_text(json.dumps([asdict(each) for each in found], indent=1))
    return found


def verdicts(found: Sequence[Size]) -> list[Verdict]:
    """Hold the last size against the first, and memory against the size before it too."""
    first, last = found[0], found[-1]
    across = f"{first.size:,} to {last.size:,} entries"
    held = [
        Verdict(f"CPU per event, {across}", last.cpu_us / first.cpu_us, SLOWER, "times"),
        Verdict(
            f"events/s, {across}", first.events_per_s / last.events_per_s, SLOWER, "times less"
        ),
        Verdict(f"memory, {across}", last.peak_mb, SLOWER * first.peak_mb + CACHE_MB, "MiB"),
        Verdict("effects lost or repeated", sum(each.lost + each.repeated for each in found), 0),
    ]
    if len(found) > 2:
        before = found[-2]
        what = f"memory, {before.size:,} to {last.size:,} entries"
        held.append(Verdict(what, last.peak_mb / before.peak_mb, 1.1, "times"))
    return held


def main(argv: list[str] | None = None) -> int:
    """Fill, measure, print, draw; 1 if the cost is not flat."""
    usual = Plan(Path())
    parser = argparse.ArgumentParser(prog="tests.bench.flat", description=__doc__)
    parser.add_argument("folder", type=Path, help="where the fleet and its store are kept")
    parser.add_argument("--sizes", type=int, nargs="+", default=usual.sizes)
    parser.add_argument("--agents", type=int, default=usual.agents)
    parser.add_argument("--waiting", type=int, default=usual.waiting)
    parser.add_argument("--events", type=int, default=usual.events, help="measured, each round")
    parser.add_argument("--keys", type=int, default=usual.keys)
    parser.add_argument("--plot", type=Path, help="draw the result into this SVG file")
    parser.add_argument("--measure", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    plan = Plan(
        options.folder, tuple(sorted(options.sizes)), options.agents, options.waiting,
        options.events, options.keys,
    )  # fmt: skip
    if options.measure is not None:
        print(json.dumps(asyncio.run(measure(plan, options.measure))))
        return 0
    plan.folder.mkdir(parents=True, exist_ok=True)
    machine = described()
    print(machine)
    found = soak(plan)
    if options.plot is not None:
        options.plot.write_text(plot([asdict(each) for each in found], machine), encoding="utf-8")
        print(f"drawn into {options.plot}")
    return print_verdicts(verdicts(found))


if __name__ == "__main__":
    sys.exit(main())
