"""Entries are found in their segments, on both databases, whatever the segments were cut into."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import apsw
import orjson
import pytest
from tests.pg import server
from tests.segments import change_entries, read_entries

from vedette.domain.base.errors import DamagedSegment
from vedette.store.dialect import Database
from vedette.store.place_check import find_place_mismatches
from vedette.store.schema import TABLES
from vedette.store.segment import MAX_BYTES, MAX_ENTRIES, Segment, StoredEntry
from vedette.store.sqlite.database import SqliteDatabase
from vedette.store.stored_entries import (
    EntryReader,
    at_us_of,
    delete_segments,
    erase_content,
    kind_of,
    write_entries,
)

SALT = bytes(16)
RARE = ("policy.published", "stop.set", "memory.proposed")


def open_sqlite() -> Database:
    connection = apsw.Connection(":memory:")
    connection.execute(TABLES)
    return SqliteDatabase(connection)


def open_postgres() -> Database:
    from vedette.store.postgres.database import PostgresDatabase
    from vedette.store.postgres.schema import create_tables

    database = PostgresDatabase(server(fsync=False).fresh(), name="test")
    create_tables(database)
    return database


OPENERS: dict[str, Callable[[], Database]] = {"postgres": open_postgres, "sqlite": open_sqlite}


@pytest.fixture(params=sorted(OPENERS))
def database(request: pytest.FixtureRequest) -> Iterator[Database]:
    made = OPENERS[request.param]()
    yield made
    made.close()


@contextmanager
def writing(database: Database) -> Iterator[None]:
    database.begin()
    try:
        yield
        database.commit()
    finally:
        database.rollback()


def entry(
    seq: int, kind: str = "run.closed", about: int | None = None, *, text: str | None = "x"
) -> StoredEntry:
    """Return an entry as the ledger's writer makes one, ten microseconds after the one before."""
    value = {"v": 1, "seq": seq, "at": 10 * seq, "kind": kind, "about": about}
    raw = orjson.dumps({name: item for name, item in value.items() if item is not None})
    if text is None:
        return StoredEntry(seq, raw, about)
    return StoredEntry(seq, raw, about, SALT, orjson.dumps({"of": seq, "text": text}))


def bare(entries: Sequence[StoredEntry]) -> list[StoredEntry]:
    return [StoredEntry(one.seq, one.raw, one.about) for one in entries]


def write(database: Database, entries: Sequence[StoredEntry]) -> None:
    """Write a group, as the ledger's writer does."""
    rare = [(kind_of(one.raw), one.seq) for one in entries if kind_of(one.raw) in RARE]
    with writing(database):
        write_entries(database, entries, rare)


# Three groups: what is about event 1 lies in all of them, what is about event 4 in the last two.
GROUPS = [
    [
        entry(1, "event.accepted", 1),
        entry(2, "turn.reasoned", 1),
        entry(3, "policy.published", text=None),
    ],
    [
        entry(4, "event.accepted", 4),
        entry(5, "action.decided", 1),
        entry(6, "memory.proposed", 4),
        entry(7, "turn.reasoned", 4, text=None),
    ],
    [
        entry(8, "stop.set"),
        entry(9, "run.closed", 1),
        entry(10, "policy.published", text=None),
        entry(11, "run.closed", 4),
    ],
]
ENTRIES = [one for group in GROUPS for one in group]
BY_SEQ = {one.seq: one for one in ENTRIES}


@pytest.fixture
def filled(database: Database) -> Database:
    for group in GROUPS:
        write(database, group)
    return database


def seqs_of(entries: Sequence[StoredEntry]) -> list[int]:
    return [one.seq for one in entries]


# --- each finder --------------------------------------------------------------------------------


def test_before_the_first_entry_there_is_nothing(database: Database) -> None:
    reader = EntryReader(database)
    assert (reader.last_seq(), reader.first_seq(), reader.last_at_us()) == (0, 1, 0)
    assert (reader.find(0), reader.find(1), reader.has_content(1)) == (None, None, False)
    assert reader.find_all([0, 1, 2]) == {}
    assert [*reader.of_events([1])] == [*reader.rare(RARE)] == reader.read(0, 10) == []
    assert list(reader.walk()) == list(reader.content(0, 10)) == []
    assert reader.seq_at(10**9) == 0
    write(database, [])
    with writing(database):
        erase_content(database, [1])
        assert delete_segments(database, 10, 10) == 0


def test_entries_are_found_by_number(filled: Database) -> None:
    reader = EntryReader(filled)
    assert (reader.first_seq(), reader.last_seq(), reader.last_at_us()) == (1, 11, 110)
    # From the end, so that each is asked for beside the segment that was read before.
    for seq in (*range(12, -2, -1), *range(-1, 13)):
        assert reader.find(seq) == BY_SEQ.get(seq)
        assert reader.has_content(seq) == (seq in BY_SEQ and BY_SEQ[seq].data is not None)
    whole = [seq for seq, one in BY_SEQ.items() if one.data is not None]
    assert reader.has_content()
    assert reader.has_content(*reversed(whole))
    assert not any(reader.has_content(*whole, seq) for seq in (0, 12, *set(BY_SEQ) - set(whole)))
    assert reader.find_all([9, 2, 2, 0, 7, 12, 4]) == {seq: BY_SEQ[seq] for seq in (2, 4, 7, 9)}
    assert list(reader.find_all([9, 2])) == [2, 9]
    assert reader.find_all([]) == {}


def test_a_reader_of_entries_alone_reads_no_content(filled: Database) -> None:
    reader = EntryReader(filled, content=False)
    assert [reader.find(seq) for seq in range(1, 12)] == bare(ENTRIES)
    assert list(reader.walk()) == reader.read(0, 20) == bare(ENTRIES)
    assert [*reader.of_events([1, 4])] == [one for one in bare(ENTRIES) if one.about]


def test_entries_are_found_by_event(filled: Database) -> None:
    reader = EntryReader(filled)
    assert seqs_of([*reader.of_events([1])]) == [1, 2, 5, 9]
    assert seqs_of([*reader.of_events({4})]) == [4, 6, 7, 11]
    assert [*reader.of_events([4, 1, 4])] == [one for one in ENTRIES if one.about is not None]
    # What is there and is no event, what is not there, and nothing.
    for none in ([3], [0], [-1], [12], [10**12], []):
        assert [*reader.of_events(none)] == []
    assert seqs_of([*reader.of_events([1, 4], kinds=("run.closed",))]) == [9, 11]
    assert seqs_of([*reader.of_events([4], kinds={"turn.reasoned", "memory.proposed"})]) == [6, 7]
    assert [*reader.of_events([1], kinds=("stop.set",))] == []


def test_more_events_than_one_question_takes_are_found(database: Database) -> None:
    events = [[entry(seq, "event.accepted", seq)] for seq in range(1, 301)]
    for group in events:
        write(database, group)
    write(database, [entry(300 + seq, "run.closed", seq) for seq in range(1, 301)])
    reader = EntryReader(database)
    assert seqs_of([*reader.of_events(range(1, 301))]) == list(range(1, 601))
    assert seqs_of([*reader.of_events(range(2, 301, 2))]) == list(range(2, 601, 2))


def test_entries_are_found_by_their_kind_where_that_is_rare(filled: Database) -> None:
    reader = EntryReader(filled)
    assert [*reader.rare(RARE)] == [BY_SEQ[seq] for seq in (3, 6, 8, 10)]
    assert seqs_of([*reader.rare(["policy.published"])]) == [3, 10]
    assert seqs_of([*reader.rare(RARE, after=3)]) == [6, 8, 10]
    assert seqs_of([*reader.rare(RARE, upto=8)]) == [3, 6, 8]
    assert seqs_of([*reader.rare(RARE, after=3, upto=3)]) == []
    assert seqs_of([*reader.rare(RARE, limit=2)]) == [8, 10]
    assert seqs_of([*reader.rare(RARE, upto=9, limit=1)]) == [8]
    assert [*reader.rare(["stop.lifted"])] == []


def test_entries_are_walked_in_order(filled: Database) -> None:
    reader = EntryReader(filled)
    assert list(reader.walk()) == ENTRIES
    for after in range(13):
        assert list(reader.walk(after=after)) == ENTRIES[after:]
        for upto in range(after, 13):
            assert list(reader.walk(after=after, upto=upto)) == ENTRIES[after:upto]
    closed = ("run.closed", "event.accepted")
    assert seqs_of(list(reader.walk(closed))) == [1, 4, 9, 11]
    assert seqs_of(list(reader.walk(closed, after=1, upto=10))) == [4, 9]
    assert seqs_of(list(reader.walk((*closed, "stop.set")))) == [1, 4, 8, 9, 11]
    assert seqs_of(list(reader.walk(RARE, after=3, upto=9))) == [6, 8]
    assert list(reader.walk(())) == []


def test_entries_are_read_some_at_a_time(filled: Database) -> None:
    reader = EntryReader(filled)
    for after in range(13):
        for limit in range(13):
            assert reader.read(after, limit) == ENTRIES[after : after + limit]


def test_content_is_read_where_it_is_left(filled: Database) -> None:
    reader = EntryReader(filled)
    held = [one for one in ENTRIES if one.data is not None]
    for after in range(12):
        for upto in range(after, 13):
            found = list(reader.content(after, upto))
            assert found == [one for one in held if after < one.seq <= upto]


def test_an_instant_is_found(filled: Database) -> None:
    reader = EntryReader(filled)
    assert [reader.seq_at(at) for at in (0, 9, 10, 19, 20, 75, 110, 10**9)] == [
        0, 0, 1, 1, 2, 7, 11, 11,
    ]  # fmt: skip


def test_bytes_that_are_no_entry_have_neither_kind_nor_time() -> None:
    for raw in (b"", b"{", b"[]", b'"x"', b'{"kind":1}', b'{"at":"x"}', b"\xff"):
        assert (kind_of(raw), at_us_of(raw)) == ("", 0)
    assert (kind_of(b'{"kind":"a","at":7,"b":{}}'), at_us_of(b'{"at":7}')) == ("a", 7)


# --- groups and their segments ------------------------------------------------------------------


def test_a_long_group_is_cut_into_segments(database: Database) -> None:
    group = [entry(1, "event.accepted", 1)]
    group += [entry(seq, "run.closed", 1) for seq in range(2, 2 * MAX_ENTRIES + 3)]
    write(database, group)
    borders = [
        (int(first), int(last))
        for first, last in database.rows("SELECT first, last FROM segment ORDER BY last")
    ]
    assert borders == [
        (1, MAX_ENTRIES), (MAX_ENTRIES + 1, 2 * MAX_ENTRIES), (2 * MAX_ENTRIES + 1, len(group)),
    ]  # fmt: skip
    # The event's own segment needs no place.
    assert sorted(database.rows("SELECT about, last FROM place")) == [
        (1, last) for _, last in borders[1:]
    ]
    reader = EntryReader(database)
    assert list(reader.walk()) == [*reader.of_events([1])] == reader.read(0, 10**6) == group
    assert list(find_place_mismatches(database)) == []


def test_a_heavy_group_is_cut_into_segments(database: Database) -> None:
    heavy = "x" * (MAX_BYTES // 3)
    group = [entry(seq, text=heavy) for seq in range(1, 11)]
    group += [entry(11, text="x" * (3 * MAX_BYTES)), entry(12), entry(13)]
    write(database, group)
    rows = database.rows("SELECT first, last FROM segment ORDER BY last")
    assert rows == [(1, 3), (4, 6), (7, 9), (10, 10), (11, 11), (12, 13)]
    assert list(EntryReader(database).walk()) == group


def test_no_segment_holds_what_two_groups_wrote(filled: Database) -> None:
    """A group's end is that of a checkpoint; there entries are let go of."""
    assert filled.rows("SELECT first, last FROM segment ORDER BY last") == [(1, 3), (4, 7), (8, 11)]


# --- erased, and let go -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "gone", [[2], [1, 2, 9], [5], [11], [1, 2, 4, 5, 6, 8, 9, 11], [3, 7], [0, 12], [2, 12], []]
)
def test_content_is_erased_and_the_entries_stay(filled: Database, gone: list[int]) -> None:
    reader = EntryReader(filled)
    before = reader.find(2)
    assert before is not None
    with writing(filled):
        erase_content(filled, gone)
    left = [one if one.seq not in gone else bare([one])[0] for one in ENTRIES]
    for again in (reader, EntryReader(filled)):
        assert list(again.walk()) == [again.find(seq) for seq in range(1, 12)] == left
        assert list(again.content(0, 11)) == [one for one in left if one.data is not None]
    assert [tuple(one) for one in read_entries(filled)] == [
        (one.seq, one.raw, one.about, one.salt, one.data) for one in left
    ]
    empty = filled.rows("SELECT last FROM segment WHERE bodies IS NULL ORDER BY last")
    assert len(empty) == sum(
        all(one.data is None or one.seq in gone for one in group) for group in GROUPS
    )
    assert list(find_place_mismatches(filled)) == []


def test_what_is_erased_again_is_not_written_again(
    filled: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    with writing(filled):
        erase_content(filled, [2, 5])
    written: list[str] = []
    monkeypatch.setattr(filled, "execute", lambda sql, values=(): written.append(sql))
    erase_content(filled, [2, 3, 5, 7])
    assert written == []
    erase_content(filled, [1])
    assert len(written) == 1


def test_a_reader_of_content_keeps_none_of_it(filled: Database) -> None:
    """It lives as long as its process; erased content must not live in it for as long."""
    reader = EntryReader(filled)
    before = {id(one) for one in gc.get_objects() if isinstance(one, Segment)}
    for ask in (
        lambda: reader.find(2),
        lambda: reader.find_all([1, 2]),
        lambda: [*reader.of_events([1])],
        lambda: reader.read(0, 3),
        lambda: [*reader.rare(RARE)],
        lambda: list(reader.walk()),
        lambda: list(reader.content(0, 11)),
    ):
        assert ask()
        gc.collect()
        held = {id(one) for one in gc.get_objects() if isinstance(one, Segment)}
        assert held <= before, "a segment with content is kept"


def test_a_reader_sees_what_is_flushed_and_what_was_rolled_back(filled: Database) -> None:
    reader = EntryReader(filled)
    assert reader.last_seq() == 11
    filled.begin()
    write_entries(filled, [entry(12, "stop.set")], [("stop.set", 12)])
    erase_content(filled, [1])
    assert (reader.last_seq(), reader.find(12)) == (12, entry(12, "stop.set"))
    assert (reader.has_content(1), seqs_of([*reader.rare(RARE, after=8)])) == (False, [10, 12])
    filled.rollback()
    assert (reader.last_seq(), reader.find(12)) == (11, None)
    assert (reader.find(1), seqs_of([*reader.rare(RARE, after=8)])) == (BY_SEQ[1], [10])


def test_what_was_rolled_back_is_not_remembered(filled: Database) -> None:
    """Its number is given again, to another entry."""
    reader = EntryReader(filled, content=False)
    filled.begin()
    write_entries(filled, [entry(12, "stop.set")], [("stop.set", 12)])
    assert reader.find(12) == bare([entry(12, "stop.set")])[0]
    filled.rollback()
    write(filled, [entry(12, "run.closed", 4)])
    assert reader.find(12) == bare([entry(12, "run.closed", 4)])[0]


@pytest.mark.parametrize(("size", "limit", "first"), [
    (2, 9, 1), (3, 9, 4), (6, 9, 4), (7, 9, 8), (7, 1, 4), (7, 0, 1), (11, 2, 8), (10**6, 9, 12),
])  # fmt: skip
def test_the_beginning_is_let_go_of_by_whole_segments(
    filled: Database, size: int, limit: int, first: int
) -> None:
    reader = EntryReader(filled)
    assert reader.find(3) == BY_SEQ[3]
    with writing(filled):
        gone = delete_segments(filled, size, limit)
    assert gone == {1: 0, 4: 1, 8: 2, 12: 3}[first]
    left = ENTRIES[first - 1 :]
    for again in (reader, EntryReader(filled)):
        assert again.first_seq() == (first if left else 1)
        assert list(again.walk()) == again.read(0, 99) == left
        assert [again.find(seq) for seq in range(1, 12)] == [
            BY_SEQ[seq] if seq >= first else None for seq in range(1, 12)
        ]
        assert again.find_all(range(12)) == {one.seq: one for one in left}
        assert [*again.of_events([1, 4])] == [one for one in left if one.about is not None]
        assert [*again.rare(RARE)] == [one for one in left if kind_of(one.raw) in RARE]
        assert again.seq_at(10**9) == (11 if left else 0)
        assert again.seq_at(10) == (first - 1 if first > 1 and left else 1 if left else 0)
    assert list(find_place_mismatches(filled)) == []


# --- what was damaged ---------------------------------------------------------------------------


def test_a_damaged_segment_is_told_and_the_others_are_read(filled: Database) -> None:
    with writing(filled):
        filled.execute("UPDATE segment SET entries=? WHERE last=7", (b"nonsense",))
    reader = EntryReader(filled)
    assert (reader.find(3), reader.find(8)) == (BY_SEQ[3], BY_SEQ[8])
    assert (reader.first_seq(), reader.last_seq()) == (1, 11)
    asked: list[Callable[[], object]] = [
        lambda: reader.find(4), lambda: reader.find_all([1, 7]), lambda: [*reader.of_events([1])],
        lambda: [*reader.rare(RARE)], lambda: list(reader.walk()), lambda: reader.read(3, 1),
        lambda: list(reader.content(0, 11)), lambda: reader.seq_at(50),
    ]  # fmt: skip
    for ask in asked:
        with pytest.raises(DamagedSegment, match="the segment that ends at entry 7"):
            ask()


def test_content_that_cannot_be_read_is_not_taken_for_erased(filled: Database) -> None:
    with writing(filled):
        filled.execute("UPDATE segment SET bodies=? WHERE last=7", (b"nonsense",))
    with pytest.raises(DamagedSegment):
        EntryReader(filled).find(4)
    assert EntryReader(filled, content=False).find(4) == bare([BY_SEQ[4]])[0]
    with pytest.raises(DamagedSegment), writing(filled):
        erase_content(filled, [4])


def test_a_segment_without_entries_hides_nobody(filled: Database) -> None:
    from tests.segments import pack

    with writing(filled):
        put = "INSERT INTO segment(last,first,entries,bodies) VALUES(?,?,?,?)"
        filled.execute(put, (2, 3, pack([[], []]), None))
    reader = EntryReader(filled)
    for ask in (lambda: reader.find(1), lambda: reader.read(0, 9), lambda: list(reader.walk())):
        with pytest.raises(DamagedSegment):
            ask()


# --- what entries are found by is compared ------------------------------------------------------

EDITS: dict[str, tuple[str, tuple[Any, ...], str]] = {
    "a place gone": ("DELETE FROM place WHERE about=1 AND last=7", (), "place"),
    "all places gone": ("DELETE FROM place", (), "place"),
    "a place of another event": ("UPDATE place SET about=2 WHERE about=4", (), "place"),
    "a place in another segment": ("UPDATE place SET last=3 WHERE about=4", (), "place"),
    "a place in none": ("UPDATE place SET last=10 WHERE about=4", (), "place"),
    "a place too many": ("INSERT INTO place VALUES(2,7)", (), "place"),
    "a place of the event's own segment": ("INSERT INTO place VALUES(1,3)", (), "place"),
    "a place behind the end": ("INSERT INTO place VALUES(1,99)", (), "place"),
    "a rare kind gone": ("DELETE FROM rare_entry WHERE seq=8", (), "rare_entry"),
    "no rare kinds": ("DELETE FROM rare_entry", (), "rare_entry"),
    "another kind": ("UPDATE rare_entry SET kind='stop.lifted' WHERE seq=8", (), "rare_entry"),
    "another entry": ("UPDATE rare_entry SET seq=9 WHERE seq=8", (), "rare_entry"),
    "a kind too many": ("INSERT INTO rare_entry VALUES('stop.set',9)", (), "rare_entry"),
    "a kind that is not rare": ("INSERT INTO rare_entry VALUES('run.closed',9)", (), "rare_entry"),
    "a kind behind the end": ("INSERT INTO rare_entry VALUES('stop.set',99)", (), "rare_entry"),
    "a second kind": ("INSERT INTO rare_entry VALUES('stop.lifted',8)", (), "rare_entry"),
    "a segment gone": ("DELETE FROM segment WHERE last=7", (), "segment"),
}


@pytest.mark.parametrize("what", EDITS)
def test_each_edit_of_what_finds_entries_is_found(filled: Database, what: str) -> None:
    assert list(find_place_mismatches(filled)) == []
    sql, values, table = EDITS[what]
    with writing(filled):
        assert filled.execute(sql, values) >= 1
    found = list(find_place_mismatches(filled))
    assert table in {one.table for one in found}
    assert all(one.actual != one.expected for one in found)


@pytest.mark.parametrize("about", [None, 0, 1, 2, 4, 7, 99])
@pytest.mark.parametrize("seq", [1, 5, 6, 8, 11])
def test_each_edit_of_what_an_entry_is_about_is_found(
    filled: Database, seq: int, about: int | None
) -> None:
    """Also where the places were made to fit it."""
    if BY_SEQ[seq].about == about:
        return
    with writing(filled):
        change_entries(filled, lambda one: one._replace(about=about) if one.seq == seq else one)
    (found, *_) = [one for one in find_place_mismatches(filled) if one.table == "segment"]
    assert f"entry {seq}: about" in found.row
    assert (found.actual, found.expected) == (about, BY_SEQ[seq].about)


def test_an_entry_cannot_be_about_what_comes_after_it(database: Database) -> None:
    """In what is archived, which no tree vouches for here, one could be about a run of today."""
    write(database, [entry(1, "event.accepted", 1), entry(2, "run.closed", 3)])
    assert [one.row for one in find_place_mismatches(database)] == ["2 entry 2: about"]


def test_borders_of_segments_are_compared(filled: Database) -> None:
    """One before the first entry is read by nobody, and would say where the ledger begins."""
    put = "INSERT INTO segment(last,first,entries,bodies) VALUES(?,?,?,?)"
    for last, first in ((0, 1), (0, 5), (-3, -5), (0, 0)):
        filled.begin()
        filled.execute(put, (last, first, b"", None))
        found = [one.row for one in find_place_mismatches(filled) if one.table == "segment"]
        assert EntryReader(filled).first_seq() == 1
        filled.rollback()
        assert f"{last} first" in found
    assert list(find_place_mismatches(filled)) == []


def test_what_is_compared_slice_by_slice_is_compared_whole(
    filled: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory stays flat however long the ledger is."""
    for limit in (0, 1, 3):
        monkeypatch.setattr("vedette.store.place_check._SLICE", limit)
        assert list(find_place_mismatches(filled)) == []
        for sql, values, table in EDITS.values():
            filled.begin()
            filled.execute(sql, values)
            assert table in {one.table for one in find_place_mismatches(filled)}
            filled.rollback()
