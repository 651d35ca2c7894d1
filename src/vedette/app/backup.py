"""Backup and restore of a fleet's state folder, beside a running fleet or with none.

A backup is a folder: `store.db` and `memory.db` as of one moment each, `ledger.pub`, `witness.log`
(the heads shown by then), `ledger.key` and `policy.key` only if asked for, and, written last,
`backup.json` with the digest of every file and the head of the ledger. It is verified before it is
called one.

A restore takes the place of a lost store and says so in the ledger it goes on with: the entry
`store.restored` names the heads that the witness saw beyond the backup, so that verification tells
lost from tampered. The restored fleet is stopped, and what it is not sure of it asks (see
`vedette.domain.run`).
"""

from __future__ import annotations

import shutil
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from vedette import __version__
from vedette.domain.base.clock import Clock, SystemClock, iso
from vedette.domain.base.disk_errors import convert_disk_errors
from vedette.domain.base.errors import BadCommand, BadStore
from vedette.domain.base.failpoint import hit_failpoint
from vedette.domain.base.fsync import replace_atomic
from vedette.domain.base.state_folder import secure_folder
from vedette.domain.identity import Principal
from vedette.ledger.merkle import ProofError, read_notes
from vedette.store.loss_detection import Loss, heads_beyond, note_size

if TYPE_CHECKING:
    from vedette.config.settings import Settings
    from vedette.ledger.merkle import SigningKey

SCHEMA = "vedette.backup/1"
MANIFEST = "backup.json"
STORE, MEMORY, WITNESS = "store.db", "memory.db", "witness.log"
PUBLIC, PRIVATE = "ledger.pub", "ledger.key"
# Those that policy archives are signed with and verified by.
POLICY_PUBLIC, POLICY_PRIVATE = "policy.pub", "policy.key"
_BUILDING = "restoring"
_CLOCK = SystemClock()


# --- backup ---------------------------------------------------------------------------------


def back_up(
    settings: Settings, to: Path, *, with_keys: bool = False, clock: Clock = _CLOCK
) -> dict[str, Any]:
    """Write a backup of the fleet's state into a new folder; return what its manifest says.

    Raises BadStore if there is no store or the copy does not verify, StoreFailed where the disk
    refused something; then there is no manifest.
    """
    with convert_disk_errors(to):
        return _back_up(settings, to, with_keys, clock.now_us())


def _back_up(settings: Settings, to: Path, with_keys: bool, now_us: int) -> dict[str, Any]:
    from vedette.adapters.ledger_export import sync_folder
    from vedette.store.sqlite.online_backup import copy_database

    _require_sqlite(settings)
    state = settings.state
    if not (state / STORE).exists():
        raise BadStore("there is no store here", where=str(state), mend="start `vedette run` once")
    to.mkdir(parents=True, exist_ok=True)
    if any(to.iterdir()):
        raise BadCommand("the folder is not empty", where=str(to), mend="name a new one")
    to.chmod(0o700)
    # In this order: heads that the copy holds, and memories that it has entries of.
    secret = (PRIVATE, POLICY_PRIVATE) if with_keys else ()
    for name in (WITNESS, PUBLIC, POLICY_PUBLIC, *secret):
        if (state / name).exists():
            _copy_file(state / name, to / name)
    if (state / MEMORY).exists():
        copy_database(state / MEMORY, to / MEMORY)
    copy_database(state / STORE, to / STORE)
    manifest = _build_manifest(settings, to, now_us)
    sync_folder(to)
    raw = orjson.dumps(manifest, option=orjson.OPT_INDENT_2) + b"\n"
    replace_atomic(to / MANIFEST, raw, "manifest")
    return manifest


def _build_manifest(settings: Settings, to: Path, now_us: int) -> dict[str, Any]:
    """Verify a copied state and return its manifest. Raises BadStore."""
    from vedette.adapters.ledger_export import verify_store
    from vedette.store.sqlite import SqliteReader

    store = SqliteReader(to)
    try:
        key = (to / PUBLIC).read_text(encoding="utf-8").strip()
        report = verify_store(store.ledger, key, to / WITNESS)
        fleet = store.meta("fleet")
    finally:
        store.close()
    if not report.ok:
        raise BadStore(
            f"the copy does not verify: {report.findings[0].sentence}",
            where=str(to / STORE),
            mend="see `vedette verify` of the fleet itself",
        )
    files = {
        path.name: {"bytes": path.stat().st_size, "sha256": _digest(path)}
        for path in sorted(to.iterdir())
    }
    return {
        "schema": SCHEMA,
        "fleet": fleet,
        "version": __version__,
        "made": iso(now_us),
        "size": report.size,
        "root": report.root.hex(),
        "files": files,
    }


# --- restore --------------------------------------------------------------------------------


async def restore(
    settings: Settings,
    source: Path,
    *,
    witness: Path | None,
    key: Path | None,
    who: Principal,
    reason: str,
    clock: Clock = _CLOCK,
) -> dict[str, Any]:
    """Put a backup in the place of a lost state folder; return what was lost.

    `witness` is the copy of the fleet's witness file that was kept elsewhere, None if there is
    none. `key` is the private key in force at the backup, None to take that of the backup or the
    one still in the state folder. The restored fleet is stopped. Raises BadCommand or BadStore,
    and then nothing was changed.
    """
    from vedette.store.runner_lock import LOCK_FILE, acquire_lock

    _require_sqlite(settings)
    if not reason.strip():
        raise BadCommand("a reason is missing", mend="add --reason 'why'")
    manifest = _read_manifest(source, settings.fleet)
    state = settings.state
    secure_folder(state)
    with convert_disk_errors(state), acquire_lock(state / LOCK_FILE):
        _refuse_existing_store(state)
        building = state / _BUILDING
        if building.exists():
            shutil.rmtree(building)
        building.mkdir(mode=0o700)
        checkpoints = _read_checkpoints(witness)
        loss, in_force = _verify_copy(source, building, checkpoints)
        signing = _find_signing_key(source, state, key, building, verifier_key=in_force)
        if not (state / POLICY_PRIVATE).exists():
            for name in (POLICY_PUBLIC, POLICY_PRIVATE):
                if (source / name).exists() and (source / POLICY_PRIVATE).exists():
                    _copy_file(source / name, building / name)
        await _record_restore(building, manifest["fleet"], signing, loss, who, reason, clock)
        own_notes = (building / WITNESS).read_text(encoding="utf-8")
        before = "".join(note + "\n" for note in checkpoints)
        (building / WITNESS).write_text(before + own_notes, encoding="utf-8")
        _install_files(building, state)
    return {"size": loss.size, "lost": max(loss.last - loss.size, 0), "heads": list(loss.heads)}


def _refuse_existing_store(state: Path) -> None:
    """Refuse to restore over a store, or over what the log of one holds. Raises BadCommand."""
    log = state / f"{STORE}-wal"
    if (state / STORE).exists():
        mend = f"move it away first, with {log.name}; it may hold more than the backup does"
        raise BadCommand("there is a store here", where=str(state / STORE), mend=mend)
    if log.exists() and log.stat().st_size:
        raise BadCommand(
            "there is the log of a store here, with commits that may be nowhere else",
            where=str(log),
            mend=f"move it to where its {STORE} is; beside a restored one it would spoil it",
        )


def _read_manifest(source: Path, fleet: str) -> dict[str, Any]:
    """Read and check a backup's manifest. Raises BadStore."""
    path = source / MANIFEST
    try:
        manifest: dict[str, Any] = orjson.loads(path.read_bytes())
        if manifest["schema"] != SCHEMA:
            raise ValueError(f"it says {manifest['schema']!r}")
        files: dict[str, dict[str, Any]] = manifest["files"]
        for name, value in files.items():
            if Path(name).name != name or _digest(source / name) != value["sha256"]:
                raise ValueError(f"{name} is not what it was")
        if manifest["fleet"] != fleet:
            raise ValueError(f"it is of the fleet {manifest['fleet']!r}, not {fleet!r}")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadStore(
            f"not a whole {SCHEMA}: {error}", where=str(path), mend="take another backup"
        ) from error
    return manifest


def _read_checkpoints(witness: Path | None) -> list[str]:
    if witness is None:
        return []
    try:
        notes = read_notes(witness.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise BadCommand("the witness file cannot be read", where=str(witness)) from error
    if not notes:
        raise BadCommand("the witness file holds no head", where=str(witness), mend="name another")
    return notes


def _verify_copy(source: Path, building: Path, checkpoints: list[str]) -> tuple[Loss, str]:
    """Copy the files, verify the ledger against what the witness saw.

    Returns what is beyond it, and the verifier key in force at the backup.
    """
    from vedette.adapters.ledger_export import verify_store
    from vedette.store.sqlite import SqliteReader
    from vedette.store.sqlite.previous_state import FOLDER
    from vedette.store.sqlite.upgrade import upgrade_file

    for name in (STORE, MEMORY, PUBLIC):
        if (source / name).exists():
            _copy_file(source / name, building / name)
    first = (building / PUBLIC).read_text(encoding="utf-8").strip()
    # A backup of an older version is upgraded here, where it can be made again.
    upgrade_file(building, first, lambda step, count, total: None, by_order=False)
    shutil.rmtree(building / FOLDER, ignore_errors=True)
    store = SqliteReader(building)
    try:
        in_force = store.ledger.key_in_force() or first
        size = store.ledger.last_seq()
        within = [note for note in checkpoints if note_size(note) <= size]
        (building / WITNESS).write_text("".join(note + "\n" for note in within), encoding="utf-8")
        report = verify_store(store.ledger, first, building / WITNESS)
        # The restored store is opened with a witness that saw all of it, and no more.
        (building / WITNESS).write_text(
            f"{store.ledger.last_checkpoint() or ''}\n", encoding="utf-8"
        )
    finally:
        store.close()
    if not report.ok:
        raise BadStore(
            f"the backup does not verify: {report.findings[0].sentence}",
            where=str(source),
            mend="take another backup, or the witness file of this fleet",
        )
    try:
        heads = heads_beyond(checkpoints, size, in_force)
    except ProofError as error:
        raise BadCommand(
            f"a head that the witness saw beyond the backup does not hold: {error}",
            mend="the key was rotated after this backup: restore one taken since, or restore "
            "with --witness none and say so to whoever verifies",
        ) from error
    return Loss(size, heads), in_force


def _find_signing_key(
    source: Path, state: Path, key: Path | None, building: Path, *, verifier_key: str
) -> SigningKey:
    """Find the signing key whose verifier key is `verifier_key`, and put it into the new state.

    Raises BadCommand.
    """
    from vedette.adapters.signing_keys import (
        format_verifier_key,
        next_key_files,
        read_signing_key,
        write_key_file,
    )

    # A rotation may have been broken off with its key in force, and not in its place yet.
    near = [source / PRIVATE, state / PRIVATE, *next_key_files(state)]
    there = [place for place in ([key] if key is not None else near) if place.exists()]
    for place in there:
        found = read_signing_key(place)
        if format_verifier_key(verifier_key.split("+")[0], found) == verifier_key:
            write_key_file(building / PRIVATE, found.private_bytes_raw())
            return found
    other = "the key here is not the one in force at the backup"
    raise BadCommand(
        other if there else "the signing key of this store is not here",
        where=str(there[0] if there else key or near[0]),
        mend="give --key FILE: its private key as it was at the backup",
    )


async def _record_restore(
    building: Path,
    fleet: str,
    key: SigningKey,
    loss: Loss,
    who: Principal,
    reason: str,
    clock: Clock,
) -> None:
    """Write into the restored store what it is: restored, and stopped."""
    from vedette.store.sqlite import SqliteStore

    name = f"vedette/{fleet}"
    store = SqliteStore(building, fleet=fleet, key=key, key_name=name, now_us=clock.now_us)
    try:
        await store.maintenance.record_restore(loss, actor=str(who), reason=reason)
    finally:
        store.close()


def _install_files(building: Path, state: Path) -> None:
    """Move the built files; the store comes last, so that half of it is never opened."""
    from vedette.adapters.ledger_export import sync_folder

    (building / "runner.lock").unlink(missing_ok=True)
    sync_folder(building)
    hit_failpoint("restore:before")
    # The logs go for good before any file comes that they would be taken for the log of.
    for name in (STORE, MEMORY):
        if (building / name).exists():
            for log in ("wal", "shm"):
                (state / f"{name}-{log}").unlink(missing_ok=True)
    sync_folder(state)
    hit_failpoint("restore:log")
    for name in (PRIVATE, PUBLIC, POLICY_PUBLIC, POLICY_PRIVATE, MEMORY, WITNESS, STORE):
        if (building / name).exists():
            (building / name).replace(state / name)
            hit_failpoint("restore:mid")
    shutil.rmtree(building)
    sync_folder(state)
    hit_failpoint("restore:after")


# --- files ----------------------------------------------------------------------------------


def _require_sqlite(settings: Settings) -> None:
    if settings.store.kind != "sqlite":
        raise BadCommand(
            "this is for the embedded store",
            mend="PostgreSQL has its own tools: see docs/guides/restore.md",
        )


def _copy_file(source: Path, to: Path) -> None:
    if source.name in (STORE, MEMORY):
        shutil.copyfile(source, to)
        to.chmod(0o600)
        return
    # The folder is new, and its disk may have no hard links.
    replace_atomic(to, source.read_bytes(), "key")


def _digest(path: Path) -> str:
    digest = sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
