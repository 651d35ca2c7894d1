"""A stretch of the ledger by time, and what came before it of the runs that reach into it.

All that is needed of a record is `walk`: a store has it, an exported ledger and an archive with a
store behind it have it, too. A store also finds an entry, and the entries of a run, by an index;
where that is missing the record is read from its beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import orjson
from msgspec import Struct

from vedette.domain.ports.ledger_reader import EntryLog, RawEntry

# More entries than any run has.
_ALL = 1_000_000


class Window(Struct, frozen=True):
    """A time window of the ledger, `since_us` until before `until_us` (µs), from entry `first`."""

    since_us: int
    until_us: int
    first: int

    def walk(self, record: EntryLog) -> Iterator[RawEntry]:
        """Yield the entries of the window in order."""
        for walked in record.walk(after=self.first - 1):
            if read_instant(walked[1]) >= self.until_us:
                # The clock of a runner may have been set back a little: go on a while.
                continue
            yield walked


def find_window(record: EntryLog, since_us: int, until_us: int) -> Window:
    """Return the time window of the ledger between two instants, with its first entry.

    Entries stand in the order of their commits. Where a clock was set back in between, the window
    begins at one of the places where time passes `since_us`.
    """
    find: Callable[[int], Any] | None = getattr(record, "entry", None)
    head: Callable[[], int] | None = getattr(record, "last_seq", None)
    if find is None or head is None:
        for seq, raw, _, _ in record.walk():
            if read_instant(raw) >= since_us:
                return Window(since_us, until_us, seq)
        return Window(since_us, until_us, _ALL**3)
    low, high = 1, head() + 1
    while low < high:
        middle = (low + high) // 2
        found = find(middle)
        # What is not there any more was archived, so it is older.
        if found is None or read_instant(found[1]) < since_us:
            low = middle + 1
        else:
            high = middle
    return Window(since_us, until_us, low)


def runs_before(record: EntryLog, part: Window) -> dict[str, int]:
    """Return the runs that reach into a time window from before it, each with its event's entry."""
    seen: set[str] = set()
    before: dict[str, int] = {}
    for _, raw, _, _ in part.walk(record):
        if b'"run":' not in raw:
            continue
        entry = parse_fields(raw)
        run = entry.get("run")
        if run is None or run in seen:
            continue
        seen.add(run)
        # (An uneventful run has one entry and no more to tell.)
        if entry.get("n", 1) > 1 or entry.get("about", part.first) < part.first:
            before[run] = int(entry.get("about", 0))
    return before


def earlier_entries(record: EntryLog, part: Window, runs: dict[str, int]) -> Iterator[RawEntry]:
    """Yield, in order, the entries before a window of these runs and of their events."""
    if not runs:
        return
    by_run: Callable[..., Any] | None = getattr(record, "entries", None)
    find: Callable[[int], Any] | None = getattr(record, "entry", None)
    if by_run is not None and find is not None:
        found = {seq: (raw, data) for run in runs for seq, raw, data in by_run("run", run, _ALL)}
        for place in set(runs.values()):
            accepted = find(place)
            if accepted is not None:
                found[accepted[0]] = (accepted[1], accepted[2])
        for seq in sorted(found):
            if seq < part.first:
                yield seq, found[seq][0], None, found[seq][1]
        return
    places = set(runs.values())
    for walked in record.walk():
        if walked[0] >= part.first:
            return
        if walked[0] in places or parse_fields(walked[1]).get("run") in runs:
            yield walked


def read_instant(raw: bytes) -> int:
    """Return the instant of a ledger entry's bytes, in microseconds; 0 if it has none.

    Keys are sorted and "at" is the first or among the first, so this need not parse the whole.
    """
    at = raw.find(b'"at":')
    if at < 0:
        return 0
    digits = raw[at + 5 : at + 25]
    number = digits[: next((n for n, c in enumerate(digits) if not 48 <= c <= 57), len(digits))]
    return int(number) if number else 0


def parse_fields(raw: bytes) -> dict[str, Any]:
    """Return the fields of a ledger entry's bytes; none if it is no entry (`verify` says so)."""
    try:
        value = orjson.loads(raw)
    except ValueError:
        return {}
    return value if isinstance(value, dict) and "kind" in value else {}
