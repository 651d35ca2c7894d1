"""A causal anomaly score for one metric series, made of ranks: no scale, no model, no look-ahead.

Each row is seen through four views; each view is turned into a surprise, -log10 of the share of
the last 4,000 values of that view that were at least as extreme (a conformal p-value), plus a
bonus for going beyond everything seen before. The score is the cubic norm of the four surprises,
so that one view that is sure counts for more than two that wonder.

    deviation   distance from the long-run mean (exponential, winsorised at three deviations)
    step        absolute first difference
    level       mean of 12 rows, ranked from both ends of its own history
    spread      log standard deviation of 60 rows, its distance from its own long-run mean

Views and combination follow the four-view baseline of the project's benchmark notes; the way of
ranking is conformal anomaly detection (Laxhammar and Falkman, 2010). A reading depends on the rows
up to it and on nothing else: no file minimum, no length, no clock. Sums are `math.fsum`, so the
order and the Python version do not show in the last bit.
"""

from __future__ import annotations

import math
import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from typing import NamedTuple

VIEWS = ("deviation", "step", "level", "spread")

# Rows before a score may raise an alarm; rows that a score has to beat; the score of an alarm.
# One configuration for all series, chosen on developer files (tests/bench/nab_score.py).
WARM_UP = 150
PAUSE = 100
THRESHOLD = 3.785
CALM_ROWS = 60

HISTORY = 4000
_SHORT = 12
_LONG = 60
_FILLED = _LONG - 1
_SETTLED = 30
_ALPHA = 0.001
_CLIP = 3.0
_BONUS = 4.0
_BONUS_CAP = 1.0
# Squares of values beyond this would overflow; no metric means anything out there.
_LIMIT = 1e30

_MAGIC = b"VRK1"
_HEAD = struct.Struct("<4sQ10dHHHH")


class Reading(NamedTuple):
    """What one row looked like. `rows` counts the rows seen, this one included.

    `values` are the four views' values, `ranks` how many of the `compared` values before were at
    least as extreme, `surprises` -log10 of that share with the bonus, all in the order of VIEWS.
    `peak` is the highest score of the PAUSE rows before, `calm_peak` the highest of the last
    CALM_ROWS rows, this one included.
    """

    value: float
    rows: int
    score: float
    values: tuple[float, float, float, float]
    ranks: tuple[int, int, int, int]
    surprises: tuple[float, float, float, float]
    compared: tuple[int, int, int, int]
    peak: float
    calm_peak: float

    def alarm(self, threshold: float = THRESHOLD) -> bool:
        """Say whether this row is an alarm: warmed up, at the threshold, above the pause."""
        return self.rows > WARM_UP and self.score >= threshold and self.score > self.peak


class _Mean:
    """An exponential mean and variance that one outlier cannot drag off."""

    __slots__ = ("mean", "square")

    def __init__(self, mean: float = 0.0, square: float = 0.0) -> None:
        self.mean = mean
        self.square = square

    def distance(self, value: float, row: int) -> float:
        """Return how far `value` is from the mean before it, then take it in. Rows count from 0."""
        if row == 0:
            self.mean = value
        error = value - self.mean
        distance = abs(error)
        if row > _SETTLED and self.square > 0.0:
            bound = _CLIP * math.sqrt(self.square)
            error = max(-bound, min(bound, error))
        weight = max(_ALPHA, 1.0 / (row + 1))
        self.mean += weight * error
        self.square += weight * (error * error - self.square)
        return distance


class _History:
    """The last HISTORY values of one view, in order of time and in order of size.

    Values are kept as float32: half the state, and a difference of one part in ten million is
    noise to a rank.
    """

    __slots__ = ("_cell", "high", "low", "order", "ring")

    def __init__(self) -> None:
        self.ring = array("f")
        self.order = array("f")
        self.high = 0.0
        self.low = 0.0
        self._cell = array("f", [0.0])

    def upper(self, value: float, row: int) -> tuple[int, float]:
        """Return how many values are at least `value` and the surprise; then take it in."""
        value = self._round(value)
        count = len(self.order)
        rank = count - bisect_left(self.order, value)
        surprise = math.log10((count + 1) / (rank + 1))
        if count and value > self.high:
            gain = _BONUS * math.log10(value / self.high) if self.high > 0.0 else _BONUS_CAP
            surprise += min(_BONUS_CAP, gain)
        self._take(value, row)
        return rank, surprise

    def both(self, value: float, row: int) -> tuple[int, float]:
        """Return twice the smaller tail beyond `value` and the surprise; then take it in."""
        value = self._round(value)
        order = self.order
        count = len(order)
        rank = min(count, 2 * min(count - bisect_left(order, value), bisect_right(order, value)))
        surprise = math.log10((count + 1) / (rank + 1))
        beyond = max(value - self.high, self.low - value)
        if count and beyond > 0.0:
            width = self.high - self.low
            gain = _BONUS * math.log10(1.0 + beyond / width) if width > 0.0 else _BONUS_CAP
            surprise += min(_BONUS_CAP, gain)
        self._take(value, row)
        return rank, surprise

    def _round(self, value: float) -> float:
        self._cell[0] = value
        return self._cell[0]

    def _take(self, value: float, row: int) -> None:
        order = self.order
        if row == 0:
            self.high = self.low = value
        elif value > self.high:
            self.high = value
        elif value < self.low:
            self.low = value
        if len(order) == HISTORY:
            at = row % HISTORY
            del order[bisect_left(order, self.ring[at])]
            self.ring[at] = value
        else:
            self.ring.append(value)
        order.insert(bisect_right(order, value), value)


class Ranks:
    """The state of one series: about 130 KB in memory, at most 66 KB dumped."""

    __slots__ = (
        "_deviation",
        "_level",
        "_long",
        "_origin",
        "_recent",
        "_scores",
        "_spread",
        "_spread_mean",
        "_step",
        "rows",
    )

    def __init__(self) -> None:
        self.rows = 0
        self._origin = 0.0
        self._long = _Mean()
        self._spread_mean = _Mean()
        self._deviation = _History()
        self._step = _History()
        self._level = _History()
        self._spread = _History()
        self._recent = array("d")
        self._scores = array("d")

    def observe(self, value: float) -> Reading:
        """Take one finite value in and return its reading. Raises ValueError if it is not finite.

        Values beyond 1e30 are read as 1e30.
        """
        if not math.isfinite(value):
            raise ValueError(f"{value} is not a finite number")
        value = max(-_LIMIT, min(_LIMIT, value))
        row = self.rows
        recent = self._recent
        if row == 0:
            self._origin = value
        step = abs(value - recent[-1]) if row else 0.0
        recent.append(value)
        if len(recent) > _LONG:
            del recent[0]
        count = len(recent)
        short = recent[-_SHORT:]
        # Against the first value, so that float32 keeps the small moves of a large level.
        level = math.fsum(short) / len(short) - self._origin
        middle = math.fsum(recent) / count
        spread = math.dist(recent, (middle,) * count) / math.sqrt(count)
        # A flat line has no logarithm; rounding around a large level must not look like noise.
        logged = math.log(max(spread, 1e-9 * abs(middle) + 1e-12))
        held = len(self._step.order)
        compared = (held, held, held, len(self._spread.order))
        deviation = self._long.distance(value, row)
        a_rank, a = self._deviation.upper(deviation, row)
        b_rank, b = self._step.upper(step, row)
        c_rank, c = self._level.both(level, row)
        # Fewer rows than the window spread less for that reason alone.
        if row < _FILLED:
            unusual, d_rank, d = 0.0, 0, 0.0
        else:
            unusual = self._spread_mean.distance(logged, row - _FILLED)
            d_rank, d = self._spread.upper(unusual, row - _FILLED)
        score = (a * a * a + b * b * b + c * c * c + d * d * d) ** (1.0 / 3.0)
        scores = self._scores
        peak = max(scores) if row else 0.0
        scores.append(score)
        if len(scores) > PAUSE:
            del scores[0]
        self.rows = row + 1
        return Reading(
            value,
            row + 1,
            score,
            (deviation, step, level + self._origin, logged),
            (a_rank, b_rank, c_rank, d_rank),
            (a, b, c, d),
            compared,
            peak,
            max(scores[-CALM_ROWS:]),
        )

    def dump(self) -> bytes:
        """Return the state as bytes, the same on every machine."""
        head = _HEAD.pack(
            _MAGIC,
            self.rows,
            self._origin,
            self._long.mean,
            self._long.square,
            self._spread_mean.mean,
            self._spread_mean.square,
            self._deviation.high,
            self._step.high,
            self._level.high,
            self._level.low,
            self._spread.high,
            len(self._recent),
            len(self._scores),
            len(self._step.ring),
            len(self._spread.ring),
        )
        parts = (self._recent, self._scores, *(history.ring for history in self._histories()))
        return b"".join((head, *(_little(part).tobytes() for part in parts)))

    @classmethod
    def load(cls, blob: bytes) -> Ranks:
        """Return the state that `dump` wrote; raises ValueError for anything else."""
        if len(blob) < _HEAD.size or blob[:4] != _MAGIC:
            raise ValueError("not a rank state (VRK1)")
        _, rows, *numbers, recent, scores, held, spread = _HEAD.unpack_from(blob)
        if len(blob) != _HEAD.size + 8 * (recent + scores) + 4 * (3 * held + spread):
            raise ValueError("a rank state of the wrong length")
        state = cls()
        state.rows = rows
        state._origin = numbers[0]
        state._long = _Mean(numbers[1], numbers[2])
        state._spread_mean = _Mean(numbers[3], numbers[4])
        state._deviation.high, state._step.high = numbers[5], numbers[6]
        state._level.high, state._level.low = numbers[7], numbers[8]
        state._spread.high = numbers[9]
        at = _HEAD.size
        state._recent, at = _take_array("d", blob, at, recent)
        state._scores, at = _take_array("d", blob, at, scores)
        for history, count in zip(state._histories(), (held, held, held, spread), strict=True):
            history.ring, at = _take_array("f", blob, at, count)
            history.order = array("f", sorted(history.ring))
        return state

    def _histories(self) -> tuple[_History, _History, _History, _History]:
        return self._deviation, self._step, self._level, self._spread


def _take_array(kind: str, blob: bytes, at: int, count: int) -> tuple[array[float], int]:
    part: array[float] = array(kind)
    end = at + count * part.itemsize
    part.frombytes(blob[at:end])
    return _little(part), end


def _little(part: array[float]) -> array[float]:
    """Return the array in little-endian order whatever the machine's is, or back again."""
    if sys.byteorder == "little":
        return part
    part = part[:]
    part.byteswap()
    return part
