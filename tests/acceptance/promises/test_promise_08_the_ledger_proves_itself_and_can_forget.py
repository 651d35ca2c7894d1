"""Promise 8: the ledger proves itself and can forget; with controls that show the test can fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.acceptance.promises.common import MIXED

from vedette.adapters.keys import ledger_key
from vedette.adapters.ledger_file import verify_store
from vedette.adapters.sqlite import OpenedStore
from vedette.event import Event
from vedette.proof import verifier_key
from vedette.testing.harness import FleetHarness
from vedette.testing.toy import (
    World,
    job,
    send,
    toy_fleet,
)
from vedette.verify import Code


def verified(folder: Path) -> Any:
    """Verify a ledger with what an auditor has: a copy of store and witness, and the public key."""
    state = folder / "state"
    name = "vedette/harbour"
    public = ledger_key(state, name, lambda: None).public_key().public_bytes_raw()
    store = OpenedStore(state)
    try:
        return verify_store(store, verifier_key(name, public), state / "witness.log")
    finally:
        store.close()


async def some_work(fleet: FleetHarness) -> Event:
    event = job("1", *MIXED, key="somebody@example.org")
    await fleet.send(event, *(job(f"e{n}", send()) for n in range(8)))
    await fleet.settle()
    for row in fleet.actions(event):
        if row.hold == "open":
            await fleet.app.commands.deny(fleet.order(), row.id)
    await fleet.settle()
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


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (
            "UPDATE entry SET bytes=CAST(replace(bytes,'permit','hold__') AS BLOB) WHERE seq={}",
            None,
        ),
        ("DELETE FROM entry WHERE seq={}", Code.SEQ_GAP),
        ("UPDATE body SET data=CAST('{{}}' AS BLOB) WHERE seq={}", Code.BODY_MISMATCH),
        ("DELETE FROM body WHERE seq={}", Code.BODY_MISSING),
    ],
)
async def test_promise_08_control_damage_is_found(
    tmp_path: Path, world: World, damage: str, code: Code | None
) -> None:
    async with toy_fleet(tmp_path, world) as fleet:
        await some_work(fleet)
        seq = fleet.entries("action.decided")[0]["seq"]
    assert verified(tmp_path).ok
    connection = apsw.Connection(str(tmp_path / "state" / "store.db"))
    connection.execute(damage.format(seq))
    assert connection.changes() == 1
    connection.close()
    report = verified(tmp_path)
    assert not report.ok
    assert code is None or code in {finding.code for finding in report.findings}
