"""`python -m tests.bench.canary`: what the other agents notice of a bad release in a canary.

Four quiet agents with ten events a second each, beside one whose release is good, and that one with
a canary of half its keys whose release is bad: its judge raises, it acts five times as often, or it
asks for what a person has to decide. The engine compares and aborts as it does in `vedette run`,
and the canary is begun anew as soon as it was, so that there is one nearly always, which is worse
than life. Without and with alternate in one run, A B A B A B. Held against the promise: their p99
beside it at most 1.2 times what it is without, where the parts without differ by that much among
themselves; nothing is lost, and the canaries are aborted, by the engine alone.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench.calibrate import calibrate
from tests.bench.machine import CpuTimes, described
from tests.bench.standing import accounted
from tests.bench.verdict import Verdict, print_verdicts
from tests.faults import test_noisy_neighbours as cases
from tests.faults.noise import Filed, latency_line, measure, share

from vedette.interfaces.http.command_dispatch import dispatch
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import job, send_proposal

RATIO = 1.2
PAIRS = 3
SHARE_MILLI = 500
_HEAD = "        data = briefing.event.data\n"
# What the judge of the bad release does first, and by which measures it may be aborted.
FAULTS: Mapping[str, tuple[str, frozenset[str]]] = {
    "errors": ('        raise RuntimeError("bad")\n', frozenset({"errors", "ceiling"})),
    "cost": (
        "        more = range(5)\n"
        '        data = {**data, "do": [{**one, "args": {**one["args"], "text": '
        'one["args"]["text"] + str(n)}} for one in data["do"] for n in more]}\n',
        frozenset({"actions"}),
    ),
    "actions": (
        '        data = {**data, "do": [{**one, "tool": "big.send"} for one in data["do"]]}\n',
        frozenset({"holds"}),
    ),
}


@dataclass
class Found:
    """How long the others' events took, in ms, and the CPU of all for each, without and with."""

    without: list[float] = field(default_factory=list)
    beside: list[float] = field(default_factory=list)
    cpu_s: dict[bool, float] = field(default_factory=lambda: {False: 0.0, True: 0.0})
    abort_s: list[float] = field(default_factory=list)
    rules: set[str] = field(default_factory=set)
    lost: int = 0
    parts_ms: list[float] = field(default_factory=list)

    @property
    def spread(self) -> float:
        """Return the largest by the least p99 of the parts without a canary."""
        return max(self.parts_ms) / min(self.parts_ms)


async def send_own(fleet: FleetHarness, per_second: float, name: str) -> None:
    """Send the agent of the canary events at a pace, each of a key of its own, with an effect."""
    began, number = time.monotonic(), 0
    while True:
        await asyncio.sleep(max(0.0, began + number / per_second - time.monotonic()))
        text = f"{name} {number}"
        await fleet.send(job(text, send_proposal(text), key=text, agent="noisy"))
        number += 1


async def keep_canary(fleet: FleetHarness, found: Found) -> None:
    """Begin a canary, again and again, as the engine aborts it."""
    about = {"agent": "noisy", "share_milli": SHARE_MILLI}
    while True:
        await dispatch(fleet.app.commands, "agent_canary", fleet.order(), about)
        began = time.monotonic()
        while fleet.app.canaries.running:  # noqa: ASYNC110 (looked at once a second)
            await asyncio.sleep(0.05)
        found.abort_s.append(time.monotonic() - began)


async def run_fault(folder: Path, fault: str, pace: Mapping[str, float]) -> Found:
    """Measure the others without and with the canary of one fault, in turns."""
    target = folder.with_name(f"{fault}-target")
    target.mkdir()
    world, found = Filed(path=target / "record.txt"), Found()
    async with cases.fleet_of(folder, world, workers=True) as fleet:
        watching = asyncio.create_task(fleet.app.canaries.watch(lambda told: None))
        judge = fleet.content / "agents" / "noisy" / "judge.py"
        text = judge.read_text()
        assert _HEAD in text
        judge.write_text(text.replace(_HEAD, _HEAD + FAULTS[fault][0], 1))
        seconds, per_second = pace["seconds"], pace["per_second"]
        await measure(fleet, world, seconds=2, per_second=per_second, name="warm")
        sent = int(2 * per_second)
        for number in range(2 * PAIRS):
            is_beside = number % 2 == 1
            name = f"{'noisy' if is_beside else 'quiet'} {number}"
            work = [asyncio.create_task(send_own(fleet, pace["own"], f"own {number}"))]
            if is_beside:
                work.append(asyncio.create_task(keep_canary(fleet, found)))
            before = CpuTimes.now()
            took = await measure(fleet, world, seconds=seconds, per_second=per_second, name=name)
            found.cpu_s[is_beside] += CpuTimes.now().since(before).total
            (found.beside if is_beside else found.without).extend(took)
            if not is_beside:
                found.parts_ms.append(share(took, 0.99))
            sent += len(took)
            for one in work:
                one.cancel()
            for ended in await asyncio.gather(*work, return_exceptions=True):
                if not isinstance(ended, asyncio.CancelledError):
                    raise AssertionError(f"{fault}: it ended by itself: {ended!r}")
            if fleet.app.canaries.running:
                about = {"agent": "noisy"}
                await dispatch(fleet.app.commands, "agent_canary_end", fleet.order(), about)
            await fleet.wait_until_idle(120)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        entries = fleet.entries("canary.aborted")
        assert all(one["actor"].startswith("engine") for one in entries)
        found.rules = {one["rule"] for one in entries}
        assert len(entries) == len(found.abort_s)
        lost, repeated = accounted(fleet, world, sent)
        found.lost = lost + repeated
    found.without.sort()
    found.beside.sort()
    return found


def main(argv: list[str] | None = None) -> int:
    """Print numbers and verdicts; 1 if a promise is not met."""
    parser = argparse.ArgumentParser(prog="tests.bench.canary", description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each of the six parts")
    parser.add_argument("--rate", type=float, default=40.0, help="events/s of the others together")
    parser.add_argument("--own", type=float, default=8.0, help="events/s of the canary's agent")
    parser.add_argument("--only", choices=tuple(FAULTS))
    options = parser.parse_args(argv)
    pace = {"seconds": options.seconds, "per_second": options.rate, "own": options.own}
    held: list[Verdict] = []
    print(described())
    with tempfile.TemporaryDirectory(prefix="vedette-bench-") as made:
        print(asyncio.run(calibrate(Path(made))).line())
        for fault in FAULTS:
            if options.only not in (None, fault):
                continue
            found = asyncio.run(run_fault(Path(made) / fault, fault, pace))
            print(latency_line(fault, found.without, found.beside))
            each = [1e6 * found.cpu_s[which] / len(took) for which, took in (
                (False, found.without), (True, found.beside))]  # fmt: skip
            slowest = max(found.abort_s, default=float("nan"))
            print(f"  {len(found.abort_s)} canaries aborted by {', '.join(sorted(found.rules))}, "
                  f"the slowest after {slowest:.1f} s; CPU of all {each[0]:,.0f} and "
                  f"{each[1]:,.0f} us per event of the others; the parts without differ by "
                  f"{found.spread:.2f}; load {os.getloadavg()[0]:.1f}",
                  flush=True)  # fmt: skip
            ratio = share(found.beside, 0.99) / share(found.without, 0.99)
            wrong = len(found.rules - FAULTS[fault][1]) + (not found.abort_s)
            held += [
                Verdict(
                    f"{fault}: p99 of the others, beside it / without", ratio, RATIO * found.spread
                ),
                Verdict(f"{fault}: effects of the others lost or repeated", found.lost, 0),
                Verdict(f"{fault}: canaries not aborted, or for another reason", wrong, 0),
            ]
    return print_verdicts(held)


if __name__ == "__main__":
    sys.exit(main())
