"""`make month`: plays the days of the month that are not played yet, then judges the whole.

What was played is kept at each midnight, so that a month that was broken off goes on there.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections import Counter
from pathlib import Path

from tests.month.month import Month, memory_folder

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / ".tools" / "month"


def main() -> int:
    """Play and judge; return how many violations there are, as an exit code."""
    options = argparse.ArgumentParser(prog="make month", description=__doc__)
    options.add_argument("--days", type=int, default=30)
    options.add_argument("--rate", type=float, default=1.0, help="1 is some 1,100 events a day")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--folder", type=Path, default=KEPT, help="where it is kept")
    options.add_argument("--fresh", action="store_true", help="begin with the first day")
    given = options.parse_args()
    kept = given.folder / f"{given.seed}-{given.rate:g}"
    if given.fresh:
        shutil.rmtree(kept, ignore_errors=True)
    kept.parent.mkdir(parents=True, exist_ok=True)
    with memory_folder() as work:
        if kept.exists():
            shutil.copytree(kept, work, dirs_exist_ok=True, symlinks=True)
        month = Month(work, seed=given.seed, rate=given.rate)
        while month.record.day < given.days:
            ends = month.record.day == given.days - 1
            cost = month.play_day(ends=ends)
            print(", ".join(f"{name} {value}" for name, value in cost.items()), flush=True)
            month.keep(kept)
        found = month.judge()
    for kind, times in Counter(one.kind for one in found).most_common():
        print(f"{kind}: {times}")
        for one in [one for one in found if one.kind == kind][:10]:
            print(f"  {one.what[:400]}")
    events = sum(one["events"] for one in month.record.days)
    cpu = sum(one["cpu_s"] for one in month.record.days)
    print(f"{events:,} events in {given.days} days, {cpu:,.0f} s of CPU: {len(found)} violations")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
