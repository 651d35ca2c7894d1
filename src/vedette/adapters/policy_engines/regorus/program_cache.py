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
MAX_ENTRIES = 4


class _ThreadCache(threading.local):
    """One for each thread; it ends with its thread, on that thread."""

    def __init__(self) -> None:
        self.entries: OrderedDict[str, Any] = OrderedDict()


_CACHE = _ThreadCache()


def get_or_create(key: str, create: Callable[[], Any]) -> Any:
    """Return what this thread keeps under `key`, made now if it keeps nothing.

    Borrow only below `engine.guarded`, whose errors carry no frames: a traceback that is handed
    to another thread would take what was borrowed with it.
    """
    entries = _CACHE.entries
    found = entries.get(key)
    if found is None:
        found = create()
        entries[key] = found
        while len(entries) > MAX_ENTRIES:
            entries.popitem(last=False)
    else:
        entries.move_to_end(key)
    return found


def discard(key: str) -> None:
    """Drop what this thread keeps under `key`, if anything."""
    _CACHE.entries.pop(key, None)


def cached_keys() -> list[str]:
    """Return the keys of what this thread keeps, the one used longest ago first."""
    return list(_CACHE.entries)
