"""An I/O error at every call of a day: `make io-errors`.

For each kind of call (write, sync, open, rename, truncate, unlink, link, mkdir, allocate), each
kind of file and each n a child plays the day (`tests.faults.day`) and has its n-th such call fail,
in each way that it may (`tests.faults.syscalls`): once with EIO, with ENOSPC or half done, and for
good, as a disk that died or is full. n goes up to what an undisturbed day has, and a twentieth
more. Then another child, on a disk that is well, plays the day to its end on what was left, and the
auditor looks. Can be broken off and gone on with, as `make faults`; exits with 1 if anything was
wrong.
"""

from __future__ import annotations

import argparse
import gc
import re
import shutil
import sys
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from tests.faults.auditor import Facts, at_crash, audit, facts_of
from tests.faults.crash import Report, broke, cpu_spent, finish, work_folder
from tests.faults.day import day_plan, dump_day, held, kind_of, left_wrong, names_in, play_day
from tests.faults.every import Progress, Runner, Suite, show
from tests.faults.scenario import Stage, lay_stage, read_content
from tests.faults.syscalls import FAULTS, LASTING, Failing, Fault, available, ways
from tests.faults.warming import warm

from vedette.testing.faults import ChildResult, run_in_child

WITHIN_S = 240
# A deaf engine may wait for ever for what it takes for done; its day takes some three seconds.
DEAF_WITHIN_S = 30
# Of calls that the whole day is full of more than one fails in each day, so far apart that the
# fleet has gone on long before the next: every one of them still fails once.
GAPS = {("write", "store.db-wal"): 400, ("write", "store.db"): 64, ("sync", "store.db-wal"): 16}


# What the gate plays: where something was found, and where most is written.
SAMPLE = (
    Fault("write", "store.db-wal", 150, "EIO", 400),
    Fault("sync", "store.db-wal", 9, "EIO", 16),
    Fault("write", "store.db-wal", 1100, "full"),
    Fault("write", "memory.db-wal", 41, "EIO"),
    Fault("write", "witness.log", 5, "half", 9),
    Fault("open", "store.db", 2, "ENOSPC"),
    Fault("allocate", "in_hand", 1, "ENOSPC"),
    Fault("rename", "ledger.key", 1, "EIO"),
    Fault("open", "snapshots", 2, "dead"),
    Fault("open", "snapshots", 17, "EIO"),
    Fault("write", "archive", 3, "EIO"),
    Fault("sync", "backup: store.db", 1, "EIO"),
)
CONTROLS = ("", "deaf")


class IoErrors:
    """Plays days in `folder`, each life of them within so many seconds."""

    def __init__(self, stage: Stage, folder: Path, within_s: int = WITHIN_S) -> None:
        self.stage, self.folder, self.within_s = stage, folder, within_s
        self.report = Report()
        self.plan = day_plan()
        self.counts: Counter[tuple[str, str]] = Counter()
        self._calm: Facts | None = None
        self._names = frozenset[str]()

    def calm(self) -> None:
        """Play undisturbed; what that comes to is the measure. Raises AssertionError."""
        folder = self.folder / "calm"
        folder.mkdir()
        read_content(self.stage.content)
        failing = Failing(kind_of(folder))
        wrong = self._play(folder, failing, 0, lasting=False)
        ended = self._to_end(folder)
        wrong += broke(ended) + said_wrong(folder)
        assert not wrong, wrong
        wrong = audit(folder, self.plan)
        assert not wrong, wrong
        self._calm, self._names = facts_of(folder), names_in(folder / "state")
        self.counts = failing.counts

    def point(self, fault: Fault) -> bool:
        """Have one call fail and see what comes of it; False if the day had no such call."""
        folder = self.folder / "day"
        folder.mkdir()
        failing = Failing(kind_of(folder), fault)
        wrong = self._play(folder, failing, 0, lasting=fault.lasts)
        if failing.struck:
            self.report.singles += failing.times
            self.report.points[f"{fault.how} {fault.call} {fault.kind}"] += failing.times
        wrong += at_crash(folder, held(folder))
        ended = self._to_end(folder)
        wrong += broke(ended) + said_wrong(folder)
        if not ended.error:
            wrong += audit(folder, self.plan, self._calm)
            wrong += left_wrong(folder, self._names)
        self.report.note(f"{fault} ({Path(failing.struck).name})", wrong)
        if wrong:
            print(self.report.findings[-1], file=sys.stderr, flush=True)
        shutil.rmtree(folder)
        return bool(failing.struck)

    def _play(self, folder: Path, failing: Failing, life: int, *, lasting: bool) -> list[str]:
        def work() -> None:
            play_day(self.stage, folder, life, lasting=lasting)

        return broke(
            run_in_child(failing.under(work), parent_work=failing.attend, within_s=self.within_s)
        )

    def _to_end(self, folder: Path) -> ChildResult:
        def work() -> None:
            play_day(self.stage, folder, 1)
            dump_day(self.stage, folder)

        return run_in_child(work, within_s=self.within_s)


def deafen() -> None:
    """Break the engine on purpose: a commit that failed is taken for one that stands."""
    from vedette.store.sqlite.database import SqliteDatabase

    shipped: Any = SqliteDatabase.commit

    def deaf(self: Any) -> None:
        try:
            shipped(self)
        except Exception:
            self.rollback()

    breaking: Any = SqliteDatabase
    breaking.commit = deaf


def said_wrong(folder: Path) -> list[str]:
    """Return what a day found wrong itself."""
    path = folder / "wrong"
    return path.read_text("utf-8").splitlines() if path.exists() else []


def run_shard(
    shard: int, shards: int, *, only: str = "", first: int = 0, sample: str = "",
    within_s: int = WITHIN_S,
) -> Report:  # fmt: skip
    """Play one shard's share of all points in this process and its children.

    `only` is a pattern of what is to fail ("EIO sync witness"); `first` ends each kind of fault
    after so many of its calls. `sample` is a pattern of the faults of SAMPLE, to play these alone.
    """
    began = time.monotonic()
    folder = work_folder()
    try:
        stage = lay_stage(folder / "stage")
        warm(stage)
        gc.freeze()
        errors = IoErrors(stage, folder, within_s)
        errors.calm()
        turn = 0
        for fault in SAMPLE if sample else ():
            if re.search(sample, str(fault)):
                assert errors.point(fault), f"the day has no {fault}"
        for call, kind in sorted(errors.counts) if not sample else ():
            for how in ways(call):
                if not re.search(only, f"{how} {call} {kind}"):
                    continue
                turn += 1
                gap = GAPS.get((call, kind), 0) if how not in LASTING else 0
                # How commits fall into groups is chance: another day may have a few calls more.
                most = first or gap or errors.counts[call, kind] * 21 // 20 + 1
                for at in range(1 + (turn + shard) % shards, most + 1, shards):
                    errors.point(Fault(call, kind, at, how, gap))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    errors.report.seconds = round(time.monotonic() - began, 1)
    errors.report.cpu_s = cpu_spent()
    return errors.report


def table(report: Report) -> list[str]:
    """Return how often each kind of call was had to fail, by kind of file and way, as lines."""
    rows: dict[tuple[str, str], Counter[str]] = {}
    for name, times in report.points.items():
        how, call, kind = name.split(" ", 2)
        rows.setdefault((call, kind), Counter())[how] += times
    lines = [f"{'':36}" + "".join(f"{how:>8}" for how in FAULTS)]
    for (call, kind), hows in sorted(rows.items()):
        lines.append(f"{call:9} {kind:26}" + "".join(f"{hows[how] or '-':>8}" for how in FAULTS))
    return lines


def play_all(pieces: int, jobs: int, options: list[str], *, fresh: bool) -> int:
    """Play all points in pieces, going on where a run was broken off; return the exit code."""
    suite = Suite("I/O errors", "tests.faults.io_errors", tuple(options), pieces, 60)
    progress = Progress.of([suite], 0, fresh=fresh)
    print(f"{jobs} at a time, {len(progress.done)} of {pieces} pieces were played before")
    began = time.monotonic()
    try:
        with TemporaryFile("w+") as said:
            Runner([suite], progress, jobs, said).run()
    except KeyboardInterrupt:
        print("broken off; the same command goes on from here")
        return 130
    report = progress.report(suite)
    print("\n".join(table(report)))
    good = show(suite, report)
    print(f"{time.monotonic() - began:.0f} s of this run")
    return 0 if good else 1


def main() -> int:
    """Play what the command line says."""
    parser = argparse.ArgumentParser(prog="make io-errors", description=__doc__)
    parser.add_argument("--jobs", type=int, default=2, help="pieces at a time")
    parser.add_argument("--fresh", action="store_true", help="forget what was found before")
    parser.add_argument("--shards", type=int, default=120, help="into how many pieces it falls")
    parser.add_argument("--shard", type=int, help="play this piece only; print JSON")
    parser.add_argument("--seed", type=int, default=0, help="nothing is drawn")
    parser.add_argument("--only", default="", help='a pattern, as "EIO sync witness"')
    parser.add_argument("--first", type=int, default=0, help="only so many calls of each kind")
    parser.add_argument("--sample", default="", help="only those of the gate that fit a pattern")
    parser.add_argument("--control", default="", choices=CONTROLS)
    given = parser.parse_args()
    if given.control:
        deafen()
    if not available():
        print("this kernel has no seccomp listeners, or allows none here", file=sys.stderr)
        return 3
    if given.shard is None:
        options = [f"--only={given.only}", f"--first={given.first}"]
        return play_all(given.shards, given.jobs, options, fresh=given.fresh)
    report = run_shard(
        given.shard, given.shards, only=given.only, first=given.first, sample=given.sample,
        within_s=DEAF_WITHIN_S if given.control else WITHIN_S,
    )  # fmt: skip
    return finish(report, whole=False)


if __name__ == "__main__":
    sys.exit(main())
