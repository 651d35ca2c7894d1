"""What the read side is made of: a row, the place where a minute is counted, and numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

State = dict[str, Any]
Key = tuple[str, str]
# seq, at (microseconds), kind, run, number within the run, seq of the event, fields.
Told = tuple[int, int, str, "str | None", int, "int | None", Mapping[str, Any]]


class Row:
    """One row. `stored` says that the tables may have it already."""

    __slots__ = ("data", "sort", "stored", "version")

    def __init__(self, version: int, sort: int, data: State, *, stored: bool = False) -> None:
        self.version, self.sort, self.data, self.stored = version, sort, data, stored


class Spot:
    """Where an agent's entries of one minute are counted."""

    __slots__ = ("agent", "at_us", "counts", "kinds", "minute", "row", "seq")

    def __init__(self, minute: int, agent: Row | None, row: Row | None) -> None:
        self.minute, self.agent, self.row = minute, agent, row
        self.counts: State = {} if agent is None else agent.data
        self.kinds: State = {} if row is None else row.data.setdefault("kinds", {})
        self.seq = self.at_us = 0

    def settle(self) -> None:
        """Let the rows say which entry was the last of those counted here, and its instant."""
        self.counts["at"] = self.at_us
        for row in (self.agent, self.row):
            if row is not None and row.version < self.seq:
                row.version = self.seq


def bucket(micros: int) -> str:
    """Return the name of a latency's bucket: the octave, and the quarter of it, from below."""
    micros = max(micros, 1)
    octave = micros.bit_length() - 1
    quarter = ((micros << 2) >> octave) & 3
    return f"{octave}.{quarter}"


def add(table: State, name: str, amount: int) -> None:
    """Add to a number that is absent when it is 0."""
    number = table.get(name, 0) + amount
    if number:
        table[name] = number
    else:
        table.pop(name, None)
