"""The effect target of every bench: one line per effect, appended to a file.

Standard library only, because it is copied into the bench agent's folder and is run by the peers'
own interpreters: the same code does the effect for everybody.

The target is idempotent by key, as far as one process goes, and keeps its own record: a line is
`KEY MONOTONIC_NS`. The clock is the machine's, so other processes may compare with it. A line is
one write and is not synced: durability of the target is its own affair.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from pathlib import Path


class Target:
    """The file that effects go to. May be used by several threads and processes."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._known: set[str] = set()
        self._lock = threading.Lock()

    def append(self, key: str) -> bool:
        """Bring about the effect of a key once; say whether it was new."""
        with self._lock:
            if key in self._known:
                return False
            self._known.add(key)
            os.write(self._file, f"{key} {time.monotonic_ns()}\n".encode())
        return True


def marks_file(folder: Path) -> Path:
    """Return where the effects of a bench fleet in `folder` go; its folder is made.

    A folder of its own: the tools reach all of the folder in which their target lies.
    """
    (folder / "target").mkdir(parents=True, exist_ok=True)
    return folder / "target" / "marks.log"


def happened(path: Path) -> tuple[dict[str, int], int]:
    """Return when each key happened first (monotonic ns), and how many lines were repeats."""
    first: dict[str, int] = {}
    count: Counter[str] = Counter()
    if not path.exists():
        return first, 0
    for line in path.read_text(encoding="ascii").splitlines():
        key, at = line.split()
        first.setdefault(key, int(at))
        count[key] += 1
    return first, sum(count.values()) - len(count)
