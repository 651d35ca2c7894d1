"""All crash schedules at once: `python -m tests.faults.every`; on SQLite within ten minutes.

Every single point, pairs up to 10,000 schedules, 400 power cuts, and the controls that must fail.
Prints what was tried and what was wrong; exits with 1 if anything was, or if a control passed.
"""

from __future__ import annotations

import argparse
import sys
import time

from tests.faults import crash, outage
from tests.faults.crash import SHOWN, Report


def show(name: str, report: Report, *, must_fail: bool = False) -> bool:
    """Print one line of a report; say whether it is as it has to be."""
    good = bool(report.wrong) is must_fail
    told = f"{report.wrong} wrong" + (" (a control: it must be)" if must_fail else "")
    tried = f"{report.singles} single, {report.pairs} pairs" if report.pairs else report.singles
    print(
        f"{'ok ' if good else 'BAD'} {name}: {tried} in {report.seconds:.0f} s, {told}", flush=True
    )
    if not good:
        for finding in report.findings[:SHOWN]:
            print(f"    {finding}")
    return good


def main() -> int:
    """Run everything."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--schedules", type=int, default=10_000)
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument(
        "--store", choices=["sqlite", "postgresql"], default="sqlite",
        help="postgresql: every single point there too",
    )  # fmt: skip
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    kit = {"shards": given.shards, "seed": given.seed}
    good = show("crashes", crash.run(pairs=given.schedules, **kit))
    good &= show("power cuts", outage.run(cuts=400, **kit))
    for control in ("early", "repeating"):
        good &= show(control, crash.run(pairs=0, control=control, **kit), must_fail=True)
    weak = outage.run(cuts=40, synchronous="NORMAL", **kit)
    good &= show("power cuts, not synced", weak, must_fail=True)
    if given.store == "postgresql":
        report = crash.run(pairs=0, store="postgresql", **kit)
        good &= show("crashes on PostgreSQL", report)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
