"""A store of every schema there was is brought to this program's, and nothing of it is lost.

tests/fixtures holds one store for each schema, written by the program of its time: twenty-four
runs of two toy agents, two open holds, a denial, a dead letter, and one effect that was intended
when the process was killed.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

import apsw
import pytest

from vedette.adapters.ledger_export import verify_store
from vedette.domain.base.errors import BadStore
from vedette.store.schema import SCHEMA
from vedette.store.sqlite import SqliteReader
from vedette.testing.toy_fleet import World, job, send_proposal, toy_fleet

FIXTURES = Path(__file__).parents[2] / "fixtures"
OLD = range(1, SCHEMA)
HELD = "act_b4d0ed684e9a2362db93bb8201758ce4"


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
    monkeypatch.setattr("vedette.store.sqlite.migration._ONE_TO_TWO", "INSERT INTO no VALUES(1)")
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
