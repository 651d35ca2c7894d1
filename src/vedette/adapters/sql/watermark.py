"""Watermark of a source `sql`: how far it read a table where rows become visible late; pure.

A writer of PostgreSQL takes a row's number (or instant) first and commits later, so a row can turn
up behind rows that were read already. Let a writer take at most `overlap` from the one to the
other. A row with the number v, taken at t and committed at t' <= t + overlap, was missed by the
asking that began at p only if p < t'. So p - overlap < t: what had been read before that instant
was numbered before v. Hence the next asking begins at the mark that stood then, however long ago
that was, and misses nothing.

Only the time between two marks is measured, by the clock of this machine; it is never compared
with the database's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct, field

# A number as the database orders it: text on PostgreSQL, what it is on SQLite.
Value = int | float | str

# How many marks are kept for the time that a writer may take.
_MAX_MARKS = 16


class Watermark(Struct):
    """Up to where a source `sql` read its table, and when.

    `begin` is the number behind which everything is ours, None for the first row. `polled_us` is
    when the last whole asking began. `marks` are (when it had been read, number), oldest first.
    `refused` are the ids of rows that were no events, so that each is told once.
    """

    overlap_us: int
    begin: Value | None = None
    polled_us: int | None = None
    marks: list[tuple[int, Value]] = field(default_factory=list)
    refused: tuple[str, ...] = ()

    def floor(self) -> Value | None:
        """Return the number from which on rows are asked for (it included); None: from `begin`."""
        if not self.overlap_us:
            return self.marks[-1][1] if self.marks else None
        if self.polled_us is None:
            return None
        until = self.polled_us - self.overlap_us
        values = [value for at, value in self.marks if at <= until]
        return values[-1] if values else None

    def record_mark(self, at_us: int, value: Value) -> None:
        """Note that everything visible up to a number had been read at an instant."""
        if self.marks and self.marks[-1][1] == value:
            return
        crowded = len(self.marks) > 1 and at_us - self.marks[-2][0] < self.overlap_us // _MAX_MARKS
        if crowded or not self.overlap_us:
            # The later of two that are close says less, so it is safe in the place of both.
            del self.marks[-1:]
        self.marks.append((at_us, value))

    def finish_poll(self, at_us: int) -> None:
        """Note that an asking which began at an instant came to its end."""
        self.polled_us = at_us
        until = at_us - self.overlap_us
        count = sum(at <= until for at, _ in self.marks)
        del self.marks[: max(0, count - 1)]

    def remember_refused(self, refused: Iterable[str], limit: int) -> None:
        """Remember the latest rows that were refused."""
        self.refused = tuple(refused)[-limit:]

    def to_json(self) -> dict[str, Any]:
        """Return what a position is made of."""
        return {
            "version": 1,
            "begin": self.begin,
            "asked": self.polled_us,
            "marks": [list(mark) for mark in self.marks],
            "refused": list(self.refused),
        }

    @classmethod
    def from_json(cls, position: Mapping[str, Any], overlap_us: int) -> Watermark:
        """Return the marks of a position."""
        marks = [(int(at), value) for at, value in position["marks"]]
        return cls(
            overlap_us, position["begin"], position["asked"], marks, tuple(position["refused"])
        )
