"""`python -m tests.bench.latency`: from an event being handed over to its effect at the target.

The line of `tests.bench.line` at a steady pace, so that nothing queues: every event is sent at its
own instant, whatever became of the one before. Measured with agents' code in this process, and in
processes of its own as `vedette run` has it; with `--beside` also while a `nice`d loop keeps one
core busy. The bound is made of what the disk takes for a sync just before and after.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path

from tests.bench.bench_fleet import readings
from tests.bench.calibrate import Calibration, calibrate
from tests.bench.databases import following
from tests.bench.line import Load, Offer, open_bench_fleet
from tests.bench.machine import CpuTimes, described, percentile
from tests.bench.target import happened, marks_file
from tests.bench.verdict import Verdict, print_verdicts

from vedette.domain.event import Event
from vedette.interfaces.cli.run import GC_THRESHOLDS
from vedette.testing.harness import FleetHarness

SYNCS, MORE_MS, P99_MS = 3, 3.0, 50.0
_BUSY_LOOP = "import os; os.nice(19); print(flush=True)\nwhile True: pass"


@dataclass(frozen=True, slots=True)
class Through:
    """What came of a load. Times in ms, shortest first; CPU in µs per event.

    `lost` and `repeated` are effects by the target's own record.
    """

    events: int
    seconds: float
    cpu_us: float
    late_ms: tuple[float, ...]
    lost: int
    repeated: int

    @property
    def per_s(self) -> float:
        """Return the events done in a second."""
        return self.events / self.seconds

    def share(self, of: float) -> float:
        """Return the time that a share of the events did not exceed, in ms."""
        return percentile(list(self.late_ms), of)

    def line(self) -> str:
        """Return it for people."""
        return (
            f"{self.per_s:,.0f} events/s ({self.events:,} in {self.seconds:.1f} s), "
            f"CPU {self.cpu_us:,.0f} us/event, p50 {self.share(0.5):.2f} ms, "
            f"p99 {self.share(0.99):.2f} ms, {self.lost} lost, {self.repeated} repeated"
        )


def named(prefix: str, load: Load) -> list[Event]:
    """Return the readings of a load under names of their own."""
    made = readings(load.events, keys=load.keys, size=load.size)
    return [replace(event, id=f"{prefix}{event.id}") for event in made]


async def put_through(
    fleet: FleetHarness, marks: Path, events: Sequence[Event], load: Load
) -> Through:
    """Hand events over as the load says and return what came of them.

    Raises AssertionError if the line stands still.
    """
    repeats = happened(marks)[1]
    offer = Offer(fleet.app, load)
    cpu, began = CpuTimes.now(), time.monotonic()
    await offer.all(list(events))
    seconds, spent = time.monotonic() - began, CpuTimes.now().since(cpu)
    first, repeated = happened(marks)
    latencies = sorted((first[name] - at) / 1e6 for name, at in offer.at.items() if name in first)
    return Through(
        len(events), seconds, spent.total * 1e6 / len(events), tuple(latencies),
        len(events) - len(latencies), repeated - repeats,
    )  # fmt: skip


async def measure(folder: Path, load: Load, *, workers: bool) -> Through:
    """Run the bench fleet below `folder` at the load's pace, after two rounds over all keys.

    With a follower of the read model beside it, as `vedette run` has one.
    """
    fleet = open_bench_fleet(folder, replace(load, isolated=workers))
    async with fleet, following(fleet.app):
        warm = replace(load, events=2 * load.keys, rate=0.0)
        await put_through(fleet, marks_file(folder), named("w", warm), warm)
        # As `vedette run` does once its fleet is up.
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        return await put_through(fleet, marks_file(folder), named("", load), load)


def verdicts(through: Through, raw: Sequence[Calibration], rate: float) -> list[Verdict]:
    """Hold a measurement against the promise, with the mean sync of the calibrations."""
    sync_ms = sum(each.sync_p50_us for each in raw) / len(raw) / 1000
    return [
        Verdict("pace kept", through.per_s, 0.98 * rate, "events/s", least=True),
        Verdict(
            f"p50 within {SYNCS} x fsync p50 + {MORE_MS:g} ms",
            through.share(0.5), SYNCS * sync_ms + MORE_MS, "ms",
        ),
        Verdict("p99", through.share(0.99), P99_MS, "ms"),
        Verdict("effects lost or repeated", through.lost + through.repeated, 0),
    ]  # fmt: skip


@contextmanager
def busy_core() -> Iterator[None]:
    """Keep the last core of this process busy at the lowest priority while the block runs."""
    loop = subprocess.Popen([sys.executable, "-c", _BUSY_LOOP], stdout=subprocess.PIPE)
    assert loop.stdout is not None
    try:
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(loop.pid, {max(os.sched_getaffinity(0))})
        loop.stdout.readline()
        yield
    finally:
        loop.kill()
        loop.communicate()


async def bench(load: Load, *, workers: bool) -> tuple[Through, list[Calibration]]:
    """Measure in a temporary folder, between two calibrations."""
    with tempfile.TemporaryDirectory(prefix="vedette-bench-") as made:
        folder = Path(made)
        before = await calibrate(folder)
        through = await measure(folder, load, workers=workers)
        return through, [before, await calibrate(folder)]


def main(argv: list[str] | None = None) -> int:
    """Print numbers and verdicts; 1 if a promise is not met."""
    parser = argparse.ArgumentParser(prog="tests.bench.latency", description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rate", type=float, default=500.0, help="events/s")
    parser.add_argument("--keys", type=int, default=200)
    parser.add_argument("--tool", choices=("async", "thread"), default="async")
    parser.add_argument("--only", choices=("process", "workers"))
    parser.add_argument("--beside", action="store_true", help="also beside a busy loop")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    load = Load(
        events=int(options.seconds * options.rate), rate=options.rate, keys=options.keys,
        tool=options.tool,
    )  # fmt: skip
    if not options.json:
        print(described())
    ended = 0
    for name, is_beside in product(("process", "workers"), (False, True)):
        if options.only not in (None, name) or (is_beside and not options.beside):
            continue
        with busy_core() if is_beside else nullcontext():
            through, raw = asyncio.run(bench(load, workers=name == "workers"))
        held = verdicts(through, raw, options.rate)
        if options.json:
            met = {each.what: each.met for each in held}
            times = {"p50_ms": through.share(0.5), "p99_ms": through.share(0.99), "late_ms": []}
            told = {"code in": name, "beside": is_beside, **asdict(through), **times, "met": met}
            print(json.dumps(told))
            ended = max(ended, int(not all(met.values())))
            continue
        where = "this process" if name == "process" else "processes of its own"
        where += ", beside a busy loop" if is_beside else ""
        print(f"agents' code in {where}, tool {options.tool}: {through.line()}")
        for each in raw:
            print(f"  {each.line()}")
        ended = max(ended, print_verdicts(held))
    return ended


if __name__ == "__main__":
    sys.exit(main())
