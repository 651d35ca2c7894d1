"""Another version on the same state: it is upgraded by hand, and each side says what it sees."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.contract.store.test_migrate import HELD, schema_of, unpacked, upgrade
from tests.contract.store.test_store_sqlite import mounts, need_mounts

from vedette.adapters.ledger_export import verify_store
from vedette.adapters.policy_engines.regorus.stage import SubprocessStage
from vedette.app import store_upgrade
from vedette.domain.bundle import Bundle, Finding
from vedette.interfaces.cli import main
from vedette.interfaces.daemon import Daemon
from vedette.policy.compatibility import CHECK_MARK, read_check
from vedette.store.banks import SqliteBank
from vedette.store.runner_lock import LOCK_FILE, acquire_lock
from vedette.store.schema import SCHEMA
from vedette.store.sqlite import SqliteReader
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import World, job, send_proposal, toy_fleet, wait_until

SETTINGS = """\
fleet = "harbour"
[content]
agents = "content/agents"
memory = "content/memory"
[targets.world]
kind = "webhook"
url = "http://127.0.0.1:9/"
"""
# Admitted by whoever does not look: it calls what no portable policy may.
FORBIDDEN = {
    "vedette/approval/late.rego": 'package vedette.late\n\nlate := http.send({"url": "x"})\n'
}


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, str]:
    """Give a verb and return its exit code and all it says."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    text = capsys.readouterr()
    return ended.value.code, text.out + text.err


WHY = ("--reason", "a new version")


def settled(folder: Path, schema: int, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Lay a fleet beside a store of an older schema; return its state folder."""
    state = unpacked(schema, folder)
    toy_fleet(folder, World(), agents=("worker", "helper"))
    (folder / "vedette.toml").write_text(SETTINGS, encoding="utf-8")
    monkeypatch.setenv("VEDETTE_STATE", str(state))
    return state


@pytest.mark.parametrize("schema", range(1, SCHEMA))
def test_every_verb_says_to_upgrade_an_older_store_and_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, schema: int
) -> None:
    state = settled(tmp_path, schema, monkeypatch)
    for verb in (
        ["run", "--until-idle"],
        ["status"],
        ["verify"],
        ["runs"],
        ["policy", "status"],
        ["backup", "--to", str(tmp_path / "backup")],
        ["stop", "--all", "--reason", "r"],
        ["migrate", "postgresql://127.0.0.1:1/none", "--reason", "r"],
    ):
        code, output = said(capsys, "--config", str(tmp_path), *verb)
        words = " ".join(output.split())
        assert code == 3, (verb, output)
        assert "error[older-store]" in words, (verb, output)
        assert "stop the fleet, then `vedette upgrade`" in words, (verb, output)
    assert schema_of(state / "store.db") == schema
    assert not (state / "before").exists()


@pytest.mark.parametrize("schema", range(1, SCHEMA))
def test_an_upgrade_says_what_it_did_and_the_ledger_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, schema: int
) -> None:
    """The old store lies where it says, an older program goes on with it; once is enough."""
    state = settled(tmp_path, schema, monkeypatch)
    code, output = said(capsys, "--config", str(tmp_path), "upgrade")
    assert (code, "--reason" in output) == (2, True)
    code, output = said(capsys, "--config", str(tmp_path), "upgrade", *WHY)
    words = " ".join(output.split())
    assert code == 0, output
    assert f"upgraded 146 entries from schema {schema} to {SCHEMA}" in words
    assert "written: 146 of 146 entries" in words
    assert "proved: 146 of 146 entries" in words
    assert "root 3d82626662ceb6bb" in words
    kept = state / "before" / f"schema-{schema}"
    assert f"the old store lies in {kept}" in words
    assert schema_of(kept / "store.db") == schema
    assert (kept / "witness.log").exists()
    assert (state / "before").stat().st_mode & 0o077 == 0
    assert not (state / "upgrade").exists()
    store = SqliteReader(state)
    (entry,) = store.ledger.walk(("store.upgraded",))
    told = json.loads(entry[1])
    assert (told["what"], json.loads(entry[3] or b"")) == (str(schema), {"reason": "a new version"})
    assert told["actor"].startswith("person:")
    store.close()
    code, output = said(capsys, "--config", str(tmp_path), "verify")
    assert code == 0, output
    code, output = said(capsys, "--config", str(tmp_path), "upgrade", *WHY, "--json")
    assert (code, json.loads(output)) == (0, {"upgraded": False, "schema": SCHEMA})
    store = SqliteReader(state)
    assert len(list(store.ledger.walk(("store.upgraded",)))) == 1
    store.close()


def test_an_upgrade_that_was_killed_before_it_was_told_is_told_by_the_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    state = settled(tmp_path, 3, monkeypatch)
    upgrade(state)  # and no more: the entry is lacking
    code, output = said(capsys, "--config", str(tmp_path), "upgrade", *WHY)
    assert code == 0, output
    assert "already" in output
    store = SqliteReader(state)
    (entry,) = store.ledger.walk(("store.upgraded",))
    assert json.loads(entry[1])["what"] == "3"
    store.close()


def test_an_upgrade_that_cannot_be_told_now_is_done_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A supervisor started the fleet in between; the entry is written by the next order."""
    state = settled(tmp_path, 3, monkeypatch)
    record = store_upgrade._record_upgrade

    async def begin_to_run(*arguments: Any) -> Sequence[str]:
        with acquire_lock(state / LOCK_FILE):
            return await record(*arguments)

    monkeypatch.setattr(store_upgrade, "_record_upgrade", begin_to_run)
    code, output = said(capsys, "--config", str(tmp_path), "upgrade", *WHY)
    words = " ".join(output.split())
    assert code == 0, output
    assert f"upgraded 146 entries from schema 3 to {SCHEMA}" in words
    assert "the ledger does not say so yet (another runner" in words
    # The control: an order that finds all of it done, and cannot write the entry, has failed.
    code, output = said(capsys, "--config", str(tmp_path), "upgrade", *WHY)
    assert (code, "error[store-busy]" in output) == (3, True)
    monkeypatch.undo()
    monkeypatch.setenv("VEDETTE_STATE", str(state))
    code, output = said(capsys, "--config", str(tmp_path), "upgrade", *WHY)
    assert (code, "already" in output) == (0, True)
    store = SqliteReader(state)
    assert len(list(store.ledger.walk(("store.upgraded",)))) == 1
    store.close()


@pytest.mark.parametrize("key", ["none", "another"])
def test_without_the_key_that_signs_it_nothing_is_begun(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    state = settled(tmp_path, 3, monkeypatch)
    there = (state / "ledger.key").read_bytes()
    (state / "ledger.key").unlink()
    if key == "another":
        (state / "ledger.key").write_bytes(bytes(32))
    code, output = said(capsys, "--config", str(tmp_path), "upgrade", *WHY)
    assert (code, "signing key" in output) == (3, True)
    assert "written" not in output
    assert schema_of(state / "store.db") == 3
    assert (state / "ledger.key").exists() is (key == "another")
    (state / "ledger.key").write_bytes(there)
    code, output = said(capsys, "--config", str(tmp_path), "upgrade", *WHY)
    assert code == 0, output


def test_while_the_fleet_runs_its_store_is_not_upgraded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    state = settled(tmp_path, 3, monkeypatch)
    with acquire_lock(state / LOCK_FILE):
        code, output = said(capsys, "--config", str(tmp_path), "upgrade", *WHY)
    assert code == 3
    assert "error[store-busy]" in output
    assert "stop it first" in output
    assert schema_of(state / "store.db") == 3


async def test_an_older_version_goes_on_with_what_was_kept(tmp_path: Path) -> None:
    """And is upgraded again from there as it was the first time: nothing of it was lost."""
    state = unpacked(1, tmp_path)
    upgrade(state)
    fleet = toy_fleet(tmp_path, World(), agents=("worker", "helper"))
    async with fleet:
        await fleet.restart()
    back = tmp_path / "back" / "state"
    shutil.copytree(state / "before" / "schema-1", back)
    for name in ("ledger.key", "ledger.pub"):
        shutil.copy2(state / name, back)
    upgrade(back)
    repeat = FleetHarness(
        back.parent, content=fleet.content, policies=fleet.policies, targets=fleet.targets
    )
    async with repeat:
        store = repeat.app.store
        assert HELD in {held.id for held in store.runs.holds_page(after=0, limit=10)}
        assert verify_store(
            store.ledger, (state / "ledger.pub").read_text(), back / "witness.log"
        ).ok


@pytest.mark.parametrize("schema", [1, 3])
def test_without_room_for_an_upgrade_nothing_is_changed(tmp_path: Path, schema: int) -> None:
    need_mounts(mounts())
    state = unpacked(schema, tmp_path)
    toy_fleet(tmp_path, World(), agents=("worker", "helper"))
    (tmp_path / "vedette.toml").write_text(SETTINGS, encoding="utf-8")
    small = tmp_path / "small"
    small.mkdir()
    size = sum(file.stat().st_size for file in state.iterdir() if file.is_file())
    run = [sys.executable, "-m", "vedette", "--config", str(tmp_path), "upgrade", *WHY]
    script = (
        f"mount -t tmpfs -o size={size + 200_000} tmpfs {shlex.quote(str(small))} && "
        f"cp -r {shlex.quote(str(state))} {small}/state && chmod 700 {small}/state && "
        f"{shlex.join(run)}; echo exit $?; cp {small}/state/store.db {tmp_path}/after.db; "
        f"ls {small}/state"
    )
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script],
        capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "VEDETTE_STATE": str(small / "state")},
    )  # fmt: skip
    text = " ".join((done.stdout + done.stderr).split())
    assert "exit 3" in text, text
    assert "error[no-space]" in text
    assert "nothing was changed" in text
    assert "Traceback" not in text
    assert schema_of(tmp_path / "after.db") == schema
    assert not {"before", "upgrade"} & set(done.stdout.split())


def test_a_newer_store_is_said_to_be_newer_by_every_verb(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    state = unpacked(1, tmp_path)
    toy_fleet(tmp_path, World(), agents=("worker", "helper"))
    (tmp_path / "vedette.toml").write_text(SETTINGS, encoding="utf-8")
    monkeypatch.setenv("VEDETTE_STATE", str(state))
    connection = apsw.Connection(str(state / "store.db"))
    connection.execute(f"PRAGMA user_version={SCHEMA + 1}")
    connection.close()
    for verb in (
        ["status"],
        ["verify"],
        ["policy", "status"],
        ["run", "--until-idle"],
        ["stop", "--all", "--reason", "r"],
        ["upgrade", *WHY],
    ):
        code, output = said(capsys, "--config", str(tmp_path), *verb)
        words = " ".join(output.split())
        assert code == 3, (verb, output)
        assert "error[newer-store]" in words, (verb, output)
        assert "use the version of vedette that wrote it" in words, (verb, output)
        assert "backup" not in words, (verb, output)
    assert schema_of(state / "store.db") == SCHEMA + 1


def test_a_memory_bank_is_copied_before_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    SqliteBank(path).close()
    connection = apsw.Connection(str(path))
    connection.execute("ALTER TABLE candidate DROP COLUMN evidence")
    connection.close()
    bank = SqliteBank(path)
    (remark,) = bank.remarks
    bank.close()
    kept = tmp_path / "before" / "memory.db"
    assert str(kept) in remark
    old = apsw.Connection(str(kept), flags=apsw.SQLITE_OPEN_READONLY)
    names = {row[1] for row in old.execute("PRAGMA table_info(candidate)")}
    old.close()
    assert "evidence" not in names
    assert SqliteBank(path).remarks == ()


async def test_a_live_policy_that_this_version_refuses_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stays live: it was admitted, and to drop it would stop the fleet at an upgrade."""
    monkeypatch.setattr("vedette.interfaces.daemon.FIRST_CHECK_DELAY_S", 0.0)
    monkeypatch.setattr("vedette.interfaces.daemon.CHECK_INTERVAL_S", 0.1)
    fleet = toy_fleet(tmp_path, World(), extra=FORBIDDEN)
    (tmp_path / "vedette.toml").write_text(SETTINGS, encoding="utf-8")
    monkeypatch.setenv("VEDETTE_STATE", str(fleet.folder / "state"))
    async with fleet:
        live = fleet.app.rollout.live
        await fleet.app.store.commands.set_meta(CHECK_MARK, "{}")  # as an older version left it
    code, answer = await asyncio.to_thread(
        said, capsys, "--config", str(tmp_path), "policy", "status"
    )
    assert code == 0
    assert "this version's check refuses the live policy" in " ".join(answer.split())
    async with fleet:
        assert fleet.app.rollout.live == live
        fleet.app.rollout.stage = SubprocessStage()
        running = Daemon(fleet.app, until_idle=False)
        task = asyncio.create_task(running.run())
        await wait_until(
            lambda: any("refuses the live policy" in answer for answer in running.troubles), 30
        )
        (found,) = [answer for answer in running.troubles if "refuses the live policy" in answer]
        assert "late.rego" in found
        assert fleet.app.rollout.live == live
        assert b"vedette_policy_live_refused 1.0" in fleet.app.metrics.scrape()[0]
        running.stop()
        await task
    store = SqliteReader(fleet.folder / "state")
    assert read_check(store, live.digest)
    store.close()
    _, answer = await asyncio.to_thread(said, capsys, "--config", str(tmp_path), "status")
    assert "this version's check refuses the live policy" in " ".join(answer.split())
    async with fleet:
        running = Daemon(fleet.app, until_idle=False)
        task = asyncio.create_task(running.run())
        await wait_until(lambda: b"policy_live_refused 1.0" in fleet.app.metrics.scrape()[0], 30)
        # Mended and published, it is refused no more.
        (fleet.policies / "vedette/approval/late.rego").unlink()
        await fleet.apply_policy(fleet.policies)
        await wait_until(lambda: b"policy_live_refused 0.0" in fleet.app.metrics.scrape()[0], 30)
        running.stop()
        await task


async def test_a_check_that_cannot_be_made_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No process can be had for it; the policy is live all the same."""
    monkeypatch.setattr("vedette.interfaces.daemon.FIRST_CHECK_DELAY_S", 0.0)
    world = World()

    async def fails(bundle: Bundle) -> list[Finding]:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    async with toy_fleet(tmp_path, world) as fleet:
        await fleet.app.store.commands.set_meta(CHECK_MARK, "{}")
        monkeypatch.setattr(fleet.app.rollout.stage, "try_out", fails)
        running = Daemon(fleet.app, until_idle=False)
        task = asyncio.create_task(running.run())
        await wait_until(lambda: any("is not known" in message for message in running.troubles), 30)
        await fleet.send(job("1", send_proposal()))
        await wait_until(lambda: world.effects() == 1)
        running.stop()
        await task
