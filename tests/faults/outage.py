"""Cut the power under the shipped store: `python -m tests.faults.outage --cuts 200 --seed 7`.

A child plays the script on the VFS of `vedette.testing.power_loss` and loses the power at a write
drawn by the seed. What a disk would hold then is looked at by the auditor (whatever was answered
for must be there), and another child plays the script to its end on it. With `--synchronous NORMAL`
the same must find losses: that mode survives a crash of the process, and not one of the machine.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import time
from pathlib import Path

from tests.faults.auditor import Facts, at_crash, audit, facts_of
from tests.faults.crash import Report, broke, cpu_spent, finish, run_shards, work_folder
from tests.faults.scenario import Stage, dump, lay_stage, plan, play, weaken
from tests.faults.warming import warm

from vedette.testing.faults import run_in_child
from vedette.testing.power_loss import install_power_loss

OUTSIDE = ("world.jsonl", "accepted", "answered")  # what others know; it needs none of our power
# The signing keys, also one that is not in its place yet: they are synced before they are named.
SYNCED = "ledger.*"


class Outages:
    """Cuts the power in `folder`, as often as asked."""

    def __init__(self, stage: Stage, folder: Path, synchronous: str) -> None:
        self.stage, self.folder, self.synchronous = stage, folder, synchronous
        self.report = Report()
        self.plan = plan()

    def calm(self) -> tuple[Facts, int]:
        """Play with the power on; return what that comes to, and how many writes it takes."""
        folder = self.folder / "calm"
        folder.mkdir()
        counted = folder / "writes"

        def work() -> None:
            power = install_power_loss(folder, seed=0, cut_at=None)
            play(self.stage, folder, 0)
            counted.write_text(str(power.writes))

        for part in (work, lambda: dump(self.stage, folder)):
            ended = run_in_child(part)
            assert not ended.error, ended.error
        wrong = audit(folder, self.plan)
        assert not wrong, wrong
        return facts_of(folder), int(counted.read_text())

    def cut(self, number: int, seed: int, at: int, calm: Facts) -> None:
        """Cut the power at a write; look at what is left, and go on from it."""
        live, left = self.folder / f"live{number}", self.folder / f"left{number}"
        spared = left / "state"
        live.mkdir()
        spared.mkdir(parents=True)
        state = live / "state"
        others = [state / "witness.log"]

        def work() -> None:
            weaken(self.synchronous)
            install_power_loss(spared, seed=seed, cut_at=at, other_files=others)
            play(self.stage, live, 0)

        ended = run_in_child(work)
        if "SIGKILL" not in ended.error and "signal 9" not in ended.error:
            self.report.ended_before += 1
            self.report.note(f"write {at}", broke(ended))
        else:
            self.report.singles += 1
            for name in OUTSIDE:
                if (live / name).exists():
                    shutil.copy(live / name, left / name)
            for path in state.glob(SYNCED):
                shutil.copy(path, spared / path.name)
            self._go_on(left, f"write {at}", calm)
        shutil.rmtree(live)
        shutil.rmtree(left)

    def _go_on(self, left: Path, schedule: str, calm: Facts) -> None:
        wrong = at_crash(left)

        def work() -> None:
            play(self.stage, left, 1)
            dump(self.stage, left, verify=True)

        ended = run_in_child(work)
        wrong += broke(ended)
        if not ended.error:
            wrong += audit(left, self.plan, calm)
        self.report.note(schedule, wrong)


def run_shard(shard: int, shards: int, *, seed: int, cuts: int, synchronous: str) -> Report:
    """Cut the power `cuts` times, shared by the shards, in this process and its children."""
    began = time.monotonic()
    folder = work_folder()
    try:
        stage = lay_stage(folder / "stage")
        warm(stage)
        outages = Outages(stage, folder, synchronous)
        calm, writes = outages.calm()
        draw = random.Random(seed)
        for number in range(cuts):
            at, its = draw.randint(1, writes), draw.randrange(2**32)
            if number % shards == shard:
                outages.cut(number, its, at, calm)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    outages.report.seconds = round(time.monotonic() - began, 1)
    outages.report.cpu_s = cpu_spent()
    return outages.report


def run(*, shards: int, seed: int, cuts: int, synchronous: str = "FULL") -> Report:
    """Cut the power, each shard in a process of its own."""
    options = [f"--seed={seed}", f"--cuts={cuts}", f"--synchronous={synchronous}"]
    return run_shards("tests.faults.outage", shards, options)


def main() -> int:
    """Do what the command line says; print the report as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--shard", type=int, help="this shard only, in this process")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--cuts", type=int, default=400)
    parser.add_argument("--synchronous", default="FULL", choices=["FULL", "NORMAL"])
    given = parser.parse_args()
    options = {"seed": given.seed, "cuts": given.cuts, "synchronous": given.synchronous}
    if given.shard is None:
        return finish(run(shards=given.shards, **options), whole=True)
    return finish(run_shard(given.shard, given.shards, **options), whole=False)


if __name__ == "__main__":
    sys.exit(main())
