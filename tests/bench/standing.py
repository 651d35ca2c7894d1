"""`python -m tests.bench.standing`: how much the others notice of one agent that misbehaves.

Four quiet agents with ten events a second each, alone and then beside: an agent whose judge never
returns, one whose judge eats memory, one with a storm of a hundred times as many events, and one
whose target hangs. Held against the promise: the others' p99 at most twice the quiet one, nothing
lost. The cases are those of `tests/faults/test_noisy_neighbours.py`, over a longer time.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench.calibrate import calibrate
from tests.bench.machine import CpuTimes, described
from tests.bench.verdict import Verdict, print_verdicts
from tests.faults import test_noisy_neighbours as cases
from tests.faults.noise import QUIET, Filed, Seen, measure, share
from tests.faults.noise import latency_line as compared

from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import job, send_proposal

RATIO = 2.0
STORM = 100
EVERY_S = 0.2
# How long a judge of the noisy agent may take before its worker is ended, and some slack.
LIMIT_S = 2.0


@dataclass(frozen=True, slots=True)
class Beside:
    """How long the quiet agents' events took, in ms, shortest first; `cpu_us` per quiet event."""

    quiet: list[float]
    noisy: list[float]
    note: str
    lost: int
    repeated: int
    cpu_us: tuple[float, float]


def accounted(fleet: FleetHarness, world: Seen, texts: int) -> tuple[int, int]:
    """Return how many of `texts` quiet events brought no effect, and how many effects repeat."""
    world.refresh()
    there = sum(text.startswith(("quiet", "noisy", "warm")) for text in list(world.at))
    unfinished = sum(
        number
        for agent in QUIET
        for state, number in fleet.app.store.tables.counts().get(agent, {}).items()
        if state.startswith("run.") and state != "run.done"
    )
    repeats = sum(number - 1 for number in world.keys().values())
    return texts - there + unfinished, repeats


async def wild(fleet: FleetHarness, how: str) -> None:
    """Send the noisy agent events on which its judge spins or eats memory, for as long as asked."""
    deed: dict[str, Any] = {how: True}
    number = 0
    while True:
        await fleet.send(job(f"b{number}", key=f"b{number}", agent="noisy", **deed))
        number += 1
        await asyncio.sleep(EVERY_S)


async def storm(fleet: FleetHarness, per_second: float, sent: Counter[str]) -> None:
    """Hand over events of the noisy agent at a pace, one in ten with an effect.

    No faster than they are taken: a source waits for the answer.
    """
    began, number = time.monotonic(), 0
    while True:
        due = int((time.monotonic() - began) * per_second)
        batch = [
            job(
                f"s{n}",
                *([send_proposal(f"s{n}")] if n % 10 == 0 else []),
                key=f"k{n % 50}",
                agent="noisy",
            )
            for n in range(number, min(due, number + 256))
        ]
        if batch:
            await fleet.send(*batch)
            number += len(batch)
            sent["events"] = number
        await asyncio.sleep(0.005)


async def hanging(folder: Path, pace: dict[str, float]) -> Beside:
    """Measure beside a target that hangs; agents' code in this process, the hook is in it."""
    world = Seen()
    cases.SECONDS, cases.PER_SECOND = pace["seconds"], pace["per_second"]
    async with cases.fleet_of(folder, world) as fleet:
        before = CpuTimes.now()
        quiet, noisy = await cases.with_a_target_that_hangs(fleet, world)
        spent = CpuTimes.now().since(before)
        await fleet.wait_until_idle(120)
        cases.nothing_is_lost(fleet, world)
        both = 1e6 * spent.total / (len(quiet) + len(noisy))
        lost, repeated = accounted(fleet, world, _texts(pace))
    return Beside(quiet, noisy, "200 calls hung", lost, repeated, (both, both))


def _texts(pace: dict[str, float]) -> int:
    each = int(pace["seconds"] * pace["per_second"])
    return 2 * each + int(pace["per_second"])


async def beside(folder: Path, how: str, pace: dict[str, float]) -> Beside:
    """Measure beside one disturbance: spin, eat, storm or hang."""
    if how == "hang":
        return await hanging(folder, pace)
    target = folder.with_name(f"{how}-target")
    target.mkdir()
    world = Filed(path=target / "record.txt")
    sent: Counter[str] = Counter()
    rate = STORM * pace["per_second"] / len(QUIET)
    async with cases.fleet_of(folder, world, workers=True) as fleet:
        noise: Callable[[], Awaitable[None]] = lambda: (  # noqa: E731
            storm(fleet, rate, sent) if how == "storm" else wild(fleet, how)
        )
        await measure(fleet, world, seconds=1, per_second=pace["per_second"], name="warm")
        first = CpuTimes.now()
        seconds, per_second = pace["seconds"], pace["per_second"]
        quiet = await measure(fleet, world, seconds=seconds, per_second=per_second)
        second, began = CpuTimes.now(), time.monotonic()
        noisy = await measure(
            fleet, world, seconds=seconds, per_second=per_second, name="noisy", noise=noise
        )
        third, took = CpuTimes.now(), time.monotonic() - began
        if how == "storm":
            await fleet.wait_until_idle(120)
            note = f"{sent['events'] / took:,.0f} storm events/s taken of {rate:,.0f}/s"
        else:
            deaths = fleet.app.metrics.total("worker_deaths", agent="noisy")
            note = f"{deaths} workers ended, {len(fleet.entries('run.dead'))} dead letters"
            # A disturbance that did not happen is no measurement.
            assert deaths or pace["seconds"] < LIMIT_S, f"no worker was ended: {how} did nothing"
        lost, repeated = accounted(fleet, world, _texts(pace))
    cpu = (second.since(first).total, third.since(second).total)
    each = (1e6 * cpu[0] / len(quiet), 1e6 * cpu[1] / len(noisy))
    return Beside(quiet, noisy, note, lost, repeated, each)


def verdicts(how: str, found: Beside) -> list[Verdict]:
    """Hold a measurement against the promise."""
    ratio = share(found.noisy, 0.99) / share(found.quiet, 0.99)
    return [
        Verdict(f"{how}: p99 of the others, disturbed / quiet", ratio, RATIO),
        Verdict(f"{how}: effects of the others lost or repeated", found.lost + found.repeated, 0),
    ]


def main(argv: list[str] | None = None) -> int:
    """Print numbers and verdicts; 1 if a promise is not met."""
    hows = ("spin", "eat", "storm", "hang")
    parser = argparse.ArgumentParser(prog="tests.bench.standing", description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each of the two parts")
    parser.add_argument("--rate", type=float, default=40.0, help="events/s of all quiet agents")
    parser.add_argument("--only", choices=hows)
    options = parser.parse_args(argv)
    pace = {"seconds": options.seconds, "per_second": options.rate}
    held: list[Verdict] = []
    print(described())
    with tempfile.TemporaryDirectory(prefix="vedette-bench-") as made:
        print(asyncio.run(calibrate(Path(made))).line())
        for how in hows:
            if options.only not in (None, how):
                continue
            found = asyncio.run(beside(Path(made) / how, how, pace))
            print(compared(how, found.quiet, found.noisy))
            quiet, noisy = found.cpu_us
            print(f"  {found.note}; CPU {quiet:,.0f} and {noisy:,.0f} us per quiet event; "
                  f"load {os.getloadavg()[0]:.1f}", flush=True)  # fmt: skip
            held += verdicts(how, found)
    return print_verdicts(held)


if __name__ == "__main__":
    sys.exit(main())
