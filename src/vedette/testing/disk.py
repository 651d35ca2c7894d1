"""What a disk holds under SQLite: a VFS that knows which writes have not been synced yet.

Registered as the default, it lies under every SQLite file of the process, whoever opens it. Writes
go through to the files, so these are what a kernel would have, and are remembered until they are
synced. What the power would leave is the last synced content of a file and a drawn prefix of the
writes since, the last of them possibly torn at a sector. Names of files are taken to be durable,
and a file that was deleted stays so.

Whoever derives from it decides what befalls the calls: `before` may raise what SQLite is to be
told, `wrote` comes after each write.
"""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path

import apsw
from msgspec import Struct, field

SECTOR = 512

_WATCHED_FLAGS = (
    apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_MAIN_JOURNAL
)  # fmt: skip


class FileWrites(Struct):
    """What a watched disk has of one file: its synced bytes, and the writes not synced yet.

    A write of None means that the file was cut to `offset` bytes. `size` is what the kernel has.
    """

    synced_bytes: bytearray = field(default_factory=bytearray)
    pending_writes: list[tuple[int, bytes | None]] = field(default_factory=list)
    size: int = 0

    def write(self, offset: int, data: bytes | None) -> None:
        """Take note of a write, or of a truncation."""
        self.pending_writes.append((offset, data))
        self.size = offset if data is None else max(self.size, offset + len(data))

    def sync(self) -> None:
        """Let everything written so far reach the disk."""
        for offset, data in self.pending_writes:
            _apply_write(self.synced_bytes, offset, data)
        self.pending_writes.clear()

    def draw_crash_image(self, draw: random.Random, torn: bool) -> bytes:
        """Return the bytes of a disk whose power failed while these writes were on their way."""
        image = bytearray(self.synced_bytes)
        count = draw.randint(0, len(self.pending_writes))
        for offset, data in self.pending_writes[:count]:
            _apply_write(image, offset, data)
        if torn and count < len(self.pending_writes):
            offset, data = self.pending_writes[count]
            if data is not None:
                sectors = draw.randint(0, len(data) // SECTOR)
                _apply_write(image, offset, data[: sectors * SECTOR])
        return bytes(image)


def _apply_write(image: bytearray, offset: int, data: bytes | None) -> None:
    if data is None:
        del image[offset:]
        return
    if len(image) < offset:
        image.extend(bytes(offset - len(image)))
    image[offset : offset + len(data)] = data


class WatchedDisk(apsw.VFS):
    """The VFS of a test. `files` are databases' by their real path; `lock` is held to change them.

    Whoever makes one holds it for as long as a file of it is open.
    """

    def __init__(self, name: str) -> None:
        self.base = apsw.vfs_names()[0]
        super().__init__(name, self.base, makedefault=True)
        self.files: dict[str, FileWrites] = {}
        self.lock = threading.RLock()

    def before_call(self, call: str, path: str, more: int = 0) -> None:
        """Pass a call (open, write, truncate, sync, delete), which makes a file `more` bytes long.

        May raise an apsw.Error: then the call is not done, and SQLite is told that.
        """

    def after_write(self, path: str) -> None:
        """Pass a write or truncation that was done."""

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        """Open a file; the main ones of a database are watched."""
        if not flags[0] & _WATCHED_FLAGS or name is None:
            return apsw.VFSFile(self.base, name, flags)
        path = os.path.realpath(name.filename() if isinstance(name, apsw.URIFilename) else name)
        with self.lock:
            self.before_call("open", path)
            if path not in self.files:
                file = Path(path)
                raw = file.read_bytes() if file.exists() else b""
                self.files[path] = FileWrites(bytearray(raw), size=len(raw))
        return _File(self, path, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        """Delete a file, for good."""
        path = os.path.realpath(filename)
        with self.lock:
            self.before_call("delete", path)
            self.files.pop(path, None)
        super().xDelete(filename, syncdir)


class PlainFile(apsw.VFSFile):
    """A file that a test's watched disk only hands through."""

    def xLock(self, level: int) -> None:
        """Lock the file; one that is open to read only is never had alone.

        The operating system calls that an error, which SQLite passes over when it closes a file
        and which here would come up as an exception.
        """
        try:
            super().xLock(level)
        except apsw.IOError as error:
            raise apsw.BusyError("open to read only") from error


class _File(PlainFile):
    def __init__(
        self, disk: WatchedDisk, path: str, name: str | apsw.URIFilename, flags: list[int]
    ) -> None:
        super().__init__(disk.base, name, flags)
        self._disk, self._path = disk, path
        self._writes = disk.files[path]

    def xWrite(self, data: bytes, offset: int) -> None:
        disk, written = self._disk, self._writes
        with disk.lock:
            disk.before_call("write", self._path, offset + len(data) - written.size)
            super().xWrite(data, offset)
            written.write(offset, bytes(data))
            disk.after_write(self._path)

    def xTruncate(self, newsize: int) -> None:
        with self._disk.lock:
            self._disk.before_call("truncate", self._path)
            super().xTruncate(newsize)
            self._writes.write(newsize, None)
            self._disk.after_write(self._path)

    def xSync(self, flags: int) -> None:
        with self._disk.lock:
            self._disk.before_call("sync", self._path)
            super().xSync(flags)
            self._writes.sync()
