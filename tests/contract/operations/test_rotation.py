"""Keys are rotated: the chain is followed from the first public key alone, and by nobody else."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec.structs import replace
from tests.segments import add_entry

from vedette.adapters.ledger_export import (
    LedgerExport,
    export,
    prove_consistency,
    prove_inclusion,
    verify_consistency_proof,
    verify_inclusion_proof,
    verify_store,
)
from vedette.adapters.signing_keys import (
    KEY_FILE,
    PUBLIC_FILE,
    KeyFolder,
    format_verifier_key,
    next_key_files,
    open_ledger_key,
    read_signing_key,
)
from vedette.config.settings import Settings
from vedette.domain.base import failpoint
from vedette.domain.base.canonical import canonical_json
from vedette.domain.base.errors import AlreadyDone, BadCommand, BadStore, StoreBusy, StoreFailed
from vedette.domain.entry import Body, Draft
from vedette.domain.identity import Principal
from vedette.ledger.merkle import Checkpoint, Frontier, ProofError, leaf_hash, parse_note, sign_note
from vedette.ledger.verify import Code, Report, verify_ledger
from vedette.operations.maintenance import Maintenance
from vedette.store.sqlite import SqliteReader, SqliteStore
from vedette.testing.clock import ManualClock
from vedette.testing.harness import FleetHarness
from vedette.testing.sample_steps import accept_events, closing_step, event
from vedette.testing.toy_fleet import World, toy_fleet

ROOT = Path(__file__).resolve().parents[3]
FLEET = "harbour"
NAME = f"vedette/{FLEET}"
FORGER = Ed25519PrivateKey.from_private_bytes(bytes(range(1, 33)))


def in_force(folder: Path) -> str | None:
    if not (folder / "store.db").exists():
        return None
    store = SqliteReader(folder)
    try:
        return store.ledger.key_in_force()
    finally:
        store.close()


def open_store(folder: Path) -> SqliteStore:
    key = open_ledger_key(folder, NAME, lambda: in_force(folder))
    return SqliteStore(
        folder, fleet=FLEET, key=key, key_name=NAME, now_us=ManualClock().now_us, synchronous="OFF"
    )


async def grow(store: SqliteStore, numbers: range) -> None:
    for number in numbers:
        (run,) = await accept_events(store, event(number))
        await store.steps.commit(closing_step(store, run))


def rotation(reason: str = "a year is over") -> Draft:
    return Draft(
        "key.rotated", {"actor": "person:kim"}, body=Body(canonical_json({"reason": reason}))
    )


async def rotate(store: SqliteStore, folder: Path) -> str:
    keys = KeyFolder(folder, NAME)
    key, line = keys.prepare()
    await store.maintenance.rotate(key, line, rotation())
    keys.finish(key)
    return line


def verified(folder: Path, key: str | None = None) -> Report:
    store = SqliteReader(folder)
    try:
        line = key or (folder / "ledger.pub").read_text().strip()
        return verify_store(store.ledger, line, folder / "witness.log")
    finally:
        store.close()


@pytest.fixture
async def twice(tmp_path: Path) -> Path:
    """A store whose key was rotated twice, with a restart in between."""
    folder = tmp_path / "state"
    store = open_store(folder)
    await grow(store, range(3))
    await rotate(store, folder)
    await grow(store, range(3, 6))
    store.close()
    store = open_store(folder)
    await rotate(store, folder)
    await grow(store, range(6, 9))
    store.close()
    return folder


def test_the_chain_is_followed_from_the_first_key(twice: Path) -> None:
    report = verified(twice)
    assert report.findings == ()
    assert (report.keys, report.size) == (3, report.signed)
    assert report.witnessed == report.size
    # The control: the present key is not where the chain begins.
    last = in_force(twice)
    assert last is not None
    assert Code.BAD_NOTE in verified(twice, last).counts


def test_the_old_private_key_is_gone(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    open_ledger_key(folder, NAME, lambda: None)
    before = (folder / KEY_FILE).read_bytes()
    held = (folder / KEY_FILE).open("rb")
    keys = KeyFolder(folder, NAME)
    key, line = keys.prepare()
    (prepared,) = next_key_files(folder)
    assert prepared.stat().st_mode & 0o777 == 0o600
    keys.finish(key)
    assert (
        format_verifier_key(NAME, read_signing_key(folder / KEY_FILE))
        == line
        == format_verifier_key(NAME, key)
    )
    assert next_key_files(folder) == []
    assert all(before not in path.read_bytes() for path in folder.iterdir())
    # Whoever holds the old file open finds nothing in it either.
    assert held.read() == bytes(32)
    held.close()


def test_the_old_private_key_is_gone_though_the_disk_kept_no_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_ledger_key(tmp_path, NAME, lambda: None)
    keys = KeyFolder(tmp_path, NAME)
    key, _ = keys.prepare()
    sync = os.fsync

    def broken(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EIO, "the folder could not be synced")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", broken)
    with (tmp_path / KEY_FILE).open("rb") as held:
        with pytest.raises(OSError, match="could not be synced"):
            keys.finish(key)
        assert held.read() == bytes(32)


async def test_a_rotation_that_is_not_committed_changes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    store = open_store(folder)
    await grow(store, range(2))
    keys = KeyFolder(folder, NAME)
    key, line = keys.prepare()
    await store.maintenance.rotate(key, line, rotation(), command="once")
    with pytest.raises(BadCommand, match="carried out before"):
        await store.maintenance.rotate(
            *KeyFolder(folder, NAME).prepare(), rotation(), command="once"
        )
    store.close()
    # The entry names the first of the two, and the second has not taken its place.
    assert len(next_key_files(folder)) == 2
    open_store(folder).close()
    assert format_verifier_key(NAME, read_signing_key(folder / KEY_FILE)) == line
    assert next_key_files(folder) == []


@pytest.mark.parametrize("point", ["rotate:before", "rotate:mid", "rotate:after"])
async def test_a_rotation_broken_off_is_ended_as_the_store_says(
    tmp_path: Path, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "state"
    store = open_store(folder)
    await grow(store, range(2))
    keys = KeyFolder(folder, NAME)
    key, line = keys.prepare()
    await store.maintenance.rotate(key, line, rotation())
    store.close()

    class Died(BaseException):
        pass

    def die(reached: str) -> None:
        if reached == point:
            raise Died

    monkeypatch.setattr(failpoint, "hook", die)
    with pytest.raises(Died):
        keys.finish(key)
    monkeypatch.setattr(failpoint, "hook", None)
    store = open_store(folder)
    await grow(store, range(2, 4))
    store.close()
    assert format_verifier_key(NAME, read_signing_key(folder / KEY_FILE)) == line
    assert next_key_files(folder) == []
    assert verified(folder).ok


def test_a_rotation_whose_key_could_not_be_put_in_place_is_finished_by_the_next(
    tmp_path: Path,
) -> None:
    open_ledger_key(tmp_path, "vedette/harbour", lambda: None)
    path, away = tmp_path / "ledger.key", tmp_path / "away"
    keys = KeyFolder(tmp_path, "vedette/harbour")
    first, line = keys.prepare()
    path.rename(away)
    with pytest.raises(FileNotFoundError):
        keys.finish(first)
    away.rename(path)
    second, _ = keys.prepare()
    assert format_verifier_key("vedette/harbour", read_signing_key(path)) == line
    keys.drop(second)
    assert next_key_files(tmp_path) == []


async def test_a_key_prepared_and_not_named_is_dropped(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    store = open_store(folder)
    await grow(store, range(2))
    KeyFolder(folder, NAME).prepare()
    store.close()
    store = open_store(folder)
    await grow(store, range(2, 4))
    store.close()
    assert next_key_files(folder) == []
    report = verified(folder)
    assert (report.ok, report.keys) == (True, 1)


async def test_another_key_than_the_first_is_refused_before_any_rotation(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    store = open_store(folder)
    await grow(store, range(2))
    store.close()
    with pytest.raises(BadStore, match="signs with another key"):
        SqliteStore(folder, fleet=FLEET, key=FORGER, key_name=NAME, now_us=ManualClock().now_us)
    own = (folder / KEY_FILE).read_bytes()
    (folder / KEY_FILE).write_bytes(FORGER.private_bytes_raw())
    with pytest.raises(BadStore, match="neither the first"):
        open_store(folder)
    # With the public half changed too the ledger itself still tells.
    public = (folder / PUBLIC_FILE).read_text()
    (folder / PUBLIC_FILE).write_text(format_verifier_key(NAME, FORGER) + "\n")
    with pytest.raises(BadStore, match="signs with another key"):
        open_store(folder)
    (folder / KEY_FILE).write_bytes(own)
    (folder / PUBLIC_FILE).write_text(public)
    open_store(folder).close()


# --- rotations in flight ----------------------------------------------------------------------


def upkeep_of(fleet: FleetHarness) -> Maintenance:
    upkeep = fleet.app.commands.maintenance
    assert upkeep is not None
    return upkeep


def on_disk(folder: Path) -> str:
    return format_verifier_key(NAME, read_signing_key(folder / "state" / KEY_FILE))


@pytest.mark.parametrize("command", ["once", None])
async def test_of_two_rotations_at_once_the_key_in_force_stays(
    tmp_path: Path, command: str | None
) -> None:
    """A command given again, or two people: each has a key of its own."""
    who = Principal.owner("kim")
    async with toy_fleet(tmp_path, World()) as fleet:
        upkeep = upkeep_of(fleet)
        done = await asyncio.gather(
            *(upkeep.rotate_key(who, "yearly", command) for _ in range(2)), return_exceptions=True
        )
        refused = [type(one) for one in done if isinstance(one, BaseException)]
        assert refused == ([AlreadyDone] if command else [])
        assert on_disk(tmp_path) == fleet.app.store.ledger.key_in_force()
        assert next_key_files(tmp_path / "state") == []
    async with fleet:
        pass
    assert verified(tmp_path / "state").keys == (2 if command else 3)


async def test_a_second_runner_does_not_touch_a_key_on_its_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vedette.app.composition_root import open_app

    async with toy_fleet(tmp_path, World()) as fleet:
        upkeep = upkeep_of(fleet)
        real = fleet.app.store.maintenance.rotate

        async def meanwhile(*args: Any, **named: Any) -> int:
            assert len(next_key_files(tmp_path / "state")) == 1
            with pytest.raises(StoreBusy):
                await open_app(fleet.app.settings)
            return await real(*args, **named)

        monkeypatch.setattr(fleet.app.store.maintenance, "rotate", meanwhile)
        done = await upkeep.rotate_key(Principal.owner("kim"), "yearly")
        assert on_disk(tmp_path) == done["key"] == fleet.app.store.ledger.key_in_force()


async def test_a_commit_of_unknown_fate_leaves_the_next_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with toy_fleet(tmp_path, World()) as fleet:
        upkeep = upkeep_of(fleet)
        real, who = fleet.app.store.maintenance.rotate, Principal.owner("kim")

        async def unheard(*args: Any, **named: Any) -> int:
            await real(*args, **named)
            raise StoreFailed("the connection is gone")

        monkeypatch.setattr(fleet.app.store.maintenance, "rotate", unheard)
        with pytest.raises(StoreFailed):
            await upkeep.rotate_key(who, "yearly", "once")
        assert len(next_key_files(tmp_path / "state")) == 1
        # The control: what was certainly refused leaves nothing more.
        with pytest.raises(AlreadyDone):
            await upkeep.rotate_key(who, "yearly", "once")
        assert len(next_key_files(tmp_path / "state")) == 1
        named = fleet.app.store.ledger.key_in_force()
    async with fleet:
        assert on_disk(tmp_path) == named
        assert next_key_files(tmp_path / "state") == []


async def test_a_verb_that_opens_the_store_ends_a_rotation_that_was_broken_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vedette.app.stores import open_idle_store

    async with toy_fleet(tmp_path, World()) as fleet:
        with monkeypatch.context() as patch:
            # As if killed there.
            patch.setattr(KeyFolder, "finish", lambda self, key: None)
            done = await upkeep_of(fleet).rotate_key(Principal.owner("kim"), "yearly")
        assert on_disk(tmp_path) != done["key"]
    settings = replace(Settings.of(tmp_path / "content", FLEET), state=tmp_path / "state")
    open_idle_store(settings).close()
    assert on_disk(tmp_path) == done["key"]
    async with fleet:
        pass


async def test_a_retired_key_signs_nothing_any_more(twice: Path, tmp_path: Path) -> None:
    """Who kept the old key cannot go on with it: the fleet refuses, and so does verification."""
    folder = tmp_path / "other"
    store = open_store(folder)
    await grow(store, range(2))
    old = read_signing_key(folder / KEY_FILE)
    await rotate(store, folder)
    store.close()
    with pytest.raises(BadStore, match="not the one that"):
        SqliteStore(folder, fleet=FLEET, key=old, key_name=NAME, now_us=ManualClock().now_us)
    store = open_store(folder)
    await grow(store, range(2, 3))
    store.close()
    resign(folder, lambda size, body: sign_note(body, NAME, old), last_only=True)
    (folder / "witness.log").unlink()
    assert set(verified(folder).counts) == {Code.BAD_NOTE, Code.UNSIGNED_TAIL}


def resign(folder: Path, sign: Callable[[int, str], str], *, last_only: bool = False) -> None:
    connection = apsw.Connection(str(folder / "store.db"))
    rows = connection.execute("SELECT size, note FROM checkpoint ORDER BY size").fetchall()
    for size, note in rows[-1:] if last_only else rows:
        body = parse_note(str(note)).body
        assert isinstance(size, int)
        connection.execute("UPDATE checkpoint SET note=? WHERE size=?", (sign(size, body), size))
    connection.close()


# --- forged rotations -----------------------------------------------------------------------


async def forged(folder: Path, *, keep_witness: bool) -> Report:
    """Append a rotation to a key of one's own, and go on under it; without the fleet's key."""
    store = open_store(folder)
    await grow(store, range(3))
    store.close()
    size = verified(folder).size
    # What a thief of the store can do: write entries, and sign with a key that he has.
    value = {
        "v": 1, "seq": size + 1, "at": 1, "kind": "key.rotated", "actor": "person:kim",
        "key": format_verifier_key(NAME, FORGER),
    }  # fmt: skip
    raw = canonical_json(value)
    reading = SqliteReader(folder)
    tree = Frontier()
    for _, entry, _, _ in reading.ledger.walk():
        tree.append(leaf_hash(entry))
    reading.close()
    tree.append(leaf_hash(raw))
    note = sign_note(Checkpoint(NAME, tree.size, tree.root()).body(), NAME, FORGER)
    connection = apsw.Connection(str(folder / "store.db"))
    add_entry(connection, raw)
    connection.execute("UPDATE checkpoint SET frontier=NULL")
    put = "INSERT INTO checkpoint VALUES(?,?,?)"
    connection.execute(put, (size + 1, note, tree.to_bytes()))
    connection.close()
    if not keep_witness:
        (folder / "witness.log").unlink()
    return verified(folder)


@pytest.mark.parametrize("keep_witness", [True, False])
async def test_a_forged_rotation_is_found(tmp_path: Path, keep_witness: bool) -> None:
    report = await forged(tmp_path / "state", keep_witness=keep_witness)
    assert {Code.BAD_ROTATION, Code.BAD_NOTE, Code.UNSIGNED_TAIL} == set(report.counts)
    assert report.keys == 1


def entry_of(seq: int, **fields: object) -> tuple[int, bytes]:
    return seq, canonical_json({"v": 1, "seq": seq, "at": seq, **fields})


def note_of(entries: list[tuple[int, bytes]], size: int, key: Ed25519PrivateKey) -> str:
    tree = Frontier()
    for _, raw in entries[:size]:
        tree.append(leaf_hash(raw))
    return sign_note(Checkpoint(NAME, size, tree.root()).body(), NAME, key)


@pytest.mark.parametrize(
    "key", [None, 7, "", "vedette/harbour", format_verifier_key("vedette/other", FORGER)]
)
def test_a_rotation_that_names_no_key_of_this_fleet_is_found(key: object) -> None:
    first = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    entries = [entry_of(1, kind="store.opened"), entry_of(2, kind="key.rotated", key=key)]
    notes = [note_of(entries, 2, first)]
    report = verify_ledger(entries, notes, format_verifier_key(NAME, first))
    assert set(report.counts) == {Code.BAD_ROTATION}
    # The control: the same entry with a key of this fleet.
    entries[1] = entry_of(2, kind="key.rotated", key=format_verifier_key(NAME, FORGER))
    report = verify_ledger(entries, [note_of(entries, 2, first)], format_verifier_key(NAME, first))
    assert (report.ok, report.keys) == (True, 2)


def test_no_key_signs_before_it_was_named_nor_after_it_handed_over() -> None:
    first = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    entries = [entry_of(n, kind="store.opened") for n in range(1, 7)]
    entries[2] = entry_of(3, kind="key.rotated", key=format_verifier_key(NAME, FORGER))
    line = format_verifier_key(NAME, first)
    right = [(2, first), (4, first), (5, FORGER), (6, FORGER)]
    assert verify_ledger(entries, [note_of(entries, s, k) for s, k in right], line).ok
    for wrong in ([(2, FORGER), (4, first), (6, FORGER)], [(2, first), (4, first), (6, first)]):
        report = verify_ledger(entries, [note_of(entries, s, k) for s, k in wrong], line)
        assert Code.BAD_NOTE in report.counts


# --- proofs and exports over rotations ------------------------------------------------------


async def test_proofs_carry_the_chain(twice: Path) -> None:
    first = (twice / "ledger.pub").read_text().strip()
    store = SqliteReader(twice)
    size = store.ledger.last_seq()
    for seq in (1, size // 2, size):
        proof = json.loads(json.dumps(prove_inclusion(store.ledger, seq)))
        assert len(proof["handovers"]) == 2
        assert verify_inclusion_proof(proof, first).size == size
        with pytest.raises(ProofError):
            verify_inclusion_proof({**proof, "handovers": []}, first)
        with pytest.raises(ProofError):
            verify_inclusion_proof({**proof, "handovers": proof["handovers"][::-1]}, first)
    first_size = next(size for size, _ in store.ledger.sized_checkpoints())
    growth = json.loads(json.dumps(prove_consistency(store.ledger, first_size)))
    before, after = verify_consistency_proof(growth, first)
    assert (before.size, after.size) == (first_size, size)
    with pytest.raises(ProofError):
        verify_consistency_proof({**growth, "proof": growth["proof"][:-1]}, first)
    with pytest.raises(ProofError):
        verify_consistency_proof({**growth, "from": growth["to"], "to": growth["from"]}, first)
    with pytest.raises(BadCommand, match="no checkpoint of size"):
        prove_consistency(store.ledger, size + 1)
    store.close()


async def test_an_export_over_rotations_verifies(twice: Path, tmp_path: Path) -> None:
    first = (twice / "ledger.pub").read_text().strip()
    store = SqliteReader(twice)
    export(
        store.ledger,
        tmp_path / "out",
        verifier_key=first,
        witness=twice / "witness.log",
        bodies=True,
    )
    store.close()
    read = LedgerExport(tmp_path / "out")
    report = verify_store(read, read.key, read.witness)
    assert (report.ok, report.keys) == (True, 3)


# --- killed -----------------------------------------------------------------------------------

CHILD = """
import asyncio, os, signal, sys
from pathlib import Path
from tests.contract.operations.test_rotation import grow, open_store, rotate
from vedette.domain.base import failpoint as crashpoint

folder, point = Path(sys.argv[1]), sys.argv[2]

def die(reached):
    if reached == point:
        os.kill(os.getpid(), signal.SIGKILL)

async def main():
    store = open_store(folder)
    await grow(store, range(2))
    crashpoint.hook = die
    await rotate(store, folder)
    await grow(store, range(2, 3))

asyncio.run(main())
"""
POINTS = [
    f"{what}:{when}"
    for what, moments in {
        "key": ("before", "mid", "after"),
        "commit": ("before", "mid", "after"),
        "witness": ("before", "after"),
        "rotate": ("before", "mid", "after"),
    }.items()
    for when in moments
]


@pytest.mark.parametrize("point", POINTS)
async def test_killed_at_any_point_of_a_rotation_the_ledger_goes_on(
    tmp_path: Path, point: str
) -> None:
    folder = tmp_path / "state"
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CHILD, str(folder), point, cwd=ROOT
    )
    assert await child.wait() == -signal.SIGKILL
    store = open_store(folder)
    await grow(store, range(3, 5))
    store.close()
    report = verified(folder)
    assert report.findings == ()
    named = POINTS.index(point) >= POINTS.index("commit:after")
    assert report.keys == (2 if named else 1)
    assert next_key_files(folder) == []
