"""Entries of a store, found and read: by number, by event, by kind where it is rare, in order.

Nobody else knows how the tables keep entries (`vedette.store.segment`). An entry is found by its
segment: that of its own number, or those that `place` names for its event. Who writes reads what
was flushed before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import msgspec
from msgspec import Struct

from vedette.domain.entry import KINDS
from vedette.store.dialect import Database, Row
from vedette.store.schema import LINE_KINDS, in_list
from vedette.store.segment import (
    MAX_BYTES,
    MAX_ENTRIES,
    Body,
    Segment,
    StoredEntry,
    pack_bodies,
    pack_entries,
    unpack_bodies,
    unpack_segment,
)

_SEGMENT = "SELECT last, first, entries, {bodies} FROM segment"
_LAST = "SELECT last FROM segment WHERE last>=? ORDER BY last LIMIT 1"
_CONTENT = "SELECT last, bodies FROM segment WHERE last>=? ORDER BY last LIMIT 1"
_PACK = "INSERT INTO segment(last,first,entries,bodies) VALUES(?,?,?,?)"
_PLACE = "INSERT INTO place(about,last) VALUES(?,?)"
_RARE = "INSERT INTO rare_entry(kind,seq) VALUES(?,?)"
_BATCH = 128
# How many segments a walk has in memory.
_WALKED = 16
_LINE_KINDS = frozenset(LINE_KINDS)


class _Head(Struct):
    """An entry of which no more is wanted than when it was written, and its kind."""

    at: int = 0
    kind: str = ""


_decoder = msgspec.json.Decoder(_Head)


def _head_of(raw: bytes) -> _Head:
    try:
        return _decoder.decode(raw)
    except (msgspec.DecodeError, ValueError):
        return _Head()


def kind_of(raw: bytes) -> str:
    """Return the kind that an entry's bytes say; "" for bytes that are no entry."""
    return _head_of(raw).kind


def at_us_of(raw: bytes) -> int:
    """Return when an entry was written, in microseconds; 0 for bytes that are no entry."""
    return _head_of(raw).at


class EntryReader:
    """The entries of one store. Reads only; raises DamagedSegment for a segment that is none."""

    def __init__(self, database: Database, *, content: bool = True) -> None:
        """Read from `database`; without `content` the entries alone, as if that were erased."""
        self._database = database
        self._select = _SEGMENT.format(bodies="bodies" if content else "NULL")
        self._last: tuple[Row, Segment] | None = None

    # --- where the ledger begins and ends --------------------------------------------------------

    def last_seq(self) -> int:
        """Return the seq of the last entry; 0 if there is none."""
        return int(self._database.rows("SELECT COALESCE(MAX(last),0) FROM segment")[0][0])

    def first_seq(self) -> int:
        """Return the seq of the first entry that is not archived; 1 if there is none."""
        rows = self._database.rows("SELECT first FROM segment WHERE last>0 ORDER BY last LIMIT 1")
        return int(rows[0][0]) if rows else 1

    def last_at_us(self) -> int:
        """Return when the last entry was written, in microseconds; 0 before the first."""
        last = self.find(self.last_seq())
        return at_us_of(last.raw) if last is not None else 0

    def seq_at(self, at_us: int) -> int:
        """Return the last entry that is not younger than an instant; 0 if none is.

        By halving: instants hardly ever go back along the ledger.
        """
        first, high = self.first_seq(), self.last_seq()
        low = first - 1
        while low < high:
            middle = (low + high + 1) // 2
            entry = self.find(middle)
            if entry is not None and at_us_of(entry.raw) <= at_us:
                low = middle
            else:
                high = middle - 1
        return low

    # --- by number ------------------------------------------------------------------------------

    def find(self, seq: int) -> StoredEntry | None:
        """Return an entry; None if there is none, or it is archived."""
        segment = self._segment_from(seq)
        return segment.entry(seq) if segment is not None and segment.first <= seq else None

    def find_all(self, seqs: Iterable[int]) -> dict[int, StoredEntry]:
        """Return entries by their seq, as far as there are any."""
        return {one.seq: one for one in self._find_sorted(sorted(set(seqs)))}

    def _find_sorted(self, seqs: Iterable[int]) -> Iterator[StoredEntry]:
        segment: Segment | None = None
        for seq in seqs:
            if segment is None or segment.last < seq:
                segment = self._segment_from(seq)
            if segment is None:
                return
            if segment.first <= seq:
                yield segment.entry(seq)

    def has_content(self, *seqs: int) -> bool:
        """Say whether all these entries are there with their content."""
        content: dict[int, Body] = {}
        last = 0
        for seq in sorted(seqs):
            if last < seq:
                rows = self._database.rows(_CONTENT, (seq,))
                if not rows:
                    return False
                last = int(rows[0][0])
                content = unpack_bodies(last, rows[0][1])
            if seq not in content:
                return False
        return True

    def _segment_from(self, seq: int) -> Segment | None:
        """Return the segment that a seq lies in, or the next one behind it."""
        sql = f"{self._select} WHERE last>=? ORDER BY last LIMIT 1"
        rows = self._database.rows(sql, (seq,))
        return self._unpack(rows[0]) if rows else None

    def _unpack(self, row: Row) -> Segment:
        """Unpack a segment, unless it is the one that was unpacked last, byte by byte.

        One with content is not kept: that may be erased any time.
        """
        if self._last is not None and self._last[0] == row:
            return self._last[1]
        last, first, packed, bodies = row
        segment = unpack_segment(int(first), int(last), packed, bodies)
        if bodies is None:
            self._last = row, segment
        return segment

    # --- by event -------------------------------------------------------------------------------

    def of_events(
        self, abouts: Collection[int], *, kinds: Collection[str] = (), after: int = 0
    ) -> Iterator[StoredEntry]:
        """Yield the entries that belong to events, by the seqs of these, in order.

        With `kinds` those alone, and those after a seq.
        """
        wanted = set(abouts)
        lasts = (last for last in self._lasts_of(sorted(wanted)) if last > after)
        for row in self._segments(sorted(lasts)):
            segment = self._unpack(row)
            for seq, raw in segment.about(wanted):
                if seq > after and (not kinds or kind_of(raw) in kinds):
                    yield segment.entry(seq)

    def of_event_back(
        self, about: int, *, kind: str, before: int | None = None
    ) -> Iterator[StoredEntry]:
        """Yield the entries of a kind that belong to an event, by its seq, the newest first.

        From the one before another seq, if that is given. Segments are read as they are needed.
        """
        sql = "SELECT last FROM place WHERE about=? AND last>=? ORDER BY last LIMIT 1"
        rows = self._database.rows(sql, (about, before)) if before is not None else []
        end = int(rows[0][0]) + 1 if rows else 2**62
        sql = "SELECT last FROM place WHERE about=? AND last<? ORDER BY last DESC LIMIT ?"
        while rows := self._database.rows(sql, (about, end, _WALKED)):
            end = int(rows[-1][0])
            yield from self._about_back([int(last) for (last,) in rows], about, kind, before)
        rows = self._database.rows(_LAST, (about,))
        yield from self._about_back([int(last) for (last,) in rows], about, kind, before)

    def _about_back(
        self, lasts: Sequence[int], about: int, kind: str, before: int | None
    ) -> Iterator[StoredEntry]:
        for row in reversed(list(self._segments(sorted(lasts)))):
            segment = self._unpack(row)
            for seq, raw in reversed(list(segment.about({about}))):
                if kind_of(raw) == kind and (before is None or seq < before):
                    yield segment.entry(seq)

    def _lasts_of(self, abouts: Sequence[int]) -> set[int]:
        """Return the last seqs of the segments that hold entries about some events."""
        lasts: set[int] = set()
        for part in _parts(abouts):
            marks, values = in_list(part)
            rows = self._database.rows(f"SELECT last FROM place WHERE about IN ({marks})", values)
            lasts.update(int(last) for (last,) in rows)
        own = 0
        for about in abouts:
            if about > own:
                rows = self._database.rows(_LAST, (about,))
                own = int(rows[0][0]) if rows else about
                lasts.add(own)
        return lasts

    def _segments(self, lasts: Sequence[int]) -> Iterator[Row]:
        for part in _parts(lasts):
            marks, values = in_list(part)
            sql = f"{self._select} WHERE last IN ({marks}) ORDER BY last"
            yield from self._database.rows(sql, values)

    # --- by kind --------------------------------------------------------------------------------

    def rare(
        self,
        kinds: Collection[str],
        *,
        after: int = 0,
        upto: int | None = None,
        limit: int | None = None,
    ) -> Iterator[StoredEntry]:
        """Yield the entries of rare kinds behind a seq, up to another, in order.

        With `limit` the last of them. What every event leaves (`schema.LINE_KINDS`) is not rare.
        """
        marks, values = in_list(list(kinds))
        end = 2**62 if upto is None else upto
        sql = (
            f"SELECT seq FROM rare_entry WHERE kind IN ({marks}) AND seq>? AND seq<=? "
            "ORDER BY seq DESC"
        )
        if limit is not None:
            sql += f" LIMIT {limit}"
        seqs = [int(seq) for (seq,) in self._database.rows(sql, (*values, after, end))]
        yield from self._find_sorted(reversed(seqs))

    # --- in order -------------------------------------------------------------------------------

    def walk(
        self, kinds: Collection[str] | None = None, after: int = 0, upto: int | None = None
    ) -> Iterator[StoredEntry]:
        """Yield the entries behind a seq in order, up to another; with `kinds` those alone.

        They are of one state of the store if the caller holds a snapshot.
        """
        if kinds is not None and not _LINE_KINDS.intersection(kinds):
            yield from self.rare(kinds, after=after, upto=upto) if kinds else ()
            return
        for entry in self._walk("", after, upto):
            if kinds is None or kind_of(entry.raw) in kinds:
                yield entry

    def content(self, after: int, upto: int) -> Iterator[StoredEntry]:
        """Yield the entries behind a seq, up to another, that have their content still."""
        for entry in self._walk("bodies IS NOT NULL AND ", after, upto):
            if entry.data is not None:
                yield entry

    def _walk(self, which: str, after: int, upto: int | None) -> Iterator[StoredEntry]:
        """Yield the entries of the segments that a condition names."""
        for segment in self.segments(after, upto, which):
            first, last = max(after + 1, segment.first), segment.last
            for seq in range(first, (last if upto is None else min(last, upto)) + 1):
                yield segment.entry(seq)

    def segments(
        self, after: int = 0, upto: int | None = None, which: str = ""
    ) -> Iterator[Segment]:
        """Yield the segments that hold entries behind a seq, up to another, in order.

        No cursor is open meanwhile. `which` is a condition in SQL, ended by AND, if not all count.
        """
        end = 2**62
        if upto is not None:
            # By the key: what begins where is in no index.
            rows = self._database.rows(_LAST, (upto,))
            end = int(rows[0][0]) if rows else end
        sql = f"{self._select} WHERE {which}last>? AND last<=? ORDER BY last LIMIT {_WALKED}"
        while rows := self._database.rows(sql, (after, end)):
            for row in rows:
                segment = self._unpack(row)
                if upto is None or segment.first <= upto:
                    yield segment
            after = int(rows[-1][0])

    def read(self, after: int, limit: int) -> list[StoredEntry]:
        """Return the next entries behind a seq, oldest first."""
        return list(islice(self.walk(after=after), limit))


# --- what the writer asks -----------------------------------------------------------------------


def write_entries(
    database: Database, entries: Sequence[StoredEntry], rare: Sequence[tuple[str, int]]
) -> None:
    """Write entries that follow one another, in as many segments as they take, and their places.

    `rare` are (kind, seq) of those whose kind is rare.
    """
    segments: list[tuple[Any, ...]] = []
    places: list[tuple[int, int]] = []
    for part in _segments(entries):
        first, last = part[0].seq, part[-1].seq
        bodies = {
            one.seq: (one.salt, one.data)
            for one in part
            if one.salt is not None and one.data is not None
        }
        segments.append((last, first, pack_entries(part), pack_bodies(bodies)))
        # An event's own segment is found by the event.
        abouts = {one.about for one in part if one.about is not None and one.about < first}
        places += [(about, last) for about in sorted(abouts)]
    database.execute_many(_PACK, segments)
    if places:
        database.execute_many(_PLACE, places)
    if rare:
        database.execute_many(_RARE, rare)


def _parts(values: Sequence[int]) -> Iterator[Sequence[int]]:
    return (values[at : at + _BATCH] for at in range(0, len(values), _BATCH))


def _segments(entries: Sequence[StoredEntry]) -> Iterator[Sequence[StoredEntry]]:
    """Cut entries into segments of at most MAX_ENTRIES and, but for their last, MAX_BYTES.

    One that has so many bytes by itself lies alone: whoever asks for others does not unpack it.
    """
    begin, size = 0, 0
    for at, one in enumerate(entries):
        own = len(one.raw) + (len(one.data) if one.data is not None else 0)
        if own >= MAX_BYTES and begin < at:
            yield entries[begin:at]
            begin, size = at, 0
        size += own
        if size >= MAX_BYTES or at + 1 - begin == MAX_ENTRIES:
            yield entries[begin : at + 1]
            begin, size = at + 1, 0
    if begin < len(entries):
        yield entries[begin:]


def erase_content(database: Database, seqs: Iterable[int]) -> None:
    """Delete the salt and content of entries from their segments; the entries stay as they are."""
    wanted = sorted(set(seqs))
    at = 0
    while at < len(wanted):
        rows = database.rows(_CONTENT, (wanted[at],))
        if not rows:
            return
        last, bodies = rows[0]
        end = at
        while end < len(wanted) and wanted[end] <= last:
            end += 1
        gone = set(wanted[at:end])
        content = unpack_bodies(last, bodies)
        left = {seq: body for seq, body in content.items() if seq not in gone}
        if len(left) < len(content):
            database.execute("UPDATE segment SET bodies=? WHERE last=?", (pack_bodies(left), last))
        at = end


def delete_segments(database: Database, size: int, limit: int) -> int:
    """Delete the first segments of the entries up to `size`, `limit` at most; return how many."""
    sql = "SELECT last FROM segment WHERE last<=? ORDER BY last LIMIT ?"
    lasts = [int(last) for (last,) in database.rows(sql, (size, limit))]
    if not lasts:
        return 0
    # By their keys: an entry is about no later one, and there are few kinds that are rare.
    database.execute("DELETE FROM place WHERE about<=? AND last<=?", (lasts[-1], lasts[-1]))
    marks, kinds = in_list(sorted(KINDS - _LINE_KINDS))
    sql = f"DELETE FROM rare_entry WHERE kind IN ({marks}) AND seq<=?"
    database.execute(sql, (*kinds, lasts[-1]))
    return database.execute("DELETE FROM segment WHERE last<=?", (lasts[-1],))
