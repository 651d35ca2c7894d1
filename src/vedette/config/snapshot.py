"""Snapshots: what an agent's code is loaded from, by the digest of its files.

    STATE/releases/DIGEST/NAME/…   the files of one release of one agent, as they were reviewed

A snapshot is written once, of bytes that were read once, and put in place by one rename; whoever
loads from it compares the digest again. It is not synced: what a power cut damages has another
digest, and is written anew when the fleet starts.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from msgspec import Struct

from vedette.config.agent_folder import digest_files, folder_files, read_files
from vedette.domain.base.errors import BadFleet

RELEASES_FOLDER = "releases"
_NEW = ".new-"


class Snapshot(Struct, frozen=True):
    """A snapshot of one release of an agent: its digest, and the folder that holds its files."""

    release: str
    folder: Path


def keep_snapshot(state: Path, folder: Path) -> Snapshot:
    """Write the present content of an agent's folder to the state folder, unless it is there.

    Raises BadFleet for a link, and for what cannot be read or written.
    """
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            where = f"{folder.name}/{path.relative_to(folder).as_posix()}"
            raise BadFleet("is a link", where=where, mend="copy it in")
    try:
        files = read_files(folder)
        release = digest_files(files)
        target_folder = snapshot_folder(state, release, folder.name)
        if not _is_intact(target_folder, release):
            _write(target_folder, files)
    except OSError as error:
        what = f"no snapshot can be made: {error.strerror or error}"
        mend = "see who owns the folder, and whether there is room"
        raise BadFleet(what, where=str(error.filename or folder), mend=mend) from error
    return Snapshot(release, target_folder)


def keep_files(state: Path, name: str, files: dict[str, bytes]) -> Snapshot:
    """Write the files of a release of an agent to the state folder. Raises BadFleet, OSError."""
    release = digest_files(files)
    folder = snapshot_folder(state, release, name)
    if not _is_intact(folder, release):
        _write(folder, files)
    return Snapshot(release, folder)


def find_snapshot(state: Path, release: str, name: str) -> Snapshot | None:
    """Return the snapshot of a release; None if it is not here, or is not whole any more."""
    folder = snapshot_folder(state, release, name)
    return Snapshot(release, folder) if _is_intact(folder, release) else None


def remove_unfinished_snapshots(state: Path) -> None:
    """Remove what is left of snapshots whose making was broken off; nobody else may make any."""
    for left in (state / RELEASES_FOLDER).glob(f"{_NEW}*"):
        shutil.rmtree(left, ignore_errors=True)


def snapshot_folder(state: Path, release: str, name: str) -> Path:
    """Return where the snapshot of an agent's release has its files, if they are there."""
    return state.absolute() / RELEASES_FOLDER / release / name


def _is_intact(folder: Path, release: str) -> bool:
    if folder.is_symlink() or not folder.is_dir():
        return False
    try:
        return digest_files(read_files(folder)) == release
    except (OSError, BadFleet):
        return False


def _write(destination: Path, files: dict[str, bytes]) -> None:
    releases = destination.parent.parent
    releases.mkdir(mode=0o700, parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=_NEW, dir=releases))
    try:
        for name, data in files.items():
            path = scratch / "whole" / destination.name / name
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o400)
            with os.fdopen(opened, "wb") as file:
                file.write(data)
        if destination.parent.is_symlink():
            destination.parent.unlink()
        elif destination.parent.exists():
            # It was damaged. What is in its place must not be taken for the release meanwhile.
            destination.parent.rename(scratch / "damaged")
        (scratch / "whole").rename(destination.parent)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def folder_stamps(folder: Path) -> tuple[tuple[str, int, int, int], ...]:
    """Return what tells, without reading, that an agent's folder has other files than before.

    Of each its path, size, time of change (ns) and inode.
    """
    found = []
    for path in folder_files(folder):
        stat = path.lstat()
        found.append((path.as_posix(), stat.st_size, stat.st_mtime_ns, stat.st_ino))
    return tuple(found)
