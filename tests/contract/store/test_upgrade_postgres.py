"""A PostgreSQL store of an older schema is upgraded, while nobody can commit; nothing is lost."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests import pg
from tests.contract.store.test_migrate import KEY, NAME, VERIFIER
from tests.older_store import turn_back_tables

from vedette.adapters.ledger_export import verify_store
from vedette.domain.base.errors import BadStore, StoreBusy
from vedette.store import entry_upgrade
from vedette.store.entry_upgrade import UpgradeResult
from vedette.store.postgres import PostgresReader, PostgresStore
from vedette.store.postgres.database import PostgresDatabase
from vedette.store.postgres.upgrade import upgrade_tables
from vedette.store.schema import SCHEMA
from vedette.testing.clock import ManualClock
from vedette.testing.faults import run_in_child
from vedette.testing.sample_steps import accept_events, closing_step, event

POINTS = {
    "upgrade:before", "upgrade:chunk", "upgrade:mid", "upgrade:proved", "upgrade:replaced",
    "upgrade:after",
}  # fmt: skip


def open_store(url: str, folder: Path) -> PostgresStore:
    return PostgresStore(
        url, folder, fleet="harbour", key=KEY, key_name=NAME, now_us=ManualClock().now_us,
        lease_us=500_000,
    )  # fmt: skip


async def fill(url: str, folder: Path, numbers: range = range(30)) -> list[Any]:
    """Let events come to a store; return its entries with their content."""
    store = open_store(url, folder)
    for number in numbers:
        (run,) = await accept_events(store, event(number))
        await store.steps.commit(closing_step(store, run))
    found = list(store.ledger.walk())
    store.close()
    return found


def upgrade(url: str, told: Callable[[str, int, int], None] | None = None) -> UpgradeResult | None:
    return upgrade_tables(url, VERIFIER, told or (lambda step, count, total: None), patience_s=0.5)


def in_small_chunks(url: str) -> None:
    """Upgrade, a chunk for each forty entries."""
    entry_upgrade._CHUNK_ENTRIES = 40
    upgrade(url)


def ask(url: str, sql: str) -> list[Any]:
    database = PostgresDatabase(url, name="test", hold_ms=0)
    try:
        return database.rows(sql)
    finally:
        database.close()


def edit(url: str, sql: str) -> None:
    database = PostgresDatabase(url, name="test", hold_ms=0)
    database.execute_script(sql)
    database.close()


def schema_of(url: str) -> int:
    return int(ask(url, "SELECT value FROM meta WHERE name='schema'")[0][0])


def tables(url: str) -> set[str]:
    names = ask(url, "SELECT tablename FROM pg_tables WHERE schemaname='public'")
    return {name for (name,) in names}


def check(url: str, folder: Path, entries: list[Any]) -> None:
    """Hold an upgraded store against the entries that it had."""
    reader = PostgresReader(url)
    assert list(reader.ledger.walk()) == entries
    report = verify_store(reader.ledger, VERIFIER, folder / "witness.log")
    assert report.findings == ()
    reader.close()
    assert schema_of(url) == SCHEMA
    assert tables(url) >= {"segment", "place", "rare_entry"}
    assert not tables(url) & {"entry", "body", "view"}


@pytest.mark.parametrize("schema", [2, 3])
async def test_a_store_comes_up_and_goes_on(tmp_path: Path, schema: int) -> None:
    url = pg.database_for(tmp_path)
    entries = await fill(url, tmp_path)
    turn_back_tables(url, schema)
    for attempt in (partial(PostgresReader, url), partial(open_store, url, tmp_path)):
        with pytest.raises(BadStore, match="vedette upgrade") as refused:
            attempt()
        assert refused.value.code == "older-store"
    done = upgrade(url)
    assert done is not None
    assert (done.schema, done.entries, done.size) == (schema, len(entries), entries[-1][0])
    assert done.bytes_after > 0 < done.bytes_before
    check(url, tmp_path, entries)
    assert upgrade(url) is None
    store = open_store(url, tmp_path)
    assert store.loss is None
    (run,) = await accept_events(store, event(99))
    await store.steps.commit(closing_step(store, run))
    assert store.tables.counts()["watcher"]["run.done"] == 31
    assert store.tables.find_wrong_rows() == []
    store.close()
    # What is packed already is not packed again.
    stored = ask(url, "SELECT attstorage FROM pg_attribute WHERE attrelid='segment'::regclass "
                 "AND attname IN ('entries', 'bodies')")  # fmt: skip
    assert stored == [("e",), ("e",)]


@pytest.mark.forks
@pytest.mark.parametrize("schema", [2, 3])
async def test_killed_at_any_point_the_store_is_whole_and_the_upgrade_goes_on(
    tmp_path: Path, schema: int
) -> None:
    points: list[str] = []
    whole = pg.database_for(tmp_path)
    entries = await fill(whole, tmp_path)
    turn_back_tables(whole, schema)
    while True:
        url = pg.server(fsync=False).fresh(whole.rpartition("/")[2])
        died = run_in_child(partial(in_small_chunks, url), die_at=len(points) + 1)
        if not died.killed:
            assert not died.error, died.error
            break
        points.append(died.last_point)
        if schema_of(url) == schema:
            assert ask(url, "SELECT COUNT(*) FROM entry") == [(len(entries),)]
            told: list[tuple[str, int, int]] = []
            done = upgrade(url, lambda *one, told=told: told.append(one))
            assert done is not None
            if points.count("upgrade:chunk"):
                assert told[0][1] >= 40, "it began anew"
        check(url, tmp_path, entries)
    assert set(points) >= POINTS
    assert points.count("upgrade:chunk") >= 2


async def test_nobody_can_commit_meanwhile(tmp_path: Path) -> None:
    url = pg.database_for(tmp_path)
    entries = await fill(url, tmp_path)
    turn_back_tables(url)
    other = PostgresDatabase(url, name="test", hold_ms=0)
    sql = f"SELECT pg_try_advisory_xact_lock({other.lock_key()})"
    assert other.rows(sql) == [(True,)]
    free: list[Any] = []
    upgrade(url, lambda step, count, total: free.extend(other.rows(sql)))
    assert set(free) == {(False,)}
    other.rows(f"SELECT pg_advisory_xact_lock({other.lock_key()})")
    other.close()
    check(url, tmp_path, entries)


async def test_while_a_worker_lives_it_is_refused(tmp_path: Path) -> None:
    url = pg.database_for(tmp_path)
    await fill(url, tmp_path / "one")
    store = open_store(url, tmp_path / "one")
    edit(url, "UPDATE meta SET value='3' WHERE name='schema'")
    with pytest.raises(StoreBusy, match="a worker of this fleet lives"):
        upgrade_tables(url, VERIFIER, lambda step, count, total: None, patience_s=5)
    store.close()


async def test_a_worker_that_was_killed_is_waited_for_once(tmp_path: Path) -> None:
    """Its row stands in the table of workers, and its beat does not move any more."""
    url = pg.database_for(tmp_path)
    entries = await fill(url, tmp_path)
    turn_back_tables(url)
    edit(url, "INSERT INTO worker VALUES('wrk_dead', 7, 11, 0, 0, 'a host')")
    upgrade(url)
    check(url, tmp_path, entries)


@pytest.mark.forks
async def test_an_older_program_may_have_run_in_between(tmp_path: Path) -> None:
    """What it erased was written into segments already: all is made anew."""
    url = pg.database_for(tmp_path)
    entries = await fill(url, tmp_path)
    turn_back_tables(url)
    died = run_in_child(partial(in_small_chunks, url), die_at="upgrade:mid")
    assert died.killed, died.error
    # As if content of another salt had been written there: what is read is not what was.
    edit(url, "UPDATE segment SET bodies=NULL WHERE last=(SELECT MIN(last) FROM segment)")
    told: list[tuple[str, int, int]] = []
    upgrade(url, lambda *one: told.append(one))
    assert ("fill", 0, len(entries)) in told
    check(url, tmp_path, entries)


@pytest.mark.parametrize(
    ("sql", "told"),
    [
        ("UPDATE body SET data='{}'::bytea WHERE seq=1", "entry 1"),
        ("UPDATE entry SET about=1 WHERE seq=8", "entry 8"),
        ("DELETE FROM entry WHERE seq=9; DELETE FROM body WHERE seq=9", "entry 9 is missing"),
    ],
)
async def test_a_store_that_somebody_edited_is_refused_and_left_as_it_is(
    tmp_path: Path, sql: str, told: str
) -> None:
    url = pg.database_for(tmp_path)
    await fill(url, tmp_path)
    turn_back_tables(url)
    edit(url, sql)
    with pytest.raises(BadStore, match=told):
        upgrade(url)
    assert schema_of(url) == 3
    assert tables(url) >= {"entry", "body"}
    assert "segment" not in tables(url)


async def test_without_the_lock_in_the_end_nothing_is_replaced(tmp_path: Path) -> None:
    """The connection that held it was lost: somebody may have committed since."""
    url = pg.database_for(tmp_path)
    entries = await fill(url, tmp_path)
    turn_back_tables(url)

    def end_lock(step: str, count: int, total: int) -> None:
        if step == "prove":
            ask(url, "SELECT pg_terminate_backend(pid, 1000) FROM pg_stat_activity "
                "WHERE application_name='vedette upgrade lock'")  # fmt: skip

    with pytest.raises(StoreBusy, match="was lost"):
        upgrade(url, end_lock)
    assert schema_of(url) == 3
    upgrade(url)
    check(url, tmp_path, entries)


# --- several fleets in one database, by the search path -------------------------------------------


def with_path(url: str, *namespaces: str) -> str:
    """Return a database's URL with a search path."""
    return f"{url}{'&' if '?' in url else '?'}options=-csearch_path%3D{'%2C'.join(namespaces)}"


def lists_of(url: str) -> int:
    """Return how many rows a fleet's read model has, made from its own entries."""
    reader = PostgresReader(url)
    try:
        return sum(sum(counts.values()) for counts in reader.tables.counts().values())
    finally:
        reader.close()


@pytest.mark.parametrize("schema", [2, 3])
async def test_the_tables_of_another_fleet_are_left_alone(tmp_path: Path, schema: int) -> None:
    """Those of this fleet are not there yet, and the search path leads to the other's."""
    url = pg.database_for(tmp_path)
    edit(url, 'CREATE SCHEMA "Fleet-A"')
    own, other = with_path(url, "%22Fleet-A%22", "public"), with_path(url, "public")
    entries = await fill(own, tmp_path / "own")
    turn_back_tables(own, schema)
    theirs = await fill(other, tmp_path / "other", range(10))
    counts = lists_of(other)
    done = upgrade(own)
    assert done is not None
    assert done.entries == len(entries)
    for each, expected in ((own, entries), (other, theirs)):
        reader = PostgresReader(each)
        assert list(reader.ledger.walk()) == expected
        reader.close()
    sql = "SELECT schemaname FROM pg_tables WHERE tablename IN ('segment', 'place', 'rare_entry', "
    sql += "'view_state') GROUP BY 1 HAVING COUNT(*)=4 ORDER BY 1"
    assert ask(url, sql) == [("Fleet-A",), ("public",)]
    assert lists_of(other) == counts
    assert lists_of(own) > counts


@pytest.mark.parametrize("name", ["segment", "rare_entry"])
async def test_a_table_of_something_else_is_neither_filled_nor_dropped(
    tmp_path: Path, name: str
) -> None:
    url = pg.database_for(tmp_path)
    entries = await fill(url, tmp_path)
    turn_back_tables(url)
    edit(url, f"CREATE TABLE {name}(id INT, customer TEXT); INSERT INTO {name} VALUES(1, 'x')")
    for _ in range(2):
        with pytest.raises(BadStore, match=f"table public.{name} already"):
            upgrade(url)
    assert ask(url, f"SELECT id, customer FROM {name}") == [(1, "x")]
    assert schema_of(url) == 3
    edit(url, f"ALTER TABLE {name} RENAME TO customers")
    upgrade(url)
    check(url, tmp_path, entries)


async def test_tables_that_are_not_all_there_are_made_anew(tmp_path: Path) -> None:
    url = pg.database_for(tmp_path)
    entries = await fill(url, tmp_path)
    turn_back_tables(url)
    edit(url, "CREATE TABLE segment(last BIGINT PRIMARY KEY, first BIGINT NOT NULL, "
         "entries BYTEA NOT NULL, bodies BYTEA)")  # fmt: skip
    upgrade(url)
    check(url, tmp_path, entries)


async def test_new_tables_are_not_made_where_the_fleet_is_not(tmp_path: Path) -> None:
    """The search path came to begin with another schema since: it says so."""
    url = pg.database_for(tmp_path)
    entries = await fill(url, tmp_path)
    turn_back_tables(url)
    edit(url, "CREATE SCHEMA later")
    with pytest.raises(BadStore, match="search path begins with another") as refused:
        upgrade(with_path(url, "later", "public"))
    assert "put public first" in str(refused.value.mend)
    assert ask(url, "SELECT tablename FROM pg_tables WHERE schemaname='later'") == []
    upgrade(url)
    check(url, tmp_path, entries)


async def test_a_read_model_of_another_fleet_is_not_taken_for_ones_own(tmp_path: Path) -> None:
    """Neither used nor dropped, whichever form it has."""
    url = pg.database_for(tmp_path)
    edit(url, "CREATE SCHEMA fleet_a")
    own, other = with_path(url, "fleet_a", "public"), with_path(url, "public")
    await fill(own, tmp_path / "own", range(5))
    await fill(other, tmp_path / "other", range(10))
    edit(own, "DROP TABLE fleet_a.view_row, fleet_a.view_list, fleet_a.view_entry, "
         "fleet_a.view_state")  # fmt: skip
    edit(other, "UPDATE view_state SET schema=0")
    open_store(own, tmp_path / "own").close()
    assert ask(url, "SELECT schema FROM public.view_state") == [(0,)]
    assert ask(url, "SELECT COUNT(*) FROM fleet_a.view_state") == [(1,)]
