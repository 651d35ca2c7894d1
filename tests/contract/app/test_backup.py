"""Backup and restore: nothing happens twice at its target, and what was lost is said."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import apsw
import orjson
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec.structs import replace
from tests.segments import add_entry, edit_about, edit_entry, remove_entries

from vedette.adapters.files.source import JsonlSource
from vedette.adapters.ledger_export import verify_store
from vedette.adapters.signing_keys import read_signing_key
from vedette.app.backup import back_up, restore
from vedette.config.settings import Settings
from vedette.domain.base.canonical import canonical_json
from vedette.domain.base.clock import SystemClock, iso
from vedette.domain.base.errors import BadCommand, BadStore, StoreBusy
from vedette.domain.effect import Outcome
from vedette.domain.event import Event
from vedette.domain.identity import Principal
from vedette.engine.calls_in_flight import CallsInFlight
from vedette.engine.kill_switch import lift_expired_stops
from vedette.ledger.merkle import Checkpoint, Frontier, leaf_hash, read_notes, sign_note
from vedette.ledger.verify import Code, Report
from vedette.store.sqlite import SqliteReader
from vedette.testing.clock import ManualClock
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import (
    World,
    block_calls,
    deny_policy,
    job,
    note_proposal,
    send_proposal,
    toy_fleet,
    wait_until,
    write_policies,
)

KIM = Principal.owner("kim")
FORGER = Ed25519PrivateKey.from_private_bytes(bytes(range(1, 33)))
CALLING = ("wire.send", "order.place", "bell.ring")


@pytest.fixture
def world() -> World:
    return World()


def settings_of(folder: Path) -> Settings:
    """The settings that the harness makes, for when no fleet is open."""
    return replace(Settings.of(folder / "content", "harbour"), state=folder / "state")


def lose(folder: Path) -> Path:
    """Lose the disk; return the copy of the witness file that was kept elsewhere."""
    kept = folder / "elsewhere.log"
    shutil.copy(folder / "state" / "witness.log", kept)
    shutil.rmtree(folder / "state")
    return kept


async def put_back(folder: Path, source: Path, witness: Path | None) -> dict[str, Any]:
    return await restore(
        settings_of(folder), source, witness=witness, key=None, who=KIM, reason="the disk is gone"
    )


async def in_thread(work: Callable[[], Any]) -> Any:
    """A verb has no event loop of its own running."""
    return await asyncio.to_thread(work)


async def go_on(fleet: FleetHarness) -> None:
    order = replace(fleet.order("restored, checked"), command_id=None)
    held_for_long(fleet)  # they check first, which takes longer than any call of the lost fleet
    await fleet.app.commands.resume(order, all=True)


def held_for_long(fleet: FleetHarness) -> None:
    """Make a fleet that was just opened one that is up for longer than any call takes."""
    line = fleet.app.services
    calls = CallsInFlight(line.clock)
    calls.start_seq = line.calls.start_seq
    calls.note_lease(fleet.app.store.cluster.epoch, line.clock.monotonic_us() - 60_000_000)
    line.calls = calls


def verified(folder: Path, witness: Path | None = None) -> Report:
    store = SqliteReader(folder / "state")
    try:
        line = (folder / "state" / "ledger.pub").read_text().strip()
        return verify_store(store.ledger, line, witness or folder / "state" / "witness.log")
    finally:
        store.close()


def jobs(first: int, last: int, tool: str) -> list[Event]:
    return [
        job(f"{tool} {n}", send_proposal(f"{tool} {n}", tool), key=f"{tool} {n}", value=n)
        for n in range(first, last)
    ]


async def lost_and_restored(fleet: FleetHarness, folder: Path, tool: str) -> list[Event]:
    """Handle, back up, handle more, lose the disk, restore; return what was handled in between."""
    async with fleet:
        await fleet.send(*jobs(0, 3, tool))
        await fleet.wait_until_idle()
        await in_thread(lambda: back_up(fleet.app.settings, folder / "backup", with_keys=True))
        later = jobs(3, 6, tool)
        await fleet.send(*later)
        await fleet.wait_until_idle()
    witness = lose(folder)
    done = await put_back(folder, folder / "backup", witness)
    assert done["lost"] > 0
    return later


# --- effects --------------------------------------------------------------------------------


@pytest.mark.parametrize("tool", CALLING)
async def test_what_is_delivered_again_happens_once(
    tmp_path: Path, world: World, tool: str
) -> None:
    fleet = toy_fleet(tmp_path, world)
    later = await lost_and_restored(fleet, tmp_path, tool)
    before = world.keys(tool)
    assert len(before) == 6
    async with fleet:
        receipts = await fleet.send(*later)
        assert {receipt.status for receipt in receipts} == {"accepted"}
        await fleet.wait_until_idle()
        assert sum(world.keys(tool).values()) == 6  # it is stopped
        await go_on(fleet)
        await fleet.wait_until_idle()
        assert set(world.keys(tool)) == set(before)  # the same keys: run ids are made of events
        rows = [row for one in later for row in fleet.actions(one)]
        if tool == "wire.send":
            # A repeat under the same key, which such a target absorbs: that is what it declares.
            assert {row.effect for row in rows} == {"done"}
            return
        assert world.keys(tool) == before
        if tool == "order.place":
            assert len(world.queries) == 3
            assert {row.effect for row in rows} == {"done"}
        else:
            assert {(row.effect, row.hold) for row in rows} == {("unknown", "open")}


@pytest.mark.parametrize("tool", ["order.place", "bell.ring"])
async def test_without_doubt_it_would_happen_twice(tmp_path: Path, world: World, tool: str) -> None:
    """The control: the same, with the fleet made to forget that it was restored."""
    fleet = toy_fleet(tmp_path, world)
    later = await lost_and_restored(fleet, tmp_path, tool)
    async with fleet:
        await go_on(fleet)
        fleet.app.services.loss_window = None
        await fleet.send(*later)
        await fleet.wait_until_idle()
        assert sum(world.keys(tool).values()) == 9


@pytest.mark.parametrize("tool", CALLING)
async def test_what_was_on_its_way_at_the_backup_happens_once(
    tmp_path: Path, world: World, tool: str
) -> None:
    fleet = toy_fleet(tmp_path, world)
    async with fleet:
        stuck = block_calls(fleet)
        await fleet.send(*jobs(0, 1, tool))
        await wait_until(lambda: len(stuck.reached_keys) == 1)
        await in_thread(lambda: back_up(fleet.app.settings, tmp_path / "backup", with_keys=True))
        await fleet.restart()
        held_for_long(fleet)
        if tool == "bell.ring":
            # It may have started, so a person lets it happen.
            await fleet.wait_until_idle()
            (row,) = fleet.actions(jobs(0, 1, tool)[0])
            await fleet.approve(row)
        await wait_until(lambda: world.effects(tool) == 1)
        await fleet.wait_until_idle()
    await put_back(tmp_path, tmp_path / "backup", lose(tmp_path))
    async with fleet:
        await go_on(fleet)
        await fleet.wait_until_idle()
        assert len(world.keys(tool)) == 1
        if tool != "wire.send":
            assert world.effects(tool) == 1
        (row,) = fleet.actions(jobs(0, 1, tool)[0])
        assert row.effect == ("unknown" if tool == "bell.ring" else "done")


async def test_an_idempotent_target_that_can_be_asked_is_asked(
    tmp_path: Path, world: World
) -> None:
    """A model may word it differently: then the same key would come with other arguments."""
    fleet = toy_fleet(tmp_path, world)
    ask_idempotent_too(tmp_path)
    later = await lost_and_restored(fleet, tmp_path, "wire.send")
    calls = len(world.calls)
    async with fleet:
        await fleet.send(*later, *jobs(6, 7, "wire.send"))
        await go_on(fleet)
        await fleet.wait_until_idle()
        # Of the new one the target knows nothing, so it is called.
        assert (len(world.queries), len(world.calls)) == (4, calls + 1)


async def test_a_target_that_does_not_answer_is_asked_again(tmp_path: Path, world: World) -> None:
    fleet = toy_fleet(tmp_path, world)
    later = await lost_and_restored(fleet, tmp_path, "order.place")
    world.query = lambda call: ConnectionError("no line")
    async with fleet:
        await fleet.send(later[0])
        await go_on(fleet)
        await wait_until(lambda: len(world.queries) >= 1)
        await asyncio.sleep(0)
        world.query = None
        await wait_until(lambda: fleet.actions(later[0])[0].effect == "done", within_s=20)
        assert len(world.queries) >= 2
    assert set(world.keys("order.place").values()) == {1}


async def test_who_resumes_at_once_waits_for_what_the_lost_fleet_may_be_at(
    tmp_path: Path, world: World
) -> None:
    fleet = toy_fleet(tmp_path, world)
    later = await lost_and_restored(fleet, tmp_path, "order.place")
    async with fleet:
        await fleet.send(*later)
        await fleet.app.commands.resume(fleet.order("at once"), all=True)
        await fleet.wait_until_idle()
        assert {run.waits for one in later for run in fleet.runs(one)} == {"target"}
    assert (world.queries, len(world.calls)) == ([], 6)


async def test_a_person_may_let_it_happen(tmp_path: Path, world: World) -> None:
    """Asked once, and not again when it is to happen."""
    fleet = toy_fleet(tmp_path, world)
    later = await lost_and_restored(fleet, tmp_path, "bell.ring")
    async with fleet:
        await fleet.send(later[0])
        await go_on(fleet)
        await fleet.wait_until_idle()
        (row,) = fleet.actions(later[0])
        await fleet.approve(row, "it did not ring")
        await fleet.wait_until_idle()
        (row,) = fleet.actions(later[0])
        assert row.effect == "done"
        assert sum(world.keys("bell.ring").values()) == 7


@pytest.mark.parametrize("stamped_s", [None, -3600, 3600])
@pytest.mark.parametrize("tool", ["order.place", "bell.ring"])
async def test_a_time_that_is_stamped_anew_doubles_nothing(
    tmp_path: Path, world: World, tool: str, stamped_s: int | None
) -> None:
    """A sender that delivers again may say of an event what it likes; its id was handled."""
    fleet = toy_fleet(tmp_path, world)
    later = await lost_and_restored(fleet, tmp_path, tool)
    before = world.keys(tool)
    async with fleet:
        await go_on(fleet)
        now_us = fleet.app.services.clock.now_us()
        time = None if stamped_s is None else iso(now_us + stamped_s * 1_000_000)
        known = jobs(0, 3, tool)
        repeat = [replace(one, time=time) for one in (*known, *later)]
        receipts = await fleet.send(*repeat)
        assert [one.status for one in receipts] == ["duplicate"] * 3 + ["accepted"] * 3
        await fleet.wait_until_idle()
        assert world.keys(tool) == before
        effects = {row.effect for one in later for row in fleet.actions(one)}
        assert effects == {"done" if tool == "order.place" else "unknown"}


async def test_a_person_ends_the_doubt(tmp_path: Path, world: World) -> None:
    fleet = toy_fleet(tmp_path, world)
    later = await lost_and_restored(fleet, tmp_path, "bell.ring")
    async with fleet:
        await go_on(fleet)
        await fleet.send(later[0])
        upkeep = fleet.app.commands.maintenance
        assert upkeep is not None
        await upkeep.close_loss_window(KIM, "all was delivered again")
        await fleet.send(*jobs(6, 7, "bell.ring"))
        await fleet.wait_until_idle()
        effects = [fleet.actions(one)[0].effect for one in (later[0], *jobs(6, 7, "bell.ring"))]
        assert effects == ["unknown", "done"]
        with pytest.raises(BadCommand, match="no doubt"):
            await upkeep.close_loss_window(KIM, "again")
        await fleet.restart()
        assert fleet.app.services.loss_window == fleet.app.store.ledger.loss_window()
    assert verified(tmp_path).ok


# --- the ledger ------------------------------------------------------------------------------


async def restored(folder: Path, world: World) -> tuple[FleetHarness, Path]:
    """Return a fleet that was restored and went on; and the witness file of the lost one."""
    fleet = toy_fleet(folder, world)
    await lost_and_restored(fleet, folder, "wire.send")
    async with fleet:
        await fleet.send(*jobs(10, 14, "wire.send"))
        await go_on(fleet)
        await fleet.wait_until_idle()
    return fleet, folder / "elsewhere.log"


async def test_verification_reports_a_restore_and_no_tampering(
    tmp_path: Path, world: World
) -> None:
    _, early = await restored(tmp_path, world)
    report = verified(tmp_path)
    assert report.findings == ()
    (one,) = report.restored
    lost = int(read_notes(early.read_text())[-1].split("\n")[1])
    assert (one.last, one.seq) == (
        lost,
        orjson.loads((tmp_path / "backup/backup.json").read_bytes())["size"] + 1,
    )
    assert report.lost > 0
    assert report.witnessed == report.size
    # The copy that ends with the lost history, and an older one, say the same.
    assert verified(tmp_path, early).ok
    older = tmp_path / "older.log"
    older.write_text("".join(note + "\n" for note in read_notes(early.read_text())[:-2]))
    assert verified(tmp_path, older).ok


async def test_a_cut_without_such_an_entry_is_tampering(tmp_path: Path, world: World) -> None:
    """The control: the backup's files put back by hand."""
    fleet = toy_fleet(tmp_path, world)
    await lost_and_restored(fleet, tmp_path, "wire.send")
    shutil.rmtree(tmp_path / "state")
    shutil.copytree(tmp_path / "backup", tmp_path / "state")
    report = verified(tmp_path, tmp_path / "elsewhere.log")
    assert Code.TAIL_CUT in report.counts
    assert report.restored == ()


async def test_a_restore_without_the_witness_excuses_nothing(tmp_path: Path, world: World) -> None:
    fleet = toy_fleet(tmp_path, world)
    await lost_and_restored(fleet, tmp_path, "wire.send")
    shutil.rmtree(tmp_path / "state")
    done = await put_back(tmp_path, tmp_path / "backup", None)
    assert done["lost"] == 0
    assert verified(tmp_path).ok
    assert not verified(tmp_path, tmp_path / "elsewhere.log").ok


async def test_history_beyond_what_the_restore_names_is_found(tmp_path: Path, world: World) -> None:
    """Whoever restores with an old copy of the witness has not accounted for what came after."""
    fleet = toy_fleet(tmp_path, world)
    await lost_and_restored(fleet, tmp_path, "wire.send")
    whole = tmp_path / "elsewhere.log"
    notes = read_notes(whole.read_text())
    older = tmp_path / "older.log"
    older.write_text("".join(note + "\n" for note in notes[:-1]))
    shutil.rmtree(tmp_path / "state")
    await put_back(tmp_path, tmp_path / "backup", older)
    assert verified(tmp_path).ok
    assert not verified(tmp_path, whole).ok


@contextmanager
def edited(folder: Path) -> Iterator[apsw.Connection]:
    connection = apsw.Connection(str(folder / "state" / "store.db"))
    with connection:
        yield connection
    connection.close()


def edit(folder: Path, *statements: tuple[str, tuple[Any, ...]]) -> None:
    with edited(folder) as connection:
        for sql, values in statements:
            connection.execute(sql, values)
            assert connection.changes() > 0


@pytest.mark.parametrize("signer", ["nobody", "a stranger"])
async def test_a_forged_restore_is_found(tmp_path: Path, world: World, signer: str) -> None:
    """Cut the ledger, say in it that this was a restore; without the fleet's key."""
    fleet = toy_fleet(tmp_path, world)
    async with fleet:
        await fleet.send(*jobs(0, 6, "wire.send"))
        await fleet.wait_until_idle()
    notes = read_notes((tmp_path / "state" / "witness.log").read_text())
    point = Checkpoint.from_body(notes[-1].split("\n\n")[0] + "\n")
    store = SqliteReader(tmp_path / "state")
    sizes = [size for size, _ in store.ledger.sized_checkpoints()]
    kept = sizes[len(sizes) // 2]
    tree = Frontier()
    for seq, raw, _, _ in store.ledger.walk():
        if seq <= kept:
            tree.append(leaf_hash(raw))
    store.close()
    raw = canonical_json({
        "v": 1, "seq": kept + 1, "at": 1, "kind": "store.restored", "actor": "person:kim",
        "size": kept, "heads": [[point.size, point.root.hex()]],
    })  # fmt: skip
    tree.append(leaf_hash(raw))
    with edited(tmp_path) as file:
        remove_entries(file, range(kept + 1, 10_000))
        add_entry(file, raw)
    edit(
        tmp_path,
        ("DELETE FROM checkpoint WHERE size>?", (kept,)),
    )
    name, put = "vedette/harbour", "INSERT OR REPLACE INTO checkpoint VALUES(?,?,?)"
    body = Checkpoint(name, tree.size, tree.root()).body()
    if signer == "a stranger":
        edit(
            tmp_path,
            (put, (tree.size, sign_note(body, name, FORGER), tree.to_bytes())),
        )
    report = verified(tmp_path)
    assert Code.TAIL_CUT in report.counts
    assert report.restored == ()
    # The control: with the fleet's own key it is the restore that it says.
    own = read_signing_key(tmp_path / "state" / "ledger.key")
    edit(
        tmp_path,
        (put, (tree.size, sign_note(body, name, own), tree.to_bytes())),
    )
    # (The entries stand. The rows of what was cut are there still, which no restore leaves.)
    assert verified(tmp_path).counts.keys() <= {Code.ROW_MISMATCH}


async def test_a_fork_cannot_hide_behind_a_restore(tmp_path: Path, world: World) -> None:
    """Entries of the restored history, written anew and signed, within what a restore lost."""
    await restored(tmp_path, world)
    key = read_signing_key(tmp_path / "state" / "ledger.key")
    store = SqliteReader(tmp_path / "state")
    (at,) = (seq for seq, _, _, _ in store.ledger.walk(("store.restored",)))
    entries = [raw for _, raw, _, _ in store.ledger.walk()]
    sizes = [size for size, _ in store.ledger.sized_checkpoints()]
    store.close()
    changed = at + 4  # beyond the restore's own first checkpoints, and within what it lost
    value = orjson.loads(entries[changed - 1])
    entries[changed - 1] = canonical_json({**value, "at": value["at"] + 1})
    tree, notes = Frontier(), {}
    for raw in entries:
        tree.append(leaf_hash(raw))
        notes[tree.size] = Checkpoint("vedette/harbour", tree.size, tree.root()).body()
    with edited(tmp_path) as file:
        edit_entry(file, changed, entries[changed - 1])
    edit(
        tmp_path,
        *(
            (
                "UPDATE checkpoint SET note=? WHERE size=?",
                (sign_note(notes[size], "vedette/harbour", key), size),
            )
            for size in sizes
            if size >= changed
        ),
        (
            "UPDATE checkpoint SET frontier=? WHERE size=(SELECT MAX(size) FROM checkpoint)",
            (tree.to_bytes(),),
        ),
    )
    report = verified(tmp_path)
    assert {Code.FORK, Code.ROOT_MISMATCH} & set(report.counts)


async def test_a_second_restore_of_an_older_backup(tmp_path: Path, world: World) -> None:
    """The first restore's own entry is lost with it, and its lost heads are named again."""
    fleet, _ = await restored(tmp_path, world)
    witness = lose(tmp_path)
    await put_back(tmp_path, tmp_path / "backup", witness)
    async with fleet:
        await go_on(fleet)
        await fleet.send(*jobs(20, 30, "wire.send"))
        await fleet.wait_until_idle()
    report = verified(tmp_path)
    assert report.findings == ()
    assert len(report.restored) == 1
    # And once more, from a backup of the restored fleet.
    async with fleet:
        await in_thread(lambda: back_up(fleet.app.settings, tmp_path / "second", with_keys=True))
        await fleet.send(*jobs(30, 33, "wire.send"))
        await fleet.wait_until_idle()
    witness = lose(tmp_path)
    await put_back(tmp_path, tmp_path / "second", witness)
    report = verified(tmp_path)
    assert report.findings == ()
    assert len(report.restored) == 2


# --- the files -------------------------------------------------------------------------------


async def test_a_backup_beside_a_busy_fleet_is_whole(tmp_path: Path, world: World) -> None:
    async with toy_fleet(tmp_path, world) as fleet:
        for n in range(3):
            await fleet.send(*jobs(n * 20, n * 20 + 20, "wire.send"))
            folder = tmp_path / f"backup{n}"
            answer = await asyncio.to_thread(back_up, fleet.app.settings, folder)
            assert answer["size"] > 0
            assert not (folder / "ledger.key").exists()
            assert {p.stat().st_mode & 0o077 for p in folder.iterdir() if p.suffix == ".db"} == {0}
        await fleet.wait_until_idle()
        assert world.effects() == 60
    repeat = await in_thread(lambda: back_up(settings_of(tmp_path), tmp_path / "idle"))
    assert repeat["size"] == verified(tmp_path).size


async def test_a_damaged_store_is_no_backup(tmp_path: Path, world: World) -> None:
    async with toy_fleet(tmp_path, world) as fleet:
        await fleet.send(*jobs(0, 3, "wire.send"))
        await fleet.wait_until_idle()
    with edited(tmp_path) as file:
        edit_about(file, 3, 1)
    with pytest.raises(BadStore, match="does not verify"):
        await in_thread(lambda: back_up(settings_of(tmp_path), tmp_path / "backup"))
    assert not (tmp_path / "backup" / "backup.json").exists()
    with pytest.raises(BadStore, match="not a whole"):
        await put_back(tmp_path, tmp_path / "backup", None)


async def test_what_cannot_be_restored_is_refused(tmp_path: Path, world: World) -> None:
    fleet = toy_fleet(tmp_path, world)
    async with fleet:
        await fleet.send(*jobs(0, 2, "wire.send"))
        await fleet.wait_until_idle()
        backup = tmp_path / "backup"
        await in_thread(lambda: back_up(fleet.app.settings, backup))
        with pytest.raises(StoreBusy):
            await put_back(tmp_path, backup, None)
        with pytest.raises(BadCommand, match="not empty"):
            await in_thread(lambda: back_up(fleet.app.settings, backup))
    with pytest.raises(BadCommand, match="there is a store here"):
        await put_back(tmp_path, backup, None)
    key = tmp_path / "kept.key"
    shutil.copy(tmp_path / "state" / "ledger.key", key)
    witness = lose(tmp_path)
    with pytest.raises(BadCommand, match="signing key of this store is not here"):
        await put_back(tmp_path, backup, witness)
    other = replace(settings_of(tmp_path), fleet="other")
    with pytest.raises(BadStore, match="of the fleet"):
        await restore(other, backup, witness=None, key=key, who=KIM, reason="gone")
    stranger = tmp_path / "stranger.log"
    body = Checkpoint("vedette/harbour", 10_000, bytes(32)).body()
    stranger.write_text(sign_note(body, "vedette/harbour", FORGER) + "\n")
    with pytest.raises(BadCommand, match="does not hold"):
        await put_back(tmp_path, backup, stranger)
    assert not (tmp_path / "state" / "store.db").exists()
    done = await restore(
        settings_of(tmp_path), backup, witness=witness, key=key, who=KIM, reason="gone"
    )
    assert done["size"] > 0
    raw = (backup / "store.db").read_bytes()
    (backup / "store.db").write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    shutil.rmtree(tmp_path / "state")
    with pytest.raises(BadStore, match=r"store\.db is not what it was"):
        await put_back(tmp_path, backup, witness)


@pytest.mark.parametrize("tool", ["order.place", "bell.ring"])
async def test_what_was_turned_away_before_a_backup_and_done_after_it_is_not_done_again(
    tmp_path: Path, world: World, tool: str
) -> None:
    """It was tried before the loss; policy decides it anew after it, and that is no try."""
    clock = ManualClock()
    fleet = toy_fleet(tmp_path, world, clock=clock)
    (event,) = jobs(0, 1, tool)
    async with fleet:
        world.answer = lambda _: Outcome("retry", error="closed on mondays")
        await fleet.send(event)
        await fleet.wait_until_idle()
        assert fleet.actions(event)[0].tries == 1
        await in_thread(lambda: back_up(fleet.app.settings, tmp_path / "backup", with_keys=True))
        world.answer = None
        clock.advance(600_000_000)
        await fleet.wait_until_idle()
        assert world.effects(tool) == 1
    await put_back(tmp_path, tmp_path / "backup", lose(tmp_path))
    async with fleet:
        await fleet.apply_policy(write_policies(tmp_path / "p2", extra=deny_policy("nothing.real")))
        await go_on(fleet)
        clock.advance(600_000_000)
        await fleet.wait_until_idle()
        row = fleet.actions(event)[0]
        assert world.effects(tool) == 1
        assert (row.effect, row.hold) == (
            ("done", None) if tool == "order.place" else ("unknown", "open")
        )


async def test_a_disk_without_hard_links_takes_a_backup(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: object, path: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted", str(source), None, str(path))

    async with toy_fleet(tmp_path, world) as fleet:
        await fleet.send(*jobs(0, 2, "wire.send"))
        await fleet.wait_until_idle()
        monkeypatch.setattr(os, "link", refuse)
        answer = await in_thread(lambda: back_up(fleet.app.settings, tmp_path / "backup"))
    assert answer["size"] > 0
    assert (tmp_path / "backup" / "backup.json").exists()


async def test_the_log_of_another_store_is_never_taken_for_the_restored_ones(
    tmp_path: Path, world: World
) -> None:
    fleet = toy_fleet(tmp_path, world)
    await lost_and_restored(fleet, tmp_path, "wire.send")
    shutil.rmtree(tmp_path / "state")
    (tmp_path / "state").mkdir()
    log = tmp_path / "state" / "store.db-wal"
    log.write_bytes(b"commits that are nowhere else")
    backup, witness = tmp_path / "backup", tmp_path / "elsewhere.log"
    with pytest.raises(BadCommand, match=r"store\.db-wal: there is the log of a store"):
        await put_back(tmp_path, backup, witness)
    assert log.read_bytes() == b"commits that are nowhere else"
    log.rename(tmp_path / "store.db-wal")
    await put_back(tmp_path, backup, witness)
    assert verified(tmp_path).ok


@pytest.mark.parametrize("named", [False, True])
async def test_another_key_than_that_of_the_backup_is_refused(
    tmp_path: Path, world: World, named: bool
) -> None:
    """The key was rotated after the backup: the one still in the state folder is not its own."""
    fleet = toy_fleet(tmp_path, world)
    backup, state = tmp_path / "backup", tmp_path / "state"
    first = tmp_path / "first.key"
    async with fleet:
        await fleet.send(*jobs(0, 2, "wire.send"))
        await fleet.wait_until_idle()
        await in_thread(lambda: back_up(fleet.app.settings, backup))
        shutil.copy(state / "ledger.key", first)
        upkeep = fleet.app.commands.maintenance
        assert upkeep is not None
        await upkeep.rotate_key(KIM, "yearly")
    for path in state.glob("store.db*"):
        path.unlink()

    async def restored_with(key: Path | None) -> dict[str, Any]:
        return await restore(
            settings_of(tmp_path), backup, witness=None, key=key, who=KIM, reason="gone"
        )

    wrong = state / "ledger.key" if named else None
    with pytest.raises(BadCommand, match="not the one in force at the backup"):
        await restored_with(wrong)
    assert not (state / "store.db").exists()
    # The control: the key of the backup.
    await restored_with(first)
    async with fleet:
        assert ("all", "") in fleet.app.services.stops.list_scopes()
    assert verified(tmp_path).ok


@pytest.mark.parametrize("for_us", [1_000_000, None])
async def test_a_restored_fleet_stays_stopped_whatever_stop_there_was(
    tmp_path: Path, world: World, for_us: int | None
) -> None:
    """A stop that lifts itself would let it run before anybody has looked."""
    fleet = toy_fleet(tmp_path, world)
    async with fleet:
        await fleet.send(*jobs(0, 2, "wire.send"))
        await fleet.wait_until_idle()
        order = replace(fleet.order("maintenance"), command_id=None)
        await fleet.app.commands.stop(order, all=True, for_us=for_us)
        backup = tmp_path / "backup"
        await in_thread(lambda: back_up(fleet.app.settings, backup, with_keys=True))
        assert bool(fleet.app.services.stops.timed_stops) is (for_us is not None)
    witness = lose(tmp_path)
    await put_back(tmp_path, backup, witness)
    async with fleet:
        assert fleet.app.services.stops.list_scopes() == [("all", "")]
        assert fleet.app.services.stops.timed_stops == []
        await lift_expired_stops(
            fleet.app.services, fleet.app.services.clock.now_us() + 3_600_000_000
        )
        assert fleet.app.services.stops.list_scopes() == [("all", "")]
        # One that was without end is kept as it is.
        assert len(fleet.entries("stop.set")) == (2 if for_us else 1)
    assert verified(tmp_path).ok


CHILD = """
import asyncio, os, signal, sys
from msgspec.structs import replace
from pathlib import Path
from vedette.domain.base import failpoint as crashpoint
from vedette.app.backup import restore
from vedette.domain.identity import Principal
from vedette.config.settings import Settings

folder, point, left = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])

def die(reached):
    global left
    left -= reached == point
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)

crashpoint.hook = die
settings = replace(Settings.of(folder / "content", "harbour"), state=folder / "state")
asyncio.run(restore(settings, folder / "backup", witness=folder / "elsewhere.log", key=None,
                    who=Principal.owner("kim"), reason="the disk is gone"))
"""

POINTS = [
    ("restore:before", 1), ("restore:mid", 1), ("restore:mid", 6), ("restore:mid", 7),
    ("restore:after", 1), ("commit:before", 1), ("commit:mid", 1), ("commit:after", 1),
    ("key:mid", 1), ("restore:log", 1),
]  # fmt: skip


@pytest.mark.parametrize(("point", "nth"), POINTS)
async def test_a_restore_that_is_killed_is_done_again(
    tmp_path: Path, world: World, point: str, nth: int
) -> None:
    fleet = toy_fleet(tmp_path, world)
    later = await lost_and_restored(fleet, tmp_path, "order.place")
    shutil.rmtree(tmp_path / "state")
    # Somebody removed the lost store, and overlooked the rest.
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "memory.db-wal").write_bytes(b"of an older memory.db")
    (tmp_path / "state" / "store.db-wal").touch()
    (tmp_path / "state" / "store.db-shm").write_bytes(bytes(32))
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CHILD, str(tmp_path), point, str(nth)
    )
    assert await child.wait() == -signal.SIGKILL
    whole = (tmp_path / "state" / "store.db").exists()
    assert whole is ((point, nth) in [("restore:mid", 7), ("restore:after", 1)])
    if whole or point in ("restore:mid", "restore:log"):
        assert not any((tmp_path / "state").glob("*.db-*")), "a log of what was there before"
    if not whole:
        await put_back(tmp_path, tmp_path / "backup", tmp_path / "elsewhere.log")
    async with fleet:
        await fleet.send(*later)
        await go_on(fleet)
        await fleet.wait_until_idle()
    assert set(world.keys("order.place").values()) == {1}
    assert verified(tmp_path).ok


async def test_a_source_delivers_again_what_was_lost(tmp_path: Path, world: World) -> None:
    """Where a source was is part of the backup: it goes on from there, by itself."""
    lines = tmp_path / "jobs.jsonl"

    def write(last: int) -> None:
        events = jobs(0, last, "order.place")
        lines.write_bytes(b"".join(orjson.dumps(as_cloudevent(one)) + b"\n" for one in events))

    async def deliver(fleet: FleetHarness) -> None:
        await JsonlSource("jobs", str(lines), SystemClock()).deliver(fleet.app.intake)
        await fleet.wait_until_idle()

    fleet = toy_fleet(tmp_path, world)
    async with fleet:
        write(4)
        await deliver(fleet)
        await in_thread(lambda: back_up(fleet.app.settings, tmp_path / "backup", with_keys=True))
        write(8)
        await deliver(fleet)
    before = world.keys("order.place")
    assert len(before) == 8
    await put_back(tmp_path, tmp_path / "backup", lose(tmp_path))
    async with fleet:
        await go_on(fleet)
        write(10)
        await deliver(fleet)
        assert fleet.app.store.tables.event_counts()[0] == 10
        # The four that were lost were asked about, and the two new ones too: who can know?
        assert (len(world.queries), len(world.keys("order.place"))) == (6, 10)
        assert set(world.keys("order.place").values()) == {1}
        assert fleet.app.store.tables.wait_counts() == {}


def as_cloudevent(one: Event) -> dict[str, Any]:
    return {
        "specversion": "1.0", "id": one.id, "source": one.source, "type": one.type,
        "subject": one.subject, "data": one.data,
    }  # fmt: skip


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_a_disk_that_is_lost_under_load(tmp_path: Path, world: World, seed: int) -> None:
    """A backup at any moment, effects under way then and at the loss: the target's own record
    has each of them once, and every event the source has is handled.
    """
    chance = Random(seed)
    lines = tmp_path / "jobs.jsonl"
    tools = [chance.choice(("order.place", "wire.send", "note")) for _ in range(60)]
    events = []
    for n, tool in enumerate(tools):
        proposal = note_proposal("kept") if tool == "note" else send_proposal(f"{n}", tool)
        events.append(job(f"j{n}", proposal, key=f"k{n % 7}", value=n))
    lines.write_bytes(b"".join(orjson.dumps(as_cloudevent(one)) + b"\n" for one in events))
    world.answer = lambda call: time.sleep(chance.random() / 200)
    fleet = toy_fleet(tmp_path, world)
    ask_idempotent_too(tmp_path)
    async with fleet:
        source = JsonlSource("jobs", str(lines), SystemClock(), rate=400)
        delivering = asyncio.create_task(source.deliver(fleet.app.intake))
        await asyncio.sleep(chance.random() / 10)
        await in_thread(lambda: back_up(fleet.app.settings, tmp_path / "backup", with_keys=True))
        await asyncio.sleep(chance.random() / 10)
        delivering.cancel()
    witness = lose(tmp_path)
    await put_back(tmp_path, tmp_path / "backup", witness)
    async with fleet:
        await go_on(fleet)
        await JsonlSource("jobs", str(lines), SystemClock()).deliver(fleet.app.intake)
        await fleet.wait_until_idle()
        assert fleet.app.store.tables.event_counts()[0] == 60
        assert fleet.outcomes() == {"permit": 60}
        rows = [row for one in events for row in fleet.actions(one)]
        assert {row.effect for row in rows} == {"done"}
    called = sum(tool != "note" for tool in tools)
    assert len(world.keys()) == called
    assert set(world.keys().values()) == {1}
    assert verified(tmp_path).findings == ()


def ask_idempotent_too(folder: Path) -> None:
    path = folder / "content" / "agents" / "worker" / "agent.yaml"
    declared = "settles: idempotent, function: act, target: world, attempts: 3"
    text = path.read_text()
    assert declared in text
    path.write_text(text.replace(declared, f"{declared}, query: ask"))


async def test_the_policy_key_comes_back_where_it_is_missing_and_stays_where_it_is(
    tmp_path: Path, world: World
) -> None:
    fleet = toy_fleet(tmp_path, world)
    backup = tmp_path / "backup"
    async with fleet:
        state = fleet.app.settings.state
        (state / "policy.key").write_bytes(b"first")
        (state / "policy.pub").write_bytes(b"first's public half")
        await in_thread(lambda: back_up(fleet.app.settings, backup, with_keys=True))
        await in_thread(lambda: back_up(fleet.app.settings, tmp_path / "public"))
    assert not (tmp_path / "public" / "policy.key").exists()
    assert (tmp_path / "public" / "policy.pub").exists()
    witness = lose(tmp_path)
    await put_back(tmp_path, backup, witness)
    assert (state / "policy.key").read_bytes() == b"first"
    assert (state / "policy.pub").read_bytes() == b"first's public half"
    shutil.rmtree(state)
    state.mkdir()
    (state / "policy.key").write_bytes(b"second")
    await put_back(tmp_path, backup, witness)
    assert (state / "policy.key").read_bytes() == b"second"
    assert not (state / "policy.pub").exists()
