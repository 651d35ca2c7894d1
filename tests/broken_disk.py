"""A disk that fails, or is full, under files or a folder, for as long as it is told to."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest

from vedette.testing.disk import PlainFile


class BrokenDisk(apsw.VFS):
    """The VFS of every SQLite file that is opened while it is the default."""

    def __init__(self, named: str) -> None:
        self.base = apsw.vfs_names()[0]
        super().__init__("broken-disk", self.base, makedefault=True)
        self.named = named
        self.broken = self.full = False
        self.refused = 0

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        path = name.filename() if isinstance(name, apsw.URIFilename) else name or ""
        if not Path(path).name.startswith(self.named):
            return PlainFile(self.base, name, flags)
        return _File(self, name, flags)

    def fail(self, path: Path) -> None:
        """Break, and change a database beside whoever has it open: nothing it has read counts."""
        other = apsw.Connection(str(path), vfs=self.base)
        other.execute("CREATE TABLE beside (it)")
        other.close()
        self.broken = True

    def refuse(self, *, takes_room: bool) -> None:
        if self.broken and (takes_room or not self.full):
            self.refused += 1
            raise apsw.FullError("full") if self.full else apsw.IOError("Input/output error")


class _File(PlainFile):
    def __init__(
        self, disk: BrokenDisk, name: str | apsw.URIFilename | None, flags: list[int]
    ) -> None:
        super().__init__(disk.base, name, flags)
        self._disk = disk

    def xRead(self, amount: int, offset: int) -> bytes:
        self._disk.refuse(takes_room=False)
        return super().xRead(amount, offset)

    def xWrite(self, data: bytes, offset: int) -> None:
        self._disk.refuse(takes_room=True)
        super().xWrite(data, offset)

    def xTruncate(self, newsize: int) -> None:
        self._disk.refuse(takes_room=False)
        super().xTruncate(newsize)


@contextmanager
def broken_disk(named: str) -> Iterator[BrokenDisk]:
    """Lie under all that is opened meanwhile."""
    disk = BrokenDisk(named)
    try:
        yield disk
    finally:
        disk.broken = False
        disk.unregister()


@contextmanager
def failing_sync(folder: Path) -> Iterator[None]:
    """Have fsync(2) of one folder fail as it does on a broken disk."""
    sync = os.fsync

    def fail(descriptor: int) -> None:
        if os.path.samestat(os.fstat(descriptor), folder.stat()):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(folder))
        sync(descriptor)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        yield
