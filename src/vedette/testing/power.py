"""Power loss under the shipped store: a SQLite VFS that forgets what was not synced.

Registered as the default, it lies under every SQLite file of the process, whoever opens it. Writes
go through, and are remembered until the file is synced. At write number `cut_at` the power fails:
`spared` gets every file as a disk might have it then, that is its last synced content and a seeded
prefix of the writes since, the last of them possibly torn at a sector; then the process is killed.

    pull_plug(spared, seed=3, cut_at=120, others=[witness])

Files that were written past SQLite (`others`) keep a seeded prefix of their bytes, and what they
held when they were synced last. Names of files
are taken to be durable, and a file that was deleted stays so.
"""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Sequence
from dataclasses import field
from pathlib import Path

import apsw

from vedette.quick_data import dataclass

SECTOR = 512

# A VFS that nobody holds is taken away from under its files.
_PLUGGED: list[PowerLoss] = []

_KEPT = (
    apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_MAIN_JOURNAL
)  # fmt: skip


@dataclass(slots=True)
class _Disk:
    """What a disk holds of one file: its synced bytes, and the writes that were not synced yet.

    A write of None means that the file was cut to `offset` bytes.
    """

    synced: bytearray = field(default_factory=bytearray)
    waiting: list[tuple[int, bytes | None]] = field(default_factory=list)

    def sync(self) -> None:
        """Let everything written so far reach the disk."""
        for offset, data in self.waiting:
            _put(self.synced, offset, data)
        self.waiting.clear()

    def spared(self, draw: random.Random, torn: bool) -> bytes:
        """Return the bytes of a disk that the power left while these writes were on their way."""
        image = bytearray(self.synced)
        kept = draw.randint(0, len(self.waiting))
        for offset, data in self.waiting[:kept]:
            _put(image, offset, data)
        if torn and kept < len(self.waiting):
            offset, data = self.waiting[kept]
            if data is not None:
                sectors = draw.randint(0, len(data) // SECTOR)
                _put(image, offset, data[: sectors * SECTOR])
        return bytes(image)


def _put(image: bytearray, offset: int, data: bytes | None) -> None:
    if data is None:
        del image[offset:]
        return
    if len(image) < offset:
        image.extend(bytes(offset - len(image)))
    image[offset : offset + len(data)] = data


class PowerLoss(apsw.VFS):
    """The VFS. `writes` counts the writes of all files; see the module."""

    def __init__(
        self,
        spared: Path,
        *,
        seed: int,
        cut_at: int | None,
        others: Sequence[Path] = (),
        torn: bool = True,
        name: str = "vedette-power",
    ) -> None:
        self.base = apsw.vfs_names()[0]
        super().__init__(name, self.base, makedefault=True)
        self.writes = 0
        self._name = name
        self._to = spared
        self._draw = random.Random(seed)  # noqa: S311 - drawn again from the same seed
        self._cut_at = cut_at
        self._others = tuple(others)
        self._fsync = os.fsync
        self._kept: dict[tuple[int, int], int] = {}
        self._torn = torn
        self._disks: dict[str, _Disk] = {}
        self._lock = threading.RLock()

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        """Open a file; the main ones of a database are watched."""
        if not flags[0] & _KEPT or name is None:
            return apsw.VFSFile(self.base, name, flags)
        path = os.path.realpath(name.filename() if isinstance(name, apsw.URIFilename) else name)
        with self._lock:
            if path not in self._disks:
                disk = self._disks[path] = _Disk()
                file = Path(path)
                if file.exists():
                    disk.synced += file.read_bytes()
        return _File(self, path, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        """Delete a file, for good."""
        with self._lock:
            self._disks.pop(os.path.realpath(filename), None)
        super().xDelete(filename, syncdir)

    def wrote(self, path: str, offset: int, data: bytes | None) -> None:
        """Remember a write; fail at the one that was agreed on."""
        with self._lock:
            self._disks[path].waiting.append((offset, data))
            self.writes += 1
            if self.writes == self._cut_at:
                self._fail()

    def synced(self, path: str) -> None:
        """Take note that a file has reached the disk."""
        with self._lock:
            self._disks[path].sync()

    def fsync(self, file: int) -> None:
        """Sync a file that was written past SQLite; from here on it keeps what it holds now."""
        self._fsync(file)
        found = os.fstat(file)
        self._kept[found.st_dev, found.st_ino] = found.st_size

    def _fail(self) -> None:
        for path, disk in sorted(self._disks.items()):
            (self._to / Path(path).name).write_bytes(disk.spared(self._draw, self._torn))
        for other in self._others:
            if not other.exists():
                continue
            raw, found = other.read_bytes(), other.stat()
            kept = self._kept.get((found.st_dev, found.st_ino), 0)
            (self._to / other.name).write_bytes(raw[: self._draw.randint(kept, len(raw))])
        os.kill(os.getpid(), signal.SIGKILL)


class _File(apsw.VFSFile):
    def __init__(
        self, vfs: PowerLoss, path: str, name: str | apsw.URIFilename, flags: list[int]
    ) -> None:
        super().__init__(vfs.base, name, flags)
        self._vfs, self._path = vfs, path

    def xWrite(self, data: bytes, offset: int) -> None:
        super().xWrite(data, offset)
        self._vfs.wrote(self._path, offset, bytes(data))

    def xTruncate(self, newsize: int) -> None:
        super().xTruncate(newsize)
        self._vfs.wrote(self._path, newsize, None)

    def xSync(self, flags: int) -> None:
        super().xSync(flags)
        self._vfs.synced(self._path)


def pull_plug(
    spared: Path, *, seed: int, cut_at: int | None, others: Sequence[Path] = (), torn: bool = True
) -> PowerLoss:
    """Put the VFS under every SQLite file that this process opens from here on.

    With `cut_at` None the power stays; then `writes` tells how many writes a run has.
    """
    power = PowerLoss(spared, seed=seed, cut_at=cut_at, others=others, torn=torn)
    _PLUGGED.append(power)
    os.fsync = power.fsync  # type: ignore[assignment]
    return power
