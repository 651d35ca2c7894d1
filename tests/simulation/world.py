"""What a history has in the place of the machine: time, entropy and threads, all of one seed.

The ports of the engine (`vedette.domain.base.machine`, `vedette.domain.base.failpoint`) are the
simulation's while a history runs. Whatever reads this machine's clock or entropy past them is told
by an error at once: the rule of the gate sees the names in the sources, this sees what is called.
"""

from __future__ import annotations

import gc
import os
import random
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.simulation import threads
from tests.simulation.loop import SimLoop

from vedette.domain.base import failpoint, machine

_THREADS = (
    "Condition", "Event", "Lock", "RLock", "Thread", "ThreadPoolExecutor", "Timer", "get_ident",
)  # fmt: skip
# What nothing of the engine may call while a history runs.
_CLOSED: tuple[tuple[Any, str], ...] = (
    (time, "time"), (time, "time_ns"), (time, "monotonic"), (time, "monotonic_ns"),
    (time, "sleep"), (time, "clock_gettime_ns"), (os, "urandom"), (os, "fork"),
    (random, "random"), (random, "uniform"), (random, "randrange"),
)  # fmt: skip


class Leak(BaseException):
    """The engine asked this machine for something that a seed must give it."""


def collect_histories() -> None:
    """Let go of what earlier histories left, such as the files that the killed had open.

    Of a process that is killed the kernel closes them; here nobody else does.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.unfreeze()
        gc.collect()


@contextmanager
def closed_world(
    loop: SimLoop, seed: int, reach: Callable[[str], None] | None = None
) -> Iterator[None]:
    """Give the engine its time, entropy and threads from `loop` and `seed` while this is entered.

    `reach` is told of each crash point. No garbage is collected meanwhile: when it would run
    depends on everything that this process did before.
    """
    entropy = random.Random(f"{seed}/entropy")
    chance = random.Random(f"{seed}/chance")
    own: dict[str, Any] = {name: getattr(threads, name) for name in _THREADS}
    own |= {
        "monotonic_s": loop.time, "cpu_s": loop.time, "sleep_s": loop.pause,
        "boot_us": lambda: round(loop.time() * 1e6),
        "random_bytes": entropy.randbytes, "uniform": chance.uniform,
    }  # fmt: skip
    before = [(machine, name, getattr(machine, name)) for name in own]
    before += [(module, name, getattr(module, name)) for module, name in _CLOSED]
    before.append((failpoint, "hook", failpoint.hook))
    collects = gc.isenabled()
    try:
        gc.freeze()
        gc.disable()
        for name, what in own.items():
            setattr(machine, name, what)
        for module, name in _CLOSED:
            setattr(module, name, _closed(f"{module.__name__}.{name}", getattr(module, name)))
        failpoint.hook = reach
        yield
    finally:
        for module, name, what in before:
            setattr(module, name, what)
        if collects:
            gc.enable()


def _closed(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that is refused to the engine; libraries may go on measuring themselves."""

    def refuse(*args: Any) -> Any:
        asks = sys._getframe(1).f_globals.get("__name__", "")
        if asks.startswith("vedette."):
            raise Leak(f"{asks} calls {name}")
        return real(*args)

    return refuse
