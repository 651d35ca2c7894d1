"""`make jepsen SEED=7 ARGS="--minutes 30 --store postgresql"`: the promises under real faults.

Real processes of `vedette run` (one on SQLite, three on PostgreSQL, over links that we break), our
own sources, targets and people; then the model of tests/simulation judges what happened. The seed
draws the schedule; what meets what is real time's. Ctrl-C ends it with what was seen so far, a
second one at once. Exits with 1 if a promise was broken.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from tests.jepsen.schedule import OUTAGES, draw_outage, draw_schedule
from tests.jepsen.trial import LIVE_S, WORKERS, Seen, Trial
from tests.simulation.history import History
from tests.simulation.model import Violation, judge

SHOWN = 12


def say(text: str) -> None:
    """Print a line at once."""
    print(text, flush=True)


async def run_trial(trial: Trial) -> Seen:
    """Run a trial; the first Ctrl-C ends its faults."""

    def interrupted() -> None:
        if trial.enough.is_set():
            raise KeyboardInterrupt
        say("Ctrl-C: faults end here; once more ends it at once")
        trial.enough.set()

    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, interrupted)
    return await trial.run()


def keep_history(history: History, path: Path) -> None:
    """Write a history as JSON, for whoever looks for a cause."""
    fields = asdict(history)
    fields["rows"] = [[*key, texts] for key, texts in history.rows.items()]
    path.write_text(json.dumps(fields))


def print_result(seen: Seen, wrong: list[Violation]) -> None:
    """Print what a trial came to."""
    history = seen.history
    kinds = Counter(fault.what for fault in history.faults)
    acts = Counter(act.what for act in history.acts)
    orders = Counter(order.verb for order in history.orders)
    say(f"faults: {', '.join(f'{n} {what}' for what, n in sorted(kinds.items()))}")
    say(f"orders: {', '.join(f'{n} {verb}' for verb, n in sorted(orders.items()))}")
    say(
        f"{len(history.events)} events ({seen.sent_again} deliveries repeated), "
        f"{len(history.entries)} entries, {acts['begun']} calls, {acts['done']} effects, "
        f"{acts['asked']} questions; {seen.ended_by_themselves} workers ended by themselves"
    )
    for look in seen.looks:
        say(look)
    for reason, times in seen.refusals.most_common(SHOWN):
        say(f"people were told {times} times: {reason}")
    live = f"{seen.live_after_s:.1f} s" if seen.live_after_s < LIVE_S else f"not in {LIVE_S:.0f} s"
    say(f"live after the last fault: {live}; calls may seem {history.grace_s:.2f} s late")
    for waits in seen.waiting[:SHOWN]:
        say(f"    {waits}")
    found = Counter(one.kind for one in wrong)
    if not wrong:
        say("nothing lost, nothing doubled, nothing out of order, no stale state: no violation")
        return
    say(f"VIOLATIONS: {', '.join(f'{n} {kind}' for kind, n in found.items())}")
    for kind in found:
        for one in [each for each in wrong if each.kind == kind][:SHOWN]:
            say(f"    {one.kind}: {one.what}")


def main() -> int:
    """Run one trial as the command line says."""
    parser = argparse.ArgumentParser(prog="make jepsen", description=__doc__)
    parser.add_argument("--seed", type=int, default=int(os.environ.get("SEED") or time.time()))
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--store", choices=sorted(WORKERS), default="sqlite")
    parser.add_argument("--rate", type=float, default=15.0, help="events a second")
    parser.add_argument(
        "--outage", choices=OUTAGES,
        help="instead of other faults cut the network to these for the minutes, or fail over to "
             "a copy of the server that is so old",
    )  # fmt: skip
    parser.add_argument("--keep", type=Path, help="where the fleet and the history are left")
    given = parser.parse_args()
    workers, seconds = WORKERS[given.store], given.minutes * 60
    machine = f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    what = f"an outage ({given.outage})" if given.outage else "faults"
    say(f"seed {given.seed}, {given.minutes:g} minutes of {what}, {given.store}, "
        f"{workers} workers, {given.rate:g} events/s, {machine}")  # fmt: skip
    schedule = draw_schedule(given.seed, seconds, workers=workers)
    if given.outage:
        if workers == 1 and given.outage != "targets":
            parser.error(f"--outage {given.outage} is of --store postgresql")
        schedule, seconds = draw_outage(given.seed, seconds, workers=workers, what=given.outage)
    folder = Path(tempfile.mkdtemp(prefix="vedette-jepsen-"))
    began, cpu = time.monotonic(), os.times()
    trial = Trial(
        folder, given.seed, schedule, seconds, store=given.store, rate=given.rate, told=say
    )
    keep = given.keep
    try:
        seen = asyncio.run(run_trial(trial))
        wrong = judge(seen.history)
        print_result(seen, wrong)
        if wrong and keep is None:
            keep = Path(".tools/jepsen") / f"{given.store}-{given.seed}"
        if keep is not None:
            shutil.rmtree(keep, ignore_errors=True)
            shutil.copytree(folder, keep, ignore=shutil.ignore_patterns("api.sock"))
            keep_history(seen.history, keep / "history.json")
            say(f"the fleet and its history: {keep}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    spent = os.times()
    used = sum(spent[:4]) - sum(cpu[:4])
    say(f"{time.monotonic() - began:.0f} s, {used:.0f} s of CPU (the server's not counted)")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
