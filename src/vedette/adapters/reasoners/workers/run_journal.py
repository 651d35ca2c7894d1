"""The journal of runs for which agents' code runs now: a mapped file that outlives a crash.

Judges and tools may run in the engine's own process, and one that crashes it takes the engine with
it: nobody is left to count the attempt, and the next engine would begin with the same event. So a
run's id is written to a small mapped file before agents' code runs, and wiped after it. That
survives the process (the page cache is the kernel's) but not a power loss, which is no fault of
the event: there is no fsync, and noting a run costs about a microsecond.

A slot is a length (u8), a CRC-32 of the id (u32) and the id; the length is written last and wiped
first, so that a slot is whole or not there.
"""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from pathlib import Path

from vedette.domain.base import failpoint
from vedette.domain.base.disk_errors import convert_disk_errors
from vedette.domain.base.state_folder import open_file

FILE = "in_hand"
_SLOT = 64
_HEAD = struct.Struct("<BI")
_LONGEST = _SLOT - _HEAD.size
_FIRST_SLOTS = 512


class RunJournal:
    """The journal file of runs that may crash the engine. For one thread of one process at a time.

    Hold a run only while agents' code may run for it: what else is held when the process dies is
    charged with an attempt too.
    """

    def __init__(self, state: Path) -> None:
        state.mkdir(parents=True, exist_ok=True)
        self._path = state / FILE
        self._file = open_file(self._path, os.O_RDWR | os.O_CREAT)
        size = max(os.fstat(self._file).st_size // _SLOT * _SLOT, _FIRST_SLOTS * _SLOT)
        self._map = self._map_file(size)
        self._slots: dict[str, int] = {}
        self._free: list[int] = []
        for at in range(size - _SLOT, -1, -_SLOT):
            run = self._read_slot(at)
            if run is None or run in self._slots:
                self._map[at] = 0
                self._free.append(at)
            else:
                self._slots[run] = at
        self._unfinished_runs = list(reversed(self._slots))

    def begin(self, run: str) -> None:
        """Note that agents' code is about to run for this run. Raises ValueError for no run id."""
        if run in self._slots:
            return
        name = run.encode()
        if not 0 < len(name) <= _LONGEST:
            raise ValueError(f"{run!r} is no id of a run: it has 1 to {_LONGEST} bytes")
        if not self._free:
            self._grow()
        at = self._slots[run] = self._free.pop()
        failpoint.hit_failpoint("in_hand.take:before")
        start = at + _HEAD.size
        self._map[start : start + len(name)] = name
        self._map[at + 1 : start] = _HEAD.pack(0, zlib.crc32(name))[1:]
        self._map[at] = len(name)
        failpoint.hit_failpoint("in_hand.take:after")

    def end(self, run: str) -> None:
        """Note that it has come to its end, or that its attempt is charged."""
        at = self._slots.pop(run, None)
        if at is not None:
            self._map[at] = 0
            self._free.append(at)

    def unfinished(self) -> list[str]:
        """Return the runs that were under way when the process before this one died.

        They stay on file until they are put back: do that once the attempt is charged durably.
        """
        return [run for run in self._unfinished_runs if run in self._slots]

    def close(self) -> None:
        """Let go of the file."""
        self._map.close()
        os.close(self._file)

    def _read_slot(self, at: int) -> str | None:
        length, check = _HEAD.unpack_from(self._map, at)
        start = at + _HEAD.size
        name = bytes(self._map[start : start + length])
        if not 0 < length <= _LONGEST or zlib.crc32(name) != check or not name.isascii():
            return None
        return name.decode()

    def _map_file(self, size: int) -> mmap.mmap:
        """Map the file at a size whose room is its own.

        Where a disk is full, a write into a page that has no room yet ends the process.
        """
        with convert_disk_errors(self._path):
            os.ftruncate(self._file, size)
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self._file, 0, size)
            return mmap.mmap(self._file, size)

    def _grow(self) -> None:
        size = len(self._map)
        grown = self._map_file(2 * size)
        self._map.close()
        self._map = grown
        self._free = list(range(2 * size - _SLOT, size - _SLOT, -_SLOT))
