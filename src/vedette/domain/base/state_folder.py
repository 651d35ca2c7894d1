"""The state folder: for its owner alone, checked at each start, and watched while a fleet runs.

What lies in a folder that nobody else can enter was put there by its owner, so one look at the
folder and at what lies directly in it is enough. Where a folder was open to others, everything
below it is looked at: they may have planted a link that leads what we write to somewhere else.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from msgspec import Struct

from vedette.domain.base.errors import BadStore, Unavailable

FOLDER_MODE, FILE_MODE = 0o700, 0o600
UNSAFE_STATE, STATE_MOVED = "unsafe-state", "state-moved"
# What a running fleet holds open, or names by its path: replaced, it would write into the void.
WATCHED_FILES = ("", "runner.lock", "store.db", "store.db-wal", "memory.db", "memory.db-wal")
_OTHERS_MASK = stat.S_IRWXG | stat.S_IRWXO


def secure_folder(state: Path) -> list[str]:
    """Make a state folder if there is none, and see that it is its owner's alone.

    What is open to others is closed; returns a sentence for a person if anything was. Raises
    BadStore (`unsafe-state`) for a link, for what belongs to another user, and where the file
    system keeps no modes.
    """
    state.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    closed: list[str] = []
    _secure_path(state, closed)
    if not closed:
        return []
    first, more = closed[0], len(closed) - 1
    what = f"{first} and {more} more were" if more else f"{first} was"
    return [f"{what} open to other users; now for the owner alone"]


def create_file(path: Path) -> None:
    """Make an empty file of the state folder, if there is none. Raises BadStore for a link."""
    os.close(open_file(path, os.O_RDWR | os.O_CREAT))


def open_file(path: Path, flags: int) -> int:
    """Open a file of the state folder and return its descriptor; what is made is the owner's alone.

    Raises BadStore (`unsafe-state`) for a link, and OSError.
    """
    try:
        return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE)
    except OSError:
        # Asked only now: it costs more than to open, and the witness is opened for each group.
        refuse_link(path)
        raise


def open_text(path: Path) -> IO[str]:
    """Open a file of the state folder to read and append text. Raises as `open_file` does."""
    return os.fdopen(open_file(path, os.O_RDWR | os.O_CREAT | os.O_APPEND), "a+", encoding="utf-8")


def refuse_link(path: Path) -> None:
    """Raise BadStore (`unsafe-state`) if a path of the state folder is a link."""
    if path.is_symlink():
        raise _unsafe_path_error(path, "is a link", "remove it, and find out who put it there")


def _secure_path(path: Path, closed: list[str], *, within: bool = False) -> None:
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode):
        raise _unsafe_path_error(path, "is a link", "name the folder itself; remove links in it")
    if found.st_uid != os.geteuid():
        raise _unsafe_path_error(
            path, f"belongs to user {found.st_uid}", "run as its owner, or chown it"
        )
    wide = stat.S_IMODE(found.st_mode) & _OTHERS_MASK
    if wide:
        path.chmod(stat.S_IMODE(found.st_mode) & ~_OTHERS_MASK)
        if stat.S_IMODE(path.lstat().st_mode) & _OTHERS_MASK:
            mend = "put the state folder on a file system that keeps modes"
            raise _unsafe_path_error(path, "cannot be closed to other users", mend)
        closed.append(f"{path} ({stat.S_IMODE(found.st_mode):04o})")
    if stat.S_ISDIR(found.st_mode) and (wide or not within):
        with os.scandir(path) as entries:
            inside = sorted(entry.path for entry in entries)
        for each in inside:
            # What another process removes meanwhile needs no looking at.
            with suppress(FileNotFoundError):
                _secure_path(Path(each), closed, within=True)


def _unsafe_path_error(path: Path, what: str, mend: str) -> BadStore:
    return BadStore(what, where=str(path), mend=mend, code=UNSAFE_STATE)


class StateIdentity(Struct, frozen=True):
    """The identity of a state folder: device and inode of each file that a fleet began with."""

    state: Path
    files: tuple[tuple[str, int, int], ...]

    @classmethod
    def of(cls, state: Path, names: Sequence[str] = WATCHED_FILES) -> StateIdentity:
        """Return the identity of a state folder as it is now."""
        return cls(state, tuple(_file_identities(state, names)))

    def check(self) -> None:
        """Raise Unavailable (`state-moved`) if something of it is not where it was any more."""
        names = [name for name, _, _ in self.files]
        now = {name: (device, inode) for name, device, inode in _file_identities(self.state, names)}
        for name, device, inode in self.files:
            if now.get(name) != (device, inode):
                what = "was replaced" if name in now else "is not there any more"
                raise Unavailable(
                    f"{what} under the running fleet", where=str(self.state / name),
                    mend="put it back, then start again; see `vedette verify`",
                    code=STATE_MOVED,
                )  # fmt: skip


def _file_identities(state: Path, names: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    for name in names:
        try:
            found = (state / name).lstat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        yield name, found.st_dev, found.st_ino
