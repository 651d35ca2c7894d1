"""All crash schedules, in pieces: `make faults`, on two cores within an hour.

Every single point, 10,000 pairs, 400 power cuts and the controls that must fail on SQLite; every
single point and a sample of pairs on PostgreSQL. What a piece found is kept in .tools/faults, under
the commit and what was changed since, so a run that was broken off goes on where it was, with its
seed; `--fresh` begins anew. Prints what was tried and what was wrong, the time and the CPU; exits
with 1 if anything was wrong, or if a control passed, and with 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from tests.faults.crash import SHOWN, Report
from tests.said import ROOT

from vedette.domain.base.canonical import sha256_hex

KEPT = ROOT / ".tools" / "faults"
REPORT_S = 10.0


@dataclass(frozen=True, slots=True)
class Suite:
    """One kind of schedules: a module, how it is called, and into how many pieces it falls.

    `cost_s` is what a piece takes, about, to guess how long the rest will take. `must_fail`: it is
    a control, of which something has to be found. `unit` names what it plays.
    """

    name: str
    module: str
    options: tuple[str, ...]
    pieces: int
    cost_s: float
    must_fail: bool = False
    unit: str = "schedules"

    def command(self, piece: int, seed: int) -> list[str]:
        """Return what plays one piece."""
        place = (f"--shard={piece}", f"--shards={self.pieces}", f"--seed={seed}")
        return [sys.executable, "-m", self.module, *place, *self.options]


def suites(pairs: int, pairs_postgresql: int) -> list[Suite]:
    """Return all that is tried: first what shows at once that the tries can find anything."""
    crash, outage = "tests.faults.crash", "tests.faults.outage"
    found = [
        Suite(
            f"control: {name}", crash, (f"--control={name}", "--pairs=0", "--every=3"), 1, 15,
            must_fail=True,
        )
        for name in ("early", "repeating")
    ]  # fmt: skip
    weak = ("--cuts=40", "--synchronous=NORMAL")
    found.append(Suite("control: power cuts, not synced", outage, weak, 1, 12, must_fail=True))
    found.append(Suite("power cuts", outage, ("--cuts=400",), 8, 10))
    found.append(Suite("crashes", crash, (f"--pairs={pairs}",), 30, 50))
    if pairs_postgresql >= 0:
        options = (f"--pairs={pairs_postgresql}", "--store=postgresql")
        found.append(Suite("crashes on PostgreSQL", crash, options, 30, 90))
    return found


@dataclass
class Progress:
    """What was found so far, by suite and piece, kept in a file line by line."""

    path: Path
    seed: int
    done: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, what: Sequence[Suite], seed: int, *, fresh: bool) -> Progress:
        """Take up what a run of the same checkout and the same suites left, unless `fresh`."""
        plan = json.dumps([[suite.name, suite.options, suite.pieces] for suite in what])
        path = KEPT / f"{checkout()}-{sha256_hex(plan.encode())[:8]}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        if fresh or not path.exists():
            path.write_text(json.dumps({"seed": seed}) + "\n")
        head, *lines = path.read_text().splitlines()
        progress = cls(path, json.loads(head)["seed"])
        for line in lines:
            with suppress(ValueError):  # killed while it was written
                document = json.loads(line)
                progress.done[document["suite"], document["piece"]] = document["report"]
        return progress

    def note(self, suite: Suite, piece: int, report: dict[str, Any]) -> None:
        """Keep what a piece found."""
        self.done[suite.name, piece] = report
        with self.path.open("a") as file:
            file.write(json.dumps({"suite": suite.name, "piece": piece, "report": report}) + "\n")

    def forget_wrong(self) -> None:
        """Have the pieces that something was wrong with played again."""
        self.done = {piece: report for piece, report in self.done.items() if not report["wrong"]}

    def report(self, suite: Suite) -> Report:
        """Return what all pieces of a suite found together."""
        report = Report()
        for (name, _), value in self.done.items():
            if name == suite.name:
                report.add(value)
                report.seconds += value["seconds"]
        return report


def checkout() -> str:
    """Return what stands for the code: the commit, and a digest of what was changed since."""
    git = ["git", "-C", str(ROOT)]
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    if head.returncode:
        return "no-commit"
    changed = subprocess.run(
        [*git, "diff", "HEAD", "--", "src", "tests"], capture_output=True, check=True
    ).stdout
    return head.stdout.strip()[:12] + (f"+{sha256_hex(changed)[:8]}" if changed else "")


class Runner:
    """Plays pieces, so many at a time, each in a process group of its own."""

    def __init__(self, what: Sequence[Suite], progress: Progress, jobs: int, said: IO[str]) -> None:
        """`said` takes what pieces say of themselves: tracebacks."""
        self._said = said
        self._suites, self._progress, self._jobs = what, progress, jobs
        self._left = deque(self._pieces())
        self._going: dict[subprocess.Popen[str], tuple[Suite, int, IO[str]]] = {}
        self._began = time.monotonic()
        self._cost_done = 0.0

    def _pieces(self) -> Iterator[tuple[Suite, int]]:
        for suite in self._suites:
            for piece in range(suite.pieces):
                if (suite.name, piece) not in self._progress.done:
                    yield suite, piece

    def run(self) -> None:
        """Play all that is left. Raises RuntimeError if a piece breaks, and KeyboardInterrupt."""
        reported_at = time.monotonic()
        try:
            while self._left or self._going:
                while self._left and len(self._going) < self._jobs:
                    self._begin(*self._left.popleft())
                ended = [process for process in self._going if process.poll() is not None]
                for process in ended:
                    self._end(process)
                if ended or time.monotonic() - reported_at > REPORT_S:
                    reported_at = time.monotonic()
                    self._tell()
                time.sleep(0.1)
        finally:
            self._abandon()

    def _begin(self, suite: Suite, piece: int) -> None:
        # A file: a pipe holds 64 KiB, and a piece in which all goes wrong says more.
        file = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 (until it ends)
        process = subprocess.Popen(
            suite.command(piece, self._progress.seed), stdout=file, stderr=self._said,
            text=True, cwd=ROOT, start_new_session=True,
        )  # fmt: skip
        self._going[process] = suite, piece, file

    def _end(self, process: subprocess.Popen[str]) -> None:
        suite, piece, output = self._going.pop(process)
        with output:
            output.seek(0)
            text = output.read()
        if process.returncode not in (0, 1) or not text:
            self._said.seek(0)
            what = f"piece {piece} of {suite.name} ended with {process.returncode}"
            raise RuntimeError(f"{what}: {self._said.read()[-2000:]}")
        self._progress.note(suite, piece, json.loads(text))
        self._cost_done += suite.cost_s

    def _abandon(self) -> None:
        """End the pieces that are under way, and let them clean up."""
        for process in self._going:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGINT)
        for process, (_, _, value) in self._going.items():
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            value.close()

    def _tell(self) -> None:
        """Say how far it is; how long the rest takes is guessed by what the pieces took so far."""
        all_of = sum(suite.pieces for suite in self._suites)
        total = Report()
        for suite in self._suites:
            total.add(self._progress.report(suite).to_json())
        waiting = [suite for suite, _ in self._left] + [one[0] for one in self._going.values()]
        cost_left = sum(suite.cost_s for suite in waiting)
        spent_s = time.monotonic() - self._began
        left = "…"
        if self._cost_done:
            left = f"{spent_s / self._cost_done * cost_left / 60:.0f} min"
        now = ", ".join(dict.fromkeys(one[0].name for one in self._going.values()))
        print(
            f"{spent_s:5.0f} s  {len(self._progress.done)} of {all_of} pieces, {total.schedules:,} "
            f"{self._suites[0].unit}, about {left} left  {now}",
            flush=True,
        )


def show(suite: Suite, report: Report) -> bool:
    """Print one line of a suite's report; say whether it is as it has to be."""
    good = bool(report.wrong) is suite.must_fail
    wrong = f"{report.wrong} wrong" + (" (a control: it must be)" if suite.must_fail else "")
    tried = f"{report.singles:,} single"
    if report.pairs:
        tried += f", {report.pairs:,} pairs ({report.ended_before} ended before the second death)"
    spent = f"{report.seconds:.0f} s, {report.cpu_s:.0f} s of CPU"
    print(f"{'ok ' if good else 'BAD'} {suite.name}: {tried}; {wrong}; {spent}", flush=True)
    if not good:
        for finding in report.findings[:SHOWN]:
            print(f"    {finding}")
    return good


def main() -> int:
    """Run everything."""
    parser = argparse.ArgumentParser(prog="make faults", description=__doc__)
    parser.add_argument("--pairs", type=int, default=10_000)
    parser.add_argument(
        "--pairs-postgresql", type=int, default=5_000, help="-1: nothing on PostgreSQL"
    )
    parser.add_argument("--jobs", type=int, default=2, help="pieces at a time")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--fresh", action="store_true", help="forget what was found before")
    given = parser.parse_args()
    what = suites(given.pairs, given.pairs_postgresql)
    progress = Progress.of(what, given.seed, fresh=given.fresh)
    kept = f"; {len(progress.done)} pieces were played before" if progress.done else ""
    machine = f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    print(f"seed {progress.seed}, {given.jobs} at a time, {machine}{kept}", flush=True)
    began = time.monotonic()
    try:
        with TemporaryFile("w+") as said:
            Runner(what, progress, given.jobs, said).run()
    except KeyboardInterrupt:
        print("broken off; the same command goes on from here")
        return 130
    reports = {suite: progress.report(suite) for suite in what}
    good = [show(suite, report) for suite, report in reports.items()]
    tried = sum(report.schedules for report in reports.values())
    cpu_s = sum(report.cpu_s for report in reports.values())
    print(
        f"{'all as it must be' if all(good) else 'NOT as it must be'}: {tried:,} schedules, "
        f"{cpu_s:.0f} s of CPU in all, {time.monotonic() - began:.0f} s of this run"
    )
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
