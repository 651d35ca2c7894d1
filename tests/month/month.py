"""A month on the disk: the content, the machines as the last whole day left them, the record."""

from __future__ import annotations

import gc
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from tests.month.content import write_content
from tests.month.judge import judge_day, judge_month
from tests.month.ledger import read_ledger
from tests.month.plan import make_day
from tests.month.play import Day, midnight_s, wall_us
from tests.month.record import Record
from tests.simulation.fleet import write_keys
from tests.simulation.fleet_images import machine_of
from tests.simulation.promises.reading import Violation

from vedette.store import spare_space

_SPARE = 1 << 16


def resident_mb() -> int:
    """Return the memory of this process, in MB."""
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * 4096 // 1_000_000


@contextmanager
def memory_folder() -> Iterator[Path]:
    """Give a folder in memory where there is such; a machine of a simulation has little room."""
    memory = Path("/dev/shm")
    where = memory if memory.is_dir() else None
    spare, spare_space.SPARE_BYTES = spare_space.SPARE_BYTES, _SPARE
    try:
        with tempfile.TemporaryDirectory(prefix="vedette-month-", dir=where) as name:
            yield Path(name)
    finally:
        spare_space.SPARE_BYTES = spare


class Month:
    """A month in `folder`, which is played in `work`; what is kept there goes on."""

    def __init__(self, work: Path, *, seed: int = 1, rate: float = 1.0) -> None:
        self.work, self.content = work, work / "content"
        if (work / "record").exists():
            self.record = Record.load(work / "record")
        else:
            write_content(self.content)
            self.record = Record(seed, rate)
            write_keys(machine_of(work, 0))

    @property
    def machine(self) -> Path:
        """Return the state folder that the last day left."""
        return machine_of(self.work, 0, self.record.machines[0])

    def play_day(self, *, ends: bool = False) -> dict[str, Any]:
        """Play the next day; with `ends` until all has ended. Return what it cost."""
        record = self.record
        day = make_day(record.seed, record.day, record.rate, len(record.tasks) + 1)
        began = time.process_time()
        played = Day(day, record, self.content, self.work, ends=ends)
        played.run()
        # The first start of a process reads and compiles what all others share.
        start_s = median(played.starts[1:] or played.starts)
        del played
        gc.collect()
        record.day += 1
        since_us = wall_us(midnight_s(day.number))
        ledger = read_ledger(self.machine, self.work / "archive", self._since(day.number))
        wrong = list(judge_day(record, ledger, self.machine, since_us))
        record.wrong += [(f"day {day.number}: {one.kind}", one.what) for one in wrong]
        cost = {
            "day": day.number,
            "events": sum(one["at"] >= since_us for one in ledger.of("event.accepted")),
            "wrong": len(wrong),
            "cpu_s": round(time.process_time() - began, 1),
            "start_ms": round(start_s * 1000),
            "memory_mb": resident_mb(),
            "store_mb": round((self.machine / "store.db").stat().st_size / 1e6, 1),
            "last": ledger.entries[-1]["seq"],
        }
        record.days.append(cost)
        return cost

    def _since(self, day: int) -> int:
        """Return the last entry of the fourth day before: what was booked then is dropped."""
        return int(self.record.days[day - 4]["last"]) if day >= 4 else 0

    def judge(self) -> list[Violation]:
        """Return all that is wrong with the whole."""
        daily = [Violation(kind, what) for kind, what in self.record.wrong]
        return daily + judge_month(self.record, self.machine, self.work / "archive")

    def save(self) -> None:
        """Keep the record beside the machines."""
        self.record.save(self.work / "record")

    def keep(self, folder: Path) -> None:
        """Copy all of it to a folder on a disk."""
        new = folder.with_suffix(".new")
        shutil.rmtree(new, ignore_errors=True)
        self.save()
        shutil.copytree(self.work, new, symlinks=True)
        shutil.rmtree(folder, ignore_errors=True)
        new.rename(folder)
