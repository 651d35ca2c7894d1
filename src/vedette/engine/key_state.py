"""Key state: what is known of each (agent, key) ahead of the store, and who may change it now.

Events of a key are judged ahead of the commits before them, so the position of the last one that
was judged and the fleet's own row are those of the last step sent. They hold under the lease under
which they were learned and under no other.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

from vedette.domain.agent import Agent
from vedette.domain.effect import RowWrite
from vedette.domain.ports.run_store import JudgeStateReader, RunReader

# Keys of which more is held than the store's rows, while nothing is under way for them.
KEYS = 65_536
_NO_LOCK = nullcontext()


class KeyStates:
    """What is known of each (agent, key) ahead of the store. Belongs to one event loop."""

    def __init__(self, judge_states: JudgeStateReader, runs: RunReader) -> None:
        self._judge_states = judge_states
        self._runs = runs
        self._epochs: dict[tuple[str, str], int] = {}
        # The position of the last observed event of each (agent, key) seen so far.
        self._positions: dict[tuple[str, str], int] = {}
        # The rows of fleet-owned collections, by (collection, key).
        self._rows: dict[tuple[str, str], Mapping[str, Any]] = {}
        self._locks = KeyedLocks()

    def adopt_lease(self, agent: str, key: str, epoch: int) -> int | None:
        """Begin with a key under a lease; return under which it was known before, if under any.

        What is known from another one is to be forgotten (`Services.forget_key`). The store refuses
        steps of another lease than the key's, so a step is made of the last word on its key.
        """
        before = self._epochs.get((agent, key))
        self._epochs[agent, key] = epoch
        return before

    def forget(self, agent: Agent, key: str) -> None:
        """Forget what was judged and written ahead of commits for a key."""
        self._positions.pop((agent.name, key), None)
        if agent.collection is not None:
            self._rows.pop((agent.collection, key), None)

    def drop_lease(self, agent: str, key: str) -> None:
        """Forget under which lease a key is known."""
        self._epochs.pop((agent, key), None)

    def __len__(self) -> int:
        """Return how many leases of keys, and rows, are held."""
        return len(self._epochs) + len(self._rows)

    @property
    def is_full(self) -> bool:
        """Say whether so much is held that a key is to be forgotten once nothing is under way."""
        return len(self) > KEYS

    def previous_position(self, agent: str, key: str, position: int) -> int:
        """Return the position of the last observed event of a key before `position`."""
        found = self._positions.get((agent, key))
        if found is None:
            found = self._judge_states.previous_position(agent, key, position)
            self._positions[agent, key] = found
        return found

    def note_observed(self, agent: str, key: str, position: int) -> None:
        """Take the event at `position` for the last one observed."""
        self._positions[agent, key] = position

    def row(self, collection: str, key: str) -> dict[str, Any]:
        """Return a row of a fleet-owned collection as of the last step sent; empty if none."""
        known = self._rows.get((collection, key))
        if known is None:
            known = self._rows[collection, key] = self._runs.row(collection, key) or {}
        return dict(known)

    def cache_rows(self, writes: Sequence[RowWrite]) -> None:
        """Take over rows of a step that was just sent."""
        for write in writes:
            self._rows[write.collection, write.key] = write.row or {}

    def forget_rows(self, writes: Sequence[RowWrite]) -> None:
        """Forget rows of a step that was sent and did not stand."""
        for write in writes:
            self._rows.pop((write.collection, write.key), None)

    def row_lock(self, collection: str | None, key: str) -> AbstractAsyncContextManager[None]:
        """Let nobody else decide what is written to a row until this step is committed.

        A run that goes on beside its key's next event may want to write the same row.
        """
        return _NO_LOCK if collection is None else self._locks.lock(("row", collection, key))


class KeyedLocks:
    """Locks on keys and rows by name: first come, first served. Belongs to one event loop.

    Made for many names that are held for a moment and hardly ever wanted twice at a time: a free
    one is taken without a lock object or a future, and one that nobody has takes no room.
    """

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

    def lock(self, name: Hashable, on_release: Callable[[], object] | None = None) -> KeyedLock:
        """Return what holds a name for the length of an `async with`."""
        return KeyedLock(self, name, on_release)


class KeyedLock:
    """One name of `KeyedLocks`, held within an `async with`.

    Written out, as a generator under `asynccontextmanager` costs ten times as much, for every
    event.
    """

    __slots__ = ("_locks", "_name", "_on_release")

    def __init__(
        self, locks: KeyedLocks, name: Hashable, on_release: Callable[[], object] | None
    ) -> None:
        self._locks, self._name, self._on_release = locks, name, on_release

    async def __aenter__(self) -> None:
        await self._locks.acquire(self._name)

    async def __aexit__(self, *ended: object) -> None:
        if self._on_release is not None:
            self._on_release()
        self._locks.release(self._name)
