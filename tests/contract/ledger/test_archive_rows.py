"""What lists show of archived entries is folded beside the loop, and kept right or not at all."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.contract.ledger.test_archive import (
    DAY,
    VERIFIER,
    draft,
    grow,
    open_store,
    verified,
)
from tests.segments import remove_entries

from vedette.adapters.ledger_export import checkpoint_size_before, write_segment
from vedette.domain.base.errors import BadCommand
from vedette.ledger.pruned_log import ArchivedPrefix
from vedette.store.readmodel.entry_batches import EntryBatches
from vedette.store.readmodel.tables import RowFold
from vedette.store.retention import BaseRows, make_base_rows
from vedette.store.sqlite import SqliteReader, SqliteStore
from vedette.testing.clock import ManualClock
from vedette.testing.sample_steps import agents_of


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def folder(tmp_path: Path, clock: ManualClock) -> Path:
    """Ten days, four runs a day."""
    path = tmp_path / "state"
    store = open_store(path, clock)
    for day in range(10):
        await grow(store, range(day * 4, day * 4 + 4))
        clock.advance(DAY)
    store.close()
    return path


async def erased_prefix(
    folder: Path, archives: Path, clock: ManualClock, days: int
) -> tuple[SqliteStore, ArchivedPrefix]:
    """Return a store, and a prefix of it that is in an archive and can be let go."""
    reading = SqliteReader(folder)
    size = checkpoint_size_before(reading.ledger, clock.now_us() - days * DAY, None)
    archived = write_segment(reading.ledger, archives, size, VERIFIER)
    reading.close()
    store = open_store(folder, clock)
    while rows := store.maintenance.expiring_bodies(size):
        await store.maintenance.expire(rows, draft("body.erased"), stateless=agents_of(store))
    return store, archived


async def test_entries_are_folded_beside_the_loop(
    folder: Path, tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, archived = await erased_prefix(folder, tmp_path / "archive", clock, 4)
    begun, gone_on = threading.Event(), threading.Event()

    def fold(database: Any, size: int, stop: threading.Event) -> BaseRows:
        begun.set()
        assert gone_on.wait(10)
        assert database is not store.database
        return make_base_rows(database, size, stop)

    monkeypatch.setattr("vedette.store.retention.make_base_rows", fold)
    order = asyncio.create_task(
        store.maintenance.record_archive(archived, draft("ledger.archived"))
    )
    await asyncio.to_thread(begun.wait, 10)
    await grow(store, range(500, 503))
    gone_on.set()
    await order
    counts = store.tables.counts()
    while await store.maintenance.trim():
        pass
    store.view.rebuild()
    assert store.tables.counts() == counts
    store.close()


async def test_a_fold_ends_with_who_ordered_it(
    folder: Path, tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not with the ledger: a run that ends does not wait for it."""
    monkeypatch.setattr("vedette.store.readmodel.tables.FOLD_SLICE", 4)
    store, archived = await erased_prefix(folder, tmp_path / "archive", clock, 4)
    begun, reached = threading.Event(), list[int]()

    def fold(database: Any, size: int, stop: threading.Event) -> BaseRows:
        begun.set()
        assert stop.wait(10)
        made = make_base_rows(database, size, stop)
        reached.append(made.reached)
        return made

    monkeypatch.setattr("vedette.store.retention.make_base_rows", fold)
    order = asyncio.create_task(
        store.maintenance.record_archive(archived, draft("ledger.archived"))
    )
    await asyncio.to_thread(begun.wait, 10)
    order.cancel()
    await asyncio.gather(order, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_default_executor()
    assert 0 < reached[0] < archived.size
    store.close()
    assert verified(folder).archived == 0


async def test_an_archiving_beneath_another_is_refused(
    folder: Path, tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has folded lacks the entries that are gone; nobody could make them again."""
    store, first = await erased_prefix(folder, tmp_path / "first", clock, 7)
    store.close()
    store, second = await erased_prefix(folder, tmp_path / "second", clock, 3)
    loop = asyncio.get_running_loop()
    monkeypatch.setattr("vedette.store.readmodel.tables.FOLD_SLICE", 4)

    async def archive_first() -> None:
        monkeypatch.setattr("vedette.store.retention.make_base_rows", make_base_rows)
        await store.maintenance.record_archive(first, draft("ledger.archived"))
        while await store.maintenance.trim():
            pass

    def fold(database: Any, size: int, stop: threading.Event) -> BaseRows:
        made = RowFold(EntryBatches(database))
        slices = made.slices(size)
        next(slices)
        asyncio.run_coroutine_threadsafe(archive_first(), loop).result(30)
        assert sum(1 for _ in slices) > 0
        return BaseRows(0, made.reached, list(made.values().values()))

    counts = store.tables.counts()
    monkeypatch.setattr("vedette.store.retention.make_base_rows", fold)
    with pytest.raises(BadCommand, match="archived meanwhile by somebody else"):
        await store.maintenance.record_archive(second, draft("ledger.archived"))
    await store.maintenance.record_archive(second, draft("ledger.archived"))
    store.view.rebuild()
    assert store.tables.counts() == counts
    store.close()
    assert verified(folder, tmp_path / "second").ok


async def test_a_fold_whose_entries_go_ends(
    folder: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where what is there begins behind its end."""
    monkeypatch.setattr("vedette.store.readmodel.tables.FOLD_SLICE", 4)
    store = open_store(folder, clock)
    fold = RowFold(EntryBatches(store.database))
    slices = fold.slices(20)
    next(slices)
    connection = apsw.Connection(str(folder / "store.db"))
    remove_entries(connection, range(25))
    connection.close()
    assert list(slices) == []
    assert fold.reached < 20
    store.close()
