"""A cache of the few things that were used last. For one thread at a time."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

T = TypeVar("T")


class RecentCache(OrderedDict[str, T]):
    """A cache of `size` values, the one used longest ago first."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size

    def keep(self, key: str, value: T) -> T:
        """Note that a value was used, or is new; return it."""
        self[key] = value
        self.move_to_end(key)
        while len(self) > self._size:
            self.popitem(last=False)
        return value
