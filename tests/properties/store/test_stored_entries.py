"""Whatever groups are written, erased and let go of: a store answers as a plain list of entries."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.contract.store.test_stored_entries import (
    OPENERS,
    RARE,
    bare,
    entry,
    write,
    writing,
)

from vedette.store import stored_entries
from vedette.store.dialect import Database
from vedette.store.place_check import find_place_mismatches
from vedette.store.schema import LINE_KINDS
from vedette.store.segment import StoredEntry
from vedette.store.stored_entries import (
    EntryReader,
    at_us_of,
    delete_segments,
    erase_content,
    kind_of,
)

# So that few entries are several segments, by their number and by their size.
ENTRIES, BYTES = 4, 600

kinds = st.sampled_from(("event.accepted", "turn.reasoned", "run.closed", *RARE))
texts = st.none() | st.sampled_from(("", "short", "x" * 300, "x" * 900))
# Of what an entry is about: itself, something before it, by how much, or nothing.
backs = st.none() | st.integers(0, 12)
groups = st.lists(st.tuples(kinds, backs, texts), min_size=1, max_size=11)
steps = st.one_of(
    st.tuples(st.just("group"), groups),
    st.tuples(st.just("erase"), st.lists(st.integers(0, 60), max_size=8)),
    st.tuples(st.just("trim"), st.tuples(st.integers(0, 4), st.integers(1, 5))),
    st.tuples(st.just("undone"), groups),
)
plans = st.lists(steps, min_size=1, max_size=9)


class Plain:
    """The entries of a store as a list, and where its groups end."""

    def __init__(self) -> None:
        self.entries: list[StoredEntry] = []
        self.ends: list[int] = []
        self.borders: list[int] = []
        self.next = 1

    def make(self, group: list[tuple[str, int | None, str | None]]) -> list[StoredEntry]:
        made = []
        for seq, (kind, back, text) in enumerate(group, self.next):
            about = None if back is None else max(1, seq - back)
            made.append(entry(seq, kind, about, text=text))
        return made

    def add(self, made: list[StoredEntry]) -> None:
        self.entries += made
        self.next = made[-1].seq + 1
        self.ends.append(made[-1].seq)
        count = size = 0
        for one in made:
            own = len(one.raw) + len(one.data or b"")
            if own >= BYTES and count:  # it lies alone
                self.borders.append(one.seq - 1)
                count = size = 0
            count, size = count + 1, size + own
            if count == ENTRIES or size >= BYTES or one is made[-1]:
                self.borders.append(one.seq)
                count = size = 0

    def erase(self, seqs: set[int]) -> None:
        self.entries = [
            replace(one, salt=None, data=None) if one.seq in seqs else one for one in self.entries
        ]

    def trim(self, size: int, limit: int) -> None:
        gone = [last for last in self.borders if last <= size][:limit]
        if gone:
            self.borders = self.borders[len(gone) :]
            self.entries = [one for one in self.entries if one.seq > gone[-1]]


def act(database: Database, plain: Plain, what: str, how: Any) -> None:
    if what == "group":
        made = plain.make(how)
        write(database, made)
        plain.add(made)
    elif what == "erase":
        with writing(database):
            erase_content(database, how)
        plain.erase(set(how))
    elif what == "trim" and len(plain.ends) > 1:
        nth, limit = how
        size = plain.ends[:-1][min(nth, len(plain.ends) - 2)]  # the last one says what was let go
        with writing(database):
            delete_segments(database, size, limit)
        plain.trim(size, limit)
    elif what == "undone":
        made = plain.make(how)
        database.begin()
        rare = [(kind_of(one.raw), one.seq) for one in made if kind_of(one.raw) in RARE]
        stored_entries.write_entries(database, made, rare)
        erase_content(database, [one.seq for one in plain.entries])
        database.rollback()


def compare(reader: EntryReader, entries: list[StoredEntry], last: int) -> None:
    """Ask in every way there is."""
    first = entries[0].seq if entries else 1
    by_seq = {one.seq: one for one in entries}
    assert (reader.first_seq(), reader.last_seq()) == (first, last)
    assert reader.last_at_us() == 10 * last
    for seq in range(last + 3):
        assert reader.find(seq) == by_seq.get(seq)
        assert reader.has_content(seq) == (seq in by_seq and by_seq[seq].data is not None)
    assert reader.find_all(range(0, last + 9, 2)) == {
        seq: one for seq, one in by_seq.items() if seq % 2 == 0
    }
    for abouts in ({1}, {2, 5}, set(range(1, last + 2)), {last}, {last + 1}):
        of = [one for one in entries if one.about in abouts]
        assert [*reader.of_events(abouts)] == of
        some = ("run.closed", "stop.set")
        assert [*reader.of_events(abouts, kinds=some)] == [
            one for one in of if kind_of(one.raw) in some
        ]
    for after, upto in ((0, last), (first, last - 1), (last // 2, last // 2 + 3), (last, last + 9)):
        between = [one for one in entries if after < one.seq <= upto]
        rare = [one for one in between if kind_of(one.raw) in RARE]
        assert list(reader.walk(after=after, upto=upto)) == between
        assert list(reader.walk(RARE, after=after, upto=upto)) == rare
        assert [*reader.rare(RARE, after=after, upto=upto)] == rare
        assert [*reader.rare(RARE, after=after, upto=upto, limit=2)] == rare[-2:]
        line = [one for one in between if kind_of(one.raw) in LINE_KINDS]
        assert list(reader.walk(LINE_KINDS, after=after, upto=upto)) == line
        assert list(reader.content(after, upto)) == [one for one in between if one.data is not None]
        assert reader.read(after, 5) == [one for one in entries if one.seq > after][:5]
    times = [at_us_of(one.raw) for one in entries]
    for at in (0, 10 * first, 10 * first + 9, 5 * last, 10 * last, 10 * last + 1):
        assert reader.seq_at(at) == first - 1 + bisect_right(times, at)


@contextmanager
def emptied(database: Database) -> Iterator[Database]:
    yield database
    database.rollback()
    with writing(database):
        for table in ("segment", "place", "rare_entry"):
            database.execute(f"DELETE FROM {table}")


@pytest.fixture(scope="module")
def sqlite() -> Iterator[Database]:
    database = OPENERS["sqlite"]()
    yield database
    database.close()


@pytest.fixture(scope="module")
def postgres() -> Iterator[Database]:
    database = OPENERS["postgres"]()
    yield database
    database.close()


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_entries, "MAX_ENTRIES", ENTRIES)
    monkeypatch.setattr(stored_entries, "MAX_BYTES", BYTES)
    monkeypatch.setattr(stored_entries, "_BATCH", 3)
    monkeypatch.setattr("vedette.store.place_check._SLICE", 5)


_CHECKS = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@settings(max_examples=100, deadline=None, suppress_health_check=_CHECKS)
@given(plans)
def test_a_store_answers_as_a_plain_list_of_entries(
    sqlite: Database, plan: list[tuple[str, Any]]
) -> None:
    run_plan(sqlite, plan)


@settings(max_examples=10, deadline=None, suppress_health_check=_CHECKS)
@given(plans)
def test_a_server_answers_as_a_plain_list_of_entries(
    postgres: Database, plan: list[tuple[str, Any]]
) -> None:
    run_plan(postgres, plan)


def run_plan(database: Database, plan: list[tuple[str, Any]]) -> None:
    plain = Plain()
    with emptied(database):
        # These go on over all changes: what they keep of a segment must not outlive it.
        whole, alone = EntryReader(database), EntryReader(database, content=False)
        for what, how in plan:
            act(database, plain, what, how)
            if not plain.ends:
                continue
            compare(whole, plain.entries, plain.ends[-1])
            compare_alone(alone, plain)
        assert list(find_place_mismatches(database)) == []
        borders = [int(last) for (last,) in database.rows("SELECT last FROM segment ORDER BY last")]
        assert borders == plain.borders


def compare_alone(reader: EntryReader, plain: Plain) -> None:
    entries = bare(plain.entries)
    assert list(reader.walk()) == entries
    assert [reader.find(one.seq) for one in reversed(entries)] == entries[::-1]
    assert [*reader.of_events(range(1, plain.next))] == [one for one in entries if one.about]
