"""Hourly profile: what a series is like at each hour, for those whose rows say when they are of."""

from __future__ import annotations

import math
from array import array

from vedette.domain.base.clock import from_iso

HOURS = 24
# An hour's level weighs its last values like this, and is believed from so many on.
_RATE = 0.05
_MIN_COUNT = 2
_HOUR_US = 3_600_000_000


def hour_of(time: str | None) -> int | None:
    """Return the hour of the day, in UTC, of a series' row by its event's time; None without one.

    UTC, so that the answer is the same on every machine. Where clocks are set forward or back, a
    series that lives by them is an hour off until its levels have followed, within two days.
    """
    if not time:
        return None
    try:
        return from_iso(time) // _HOUR_US % HOURS
    except (ValueError, OverflowError):
        return None


class Hours:
    """A series' level at each hour of the day: an exponential mean of its values."""

    __slots__ = ("counts", "levels")

    def __init__(self) -> None:
        self.levels = array("d", [0.0] * HOURS)
        self.counts = array("Q", [0] * HOURS)

    def distance(self, hour: int, value: float) -> float | None:
        """Return how far `value` is from its hour's level, then take it in; None if unknown yet."""
        count = self.counts[hour]
        error = value - self.levels[hour]
        self.counts[hour] = count + 1
        self.levels[hour] += max(_RATE, 1.0 / (count + 1)) * error
        return math.fabs(error) if count >= _MIN_COUNT else None
