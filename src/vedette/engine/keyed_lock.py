"""Locks by name: whoever has a name has it alone, and whoever came first has it next.

Made for many names that are held for a moment and hardly ever wanted twice at a time. A free one
is taken without a lock object, a weak reference or a future; a name that nobody has or wants takes
no room.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Hashable


class KeyedLocks:
    """The names that are held. Belongs to one event loop."""

    def __init__(self) -> None:
        self._held: dict[Hashable, deque[asyncio.Future[None]] | None] = {}

    def __contains__(self, name: Hashable) -> bool:
        """Say whether somebody has the name."""
        return name in self._held

    async def acquire(self, name: Hashable) -> None:
        """Take a name, when everybody who wanted it before has had it."""
        if name not in self._held:
            self._held[name] = None
            return
        waiting = self._held[name]
        if waiting is None:
            waiting = self._held[name] = deque()
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting.append(turn)
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self.release(name)  # it was handed over already
            elif turn in waiting:
                waiting.remove(turn)
            raise

    def release(self, name: Hashable) -> None:
        """Hand a name that is held to the next in line."""
        waiting = self._held[name]
        while waiting:
            turn = waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        del self._held[name]

    def lock(self, name: Hashable) -> KeyedLock:
        """Return what holds a name for the length of an `async with`."""
        return KeyedLock(self, name)


class KeyedLock:
    """One name, held within an `async with`."""

    __slots__ = ("_locks", "_name")

    def __init__(self, locks: KeyedLocks, name: Hashable) -> None:
        self._locks, self._name = locks, name

    async def __aenter__(self) -> None:
        await self._locks.acquire(self._name)

    async def __aexit__(self, *ended: object) -> None:
        self._locks.release(self._name)
