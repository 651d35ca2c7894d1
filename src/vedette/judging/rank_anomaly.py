"""A causal anomaly score for one metric series, made of ranks: no scale, no model, no look-ahead.

Each row is seen through five views; each view is turned into a surprise, -log10 of the share of the
last 12,000 values of that view that were at least as extreme (a conformal p-value), plus a bonus
for going beyond everything seen before.

    deviation   distance from the long-run mean (exponential, winsorised at three deviations)
    hour        distance from the level of the hour of the day; only where rows say their time
    step        absolute first difference
    level       mean of 12 rows, ranked from both ends of its own history
    spread      log standard deviation of 60 rows, its distance from its own long-run mean

Deviation and hour ask the same thing twice and count as one, by their mean. The score is the norm
of order 2.5 of these four, so that one view that is sure counts for more than two that wonder.

Views follow the four-view baseline of the project's benchmark notes; what was tried beside them is
in docs/design/judge-metrics.md. A reading depends on the rows up to it and on nothing else: no
file minimum, no length, no clock. Sums are `math.fsum`, so the order and the Python version do
not show in the last bit.
"""

from __future__ import annotations

import math
import struct
from array import array
from typing import NamedTuple

from vedette.judging.alarm_policy import PAUSE, WARM_UP, AlarmThreshold
from vedette.judging.extreme_values import (
    HORIZON,
    KEPT,
    OneSidedView,
    Tail,
    TwoSidedView,
    little_endian,
    pack,
    unpack,
    unpack_array,
)
from vedette.judging.hourly_profile import HOURS, Hours, hour_of

__all__ = [
    "CALM_ROWS",
    "HORIZON",
    "KEPT",
    "PAUSE",
    "THRESHOLD",
    "VIEWS",
    "WARM_UP",
    "Ranks",
    "Reading",
    "hour_of",
]

VIEWS = ("deviation", "hour", "step", "level", "spread")

# The score of an alarm. One for all series, chosen on developer files (tests/bench/nab_score.py).
THRESHOLD = 3.86
CALM_ROWS = 60

_SHORT = 12
_LONG = 60
_FILLED = _LONG - 1
_MIN_ROWS = 30
_ALPHA = 0.001
_CLIP = 3.0
_ROOT = 0.4
# Squares of values beyond this would overflow; no metric means anything out there.
_LIMIT = 1e30

_MAGIC = b"VRK2"
_HEAD = struct.Struct("<4sQQQ13d8H")

Five = tuple[float, float, float, float, float]
Ranked = tuple[int, int, int, int, int]


class Reading(NamedTuple):
    """What one row of a metric series looked like; `rows` counts those seen, this one included.

    `values` are the five views' values, `ranks` how many of the `compared` values before were at
    least as extreme (all of them if the value is nowhere near the tail), `surprises` -log10 of that
    share with the bonus, all in the order of VIEWS. `peak` is the highest score of the PAUSE rows
    before, `calm_peak` the highest of the last CALM_ROWS rows, this one included; `last` the score
    of the alarm within the PAUSE rows before, if any; `needed` the threshold that this row had to
    reach, `alarm` whether it is an alarm.
    """

    value: float
    rows: int
    score: float
    values: Five
    ranks: Ranked
    surprises: Five
    compared: Ranked
    peak: float
    calm_peak: float
    last: float
    needed: float
    alarm: bool


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
        if row > _MIN_ROWS and self.square > 0.0:
            bound = _CLIP * math.sqrt(self.square)
            error = max(-bound, min(bound, error))
        weight = max(_ALPHA, 1.0 / (row + 1))
        self.mean += weight * error
        self.square += weight * (error * error - self.square)
        return distance


class Ranks:
    """The anomaly score's state of one series: about 30 KB in memory, at most 18 KB dumped.

    `threshold` is the score of an alarm; it is not part of the state, but what it made of the
    series' patience is.
    """

    __slots__ = (
        "_alarm_threshold",
        "_deviation",
        "_hour",
        "_hours",
        "_level",
        "_long",
        "_origin",
        "_recent",
        "_scores",
        "_spread",
        "_spread_mean",
        "_step",
        "_timed",
        "rows",
        "threshold",
    )

    def __init__(self, threshold: float = THRESHOLD) -> None:
        self.threshold = threshold
        self.rows = 0
        self._timed = 0
        self._origin = 0.0
        self._long = _Mean()
        self._spread_mean = _Mean()
        self._hours = Hours()
        self._alarm_threshold = AlarmThreshold()
        self._deviation, self._hour, self._step, self._spread = (
            OneSidedView(),
            OneSidedView(),
            OneSidedView(),
            OneSidedView(),
        )
        self._level = TwoSidedView()
        self._recent = array("d")
        self._scores = array("d")

    def observe(self, value: float, hour: int | None = None) -> Reading:
        """Take one finite value in and return its reading. Raises ValueError if it is not finite.

        `hour` is the hour of the day that the row is of (`hour_of`). Values beyond 1e30 are read
        as 1e30.
        """
        if not math.isfinite(value):
            raise ValueError(f"{value} is not a finite number")
        value = max(-_LIMIT, min(_LIMIT, value))
        row = self.rows
        before = self._recent[-1] if row else value
        level, logged = self._update_windows(value)
        held = min(row, HORIZON)
        distance = self._long.distance(value, row)
        a_rank, a = self._deviation.observe(distance, row)
        h_value, h_rank, h, h_held = self._rank_by_hour(value, hour, distance)
        b_value = abs(value - before)
        b_rank, b = self._step.observe(b_value, row)
        c_rank, c = self._level.observe(level, row)
        # Fewer rows than the window spread less for that reason alone.
        d_row = row - _FILLED
        d_value, d_rank, d = 0.0, 0, 0.0
        if d_row >= 0:
            d_value = self._spread_mean.distance(logged, d_row)
            d_rank, d = self._spread.observe(d_value, d_row)
        score = _norm((a if h_held is None else 0.5 * (a + h), b, c, d))
        peak, calm_peak = self._push_score(score)
        last = self._alarm_threshold.last_alarm_score(row)
        self.rows = row + 1
        alarm = self._alarm_threshold.observe(score, peak, self.rows, self.threshold)
        return Reading(
            value,
            self.rows,
            score,
            (distance, h_value, b_value, level + self._origin, d_value),
            (a_rank, h_rank, b_rank, c_rank, d_rank),
            (a, h, b, c, d),
            (held, h_held or 0, held, held, max(0, min(d_row, HORIZON))),
            peak,
            calm_peak,
            last,
            self._alarm_threshold.required_score(self.threshold),
            alarm,
        )

    def _update_windows(self, value: float) -> tuple[float, float]:
        """Take a value into the recent ones; return their short mean and log deviation."""
        recent = self._recent
        if not self.rows:
            self._origin = value
        recent.append(value)
        if len(recent) > _LONG:
            del recent[0]
        short = recent[-_SHORT:]
        # Against the first value, so that float32 keeps the small moves of a large level.
        level = math.fsum(short) / len(short) - self._origin
        count = len(recent)
        middle = math.fsum(recent) / count
        spread = math.dist(recent, (middle,) * count) / math.sqrt(count)
        # A flat line has no logarithm; rounding around a large level must not look like noise.
        return level, math.log(max(spread, 1e-9 * abs(middle) + 1e-12))

    def _rank_by_hour(
        self, value: float, hour: int | None, otherwise: float
    ) -> tuple[float, int, float, int | None]:
        """Return the value, rank, surprise and number compared of the view by hour.

        Until an hour's level is known the distance from the long-run mean stands for it.
        """
        if hour is None:
            return 0.0, 0, 0.0, None
        distance = self._hours.distance(hour, value)
        distance = otherwise if distance is None else distance
        timed = self._timed
        self._timed = timed + 1
        return distance, *self._hour.observe(distance, timed), min(timed, HORIZON)

    def _push_score(self, score: float) -> tuple[float, float]:
        """Take a score in; return the peaks of the pause before it and of the calm with it."""
        scores = self._scores
        peak = max(scores) if scores else 0.0
        scores.append(score)
        if len(scores) > PAUSE:
            del scores[0]
        return peak, max(scores[-CALM_ROWS:])

    def dump(self) -> bytes:
        """Return the state as bytes, the same on every machine."""
        head = _HEAD.pack(
            _MAGIC,
            self.rows,
            self._timed,
            self._alarm_threshold.row,
            self._origin,
            self._long.mean,
            self._long.square,
            self._spread_mean.mean,
            self._spread_mean.square,
            self._alarm_threshold.raised,
            self._alarm_threshold.score,
            *(view.high for view in self._uppers()),
            self._level.high,
            self._level.low,
            len(self._recent),
            len(self._scores),
            *(len(tail.values) for tail in self._tails()),
        )
        hours = little_endian(self._hours.levels) + little_endian(self._hours.counts)
        recent = little_endian(self._recent) + little_endian(self._scores)
        return b"".join((head, hours, recent, *map(pack, self._tails())))

    @classmethod
    def load(cls, blob: bytes, threshold: float = THRESHOLD) -> Ranks:
        """Return the state that `dump` wrote; raises ValueError for anything else."""
        if len(blob) < _HEAD.size or blob[:4] != _MAGIC:
            raise ValueError("not a rank state (VRK2)")
        _, rows, timed, alarm, *numbers = _HEAD.unpack_from(blob)
        recent, scores, *counts = (int(number) for number in numbers[13:])
        if len(blob) != _HEAD.size + 16 * HOURS + 8 * (recent + scores) + 12 * sum(counts):
            raise ValueError("a rank state of the wrong length")
        state = cls(threshold)
        state.rows, state._timed, state._origin = rows, timed, numbers[0]
        state._long, state._spread_mean = _Mean(*numbers[1:3]), _Mean(*numbers[3:5])
        state._alarm_threshold = AlarmThreshold(numbers[5], alarm, numbers[6])
        for view, high in zip(state._uppers(), numbers[7:11], strict=True):
            view.high = high
        state._level.high, state._level.low = numbers[11:13]
        at = _HEAD.size
        state._hours.levels, at = unpack_array("d", blob, at, HOURS)
        counted, at = unpack_array("Q", blob, at, HOURS)
        state._hours.counts = array("Q", map(int, counted))
        state._recent, at = unpack_array("d", blob, at, recent)
        state._scores, at = unpack_array("d", blob, at, scores)
        for tail, count in zip(state._tails(), counts, strict=True):
            at = unpack(tail, blob, at, count)
        return state

    def _uppers(self) -> tuple[OneSidedView, OneSidedView, OneSidedView, OneSidedView]:
        return self._deviation, self._hour, self._step, self._spread

    def _tails(self) -> tuple[Tail, ...]:
        return (*(view.tail for view in self._uppers()), self._level.upper, self._level.lower)


def _norm(surprises: tuple[float, ...]) -> float:
    # x * x * sqrt(x) is x ** 2.5 with operations that round alike everywhere.
    power: float = math.fsum(one * one * math.sqrt(one) for one in surprises) ** _ROOT
    return power
