"""Enumerate crash points: `python -m tests.faults.crash --pairs 10000 --shards 2 --seed 7`.

Every single one: for each k a child plays the script and is killed at its k-th pass of the crash
points, and another plays it to the end on what the first left. Pairs: the second is killed too, at
its j-th pass, and a third plays to the end. After each death, and at the end, the auditor looks.
Prints one JSON object; exits with 1 if anything was wrong.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from tests.faults.auditor import Facts, Held, at_crash, audit, facts_of
from tests.faults.databases import Postgres
from tests.faults.scenario import CONTROLS, URL, Stage, dump, lay_stage, plan, play, read_content
from tests.faults.warming import warm

from vedette.testing.faults import ChildResult, run_in_child

SHOWN = 20


@dataclass(slots=True)
class Report:
    """What was tried and what was wrong. `points` counts the deaths at each crash point."""

    singles: int = 0
    pairs: int = 0
    ended_before: int = 0
    wrong: int = 0
    possible_pairs: int = 0
    seconds: float = 0.0
    cpu_s: float = 0.0
    points: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)

    @property
    def schedules(self) -> int:
        """Return how many schedules were played."""
        return self.singles + self.pairs

    def note(self, schedule: str, wrong: Sequence[str]) -> None:
        """Take down what was wrong with a schedule."""
        if wrong:
            self.wrong += 1
            self.findings.append(f"{schedule}: {'; '.join(wrong[:4])}")

    def to_json(self) -> dict[str, object]:
        """Return the report as JSON has it."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def add(self, other: dict[str, Any]) -> None:
        """Add the report of a shard."""
        for name in ("singles", "pairs", "ended_before", "wrong", "possible_pairs", "cpu_s"):
            setattr(self, name, getattr(self, name) + other[name])
        self.points.update(other["points"])
        self.findings += other["findings"]


class Crashes:
    """Plays schedules in `folder`; the share of the single ones with k = shard modulo shards."""

    def __init__(
        self, stage: Stage, folder: Path, *, shard: int = 0, shards: int = 1, again: bool = True
    ) -> None:
        """With `again` what each single crash left is kept for `pairs`, who crash its recovery."""
        self.stage, self.folder, self.again = stage, folder, again
        self.shard, self.shards = shard, shards
        self.report = Report()
        self.plan = plan()
        self._calm: Facts | None = None
        # What each single crash left, and how many passes its recovery had.
        self._left: dict[int | str, int] = {}
        self._points: tuple[str, ...] = ()
        self.server = Postgres() if stage.store == "postgresql" else None

    def calm(self) -> None:
        """Play undisturbed; what that comes to is the measure. Raises AssertionError."""
        folder = self.folder / "calm"
        self._begin(folder)
        read_content(self.stage.content)
        ended = run_in_child(lambda: self._to_end(folder, 0))
        assert not ended.error, ended.error
        wrong = audit(folder, self.plan)
        assert not wrong, wrong
        self._calm, self._points = facts_of(folder), ended.points

    def singles(self, every: int = 1) -> None:
        """Die at each of this shard's points (or at every n-th of them), and recover."""
        k = self.shard + 1
        while self._single(k):
            k += self.shards * every

    def missed(self) -> None:
        """Die at the first pass of every point at which, by chance, nobody died so far.

        (Threads pass points side by side, so the k-th of one run may be another in the next.)
        """
        for name in sorted(self._points)[self.shard :: self.shards]:
            if not self.report.points[name]:
                self._single(name)

    def _single(self, k: int | str) -> bool:
        """Die at pass k; False if the script came to its end before."""
        left = self.folder / f"k{k}"
        self._begin(left)
        died = run_in_child(lambda: play(self.stage, left, 0), die_at=k)
        if not died.killed:
            self.report.note(f"{k}", broke(died))
            self._drop(left)
            return False
        self.report.singles += 1
        wrong = at_crash(left, self._held(left))
        ended = self._recover(left, f"{k} {died.last_point}", 1, wrong, keep=self.again)
        self.report.points[died.last_point] += 1
        self._left[k] = ended.passes
        self.report.possible_pairs += ended.passes
        return True

    def pairs(self, seed: int, most: int) -> None:
        """Die twice, at up to `most` pairs of points, drawn by the seed from all that there are."""
        every = [(k, j) for k, passes in self._left.items() for j in range(1, passes + 1)]
        drawn = random.Random(f"{seed} {self.shard}").sample(every, min(most, len(every)))
        for k, j in sorted(drawn, key=str):
            self._pair(k, j)

    def _pair(self, k: int | str, j: int) -> None:
        repeat = self.folder / f"k{k}-{j}"
        self._copy(self.folder / f"k{k}", repeat)
        died = run_in_child(lambda: play(self.stage, repeat, 1), die_at=j)
        self.report.pairs += 1
        if died.killed:
            self.report.points[died.last_point] += 1
            wrong = at_crash(repeat, self._held(repeat))
            self._recover(repeat, f"{k}, {j} {died.last_point}", 2, wrong, keep=False)
            return
        # Commits group by chance: the recovery may have had a pass less this time.
        self.report.ended_before += 1
        self.report.note(f"{k}, {j}", broke(died))
        self._drop(repeat)

    def _recover(
        self, left: Path, schedule: str, life: int, wrong: list[str], *, keep: bool
    ) -> ChildResult:
        end = left.with_name(f"{left.name}-end") if keep else left
        if keep:
            self._copy(left, end)
        ended = run_in_child(lambda: self._to_end(end, life))
        wrong = [*wrong, *broke(ended)]
        if not ended.error:
            wrong += audit(end, self.plan, self._calm)
        self.report.note(schedule, wrong)
        self._drop(end)
        return ended

    # --- a folder, and the database that may belong to it -----------------------------------------

    def _begin(self, folder: Path) -> None:
        folder.mkdir()
        if self.server is not None:
            (folder / URL).write_text(self.server.create(), encoding="utf-8")

    def _copy(self, folder: Path, to: Path) -> None:
        shutil.copytree(folder, to)
        if self.server is not None:
            url = self.server.create((folder / URL).read_text(encoding="utf-8"))
            (to / URL).write_text(url, encoding="utf-8")

    def _drop(self, folder: Path) -> None:
        if self.server is not None:
            self.server.drop((folder / URL).read_text(encoding="utf-8"))
        shutil.rmtree(folder)

    def _held(self, folder: Path) -> Held | None:
        if self.server is None:
            return None
        return self.server.held((folder / URL).read_text(encoding="utf-8"))

    def _to_end(self, folder: Path, life: int) -> None:
        play(self.stage, folder, life)
        dump(self.stage, folder)


def work_folder() -> Path:
    """Return a new folder in memory if there is such: a killed process loses no page cache."""
    memory = Path("/dev/shm")
    return Path(tempfile.mkdtemp(prefix="vedette-", dir=memory if memory.is_dir() else None))


def run_shard(
    shard: int,
    shards: int,
    *,
    seed: int,
    pairs: int,
    control: str = "",
    every: int = 1,
    store: str = "sqlite",
) -> Report:
    """Play one shard's schedules in this process and its children."""
    began = time.monotonic()
    folder = work_folder()
    try:
        stage = lay_stage(folder / "stage", control=control, store=store)
        warm(stage)
        gc.freeze()
        crashes = Crashes(stage, folder, shard=shard, shards=shards, again=pairs > 0)
        crashes.calm()
        crashes.singles(every)
        if store == "sqlite" and not control:
            crashes.missed()
        crashes.pairs(seed, -(-pairs // shards))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    crashes.report.seconds = round(time.monotonic() - began, 1)
    crashes.report.cpu_s = cpu_spent() + (crashes.server.cpu_spent() if crashes.server else 0)
    return crashes.report


def cpu_spent() -> float:
    """Return the seconds of CPU of this process and of the children that it has buried."""
    return round(sum(os.times()[:4]), 1)


def run(
    *,
    shards: int,
    seed: int,
    pairs: int,
    control: str = "",
    every: int = 1,
    store: str = "sqlite",
) -> Report:
    """Play all schedules, each shard in a process of its own."""
    given = {"seed": seed, "pairs": pairs, "control": control, "every": every, "store": store}
    options = [f"--{name}={value}" for name, value in given.items()]
    return run_shards("tests.faults.crash", shards, options)


def run_shards(module: str, shards: int, options: Sequence[str]) -> Report:
    """Run a module once for each shard and add up what they report.

    Raises RuntimeError if one breaks.
    """
    began = time.monotonic()
    command = [sys.executable, "-m", module, f"--shards={shards}", *options]
    running = [
        subprocess.Popen([*command, f"--shard={n}"], stdout=subprocess.PIPE, text=True)
        for n in range(shards)
    ]
    report = Report()
    output = [process.communicate()[0] for process in running]
    for process, text in zip(running, output, strict=True):
        if process.returncode not in (0, 1) or not text:
            raise RuntimeError(f"a shard ended with {process.returncode}")
        report.add(json.loads(text))
    report.seconds = round(time.monotonic() - began, 1)
    return report


def finish(report: Report, *, whole: bool) -> int:
    """Print a report as JSON, the whole one for people; return the exit code."""
    document = {**report.to_json(), "schedules": report.schedules}
    if whole:
        document["findings"] = report.findings[:SHOWN]
    print(json.dumps(document, indent=2 if whole else None))
    return 1 if report.wrong else 0


def broke(ended: ChildResult) -> list[str]:
    """Say how a child broke, if it did."""
    return [f"the engine broke: {ended.error.strip()[-600:]}"] if ended.error else []


def main() -> int:
    """Play what the command line says; print the report as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--shard", type=int, help="play this shard only, in this process")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--pairs", type=int, default=10_000)
    parser.add_argument("--every", type=int, default=1, help="every n-th single point only")
    parser.add_argument("--control", default="", choices=["", *CONTROLS])
    parser.add_argument("--store", default="sqlite", choices=["sqlite", "postgresql"])
    given = parser.parse_args()
    options: dict[str, Any] = {
        "seed": given.seed, "pairs": given.pairs, "control": given.control,
        "every": given.every, "store": given.store,
    }  # fmt: skip
    if given.shard is None:
        return finish(run(shards=given.shards, **options), whole=True)
    return finish(run_shard(given.shard, given.shards, **options), whole=False)


if __name__ == "__main__":
    sys.exit(main())
