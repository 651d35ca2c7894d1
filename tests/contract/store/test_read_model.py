"""The read model as readers and writers have it: spoilt rows, time that ran out, what is archived.

See `test_follower` for who follows the ledger.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
from tests import pg
from tests.contract.store.test_follower import AnyStore, Place, whole, work
from tests.segments import remove_entries

from vedette.domain.base import machine
from vedette.store.meta import ARCHIVED, VIEW_BASE, write_meta
from vedette.store.readmodel import model
from vedette.store.readmodel.entry_batches import EntryBatches
from vedette.store.readmodel.model import ViewWriter
from vedette.store.readmodel.tables import write_base


@pytest.fixture(params=["postgres", "sqlite"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path, pg.database_for(tmp_path) if request.param == "postgres" else None)
    yield made
    made.close()


@pytest.fixture
def store(place: Place) -> AnyStore:
    return place.store()


# --- time -----------------------------------------------------------------------------------


class Time:
    """The machine's clock by hand: nothing moves it but `s`, and who sleeps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.s = 1000.0
        monkeypatch.setattr(machine, "monotonic_s", lambda: self.s)
        monkeypatch.setattr(machine, "sleep_s", self.sleep)

    def sleep(self, seconds: float) -> None:
        self.s += seconds


async def test_questions_share_one_budget_of_time(
    place: Place, store: AnyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ledger that takes longer to fold than a question may take keeps no verb for each of its."""
    await work(store, 0, 30)
    reader, advance = place.reader(), ViewWriter.advance
    assert reader.view.lag().reached == 0
    time = Time(monkeypatch)

    def advance_slowly(self: ViewWriter, limit: int = 0) -> bool:
        time.s += 4
        return advance(self, 7)

    with monkeypatch.context() as patch:
        patch.setattr(ViewWriter, "advance", advance_slowly)
        reader.view.refresh()
        reached, took = reader.view.lag().reached, time.s - 1000
        assert 0 < reached < store.ledger.last_seq()
        assert model.FOLD_S <= took < model.FOLD_S + 4
        for ask in (reader.tables.counts, reader.tables.event_counts, reader.tables.examples):
            ask()
        assert (reader.view.lag().reached, time.s - 1000) == (reached, took)
        # It is not for ever: whoever looks on and on catches up.
        time.s += model.RETRY_S
        reader.view.refresh()
        assert reader.view.lag().reached > reached
        time.s += model.RETRY_S
    assert reader.view.refresh().entries == 0


async def test_a_run_that_was_interrupted_waits_for_no_lists(store: AnyStore) -> None:
    await work(store, 0, 3)
    with store.view.without_waiting():
        pass
    store.view.end_waiting()
    assert store.tables.event_counts() == (0, 0)


# --- spoilt ---------------------------------------------------------------------------------


SPOILT = {
    "a list is ahead": "INSERT INTO view_entry(list, seq) SELECT id, {0} FROM view_list",
    "no state": "DELETE FROM view_state",
    "no document": "UPDATE view_row SET data={1}",
}


@pytest.mark.parametrize("how", SPOILT)
async def test_a_spoilt_model_is_made_anew(place: Place, store: AnyStore, how: str) -> None:
    await work(store, 0, 9)
    assert whole(store)
    seqs = range(store.ledger.last_seq() + 1, store.ledger.last_seq() + 40)
    _, view = place.home().open()
    for seq in seqs if "{0}" in SPOILT[how] else (0,):
        no_text = "'{'::bytea" if place.url else "CAST('{' AS BLOB)"
        view.execute(SPOILT[how].format(seq, no_text))
    await work(store, 9, 6)
    reader = place.reader()
    assert whole(reader)
    assert reader.view.failure == ""
    assert whole(store)


async def test_what_cannot_be_made_anew_is_tried_once(
    place: Place, store: AnyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await work(store, 0, 3)
    writer, cleared = ViewWriter(*place.home().open()), list[int]()
    clear = ViewWriter.clear

    def count(self: ViewWriter) -> None:
        cleared.append(1)
        clear(self)

    def refuse(*_: object) -> None:
        raise KeyError("a row of nobody")

    monkeypatch.setattr(ViewWriter, "clear", count)
    monkeypatch.setattr(writer._tables, "write", refuse)
    for _ in range(3):
        with pytest.raises(KeyError):
            writer.advance()
    assert cleared == [1]


# --- archived -------------------------------------------------------------------------------


async def test_what_is_kept_beyond_the_archive_stays_in_the_lists(
    place: Place, store: AnyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a store that was brought up: its rows are kept up to its end, its entries are there."""
    await work(store, 0, 12)
    rows = store.view.rows("SELECT name, id, version, sort, data FROM view_row")
    write = store.parts.database
    write.begin()
    write_base(write, store.ledger.last_seq(), rows)
    remove_entries(write, range(5))
    write_meta(write, ARCHIVED, "{}")
    write.commit()
    assert EntryBatches(write).base_seq() == int(store.meta(VIEW_BASE) or 0) > 12
    # In slices, of which the last one ends where the kept rows do.
    monkeypatch.setattr(model, "BATCH", 7)
    for more in (0, 3):
        await work(store, 12, more)
        store.view.rebuild()
        every = [orjson.loads(raw) for _, raw in store.ledger.entries_after(0, 10_000)]
        for filters in ({"kind": "run.closed"}, {"agent": "watcher"}, {"kind": "action.decided"}):
            page = store.ledger.entries_page(filters, before=None, after=None, limit=10_000)
            fit = [one["seq"] for one in every if all(one.get(k) == v for k, v in filters.items())]
            assert [seq for seq, _ in page] == fit[::-1] != [], filters
        assert store.tables.event_counts() == (12 + more, 0)
