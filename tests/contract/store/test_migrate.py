"""A store of every schema there was is brought to this program's, and nothing of it is lost.

tests/fixtures holds one store for each schema, written by the program of its time: twenty-four
runs of two toy agents, two open holds, a denial, a dead letter, and one effect that was intended
when the process was killed.
"""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import apsw
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tests import pg

from vedette.adapters.ledger_export import verify_store
from vedette.domain.base.errors import BadStore
from vedette.store.postgres import PostgresReader, PostgresStore
from vedette.store.postgres.database import PostgresDatabase
from vedette.store.postgres.schema import translate_tables
from vedette.store.schema import SCHEMA
from vedette.store.sqlite import SqliteReader, SqliteStore
from vedette.testing.clock import ManualClock
from vedette.testing.sample_steps import accept_events, closing_step, event
from vedette.testing.toy_fleet import World, job, send_proposal, toy_fleet

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
FIXTURES = Path(__file__).parents[2] / "fixtures"
OLD = range(1, SCHEMA)
HELD = "act_b4d0ed684e9a2362db93bb8201758ce4"


def open_store(folder: Path) -> SqliteStore:
    return SqliteStore(
        folder, fleet="harbour", key=KEY, key_name="vedette/harbour",
        now_us=ManualClock().now_us, synchronous="OFF",
    )  # fmt: skip


def remove_view(folder: Path) -> None:
    for file in folder.glob("view.db*"):
        file.unlink()


def unpacked(schema: int, to: Path) -> Path:
    with tarfile.open(FIXTURES / f"store_schema_{schema}.tar.xz") as archive:
        archive.extractall(to, filter="data")
    return to / "state"


@pytest.mark.parametrize("schema", OLD)
async def test_a_store_of_an_older_schema_goes_on(tmp_path: Path, schema: int) -> None:
    unpacked(schema, tmp_path)
    world = World()
    async with toy_fleet(tmp_path, world, agents=("worker", "helper")) as fleet:
        await fleet.wait_until_idle()
        store = fleet.app.store
        assert store.tables.counts()["worker"] == {
            "run.dead": 1, "run.done": 15, "run.waiting": 2, "decided.deny": 1,
            "decided.hold": 2, "decided.permit": 26, "effect.done": 26, "hold.open": 2,
        }  # fmt: skip
        # What was intended at the kill is done once, under the key it had then.
        (call,) = world.calls
        assert call.args["text"] == "in flight"
        old = store.runs.action(f"act_{call.key}")
        assert old is not None
        assert old.effect == "done"
        # The rules of then deny every question of now: a person makes those of now live first.
        assert "loosens what is live" in fleet.app.troubles[0]
        await fleet.send(before := job("before", send_proposal("before"), key="other"))
        await fleet.wait_until_idle()
        (denied,) = fleet.actions(before)
        assert (denied.decided, denied.rule) == ("deny", "identity.schema")
        assert (await fleet.apply_policy(fleet.policies))["ok"]
        # A hold of then is answered now, and is done under its own key.
        assert {held.id for held in store.runs.holds_page(after=0, limit=10)} >= {HELD}
        held = store.runs.action(HELD)
        assert held is not None
        await fleet.approve(held, "it is right")
        await fleet.wait_until_idle()
        assert world.keys("big.send") == {HELD.removeprefix("act_"): 1}
        # A judge goes on from all that it saw of the key: 0, 3, 6, 9 and two jobs of value 0.
        await fleet.send(job("new", send_proposal("new"), key="k0", value=1))
        await fleet.wait_until_idle()
        (run,) = store.runs.runs_page(agent="worker", state=None, before=None, limit=1)
        assert store.runs.turns(run.id)[0]["label"] == "sum 19 of 6"
        # A redelivery of then is still known.
        (receipt,) = await fleet.send(job("w3", send_proposal("hello 3"), key="k0", value=3))
        assert receipt.status == "duplicate"
        folder = fleet.folder / "state"
        public = (folder / "ledger.pub").read_text()
        report = verify_store(store.ledger, public, folder / "witness.log")
        assert report.ok, report.findings


@pytest.mark.parametrize("schema", OLD)
async def test_a_migration_that_breaks_off_leaves_the_store_as_it_was(
    tmp_path: Path, schema: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = unpacked(schema, tmp_path)
    step = {1: "_FROM_ONE", 2: "TWO_TO_THREE"}[schema]
    monkeypatch.setattr(f"vedette.store.sqlite.migration.{step}", "INSERT INTO no VALUES(1)")
    with pytest.raises(apsw.Error):
        async with toy_fleet(tmp_path, World(), agents=("worker", "helper")):
            pass
    connection = apsw.Connection(str(folder / "store.db"))
    assert connection.execute("PRAGMA user_version").fetchall() == [(schema,)]
    assert connection.execute("SELECT COUNT(*) FROM run").fetchall() == [(30,)]
    connection.close()


def test_a_newer_store_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    connection = apsw.Connection(str(path))
    connection.execute(f"PRAGMA user_version={SCHEMA + 1}")
    connection.close()
    from vedette.store.sqlite.connection import open_database

    with pytest.raises(BadStore, match="use the version of vedette that wrote it"):
        open_database(path, write=True)


def test_an_older_store_is_not_read_before_it_was_brought_up(tmp_path: Path) -> None:
    """A reader changes nothing, so it says what to do instead of failing at some query."""
    folder = unpacked(1, tmp_path)
    with pytest.raises(BadStore, match="vedette run"):
        SqliteReader(folder)


# --- from schema 2 ----------------------------------------------------------------------------

# What schema 2 had, and schema 3 has not.
SCHEMA_2 = """
CREATE TABLE view(
  name TEXT NOT NULL, id TEXT NOT NULL, version INTEGER NOT NULL, sort INTEGER NOT NULL,
  data BLOB NOT NULL, PRIMARY KEY(name, id)
) STRICT, WITHOUT ROWID;
DROP INDEX entry_rare;
CREATE INDEX entry_agent ON entry(agent, kind, seq) WHERE agent IS NOT NULL;
CREATE INDEX entry_kind ON entry(kind, seq) WHERE kind NOT IN ('event.accepted', 'run.closed');
CREATE INDEX entry_rule ON entry(rule, outcome, seq) WHERE kind = 'action.decided';
CREATE INDEX entry_rev ON entry(policy_rev, outcome, seq) WHERE kind = 'action.decided';
CREATE INDEX entry_actor ON entry(actor, seq) WHERE actor IS NOT NULL;
DROP TABLE view_base;
"""


async def test_a_postgresql_store_of_schema_2_comes_up(tmp_path: Path) -> None:
    url = pg.database_for(tmp_path)
    names: dict[str, Any] = {"fleet": "harbour", "key": KEY, "key_name": "vedette/harbour"}
    store = PostgresStore(url, tmp_path / "one", now_us=ManualClock().now_us, **names)
    for number in range(4):
        (run,) = await accept_events(store, event(number))
        await store.steps.commit(closing_step(store, run))
    counts = store.tables.counts()
    rows = store.view.rows("SELECT name, id, version, sort, data FROM view_row")
    store.close()
    database = PostgresDatabase(url, name="test", hold_ms=0)
    database.execute_script("DROP TABLE view_row, view_list, view_entry, view_state")
    database.execute_script(translate_tables(SCHEMA_2))
    database.execute_many("INSERT INTO view(name,id,version,sort,data) VALUES(?,?,?,?,?)", rows)
    database.execute("UPDATE meta SET value='2' WHERE name='schema'")
    with pytest.raises(BadStore, match="older schema 2"):
        PostgresReader(url)
    store = PostgresStore(url, tmp_path / "one", now_us=ManualClock().now_us, **names)
    assert store.meta("schema") == str(SCHEMA)
    assert store.tables.counts() == counts
    assert store.tables.find_wrong_rows() == []
    (there,) = database.rows("SELECT to_regclass('view') IS NULL, to_regclass('entry_rare')")
    assert there == (True, "entry_rare")
    store.close()
    database.close()


async def test_what_an_archived_ledger_came_to_outlives_the_migration(tmp_path: Path) -> None:
    """The control: without an archive the rows are not kept, as the entries tell all of them."""
    path = tmp_path / "store.db"
    for archived in (True, False):
        store = open_store(tmp_path)
        for number in range(10 * archived, 10 * archived + 4):
            (run,) = await accept_events(store, event(number))
            await store.steps.commit(closing_step(store, run))
        counts = store.tables.counts()
        rows = store.view.rows("SELECT name, id, version, sort, data FROM view_row")
        store.close()
        connection = apsw.Connection(str(path))
        connection.execute(SCHEMA_2)
        connection.executemany("INSERT INTO view VALUES(?,?,?,?,?)", rows)
        connection.execute("PRAGMA user_version=2")
        if archived:
            connection.execute("DELETE FROM entry WHERE seq<=4")
            connection.execute("INSERT INTO meta VALUES('archived', '{}')")
        else:
            connection.execute("DELETE FROM meta WHERE name IN ('archived', 'view_base')")
        connection.close()
        remove_view(tmp_path)
        store = open_store(tmp_path)
        # What is in no list could be seen by nobody: every entry that is there is in its own.
        there = store.database.rows("SELECT seq FROM entry WHERE kind='run.closed' ORDER BY seq")
        page = store.ledger.entries_page({"kind": "run.closed"}, before=None, after=None, limit=50)
        assert [(seq,) for seq, _ in page[::-1]] == there
        assert len(there) >= 2
        kept = store.database.rows("SELECT COUNT(*) FROM view_base")
        assert kept == [(len(rows) if archived else 0,)]
        assert (store.tables.counts() == counts) is archived
        store.close()
