"""The state folder: for its owner alone whatever it was before, no links, and watched in a run."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.said import START, environment, vedette
from tests.small import small

from vedette.domain.base.errors import BadStore, Unavailable
from vedette.domain.base.state_folder import StateIdentity, open_file, secure_folder
from vedette.interfaces.daemon import Daemon
from vedette.ledger.merkle import Checkpoint
from vedette.store.runner_lock import acquire_lock
from vedette.store.witness import Witness, append_note, read_last_checkpoint
from vedette.testing.harness import checkout
from vedette.testing.toy_fleet import World, job, send_proposal, toy_fleet

SOURCE = """
[[sources]]
kind = "maildir"
name = "desk"
path = "@state/mailbox"
copy_from = "mails"
"""


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fleet that handled mails once, started by somebody whose umask closes nothing."""
    root = small(tmp_path_factory.mktemp("busy"))
    mails = root / "mails" / "new"
    mails.mkdir(parents=True)
    for mail in sorted((checkout() / "samples/mailbox/new").iterdir())[:4]:
        shutil.copyfile(mail, mails / mail.name)
        (mails / mail.name).chmod(0o644)
    with (root / "vedette.toml").open("a") as toml:
        toml.write(SOURCE)
    run(root)
    return root


def run(root: Path) -> None:
    done = subprocess.run(
        [*START, "run", "--until-idle", "--json"], cwd=root, env=environment(), umask=0,
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def open_to_others(state: Path) -> list[str]:
    found = [state, *state.rglob("*")]
    return [
        f"{path} {stat.S_IMODE(path.lstat().st_mode):04o}"
        for path in found
        if stat.S_IMODE(path.lstat().st_mode) & 0o077
    ]


def test_after_a_busy_run_nothing_in_it_is_open_to_others(busy: Path) -> None:
    names = {path.name for path in (busy / ".vedette").rglob("*")}
    assert {"store.db", "memory.db", "ledger.key", "witness.log", "runner.lock"} <= names
    assert open_to_others(busy / ".vedette") == []
    backed = vedette(busy, "backup", "copy", "--json")
    assert backed.code == 0, backed.err
    exported = vedette(busy, "ledger", "export", "exported", "--bodies")
    assert exported.code == 0, exported.err
    assert open_to_others(busy / "copy") + open_to_others(busy / "exported") == []


def test_what_a_fleet_shares_is_not_closed(tmp_path: Path) -> None:
    done = subprocess.run(
        [*START, "init", "fleet"], cwd=tmp_path, env=environment(), umask=0o022,
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert stat.S_IMODE((tmp_path / "fleet" / "vedette.toml").stat().st_mode) == 0o644


def test_a_folder_of_before_is_closed_at_the_next_start_and_told_of_once(tmp_path: Path) -> None:
    deep = tmp_path / "state" / "scratch" / "deep"
    deep.mkdir(parents=True)
    for path in (tmp_path / "state" / "store.db", deep / "copy"):
        path.write_bytes(b"")
        path.chmod(0o644)
    for path in (tmp_path / "state", deep.parent, deep):
        path.chmod(0o755)
    message = secure_folder(tmp_path / "state")
    assert len(message) == 1
    assert "and 4 more were open to other users" in message[0]
    assert open_to_others(tmp_path / "state") == []
    assert secure_folder(tmp_path / "state") == []


def test_a_file_that_became_open_in_a_closed_folder_is_closed_too(tmp_path: Path) -> None:
    secure_folder(tmp_path / "state")
    (tmp_path / "state" / "store.db-wal").write_bytes(b"")
    (tmp_path / "state" / "store.db-wal").chmod(0o640)
    assert len(secure_folder(tmp_path / "state")) == 1
    assert open_to_others(tmp_path / "state") == []


# --- links ---------------------------------------------------------------------------------------

NAMES = (
    "runner.lock", "witness.log", "store.db", "store.db-wal", "store.db-shm", "memory.db",
    "ledger.key", "ledger.pub", "workers.lock", "in_hand", "policy.key", "releases", "scratch",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_link_in_it_is_refused_before_anything_is_written(name: str, tmp_path: Path) -> None:
    victim, state = tmp_path / "victim", tmp_path / "state"
    victim.write_bytes(b"not the fleet's")
    state.mkdir()
    (state / name).symlink_to(victim)
    with pytest.raises(BadStore, match="is a link") as refused:
        secure_folder(state)
    assert refused.value.code == "unsafe-state"
    assert str(state / name) in str(refused.value)
    assert victim.read_bytes() == b"not the fleet's"


def test_a_link_in_a_folder_that_others_could_write_is_found_at_any_depth(tmp_path: Path) -> None:
    inner = tmp_path / "state" / "identity" / "keys"
    inner.mkdir(parents=True)
    (inner / "book").symlink_to(tmp_path / "elsewhere")
    for folder in (tmp_path / "state", inner.parent, inner):
        folder.chmod(0o777)
    with pytest.raises(BadStore, match="is a link"):
        secure_folder(tmp_path / "state")


def test_a_state_folder_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "state").symlink_to(tmp_path / "there")
    with pytest.raises(BadStore, match="is a link"):
        secure_folder(tmp_path / "state")


@pytest.mark.parametrize(
    "opening",
    [
        lambda path: acquire_lock(path),
        lambda path: open_file(path, os.O_RDWR | os.O_CREAT),
        lambda path: append_note(path, "a note"),
        lambda path: read_last_checkpoint(path),
    ],
)
def test_what_opens_a_file_follows_no_link_that_came_after_the_check(
    opening: Callable[[Path], object], tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"kept")
    (tmp_path / "file").symlink_to(victim)
    with pytest.raises((BadStore, OSError)):
        opening(tmp_path / "file")
    assert victim.read_bytes() == b"kept"


def test_a_witness_that_became_a_link_leaves_the_fleet_behind_and_the_victim_alone(
    tmp_path: Path,
) -> None:
    victim = tmp_path / "victim"
    (tmp_path / "witness.log").symlink_to(victim)
    witness = Witness(tmp_path / "witness.log")
    witness.add_checkpoint("a note", Checkpoint("vedette/harbour", 1, bytes(32)))
    assert witness.is_behind
    assert not victim.exists()


def test_a_reader_follows_no_link_either(busy: Path, tmp_path: Path) -> None:
    root = shutil.copytree(busy, tmp_path / "fleet")
    (root / ".vedette" / "store.db").rename(tmp_path / "store.db")
    (root / ".vedette" / "store.db").symlink_to(tmp_path / "store.db")
    result = vedette(root, "runs", "--json")
    assert result.code == 3
    assert result.error["code"] == "unsafe-state"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to somebody else")
def test_what_belongs_to_somebody_else_is_refused(tmp_path: Path) -> None:
    secure_folder(tmp_path / "state")
    (tmp_path / "state" / "store.db").write_bytes(b"")
    os.chown(tmp_path / "state" / "store.db", 12345, -1)
    with pytest.raises(BadStore, match="belongs to user 12345"):
        secure_folder(tmp_path / "state")


# --- watched -------------------------------------------------------------------------------------


def move_folder(state: Path) -> None:
    state.rename(state.with_name("moved"))


def replace_folder(state: Path) -> None:
    state.rename(state.with_name("moved"))
    shutil.copytree(state.with_name("moved"), state, ignore=shutil.ignore_patterns("*.sock"))


def delete_folder(state: Path) -> None:
    # The fleet goes on writing until it sees it, also into a folder that is nearly empty.
    while state.exists():
        shutil.rmtree(state, ignore_errors=True)


def delete_store(state: Path) -> None:
    (state / "store.db").unlink()


def delete_log(state: Path) -> None:
    (state / "store.db-wal").unlink()


def replace_store(state: Path) -> None:
    shutil.copyfile(state / "store.db", state / "copy")
    (state / "copy").rename(state / "store.db")


def replace_lock(state: Path) -> None:
    (state / "runner.lock").unlink()
    (state / "runner.lock").write_text("1")


@pytest.mark.parametrize(
    "moving",
    [
        move_folder, replace_folder, delete_folder, delete_store, delete_log, replace_store,
        replace_lock,
    ],
)  # fmt: skip
async def test_a_fleet_whose_state_goes_away_ends(
    moving: Callable[[Path], None], tmp_path: Path
) -> None:
    world = World()
    async with toy_fleet(tmp_path, world) as fleet:
        await fleet.app.dispatcher.close()
        running = Daemon(fleet.app, until_idle=False)
        ended = asyncio.create_task(running.run())
        async with asyncio.timeout(20):
            served = fleet.app.settings.state / "api.sock"
            while not served.exists():  # noqa: ASYNC110 (a real fleet is waited for)
                await asyncio.sleep(0.01)
            await fleet.app.intake.accept([job("1", send_proposal("hello"))])
            while not world.effects():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            moving(fleet.app.settings.state)
            with pytest.raises(Unavailable) as refusal:
                await ended
    assert refusal.value.code == "state-moved"
    assert any("state folder ended" in trouble for trouble in running.troubles)


def test_a_state_that_stays_is_not_complained_of(tmp_path: Path) -> None:
    secure_folder(tmp_path / "state")
    (tmp_path / "state" / "store.db").write_bytes(b"1")
    identity = StateIdentity.of(tmp_path / "state")
    (tmp_path / "state" / "store.db").write_bytes(b"22")
    (tmp_path / "state" / "memory.db").write_bytes(b"")
    identity.check()
