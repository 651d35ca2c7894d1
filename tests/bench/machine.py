"""What a number was measured on, and which thread spent the time."""

from __future__ import annotations

import os
import platform
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil


def described() -> str:
    """Return one line about the machine and how busy it is now."""
    load = os.getloadavg()[0]
    memory = psutil.virtual_memory().total / 2**30
    return (
        f"{os.cpu_count()} cores ({_cpu_model()}), {memory:.0f} GiB, {platform.system()} "
        f"{platform.release()}, Python {platform.python_version()}, load {load:.1f}"
    )


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """CPU seconds: of the whole process, by thread (name), and of its child processes."""

    process: float
    threads: Mapping[str, float]
    children: float

    @classmethod
    def now(cls) -> CpuTimes:
        """Read the clocks. By thread only where the system tells (Linux)."""
        named = {thread.native_id: thread.name for thread in threading.enumerate()}
        threads: dict[str, float] = {}
        tasks = Path("/proc/self/task")
        if tasks.is_dir():
            for task in tasks.iterdir():
                name = named.get(int(task.name), "other")
                # schedstat counts in nanoseconds; stat only in ticks of a hundredth.
                try:
                    spent = int((task / "schedstat").read_text().split()[0]) / 1e9
                except OSError:
                    continue
                name = name.rstrip("0123456789_-")
                threads[name] = threads.get(name, 0.0) + spent
        return cls(time.process_time(), threads, _children_cpu())

    def since(self, before: CpuTimes) -> CpuTimes:
        """Return what was spent since `before`."""
        threads = {
            name: spent - before.threads.get(name, 0.0) for name, spent in self.threads.items()
        }
        process, children = self.process - before.process, self.children - before.children
        return CpuTimes(process, threads, children)

    @property
    def total(self) -> float:
        """Return the CPU seconds of the process and its children."""
        return self.process + self.children


def _children_cpu() -> float:
    spent = os.times()
    total = spent.children_user + spent.children_system
    for child in psutil.Process().children(recursive=True):
        try:
            times = child.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system
    return total


def percentile(values: list[float], share: float) -> float:
    """Return the value below which a share of the sorted values lie; 0 for none."""
    if not values:
        return 0.0
    return values[min(len(values) - 1, int(share * len(values)))]
