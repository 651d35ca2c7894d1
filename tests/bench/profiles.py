"""Where the time of a bench goes: by sampling the event loop, or by counting every call.

Sampling hardly disturbs: a timer signal notes where the main thread stands. Counting (cProfile)
gives calls and exact nesting of both threads, but makes short functions look dearer than they are.
"""

from __future__ import annotations

import cProfile
import functools
import io
import pstats
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

_EVERY_S = 0.001
_ROWS = 40


class Samples:
    """Stacks of the main thread, one per millisecond."""

    def __init__(self) -> None:
        self.taken = 0
        self.itself: Counter[str] = Counter()
        self.below: Counter[str] = Counter()
        self._busy = False

    def note(self, signum: int, frame: FrameType | None) -> None:
        """Count where the main thread stands."""
        if self._busy or frame is None:
            # A signal within the handler: noting it too would go deeper with each further one,
            # until the recursion limit was hit in the middle of what is measured.
            return
        self._busy = True
        self.taken += 1
        self.itself[_place(frame.f_code)] += 1
        seen: set[str] = set()
        while frame is not None:
            seen.add(_place(frame.f_code))
            frame = frame.f_back
        self.below.update(seen)
        self._busy = False

    def table(self) -> str:
        """Return the functions in which most samples fell, with those below them."""
        lines = [f"event loop, {self.taken} samples   itself   with what it calls"]
        shown = {name for name, _ in self.itself.most_common(_ROWS)}
        shown |= {name for name, _ in self.below.most_common(_ROWS)}
        whole = max(1, self.taken)
        for name in sorted(shown, key=lambda name: (-self.itself[name], -self.below[name])):
            itself, below = 100 * self.itself[name] / whole, 100 * self.below[name] / whole
            lines.append(f"{itself:6.1f} %  {below:6.1f} %  {name}")
        return "\n".join(lines)


@functools.cache
def _place(code: CodeType) -> str:
    path = Path(code.co_filename)
    return f"{path.parent.name}/{path.name}:{code.co_qualname}"


@contextmanager
def sampling(samples: Samples) -> Iterator[None]:
    """Sample the main thread for as long as the block lasts."""
    before = signal.signal(signal.SIGALRM, samples.note)
    signal.setitimer(signal.ITIMER_REAL, _EVERY_S, _EVERY_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Calls:
    """cProfile of the event loop and, where the store has a writer thread, of that."""

    def __init__(self, writer: Any = None) -> None:
        self._writer = writer if sys.version_info < (3, 12) else None
        self._of = {"event loop": cProfile.Profile()}
        if self._writer is not None:
            self._of["writer"] = cProfile.Profile()

    async def begin(self) -> None:
        """Begin to count; the writer's profiler is switched on by an item of its own."""
        if self._writer is not None:
            await self._writer.submit(self._of["writer"].enable)
        self._of["event loop"].enable()

    async def end(self) -> None:
        """Count no more."""
        self._of["event loop"].disable()
        if self._writer is not None:
            await self._writer.submit(self._of["writer"].disable)

    def table(self) -> str:
        """Return both tables, by own time."""
        results = []
        for name, profile in self._of.items():
            out = io.StringIO()
            pstats.Stats(profile, stream=out).strip_dirs().sort_stats("tottime").print_stats(_ROWS)
            results.append(f"--- {name} (cProfile)\n{out.getvalue()}")
        return "\n".join(results)
