"""Scratch folders of MCP servers' processes, each with a lock that its owner's end lets go.

A lock, and no number of a process: engines in two containers that share a state folder may have
the same number. What a server left there may be much, so it is removed beside the event loop.
"""

from __future__ import annotations

import fcntl
import os
import threading
from contextlib import suppress
from pathlib import Path

from vedette.domain.base import machine
from vedette.domain.base.tree_removal import remove_tree

_LOCKS = "mcp.*.lock"


class ScratchFolder:
    """One folder below `root`, and its lock beside it."""

    def __init__(self, root: Path) -> None:
        """Make it. Raises OSError."""
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        while True:
            self._lock_path = root / f"mcp.{machine.random_bytes(8).hex()}.lock"
            self._lock = os.open(self._lock_path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
            if _lock(self._lock):
                break
            os.close(self._lock)  # who removes leftovers came between
        self.path = self._lock_path.with_suffix("")
        self.path.mkdir(mode=0o700)

    def remove(self) -> None:
        """Remove it and all in it; takes as long as that takes."""
        _remove(self._lock_path, self._lock)


def remove_leftovers(root: Path) -> None:
    """Begin to remove the folders of those who ended without doing it."""

    def remove() -> None:
        for path in root.glob(_LOCKS):
            with suppress(OSError):
                lock = os.open(path, os.O_RDWR)
                if _lock(lock):
                    _remove(path, lock)
                else:
                    os.close(lock)

    threading.Thread(target=remove, name="vedette-mcp-scratch", daemon=True).start()


def _lock(descriptor: int) -> bool:
    """Lock a file; False if another has it, or has removed it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return os.fstat(descriptor).st_nlink > 0


def _remove(path: Path, lock: int) -> None:
    remove_tree(path.with_suffix(""))
    path.unlink(missing_ok=True)
    os.close(lock)
