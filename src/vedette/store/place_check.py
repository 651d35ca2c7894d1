"""What a store finds entries by, held against the entries: what they are about, places, rare kinds.

An edit of it would hide entries from who explains, erases or decides by them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson
from msgspec import Struct

from vedette.ledger.pruned_log import ArchivedPrefix
from vedette.store.dialect import Database
from vedette.store.meta import ARCHIVED, read_meta
from vedette.store.schema import LINE_KINDS
from vedette.store.segment import StoredEntry
from vedette.store.stored_entries import EntryReader

_LINE_KINDS = frozenset(LINE_KINDS)
# How many are held in memory at a time, of what may be as long as the ledger.
_SLICE = 20_000


class PlaceMismatch(Struct, frozen=True):
    """A row by which an entry is found, or what a segment says it is about, that is wrong."""

    table: str
    row: str
    actual: Any
    expected: Any


def find_place_mismatches(database: Database) -> Iterator[PlaceMismatch]:
    """Yield what finds entries and is not what the entries say. Reads the whole ledger."""
    accepted: dict[str, int] = {}
    places: set[tuple[int, int]] = set()
    rare: set[tuple[str, int]] = set()
    begin, begins = 0, EntryReader(database).first_seq()
    yield from _compare_borders(database)
    for segment in EntryReader(database, content=False).segments():
        first, last = segment.first, segment.last
        for one in segment.entries():
            value = orjson.loads(one.raw)
            about = _about_of(one, value, accepted, knows_all=begins == 1)
            if one.about != about or (about or 0) > one.seq:
                yield PlaceMismatch("segment", f"{last} entry {one.seq}: about", one.about, about)
            if about is not None and about < first:
                places.add((about, last))
            if value["kind"] not in _LINE_KINDS:
                rare.add((value["kind"], one.seq))
        if len(places) + len(rare) > _SLICE:
            yield from _compare(database, begin, last, places, rare)
            begin = last
            places.clear()
            rare.clear()
    yield from _compare(database, begin, 2**62, places, rare)


def _compare_borders(database: Database) -> Iterator[PlaceMismatch]:
    """Yield the segments that do not begin where the one before ends, or are of no entries.

    One beyond the beginning is read by nobody, and still says where the ledger begins; one that
    reaches into what is archived holds entries that nothing vouches for.
    """
    kept = read_meta(database, ARCHIVED)
    archived = ArchivedPrefix.from_bytes(kept.encode()).size if kept is not None else 0
    before = None
    for last, first in database.iterate_rows("SELECT last, first FROM segment ORDER BY last"):
        if not 0 < first <= last or (before is not None and first != before + 1):
            yield PlaceMismatch("segment", f"{last} first", first, (before or 0) + 1)
        elif first <= archived < last:
            yield PlaceMismatch("segment", f"{last} first", first, archived + 1)
        before = int(last)


def _about_of(
    one: StoredEntry, value: dict[str, Any], accepted: dict[str, int], *, knows_all: bool
) -> int | None:
    """Return what an entry is about; one of before entries said so themselves by its event.

    Its store has moved it since to where its event lies: that alone tells, if the event's own entry
    is archived.
    """
    if "about" in value:
        about: int = value["about"]
        return about
    event, kind = value.get("event"), value["kind"]
    if kind == "event.accepted":
        accepted[str(event)] = one.seq
    if kind == "event.refused":
        return one.seq
    if not isinstance(event, str):
        return None
    return accepted.get(event, None if knows_all else one.about)


def _compare(
    database: Database, after: int, upto: int, places: set[tuple[int, int]],
    rare: set[tuple[str, int]],
) -> Iterator[PlaceMismatch]:  # fmt: skip
    sql = "SELECT about, last FROM place WHERE last>? AND last<=?"
    found = {(int(about), int(last)) for about, last in database.rows(sql, (after, upto))}
    for about, last in sorted(found ^ places):
        row = f"{about} {last}"
        there = (about, last) in found
        yield PlaceMismatch("place", row, last if there else None, None if there else last)
    sql = "SELECT kind, seq FROM rare_entry WHERE seq>? AND seq<=?"
    kinds = {(str(kind), int(seq)) for kind, seq in database.rows(sql, (after, upto))}
    for kind, seq in sorted(kinds ^ rare):
        there = (kind, seq) in kinds
        yield PlaceMismatch(
            "rare_entry", f"{kind} {seq}", seq if there else None, None if there else seq
        )
