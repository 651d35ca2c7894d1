"""Promise 8: the ledger proves itself and can forget; with controls that show the test can fail."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tests.acceptance.promises.common import MIXED
from tests.segments import (
    change_entries,
    edit_about,
    edit_content,
    read_entries,
    remove_content,
    remove_entries,
)

from vedette.adapters.ledger_export import verify_store
from vedette.adapters.signing_keys import open_ledger_key
from vedette.domain.event import Event
from vedette.ledger.merkle import key_id, sign_note, verifier_key
from vedette.ledger.verify import Code, verify_ledger
from vedette.store.sqlite import SqliteReader
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import World, job, send_proposal, toy_fleet


def verified(folder: Path) -> Any:
    """Verify a ledger with what an auditor has: a copy of store and witness, and the public key."""
    state = folder / "state"
    name = "vedette/harbour"
    public = open_ledger_key(state, name, lambda: None).public_key().public_bytes_raw()
    store = SqliteReader(state)
    try:
        return verify_store(store.ledger, verifier_key(name, public), state / "witness.log")
    finally:
        store.close()


async def some_work(fleet: FleetHarness) -> Event:
    event = job("1", *MIXED, key="somebody@example.org")
    await fleet.send(event, *(job(f"e{n}", send_proposal()) for n in range(8)))
    await fleet.wait_until_idle()
    for row in fleet.actions(event):
        if row.hold == "open":
            await fleet.app.commands.deny(fleet.order(), row.id)
    await fleet.wait_until_idle()
    return event


async def test_promise_08_the_ledger_proves_itself_and_can_forget(
    tmp_path: Path, world: World
) -> None:
    """After real work; every kind of damage has its own test in contract/test_ledger_verify."""
    async with toy_fleet(tmp_path, world) as fleet:
        event = await some_work(fleet)
        erased = await fleet.app.commands.erase(fleet.order(), subject="somebody@example.org")
        assert erased["erased"]
    report = verified(tmp_path)
    assert report.ok, report.findings
    assert report.erased >= len(erased["erased"])
    raw = (tmp_path / "state" / "store.db").read_bytes()
    assert event.key.encode() in raw


def written(folder: Path) -> str:
    """Return all that the store's tables hold, as one text."""
    connection = apsw.Connection(str(folder / "state" / "store.db"), apsw.SQLITE_OPEN_READONLY)
    tables = connection.execute("SELECT name FROM sqlite_schema WHERE type='table'").fetchall()
    found = [
        bytes(value).decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
        for (table,) in tables
        for row in connection.execute(f"SELECT * FROM {table}")
        for value in row
    ]
    for entry in read_entries(connection):
        found += [entry.raw.decode(), (entry.data or b"").decode()]
    connection.close()
    return "\n".join(found)


async def test_promise_08_what_is_erased_is_nowhere_in_the_store(
    tmp_path: Path, world: World
) -> None:
    """Neither what it said, nor what was made of it, nor under whose name it came."""
    async with toy_fleet(tmp_path, world) as fleet:
        event = job("1", send_proposal("a secret word"), key="somebody@example.org")
        await fleet.send(event, job("2", send_proposal("a common word"), key="anybody"))
        await fleet.wait_until_idle()
        before = written(tmp_path)
        assert "a secret word" in before
        assert "somebody@example.org" in before
        await fleet.app.commands.erase(fleet.order(), event=event.key)
    after = written(tmp_path)
    assert "a secret word" not in after
    # The place of the key stays: a run is ordered by it. What content is found by does not.
    assert ("somebody@example.org",) not in rows(tmp_path, "SELECT subject FROM event")
    assert "a common word" in after
    report = verified(tmp_path)
    assert report.ok, report.findings
    assert report.erased > 0


def rows(folder: Path, sql: str) -> list[tuple[Any, ...]]:
    connection = apsw.Connection(str(folder / "state" / "store.db"), apsw.SQLITE_OPEN_READONLY)
    try:
        return list(connection.execute(sql))
    finally:
        connection.close()


async def test_promise_08_every_signed_head_leaves_the_store(tmp_path: Path, world: World) -> None:
    async with toy_fleet(tmp_path, world) as fleet:
        await some_work(fleet)
    report = verified(tmp_path)
    assert report.ok, report.findings
    assert report.signed == report.witnessed == report.size > 0


def replace_word(file: Any, seq: int, old: bytes, new: bytes) -> None:
    change_entries(
        file, lambda one: one._replace(raw=one.raw.replace(old, new)) if one.seq == seq else one
    )


def spoil_signature(file: Any, seq: int) -> None:
    file.execute(
        "UPDATE checkpoint SET note=substr(note,1,length(note)-8)||'AAAAAA=' || char(10) "
        "WHERE size=(SELECT MIN(size) FROM checkpoint WHERE size>=?)",
        (seq,),
    )
    assert file.changes() == 1


def cut_end(file: Any, seq: int) -> None:
    remove_entries(file, range(seq + 1, 10_000))
    file.execute("DELETE FROM checkpoint WHERE size>?", (seq,))


# Each leaves everything else as it was: whoever made it knew the format and had no key.
DAMAGE: dict[str, tuple[Callable[[Any, int], None], Code | None]] = {
    "a word of an entry": (lambda file, seq: replace_word(file, seq, b"permit", b"hold__"), None),
    "a field of an entry that no column has": (
        lambda file, seq: replace_word(file, seq, b'"engine":"', b'"engine":"x'),
        Code.ROOT_MISMATCH,
    ),
    "an entry gone": (lambda file, seq: remove_entries(file, {seq}), Code.SEQ_GAP),
    "other content": (lambda file, seq: edit_content(file, seq, data=b"{}"), Code.BODY_MISMATCH),
    "content gone": (lambda file, seq: remove_content(file, seq), Code.BODY_MISSING),
    "what an entry is about": (lambda file, seq: edit_about(file, seq, None), Code.ROW_MISMATCH),
    "a signature": (spoil_signature, Code.BAD_NOTE),
    "the end, checkpoints and all": (cut_end, Code.TAIL_CUT),
}


@pytest.mark.parametrize("what", list(DAMAGE))
async def test_promise_08_damage_is_found(tmp_path: Path, world: World, what: str) -> None:
    damage, code = DAMAGE[what]
    async with toy_fleet(tmp_path, world) as fleet:
        await some_work(fleet)
        seq = fleet.entries("action.decided")[0]["seq"]
    assert verified(tmp_path).ok
    connection = apsw.Connection(str(tmp_path / "state" / "store.db"))
    damage(connection, seq)
    connection.close()
    report = verified(tmp_path)
    assert not report.ok
    assert code is None or code in {finding.code for finding in report.findings}


async def test_promise_08_what_no_key_signed_is_not_believed(tmp_path: Path, world: World) -> None:
    """Entries that no checkpoint covers, and checkpoints by somebody else's key."""
    async with toy_fleet(tmp_path, world) as fleet:
        await some_work(fleet)
        kept = fleet.entries("action.decided")[0]["seq"]
    state = tmp_path / "state"
    store = SqliteReader(state)
    try:
        entries = [(seq, raw) for seq, raw, _, _ in store.ledger.walk()]
        notes = list(store.ledger.checkpoints())
    finally:
        store.close()
    key = open_ledger_key(state, "vedette/harbour", lambda: None).public_key().public_bytes_raw()
    ours = verifier_key("vedette/harbour", key)
    assert verify_ledger(entries, notes, ours).ok
    first_notes = [note for note in notes if int(note.split("\n")[1]) <= kept]
    assert verify_ledger(entries, first_notes, ours).counts == {Code.UNSIGNED_TAIL: 1}
    other = Ed25519PrivateKey.generate()
    named = key_id("vedette/harbour", key)  # as a forger would: our name, our key's id
    claimed = [
        sign_note(note.partition("\n\n")[0] + "\n", "vedette/harbour", other, named)
        for note in notes
    ]
    report = verify_ledger(entries, claimed, ours)
    assert report.signed == 0
    assert Code.BAD_NOTE in report.counts


async def test_promise_08_control_whole_history_by_the_holder_of_the_key_stands(
    tmp_path: Path, world: World
) -> None:
    """What is found above is found for what was changed: nothing is wrong with it unchanged."""
    async with toy_fleet(tmp_path, world) as fleet:
        await some_work(fleet)
    assert verified(tmp_path).findings == ()
