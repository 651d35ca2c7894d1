"""The simple baseline for metric streams: four views, ranks, one threshold.

Deviation from a winsorised long-run mean, absolute first difference, mean of 12 rows and log
standard deviation of 60 rows; each ranked among its last 4,000 values, with a bonus above the
running maximum; joined by the cubic norm. Written apart from the shipped judge and left as it is,
so that whatever becomes of the judge is measured against the same thing.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Sequence

from tools.eval_real.nab_score import Alarm

THRESHOLD = 3.785
WARM_UP = 150
PAUSE = 100

_HISTORY = 4000
_LONG = 60
_SHORT = 12


def alarms(values: Sequence[float]) -> tuple[Alarm, ...]:
    """Return the rows that ring at a low enough threshold: warmed up, above the last 100 rows."""
    found = []
    recent: deque[float] = deque(maxlen=PAUSE)
    for row, score in enumerate(scores(values)):
        if row >= WARM_UP and score > max(recent):
            found.append(Alarm(row, score))
        recent.append(score)
    return tuple(found)


def scores(values: Sequence[float]) -> list[float]:
    """Return the score of every row; each depends on the rows up to it alone."""
    deviation, step, level, spread = (_Ranked() for _ in range(4))
    long_run, usual_spread = _Winsorised(), _Winsorised()
    recent: deque[float] = deque(maxlen=_LONG)
    result = []
    for row, value in enumerate(values):
        before = recent[-1] if recent else value
        recent.append(value)
        short = list(recent)[-_SHORT:]
        surprises = [
            deviation.above(abs(long_run.error(value))),
            step.above(abs(value - before)),
            level.beyond(math.fsum(short) / len(short) - values[0]),
        ]
        if row >= _LONG - 1:
            mean = math.fsum(recent) / len(recent)
            width = math.dist(recent, (mean,) * len(recent)) / math.sqrt(len(recent))
            logged = math.log(max(width, 1e-9 * abs(mean) + 1e-12))
            surprises.append(spread.above(abs(usual_spread.error(logged))))
        result.append(sum(one**3 for one in surprises) ** (1 / 3))
    return result


class _Winsorised:
    """A slow exponential mean; after 30 rows an error counts for at most three deviations."""

    def __init__(self) -> None:
        self.mean = self.square = 0.0
        self.rows = 0

    def error(self, value: float) -> float:
        if not self.rows:
            self.mean = value
        error = value - self.mean
        clipped = error
        if self.rows > 30 and self.square > 0:
            bound = 3 * math.sqrt(self.square)
            clipped = min(bound, max(-bound, error))
        self.rows += 1
        weight = max(0.001, 1 / self.rows)
        self.mean += weight * clipped
        self.square += weight * (clipped * clipped - self.square)
        return error


class _Ranked:
    """The last values of a view, and how surprising the next one is: -log10 of its rank."""

    def __init__(self) -> None:
        self.sorted: list[float] = []
        self.order: deque[float] = deque()
        self.high = -math.inf
        self.low = math.inf

    def above(self, value: float) -> float:
        count = len(self.sorted)
        rank = count - bisect_left(self.sorted, value)
        bonus = 0.0
        if count and value > self.high:
            bonus = min(1.0, 4 * math.log10(value / self.high)) if self.high > 0 else 1.0
        self._take(value)
        return math.log10((count + 1) / (rank + 1)) + bonus

    def beyond(self, value: float) -> float:
        count = len(self.sorted)
        above = count - bisect_left(self.sorted, value)
        rank = min(count, 2 * min(above, bisect_right(self.sorted, value)))
        bonus = 0.0
        beyond = max(value - self.high, self.low - value)
        if count and beyond > 0:
            width = self.high - self.low
            bonus = min(1.0, 4 * math.log10(1 + beyond / width)) if width > 0 else 1.0
        self._take(value)
        return math.log10((count + 1) / (rank + 1)) + bonus

    def _take(self, value: float) -> None:
        self.high, self.low = max(self.high, value), min(self.low, value)
        if len(self.order) == _HISTORY:
            del self.sorted[bisect_left(self.sorted, self.order.popleft())]
        self.order.append(value)
        insort(self.sorted, value)
