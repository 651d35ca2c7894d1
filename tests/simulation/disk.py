"""The disk of a simulated machine: images per life, power cuts, errors at the n-th call, no room.

The files are real ones (put them on a file system in memory); SQLite's own go through the VFS of
`vedette.testing.disk`, which knows what was not synced. An image is the folder that the next life
gets: after a kill all that was written, as the kernel has it; after a power cut what the disk has.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import apsw

from vedette.testing.disk import FileWrites, PlainFile, WatchedDisk

# Appended to past SQLite without being synced: a power cut leaves a prefix of what came last.
_UNSYNCED = ("witness.log",)
# A lock of the dead, and SQLite's index of its log, which is memory.
_NOT_KEPT = ("runner.lock",)
_MEMORY = "-shm"
_DATABASE = (".db", ".db-wal", ".db-journal")

CALLS = ("open", "write", "truncate", "sync", "delete")


class SimDisk(WatchedDisk):
    """The disks of all machines of a history; a machine is a state folder.

    Where nothing befalls them no call need be `watched`, which costs as much as the calls.
    """

    def __init__(self, name: str, *, watched: bool = True) -> None:
        super().__init__(name)
        self._watched = watched
        self._counts: dict[tuple[str, str], int] = {}
        self._fails: dict[tuple[str, str], dict[int, Callable[[], apsw.Error]]] = {}
        self._room: dict[str, int] = {}
        self._shown: dict[str, int] = {}

    # --- faults -------------------------------------------------------------------------------

    def calls(self, folder: Path, call: str) -> int:
        """Return how many calls of a kind a machine's files have had."""
        return self._counts.get((os.path.realpath(folder), call), 0)

    def fail(self, folder: Path, call: str, nth: int) -> None:
        """Let the `nth` call of a kind from now fail, once, with an I/O error."""
        at = os.path.realpath(folder), call
        self._fails.setdefault(at, {})[self._counts.get(at, 0) + nth] = lambda: apsw.IOError(
            f"simulated: the {call} failed"
        )

    def leave_room(self, folder: Path, octets: int | None) -> None:
        """Let a machine's files grow by so many bytes and no more; None: as they please."""
        if octets is None:
            self._room.pop(os.path.realpath(folder), None)
        else:
            self._room[os.path.realpath(folder)] = octets

    def before_call(self, call: str, path: str, more: int = 0) -> None:
        """Count a call; raise what was asked for."""
        folder, _, _ = path.rpartition("/")
        at = folder, call
        count = self._counts[at] = self._counts.get(at, 0) + 1
        fails = self._fails.get(at)
        if fails and count in fails:
            raise fails.pop(count)()
        if more > 0 and folder in self._room:
            if self._room[folder] < more:
                raise apsw.FullError("simulated: the disk is full")
            self._room[folder] -= more

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        """Open a file."""
        if self._watched:
            return super().xOpen(name, flags)
        return PlainFile(self.base, name, flags)

    def xSleep(self, microseconds: int) -> int:
        """Wait for nobody: whoever holds a lock could not go on meanwhile."""
        return microseconds

    # --- images -------------------------------------------------------------------------------

    def image(self, folder: Path, to: Path, cut: random.Random | None = None) -> None:
        """Give `to` what survives of a machine's folder: all of it, or what a power cut leaves.

        `cut` draws what that is. The folder itself is gone then: take the image when its life ends,
        before anything else can write.
        """
        real = os.path.realpath(folder)
        to.mkdir(mode=0o700)
        for file in sorted(folder.iterdir()):
            if file.name in _NOT_KEPT or file.name.endswith(_MEMORY):
                continue
            if file.name.endswith(_DATABASE):
                # The dead have it open, with the locks that they held.
                shutil.copy2(file, to / file.name)
            else:
                file.rename(to / file.name)
        shutil.rmtree(folder)
        kept = [path for path in sorted(self.files) if path.rpartition("/")[0] == real]
        if cut is not None:
            for path in kept:
                (to / Path(path).name).write_bytes(self.files[path].draw_crash_image(cut, True))
            for name in _UNSYNCED:
                before, file = self._shown.get(real, 0), to / name
                if file.exists():
                    raw = file.read_bytes()
                    least = max(before, _first_note(raw))
                    file.write_bytes(raw[: cut.randint(min(least, len(raw)), len(raw))])
        for path in kept:
            written = self.files.pop(path)
            if cut is None:
                # A kill syncs nothing: the next power cut may take what this life wrote.
                self.files[f"{os.path.realpath(to)}/{Path(path).name}"] = FileWrites(
                    bytearray(written.synced_bytes), list(written.pending_writes), written.size
                )
        witness = to / _UNSYNCED[0]
        self._shown[os.path.realpath(to)] = witness.stat().st_size if witness.exists() else 0

    def forget(self, folder: Path) -> None:
        """Take what lies in a machine's folder now for what its disk has: it came by other ways."""
        real = os.path.realpath(folder)
        for path in [path for path in self.files if path.rpartition("/")[0] == real]:
            del self.files[path]

    def close(self) -> None:
        """Be the default no more."""
        self.unregister()


def _first_note(raw: bytes) -> int:
    """Return where the first note of a witness ends, which alone is synced.

    Its text and its signature have an empty line behind them each.
    """
    text = raw.find(b"\n\n")
    return raw.find(b"\n\n", text + 2) + 2 if text >= 0 else 0


def octets_of(folder: Path) -> int:
    """Return how many octets the files below a folder have."""
    return sum(
        entry.stat().st_size
        for place, _, _ in os.walk(folder)
        for entry in os.scandir(place)
        if entry.is_file(follow_symlinks=False)
    )
