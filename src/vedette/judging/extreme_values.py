"""Extreme values: how unusual a value is, by the few most extreme ones of a long past.

Only a tail has to be remembered to rank what is extreme: of the last HORIZON rows the KEPT largest
values, each with its row. A value below all of them is no surprise at all, so that nothing is lost
but what nobody asks for, and a history three times as long as one of every value takes a tenth of
its room. A surprise is -log10 of a conformal p-value (Laxhammar and Falkman, 2010), with a bonus
for going beyond everything seen before.
"""

from __future__ import annotations

import math
import sys
from array import array
from bisect import bisect_left, bisect_right

HORIZON = 12_000
KEPT = 256

# What is too old is let go this often, rather than at every row.
_SWEEP = 64
_BONUS = 4.0
_BONUS_CAP = 1.0


class Tail:
    """The largest values of a series' last HORIZON rows, by size, and their rows.

    Values are kept as float32: a difference of one part in ten million is noise to a rank. Where
    values grew too old, smaller ones that were let go before are missing; what is ranked below
    them may then seem as unusual as the KEPT-th, and no more.
    """

    __slots__ = ("kept", "rows", "values")

    def __init__(self, kept: int = KEPT) -> None:
        self.kept = kept
        self.values = array("f")
        self.rows = array("Q")

    def observe(self, value: float, row: int) -> int:
        """Return how many of the values before are at least `value`, and take it in.

        Rows count from 0, without a gap. A value below all that is kept counts as the least
        unusual: the answer is how many rows there are to compare with.
        """
        if row % _SWEEP == 0 and row > HORIZON:
            self._sweep(row - HORIZON)
        values = self.values
        place = bisect_left(values, value)
        rank = len(values) - place
        if place == 0 and rank and row > len(values):
            rank = min(row, HORIZON)
        if len(values) < self.kept or value > values[0]:
            place = bisect_right(values, value, place)
            values.insert(place, value)
            self.rows.insert(place, row)
            if len(values) > self.kept:
                del values[0]
                del self.rows[0]
        return rank

    def _sweep(self, oldest: int) -> None:
        old = [place for place, row in enumerate(self.rows) if row < oldest]
        for place in reversed(old):
            del self.values[place]
            del self.rows[place]


class OneSidedView:
    """A view of a metric series in which large values are unusual."""

    __slots__ = ("_cell", "high", "tail")

    def __init__(self) -> None:
        self.tail = Tail()
        self.high = 0.0
        self._cell = array("f", [0.0])

    def observe(self, value: float, row: int) -> tuple[int, float]:
        """Return how many values are at least `value`, and the surprise; then take it in."""
        self._cell[0] = value
        value = self._cell[0]
        rank = self.tail.observe(value, row)
        surprise = _surprise(rank, row)
        if row and value > self.high:
            gain = _BONUS * math.log10(value / self.high) if self.high > 0.0 else _BONUS_CAP
            surprise += min(_BONUS_CAP, gain)
        if row == 0 or value > self.high:
            self.high = value
        return rank, surprise


class TwoSidedView:
    """A view of a metric series in which both large and small values are unusual."""

    __slots__ = ("_cell", "high", "low", "lower", "upper")

    def __init__(self) -> None:
        self.upper, self.lower = Tail(KEPT // 2), Tail(KEPT // 2)
        self.high = self.low = 0.0
        self._cell = array("f", [0.0])

    def observe(self, value: float, row: int) -> tuple[int, float]:
        """Return how many values are as far out at either end, and the surprise; then take it in.

        Twice the smaller tail, this value included; none for a value beyond all.
        """
        self._cell[0] = value
        value = self._cell[0]
        smaller = min(self.upper.observe(value, row), self.lower.observe(-value, row))
        beyond = max(value - self.high, self.low - value) if row else 0.0
        rank = 0 if beyond > 0.0 else min(row, HORIZON, 2 * smaller + 1)
        surprise = _surprise(rank, row)
        if beyond > 0.0:
            width = self.high - self.low
            gain = _BONUS * math.log10(1.0 + beyond / width) if width > 0.0 else _BONUS_CAP
            surprise += min(_BONUS_CAP, gain)
        self.high = value if row == 0 else max(self.high, value)
        self.low = value if row == 0 else min(self.low, value)
        return rank, surprise


def _surprise(rank: int, row: int) -> float:
    return math.log10((min(row, HORIZON) + 1) / (rank + 1))


def little_endian(part: array[float] | array[int]) -> bytes:
    """Return numbers of a judge's state in little-endian bytes, whatever the machine's order is."""
    if sys.byteorder != "little":
        part = part[:]
        part.byteswap()
    return part.tobytes()


def pack(tail: Tail) -> bytes:
    """Return the values and rows of a tail of extreme values as bytes, without their number."""
    return little_endian(tail.values) + little_endian(tail.rows)


def unpack(tail: Tail, blob: bytes, at: int, count: int) -> int:
    """Fill a blank tail with `count` extreme values out of `blob`; return the place behind them."""
    tail.values, at = unpack_array("f", blob, at, count)
    rows: array[int] = array("Q")
    end = at + count * rows.itemsize
    rows.frombytes(blob[at:end])
    if sys.byteorder != "little":
        rows.byteswap()
    tail.rows = rows
    return end


def unpack_array(kind: str, blob: bytes, at: int, count: int) -> tuple[array[float], int]:
    """Return `count` numbers of a judge's state from `blob` at a place, and the place behind."""
    part: array[float] = array(kind)
    end = at + count * part.itemsize
    part.frombytes(blob[at:end])
    if sys.byteorder != "little":
        part.byteswap()
    return part, end
