"""`python -m tests.bench.publish`: policy publications to twenty processes under load.

`vedette run` twenty times on one PostgreSQL (as initdb makes it, fsync on), a steady source, and a
webhook receiver that keeps its own record. Sixty times the policy changes, each time at another
process: a publication that denies the tool that everything calls, then a rollback that permits it
again; every tenth as a person types it. Counted are calls that the receiver recorded after a deny
was answered, and decisions that stand in the ledger behind a newer revision. `early` calls came
between commit and answer: they would be late if publish did not wait. Last, the control: two
processes whose barrier is taken out; there calls must come late.

`fence` is the time without the trial, which runs in processes of its own and changes nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tests.bench.calibrate import calibrate
from tests.bench.databases import find_server
from tests.bench.machine import described, percentile
from tests.bench.publish_fleet import (
    Change,
    Publisher,
    Recorded,
    fleet,
    publishing,
    recorded,
    unfenced_calls,
)
from tests.bench.verdict import Verdict, print_verdicts

TYPED_EVERY = 10


def times(name: str, changes: Sequence[Change]) -> str:
    """Return the times of some changes for people."""
    parts = [f"{name} ({len(changes)}):"]
    for what, found in (
        ("whole", [change.took_ms for change in changes]),
        ("in the engine", [change.engine_ms for change in changes]),
        ("of it the trial", [change.trial_ms for change in changes]),
        ("fence", [change.fence_ms for change in changes]),
    ):
        values = sorted(found)
        parts.append(
            f"  {what:<16} p50 {percentile(values, 0.5):>8,.0f} ms  "
            f"p99 {percentile(values, 0.99):>8,.0f} ms  most {max(values, default=0):>8,.0f} ms"
        )
    return "\n".join(parts)


def verdicts(changes: Sequence[Change], ledger: Recorded, control: int) -> list[Verdict]:
    """Hold what came of it against the promise."""
    denies = [change for change in changes if change.denies]
    return [
        Verdict("calls after a deny was answered", sum(change.late for change in denies), 0),
        Verdict("decisions behind a newer revision", ledger.wrong, 0),
        Verdict("fewest calls before a deny", min(c.between for c in denies), 1, least=True),
        Verdict("calls between commit and answer", sum(c.early for c in denies), 1, least=True),
        Verdict("control: late calls without a barrier", control, 1, least=True),
    ]


def run(publisher: Publisher, number: int) -> float:
    """Change the policy so often; return how many calls a second the target recorded."""
    publisher.begin()
    began, calls = time.monotonic(), publisher.fleet.calls()
    for at in range(number):
        change = publisher.change(typed=at % TYPED_EVERY in (TYPED_EVERY - 2, TYPED_EVERY - 1))
        print(
            f"  r{change.revision:<3} {'deny  ' if change.denies else 'permit'} "
            f"{change.took_ms:>7,.0f} ms, fence {change.fence_ms:>6,.0f} ms, "
            f"calls before {change.between}, early {change.early}, late {change.late}",
            file=sys.stderr, flush=True,
        )  # fmt: skip
    return (publisher.fleet.calls() - calls) / (time.monotonic() - began)


def main(argv: list[str] | None = None) -> int:
    """Print numbers and verdicts; 1 if a promise is not met."""
    parser = argparse.ArgumentParser(prog="tests.bench.publish", description=__doc__)
    parser.add_argument("--workers", type=int, default=20)
    parser.add_argument("--changes", type=int, default=60)
    parser.add_argument("--rate", type=float, default=60.0, help="events/s of the source")
    parser.add_argument("--processes", action="store_true", help="agents' code runs apart, too")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    server = find_server()
    if server is None:
        raise SystemExit("publish: PostgreSQL is not here: install it, or set VEDETTE_PG_BIN")
    print(described())
    with tempfile.TemporaryDirectory(prefix="vedette-bench-") as made:
        print(asyncio.run(calibrate(Path(made))).line())
        url, folder = server.fresh(), Path(made) / "fleet"
        folder.mkdir()
        # More events than will be needed: a source that has run out is no load.
        events = int(options.rate * 30 * (options.changes + 20))
        with (
            fleet(
                folder, url, options.workers, rate=options.rate, events=events,
                processes=options.processes,
            ) as running,
            publishing(running) as publisher,
        ):  # fmt: skip
            per_s = run(publisher, options.changes)
        ledger = recorded(url)
        control_folder = Path(made) / "control"
        control_folder.mkdir()
        control = unfenced_calls(control_folder, server.fresh())
    changes = publisher.changes
    print(described())
    print(f"{options.workers} processes, {per_s:.0f} calls/s; {asdict(ledger)}")
    for name, some in (
        ("publish", [change for change in changes if change.denies and not change.typed]),
        ("rollback", [change for change in changes if not change.denies and not change.typed]),
        ("as typed, both", [change for change in changes if change.typed]),
    ):
        print(times(name, some))
    held = verdicts(changes, ledger, control)
    if options.json:
        print(json.dumps({"changes": [asdict(change) for change in changes]}))
    return print_verdicts(held)


if __name__ == "__main__":
    sys.exit(main())
