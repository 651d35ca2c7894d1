"""Spare space: room on the store's disk that is given up when the disk is full.

A file of nothing lies beside the store. When a commit finds the disk full the file goes, and what
must still be written has its room: stops, and what came of calls that were under way. Nothing new
begins until the disk has room for the file again, so what was given up is not used up by new work.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from vedette.domain.base.state_folder import open_file

# What 512 calls under way (`line.CALLS`) write when they end: some ten pages of the log each.
SPARE_BYTES = 16 << 20
# On a small disk no more than this part of what is free.
_SHARE = 8
_BLOCK = bytes(1 << 16)


class SpareSpace:
    """A store's spare space: a file, there whole if `is_reserved`. For one thread at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_reserved = False
        self._size = 0

    def reserve(self) -> bool:
        """Make the file if there is room for it and as much again; return whether it is there.

        Never raises for the disk's sake.
        """
        if self.is_reserved:
            return True
        try:
            there = self.path.stat().st_size if self.path.exists() else 0
            room = os.statvfs(self.path.parent)
            free = room.f_bavail * room.f_frsize + there
            self._size = self._size or max(there, min(SPARE_BYTES, free // _SHARE))
            if there != self._size:
                if free < 2 * self._size:
                    return False
                self._allocate()
        except OSError:
            self.release()
            return False
        self.is_reserved = True
        return True

    def release(self) -> bool:
        """Remove the file; return whether its room is free now."""
        self.is_reserved = False
        with suppress(OSError):
            self.path.unlink()
            return True
        return False

    def _allocate(self) -> None:
        self.path.unlink(missing_ok=True)
        file = open_file(self.path, os.O_WRONLY | os.O_CREAT)
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file, 0, self._size)
                return
            for at in range(0, self._size, len(_BLOCK)):  # macOS
                os.write(file, _BLOCK[: self._size - at])
        finally:
            os.close(file)
