"""A store of every schema there was is upgraded to this program's, and nothing of it is lost.

tests/fixtures holds one store for each schema, written by the program of its time: twenty-four
runs of two toy agents, two open holds, a denial, a dead letter, and one effect that was intended
when the process was killed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tests.older_store import turn_back_file

from vedette.adapters.ledger_export import checkpoint_size_before, verify_store, write_segment
from vedette.adapters.signing_keys import format_verifier_key
from vedette.domain.base.canonical import canonical_json
from vedette.domain.base.errors import BadStore, StoreBusy
from vedette.domain.entry import Body, Draft
from vedette.domain.erasure import ErasureTarget
from vedette.ledger.verify import Report
from vedette.store import entry_upgrade
from vedette.store.entry_upgrade import UpgradeResult
from vedette.store.schema import SCHEMA, TABLES
from vedette.store.segment import StoredEntry
from vedette.store.sqlite import SqliteReader, SqliteStore
from vedette.store.sqlite.connection import open_database
from vedette.store.sqlite.upgrade import upgrade_file
from vedette.store.stored_entries import write_entries
from vedette.testing.clock import ManualClock
from vedette.testing.faults import run_in_child
from vedette.testing.sample_steps import accept_events, agents_of, closing_step, event
from vedette.testing.toy_fleet import World, job, send_proposal, toy_fleet

NAME = "vedette/harbour"
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
VERIFIER = format_verifier_key(NAME, KEY)
ROOT = Path(__file__).parents[3]
FIXTURES = ROOT / "tests" / "fixtures"
OLD = range(1, SCHEMA)
HELD = "act_b4d0ed684e9a2362db93bb8201758ce4"
DAY = 86_400_000_000

# Where an upgrade must have died, or the kills did not try what they are for.
POINTS = {
    "upgrade:before", "upgrade:chunk", "upgrade:tables", "upgrade:mid", "upgrade:proved",
    "upgrade:folded", "upgrade:kept", "upgrade:renamed", "upgrade:after",
}  # fmt: skip


def open_store(folder: Path, clock: ManualClock | None = None) -> SqliteStore:
    return SqliteStore(
        folder, fleet="harbour", key=KEY, key_name=NAME,
        now_us=(clock or ManualClock()).now_us, synchronous="OFF",
    )  # fmt: skip


def unpacked(schema: int, to: Path) -> Path:
    with tarfile.open(FIXTURES / f"store_schema_{schema}.tar.xz") as archive:
        archive.extractall(to, filter="data")
    return to / "state"


def key_of(state: Path) -> str:
    """Return the key that lies beside a store, else that of these tests."""
    public = state / "ledger.pub"
    return public.read_text().strip() if public.exists() else VERIFIER


def upgrade(state: Path, told: Callable[[str, int, int], None] | None = None) -> UpgradeResult:
    done = upgrade_file(state, key_of(state), told or (lambda step, count, total: None))
    assert done is not None
    return done


def verified(state: Path) -> Report:
    """Verify an upgraded store with all its rows, as `vedette verify` does."""
    reader = SqliteReader(state)
    try:
        return verify_store(reader.ledger, key_of(state), state / "witness.log")
    finally:
        reader.close()


def schema_of(path: Path) -> int:
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    ((found,),) = connection.execute("PRAGMA user_version").fetchall()
    connection.close()
    assert isinstance(found, int)
    return found


def old_entries(path: Path) -> list[Any]:
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    sql = (
        "SELECT e.seq, e.bytes, b.salt, b.data FROM entry e LEFT JOIN body b ON b.seq=e.seq "
        "ORDER BY e.seq"
    )
    found = connection.execute(sql).fetchall()
    connection.close()
    return found


def new_entries(state: Path) -> list[Any]:
    reader = SqliteReader(state)
    found = [tuple(one) for one in reader.ledger.walk()]
    reader.close()
    return found


def digest(state: Path) -> dict[str, str]:
    """Return the digest of each file of a state folder."""
    files = (file for file in state.rglob("*") if file.is_file())
    return {
        str(file.relative_to(state)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in files
        # A reader makes an index of the log, and an empty log.
        if not file.name.endswith("-shm") and (file.stat().st_size or file.suffix != ".db-wal")
    }


def edit(path: Path, *statements: str) -> None:
    connection = apsw.Connection(str(path))
    for each in statements:
        connection.execute(each)
    connection.close()


async def grow(store: SqliteStore, numbers: range) -> None:
    for number in numbers:
        (run,) = await accept_events(store, event(number))
        await store.steps.commit(closing_step(store, run))


@pytest.mark.parametrize("schema", OLD)
async def test_a_store_of_an_older_schema_goes_on(tmp_path: Path, schema: int) -> None:
    upgrade(unpacked(schema, tmp_path))
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
def test_an_upgrade_that_breaks_off_leaves_the_store_as_it_was(
    tmp_path: Path, schema: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = unpacked(schema, tmp_path)
    step = {1: "ONE_TO_THREE", 2: "TWO_TO_THREE", 3: "TABLES"}[schema]
    monkeypatch.setattr(f"vedette.store.sqlite.upgrade.{step}", "INSERT INTO no VALUES(1)")
    before = digest(folder)
    with pytest.raises(apsw.Error):
        upgrade(folder)
    shutil.rmtree(folder / "upgrade")
    assert digest(folder) == before
    monkeypatch.undo()
    assert upgrade(folder).schema == schema


def test_a_newer_store_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    edit(path, f"PRAGMA user_version={SCHEMA + 1}", "CREATE TABLE some(thing)")
    for attempt in (
        partial(open_database, path, write=True),
        partial(open_database, path, write=False),
        partial(upgrade, tmp_path),
    ):
        with pytest.raises(BadStore, match="use the version of vedette that wrote it"):
            attempt()


@pytest.mark.parametrize("schema", OLD)
def test_an_older_store_is_neither_read_nor_written_before_it_was_upgraded(
    tmp_path: Path, schema: int
) -> None:
    """Nothing is brought up by the way: whoever opens it is told what to do."""
    folder = unpacked(schema, tmp_path)
    before = digest(folder)
    for write in (False, True):
        with pytest.raises(BadStore, match="vedette upgrade") as refused:
            open_database(folder / "store.db", write=write)
        assert refused.value.code == "older-store"
    assert digest(folder)["store.db"] == before["store.db"] or schema == 2  # as of WAL from then on
    assert schema_of(folder / "store.db") == schema


def test_what_has_this_schema_already_is_left_alone(tmp_path: Path) -> None:
    folder = unpacked(3, tmp_path)
    done = upgrade(folder)
    before = digest(folder)
    assert upgrade_file(folder, key_of(folder), lambda step, count, total: None) is None
    assert digest(folder) == before
    assert (done.schema, done.entries, done.size) == (3, 146, 146)
    assert done.root == verified(folder).root.hex()
    assert done.kept == str(folder / "before" / "schema-3")


@pytest.mark.parametrize("schema", OLD)
def test_entries_and_content_are_byte_by_byte_the_same(tmp_path: Path, schema: int) -> None:
    folder = unpacked(schema, tmp_path)
    before = old_entries(folder / "store.db")
    upgrade(folder)
    assert new_entries(folder) == before
    assert old_entries(folder / "before" / f"schema-{schema}" / "store.db") == before
    assert verified(folder).findings == ()
    reader = SqliteReader(folder)
    # A segment holds what one commit group wrote.
    ends = reader.database.rows("SELECT last FROM segment ORDER BY last")
    assert ends == reader.database.rows("SELECT size FROM checkpoint ORDER BY size")
    reader.close()


# --- killed -----------------------------------------------------------------------------------


def in_small_chunks(state: Path) -> None:
    """Upgrade, a chunk for each forty entries."""
    entry_upgrade._CHUNK_ENTRIES = 40
    upgrade(state)


@pytest.mark.forks
@pytest.mark.parametrize("schema", OLD)
def test_killed_at_any_point_there_is_a_whole_store_and_the_upgrade_goes_on(
    tmp_path: Path, schema: int
) -> None:
    whole = unpacked(schema, tmp_path / "whole")
    before = old_entries(whole / "store.db")
    points: list[str] = []
    while True:
        state = tmp_path / str(len(points)) / "state"
        shutil.copytree(whole, state)
        died = run_in_child(partial(in_small_chunks, state), die_at=len(points) + 1)
        if not died.killed:
            assert not died.error, died.error
            break
        points.append(died.last_point)
        found = schema_of(state / "store.db")
        assert found in (schema, SCHEMA)
        if found == schema:
            assert old_entries(state / "store.db") == before
        done = upgrade_file(state, key_of(state), lambda step, count, total: None)
        assert (done is None) is (found == SCHEMA)
        assert new_entries(state) == before
        report = verified(state)
        assert report.ok, report.findings
        kept = state / "before" / f"schema-{schema}" / "store.db"
        assert schema_of(kept) == schema
        assert not (state / "upgrade").exists()
    assert points.count("upgrade:chunk") >= 3
    assert set(points) >= POINTS | (
        {"upgrade:copied", "copy:mid"} if schema < SCHEMA - 1 else set()
    )


@pytest.mark.forks
async def test_what_a_killed_upgrade_left_goes_when_the_store_is_opened(tmp_path: Path) -> None:
    """The new file was in its place, and nobody orders an upgrade any more."""
    store = open_store(tmp_path)
    await grow(store, range(4))
    store.close()
    turn_back_file(tmp_path)
    died = run_in_child(partial(in_small_chunks, tmp_path), die_at="upgrade:renamed")
    assert died.killed
    assert (tmp_path / "upgrade").exists()
    SqliteReader(tmp_path).close()
    assert (tmp_path / "upgrade").exists(), "who only reads removes nothing"
    open_store(tmp_path).close()
    assert not (tmp_path / "upgrade").exists()


@pytest.mark.parametrize(
    "left",
    [
        "a folder",
        "garbage",
        "other tables",
        "another schema",
        "some tables",
        "a file for the folder",
    ],
)
def test_what_another_program_left_in_the_folder_is_made_anew(tmp_path: Path, left: str) -> None:
    state = unpacked(3, tmp_path)
    before = old_entries(state / "store.db")
    new = state / "upgrade" / "new.db"
    if left == "a file for the folder":
        new.parent.write_bytes(b"x")
    else:
        new.parent.mkdir()
    if left == "a folder":
        (new / "within").mkdir(parents=True)
    elif left == "garbage":
        new.write_bytes(b"x" * 10_000)
    elif left == "other tables":
        edit(new, "CREATE TABLE some(thing)", f"PRAGMA user_version={SCHEMA}")
    elif left == "another schema":
        edit(new, TABLES, f"PRAGMA user_version={SCHEMA + 1}")
    elif left == "some tables":
        edit(new, TABLES, "DROP TABLE rare_entry", f"PRAGMA user_version={SCHEMA}")
    upgrade(state)
    assert new_entries(state) == before
    assert verified(state).ok
    assert not (state / "upgrade").exists()


@pytest.mark.forks
def test_what_was_written_is_not_written_again(tmp_path: Path) -> None:
    state = unpacked(3, tmp_path)
    died = run_in_child(partial(in_small_chunks, state), die_at="upgrade:chunk")
    assert died.killed
    told: list[tuple[str, int, int]] = []
    upgrade(state, lambda *one: told.append(one))
    step, count, total = told[0]
    assert (step, total) == ("fill", 146)
    assert 40 <= count < 146
    assert told[-1] == ("prove", 146, 146)


@pytest.mark.forks
@pytest.mark.parametrize(
    ("schema", "point"),
    [(3, "upgrade:chunk"), (3, "upgrade:mid"), (3, "upgrade:kept"), (2, "upgrade:mid")],
)
async def test_an_older_program_may_have_run_in_between(
    tmp_path: Path, schema: int, point: str
) -> None:
    """It wrote, and erased what was written into segments already: all is made anew."""
    early, late = tmp_path / "early", tmp_path / "late"
    store = open_store(early)
    await grow(store, range(60))
    store.close()
    shutil.copytree(early, late)
    store = open_store(late)
    first = next(
        run
        for run in store.runs.runs_page(agent=None, state=None, before=None, limit=100)
        if run.position == 1
    )
    why = Draft("body.erased", {"actor": "person:kim"}, body=Body(canonical_json({"reason": "r"})))
    await store.commands.erase(ErasureTarget("event", first.event), why, stateless=agents_of(store))
    await grow(store, range(60, 70))
    store.close()
    turn_back_file(early, schema)
    turn_back_file(late, schema)
    died = run_in_child(partial(in_small_chunks, early), die_at=point)
    assert died.killed, died.error
    # As the older program left it.
    for name in ("store.db", "witness.log"):
        shutil.copy2(late / name, early / name)
    after = old_entries(early / "store.db")
    told: list[tuple[str, int, int]] = []
    upgrade(early, lambda *one: told.append(one))
    assert new_entries(early) == after
    assert verified(early).ok
    assert told.count(("fill", 0, len(after))) == 1, "it was not begun anew"


def test_what_cannot_be_written_right_is_an_error_that_names_the_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = unpacked(3, tmp_path)
    before = digest(state)
    attempts: list[StoredEntry] = []

    def spoil(database: Any, entries: list[StoredEntry], rare: Any) -> None:
        if entries[0].seq == 4:
            attempts.append(entries[0])
            entries = [
                StoredEntry(4, entries[0].raw, 4, b"another salt", entries[0].data),
                *entries[1:],
            ]
        write_entries(database, entries, rare)

    monkeypatch.setattr(entry_upgrade, "write_entries", spoil)
    with pytest.raises(BadStore, match="entry 4 differs in salt"):
        upgrade(state)
    assert len(attempts) == 2
    assert digest(state) == before


# --- tampered, busy, archived -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("edits", "told"),
    [
        (["UPDATE entry SET bytes=replace(CAST(bytes AS TEXT), '\"turn\":1', '\"turn\":2') "
          "WHERE kind='turn.reasoned' AND seq=(SELECT MIN(seq) FROM entry WHERE "
          "kind='turn.reasoned')"], "entries 1 to 10"),
        (["UPDATE body SET data=CAST('{\"value\":7}' AS BLOB) WHERE seq=4"], "entry 4"),
        (["DELETE FROM body WHERE seq=4"], "entry 4"),
        (["UPDATE entry SET about=5 WHERE seq=8"], "entry 8"),
        (["INSERT INTO body VALUES(3, x'00', x'00')"], "entry 3"),
        (["INSERT INTO body VALUES(9999, x'00', x'00')"], "entry 9999"),
        (["DELETE FROM entry WHERE seq=10", "DELETE FROM body WHERE seq=10"],
         "entry 10 is missing"),
        (["UPDATE checkpoint SET note=replace(note, 'harbour', 'harbor')"], "checkpoint|note"),
        (["UPDATE meta SET value='00' WHERE name='frontier'"], "tree"),
    ],
)  # fmt: skip
def test_a_store_that_somebody_edited_is_refused_and_left_as_it_is(
    tmp_path: Path, edits: list[str], told: str
) -> None:
    """The control is every other test: without the edit the same store is upgraded."""
    state = unpacked(3, tmp_path)
    edits = [each.replace("SET bytes=replace(", "SET bytes=CAST(replace(").replace(
        "'\"turn\":2')", "'\"turn\":2') AS BLOB)") for each in edits]  # fmt: skip
    edit(state / "store.db", *edits)
    before = digest(state)
    with pytest.raises(BadStore, match=told) as refused:
        upgrade(state)
    assert "does not verify" in refused.value.what
    assert "nothing was changed" in str(refused.value.mend)
    assert digest(state) == before


def test_the_log_of_a_killed_runner_is_no_loss_and_stays_behind(tmp_path: Path) -> None:
    """What it holds is upgraded; it does not lie beside the new file, which it would spoil."""
    state = unpacked(3, tmp_path)
    before = old_entries(state / "store.db")
    connection = apsw.Connection(str(state / "store.db"))
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA wal_autocheckpoint=0")
    connection.execute("UPDATE run SET steps=steps+1")
    connection.execute("INSERT INTO meta VALUES('only in', 'the log')")
    killed = tmp_path / "killed"
    shutil.copytree(state, killed)
    connection.close()
    assert (killed / "store.db-wal").stat().st_size > 0
    upgrade(killed)
    assert not (killed / "store.db-wal").exists()
    reader = SqliteReader(killed)
    assert reader.meta("only in") == "the log"
    reader.close()
    assert new_entries(killed) == before


def test_the_way_back_that_is_told_leads_back_beside_the_log_of_a_killed_runner(
    tmp_path: Path,
) -> None:
    """Word by word as the guide has it; a log that stays is read into the older file."""
    state = unpacked(3, tmp_path / "whole")
    before = old_entries(state / "store.db")
    upgrade(state)
    connection = apsw.Connection(str(state / "store.db"))
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA wal_autocheckpoint=0")
    connection.execute("UPDATE run SET attempts=attempts+1")
    killed = tmp_path / "killed"
    shutil.copytree(state, killed)
    connection.close()
    assert (killed / "store.db-wal").stat().st_size > 0
    guide = (ROOT / "docs/guides/operate.md").read_text()
    section = guide[guide.index("Back to the older version") :]
    script = section.split("```sh\n")[1].split("```")[0]
    subprocess.run(["sh", "-e", "-c", script], cwd=killed, check=True, timeout=30)
    assert schema_of(killed / "store.db") == 3
    assert old_entries(killed / "store.db") == before
    assert (killed / "before" / "schema-3" / "store.db").exists()
    assert upgrade(killed).schema == 3
    assert new_entries(killed) == before


def test_while_somebody_reads_the_store_it_is_not_replaced(tmp_path: Path) -> None:
    state = unpacked(3, tmp_path)
    edit(state / "store.db", "PRAGMA journal_mode=WAL", "UPDATE run SET wake_us=wake_us")
    reading = apsw.Connection(str(state / "store.db"), flags=apsw.SQLITE_OPEN_READONLY)
    reading.execute("SELECT COUNT(*) FROM entry").fetchall()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vedette.store.sqlite.upgrade._EXCLUSIVE_MS", 1)
        with pytest.raises(StoreBusy, match="somebody reads the store"):
            upgrade(state)
    assert schema_of(state / "store.db") == 3
    reading.close()
    told: list[tuple[str, int, int]] = []
    upgrade(state, lambda *one: told.append(one))
    assert told[0] == ("fill", 146, 146)
    assert verified(state).ok


def test_the_old_file_is_kept_by_a_link_or_where_there_are_none_by_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    linked, copied = unpacked(3, tmp_path / "one"), unpacked(3, tmp_path / "two")
    inode = (linked / "store.db").stat().st_ino
    upgrade(linked)
    assert (linked / "before" / "schema-3" / "store.db").stat().st_ino == inode

    def refuse(*paths: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    upgrade(copied)
    for state in (linked, copied):
        kept = state / "before" / "schema-3"
        assert schema_of(kept / "store.db") == 3
        assert (kept / "witness.log").exists()
        assert verified(state).ok


async def archived_store(state: Path, *, trimmed: int = 1_000_000) -> int:
    """Make a store of ten days, its first six archived; return how many entries were.

    Of the segments that were archived `trimmed` are deleted.
    """
    clock = ManualClock()
    store = open_store(state, clock)
    for day in range(10):
        await grow(store, range(day * 4, day * 4 + 4))
        clock.advance(DAY)
    ledger = store.ledger
    size = checkpoint_size_before(ledger, clock.now_us() - 4 * DAY, ledger.first_open_entry())
    archived = write_segment(ledger, state / "archive", size, VERIFIER)
    why = Draft("body.erased", {"actor": "person:kim"}, body=Body(canonical_json({"reason": "r"})))
    stateless = agents_of(store)
    while rows := store.maintenance.expiring_bodies(archived.size):
        await store.maintenance.expire(rows, why, stateless=stateless)
    made = Draft("ledger.archived", {"actor": "person:kim"}, body=why.body)
    await store.maintenance.record_archive(archived, made)
    if trimmed:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("vedette.store.retention.SEGMENTS", trimmed)
            await store.maintenance.trim()
    store.close()
    return size


@pytest.mark.parametrize("schema", [2, 3])
@pytest.mark.parametrize("trimmed", [1_000_000, 7, 0])
async def test_an_archived_store_is_upgraded_with_what_it_has_left(
    tmp_path: Path, schema: int, trimmed: int
) -> None:
    """Also where it was killed before all that is archived had gone."""
    size = await archived_store(tmp_path, trimmed=trimmed)
    path = turn_back_file(tmp_path, schema)
    before = old_entries(path)
    assert (before[0][0] > size) is (trimmed > 7)
    done = upgrade(tmp_path)
    assert new_entries(tmp_path) == before
    assert (done.entries, done.size) == (len(before), before[-1][0])
    report = verified(tmp_path)
    assert (report.findings, report.archived) == ((), size)
    store = open_store(tmp_path)
    await store.maintenance.trim()
    await grow(store, range(100, 102))
    assert store.ledger.walk().__next__()[0] == size + 1
    store.close()
    assert verified(tmp_path).ok


async def test_entries_whose_checkpoints_went_are_no_single_chunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Archived, and killed before all of them had gone: what is held in memory is bounded."""
    size = await archived_store(tmp_path, trimmed=1)
    path = turn_back_file(tmp_path)
    before = old_entries(path)
    assert before[0][0] + 40 <= size
    monkeypatch.setattr(entry_upgrade, "_CHUNK_ENTRIES", 40)
    told: list[tuple[str, int, int]] = []
    upgrade(tmp_path, lambda *one: told.append(one))
    assert told[:2] == [("fill", 0, len(before)), ("fill", 40, len(before))]
    assert new_entries(tmp_path) == before
    assert verified(tmp_path).ok


async def test_what_an_archived_ledger_came_to_outlives_the_upgrade(tmp_path: Path) -> None:
    """The control: without an archive the rows are not kept, as the entries tell all of them."""
    for archived in (True, False):
        state = tmp_path / str(archived)
        if archived:
            await archived_store(state)
        else:
            store = open_store(state)
            await grow(store, range(8))
            store.close()
        store = open_store(state)
        counts = store.tables.counts()
        rows = store.view.rows("SELECT name, id, version, sort, data FROM view_row")
        store.close()
        path = turn_back_file(state, 2)
        connection = apsw.Connection(str(path))
        connection.executemany("INSERT INTO view VALUES(?,?,?,?,?)", rows)
        connection.close()
        upgrade(state)
        store = open_store(state)
        # What is in no list could be seen by nobody: every entry that is there is in its own.
        there = [seq for seq, *_ in store.ledger.walk(("run.closed",))]
        page = store.ledger.entries_page({"kind": "run.closed"}, before=None, after=None, limit=50)
        assert [seq for seq, _ in page[::-1]] == there
        assert len(there) >= 8
        kept = store.database.rows("SELECT COUNT(*) FROM view_base")
        assert kept == [(len(rows) if archived else 0,)]
        assert store.tables.counts() == counts
        store.close()
