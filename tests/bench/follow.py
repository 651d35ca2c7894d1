"""`python -m tests.bench.follow`: how fast the read model is made from nothing.

A fleet of the bench puts `--events` events through; then its read model is made anew from the
entries, `--rounds` times, as the follower makes it after a loss. Printed are entries a second by
the clock and by CPU, best and median, and what the files take. `--profile` says where it goes.
The bar is 50,000 entries/s of CPU.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import pstats
import statistics
import sys
import tempfile
import time
from pathlib import Path

from tests.bench.bench_fleet import KINDS, readings
from tests.bench.line import STORES, Load, Offer, open_bench_fleet
from tests.bench.machine import described

from vedette.store.readmodel.model import ReadModel

BAR = 50_000


def rebuilt(view: ReadModel) -> tuple[float, float]:
    """Make a read model anew; return seconds by the clock and of CPU."""
    began, cpu = time.monotonic(), time.process_time()
    view.rebuild()
    return time.monotonic() - began, time.process_time() - cpu


def size_of_model(folder: Path) -> int:
    """Return how many bytes the model's file and its log take."""
    return sum(path.stat().st_size for path in folder.rglob("view.db*"))


async def measure(folder: Path, load: Load, rounds: int, profile: bool) -> float:
    """Print a table; return the best entries a second of CPU."""
    async with open_bench_fleet(folder, load) as fleet:
        app = fleet.app
        await Offer(app, load).all(list(readings(load.events, keys=load.keys, kind=load.kind)))
        head = app.store.ledger.last_seq()
        took = [rebuilt(app.store.view) for _ in range(rounds)]
        clock = [head / seconds for seconds, _ in took]
        cpu = [head / spent for _, spent in took]
        size = size_of_model(folder)
        print(
            f"{head:,} entries of {load.events:,} events ({load.kind}) on {load.store}: best "
            f"{max(clock):,.0f} entries/s, median {statistics.median(clock):,.0f}; of CPU best "
            f"{max(cpu):,.0f}, median {statistics.median(cpu):,.0f}; {size / head:,.0f} bytes of "
            "view.db an entry"
        )
        if profile:
            made = cProfile.Profile()
            made.runcall(app.store.view.rebuild)
            pstats.Stats(made).sort_stats("tottime").print_stats(25)
        return max(cpu)


def main() -> int:
    """Measure and print; 1 if the bar was missed."""
    given = argparse.ArgumentParser(prog="tests.bench.follow", description=__doc__)
    given.add_argument("--events", type=int, default=10_000)
    given.add_argument("--rounds", type=int, default=5)
    given.add_argument("--kind", choices=KINDS, default="acting")
    given.add_argument("--store", choices=STORES, default="sqlite")
    given.add_argument("--profile", action="store_true")
    options = given.parse_args()
    print(described())
    load = Load(events=options.events, kind=options.kind, store=options.store, isolated=False)
    with tempfile.TemporaryDirectory(prefix="vedette-follow-") as folder:
        best = asyncio.run(measure(Path(folder), load, options.rounds, options.profile))
    print(f"bar {BAR:,} entries/s of CPU: {'ok' if best >= BAR else 'MISSED'}")
    return 0 if best >= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
