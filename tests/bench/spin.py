"""How fast this processor is while something else is measured: CPU time of an empty loop.

On a shared machine a second of CPU time is not always the same work: a core that others slow down
still counts its time in full. A child process takes a short look now and then; what it finds stands
beside every CPU figure.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_TURNS, _PAUSE_S = 100_000, 0.5


def empty_turn_ns() -> float:
    """Return what a turn of an empty loop takes now, in ns of CPU time: all benches tell this."""
    began = time.process_time_ns()
    for _ in range(_TURNS):
        pass
    return (time.process_time_ns() - began) / _TURNS


@dataclass(slots=True)
class Spin:
    """Nanoseconds of CPU time that a turn of an empty loop took, at each look; empty at first."""

    looks: list[float]

    @property
    def ns(self) -> float:
        """Return the median; 0 if there was no look."""
        return statistics.median(self.looks) if self.looks else 0.0


@contextmanager
def spinning() -> Iterator[Spin]:
    """Look at the processor while the block runs; the looks are there when it has ended.

    The child has started when the block begins, and takes a hundredth of a core.
    """
    found = Spin([])
    child = subprocess.Popen([sys.executable, __file__], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    child.stdout.readline()
    try:
        yield found
    finally:
        child.kill()
        output, _ = child.communicate()
        found.looks += [float(line) for line in output.split() if line]


if __name__ == "__main__":
    while True:
        print(empty_turn_ns(), flush=True)
        time.sleep(_PAUSE_S)
