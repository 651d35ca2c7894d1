"""What a thread keeps of the vendor: compiled programs and interpreters, the last few used.

The vendor's objects belong to the thread that made them, and so does their end: dropped on another
thread they are leaked and reported as an unraisable error. Whoever drops the last reference to an
engine may be any thread (a policy swap, the garbage collector), so engines hold none: they name
what they need by a key, and each thread makes it anew and drops it itself.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

# Per thread: the live bundle, the one before it, and two that are being tried or replayed.
KEPT = 4


class _Shelf(threading.local):
    """One for each thread; it ends with its thread, on that thread."""

    def __init__(self) -> None:
        self.kept: OrderedDict[str, Any] = OrderedDict()


_SHELF = _Shelf()


def borrow(key: str, make: Callable[[], Any]) -> Any:
    """Return what this thread keeps under `key`, made now if it keeps nothing.

    Borrow only below `engine.guarded`, whose errors carry no frames: a traceback that is handed
    to another thread would take what was borrowed with it.
    """
    kept = _SHELF.kept
    found = kept.get(key)
    if found is None:
        found = make()
        kept[key] = found
        while len(kept) > KEPT:
            kept.popitem(last=False)
    else:
        kept.move_to_end(key)
    return found


def discard(key: str) -> None:
    """Drop what this thread keeps under `key`, if anything."""
    _SHELF.kept.pop(key, None)


def kept() -> list[str]:
    """Return the keys of what this thread keeps, the one used longest ago first."""
    return list(_SHELF.kept)
