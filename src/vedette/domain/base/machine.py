"""The machine that the engine runs on, past its Clock: seconds, entropy, threads.

Nobody else takes them (TID251 in pyproject.toml refuses it; docs/design/simulation.md lists the
rooms that may, with the reason of each). Always used as `machine.NAME`: a simulation puts its own
in the place of a name here for as long as a history runs.
"""

from __future__ import annotations

import os
import random
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Condition, Event, Lock, RLock, Thread, Timer, get_ident, local

monotonic_s = time.monotonic
cpu_s = time.process_time
sleep_s = time.sleep
random_bytes = os.urandom
# For pauses that are to differ, never for a secret.
uniform = random.uniform


_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot_us() -> int:
    """Return the machine's clock that never goes back and, where there is one, counts its sleep."""
    return time.clock_gettime_ns(_BOOT_CLOCK) // 1000


def program_environment() -> dict[str, str]:
    """Return what environment of the machine a program needs to start; no secret is among it."""
    names = ("PATH", "LANG", "LC_ALL", "TMPDIR")
    return {name: os.environ[name] for name in names if name in os.environ}


__all__ = [
    "Condition",
    "Event",
    "Lock",
    "RLock",
    "Thread",
    "ThreadPoolExecutor",
    "Timer",
    "boot_us",
    "cpu_s",
    "get_ident",
    "local",
    "monotonic_s",
    "random_bytes",
    "sleep_s",
    "uniform",
]
