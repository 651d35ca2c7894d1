"""Dispatch: which run next. Order is kept per (agent, key) here, not by the broker.

Every key has a lane; one run of a lane is decided at a time, many lanes at once. Once a run's first
turn is durable it leaves its lane: its effects are performed, in the order of the key, while the
key's next event is judged. A run that waits and wakes has a lane of its own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from vedette.case import Case, Superseded
from vedette.errors import StoreFailed, Temporary
from vedette.event import Event
from vedette.handle import bury, handle, see_through
from vedette.line import Line
from vedette.run import Lease, Run

Lane = tuple[str, str]
T = TypeVar("T")

_ATTEMPTS = 5
_RETRY_US = 500_000
_LOAD = 2048
_SOON_US = 60_000_000


class Dispatcher:
    """Hands ready runs to handlers. `start` and `close` bound its life on one event loop.

    `room` bounds how many runs are held in memory: intake waits while there are more, and what
    the store holds beyond that is loaded as room appears.
    """

    def __init__(self, line: Line, *, handlers: int = 128, room: int = 8192) -> None:
        self._line = line
        self._room = room
        self._lanes: dict[Lane, deque[Run]] = {}
        self._next: asyncio.Queue[Lane] = asyncio.Queue()
        self._parked: dict[Lane, int] = {}
        self._known: dict[str, Event | None] = {}
        self._after = 0
        self._behind = True
        self._space = asyncio.Event()
        self._space.set()
        self._handlers = handlers
        self._tasks: list[asyncio.Task[None]] = []
        self._finishing: set[asyncio.Task[None]] = set()
        self.handled = 0

    # --- life -------------------------------------------------------------------------------

    def start(self) -> None:
        """Load what the store has waiting and begin to handle it."""
        self._load()
        self._tasks = [asyncio.create_task(self._work()) for _ in range(self._handlers)]
        self._tasks.append(asyncio.create_task(self._wake()))

    async def close(self) -> None:
        """Stop handling. What was not committed is found again by the next runner."""
        tasks = [*self._tasks, *self._finishing]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def pending(self) -> int:
        """Return how many runs are in memory, queued or being handled."""
        return len(self._known)

    @property
    def idle(self) -> bool:
        """Say whether there is nothing to handle now.

        Lanes of stopped agents, and lanes parked until a later instant, are aside; see `soon`.
        """
        now = self._line.clock.now_us()
        aside = sum(
            len(self._lanes[lane])
            for lane, at_us in self._parked.items()
            if at_us > now or self._stopped(lane)
        )
        return len(self._known) == aside and not self._behind

    @property
    def soon(self) -> bool:
        """Say whether a lane is parked until an instant near enough to stay up for."""
        now = self._line.clock.now_us()
        return any(
            at_us <= now + _SOON_US and not self._stopped(lane)
            for lane, at_us in self._parked.items()
        )

    def _stopped(self, lane: Lane) -> bool:
        return self._line.stops.agent(self._lanes[lane][0].agent)

    # --- in ---------------------------------------------------------------------------------

    async def space(self) -> None:
        """Return when there is room for more runs."""
        await self._space.wait()

    def offer(self, runs: Sequence[Run], event: Event) -> None:
        """Queue the runs of an event that was just accepted, in order."""
        for run in runs:
            if self._behind:
                # Older runs are still in the store; taking newer ones first would break order.
                return
            self._put((run.agent, run.key), run, event)
            self._after = max(self._after, run.position)
        if len(self._known) >= self._room:
            self._space.clear()

    def _put(self, lane: Lane, run: Run, event: Event | None = None) -> None:
        if run.id in self._known:
            return
        self._known[run.id] = event
        queue = self._lanes.get(lane)
        if queue is None:
            self._lanes[lane] = deque((run,))
            self._next.put_nowait(lane)
        else:
            queue.append(run)

    def _load(self) -> None:
        """Take the next runs from the store, as far as there is room."""
        while self._behind and len(self._known) < self._room:
            runs = self._line.store.backlog(self._after, _LOAD)
            for run in runs:
                self._put((run.agent, run.key), run)
                self._after = max(self._after, run.position)
            self._behind = len(runs) == _LOAD

    # --- out --------------------------------------------------------------------------------

    async def _work(self) -> None:
        while True:
            lane = await self._next.get()
            queue = self._lanes[lane]
            run = queue[0]
            if self._line.stops.agent(run.agent):
                self._parked[lane] = 0
                continue
            lease = Lease(run, self._line.store.epoch)
            case = await self._guard(run, handle(self._line, lease, self._known[run.id]))
            if isinstance(case, int):
                self._parked[lane] = case
                continue
            queue.popleft()
            if case is None:
                self._forget(run)
            else:
                self._beside(self._finish(case))
            if queue:
                self._next.put_nowait(lane)
            else:
                del self._lanes[lane]

    async def _finish(self, case: Case) -> None:
        """See a run through while its key goes on."""
        run = case.run
        again_us = await self._guard(run, see_through(self._line, case))
        if isinstance(again_us, int):
            lane = self._own_lane(run)
            self._lanes[lane] = deque((run,))
            self._parked[lane] = again_us
        else:
            self._forget(run)

    def _forget(self, run: Run) -> None:
        del self._known[run.id]
        self.handled += 1
        if len(self._known) < self._room // 2:
            self._load()
            self._space.set()

    def _beside(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._finishing.add(task)
        task.add_done_callback(self._finishing.discard)

    @staticmethod
    def _own_lane(run: Run) -> Lane:
        return (run.agent, f"\0{run.id}")

    async def _guard(self, run: Run, work: Coroutine[Any, Any, T]) -> T | int | None:
        """Do a run's work; return an instant if it has to be tried again then."""
        line = self._line
        try:
            return await work
        except StoreFailed:
            line.metrics.count("store_failures")
            return self._again(run, line.clock.now_us() + _RETRY_US)
        except Superseded:
            return self._again(run, line.clock.now_us())
        except Temporary as error:
            run.attempts += 1
            if run.attempts >= _ATTEMPTS:
                return await self._bury(run, error)
            return self._again(run, line.clock.now_us() + (_RETRY_US << run.attempts))
        except Exception as error:
            # A judge or a tool's pure part is agents' code: whatever it raises ends this run only.
            return await self._bury(run, error)

    def _again(self, run: Run, at_us: int) -> int:
        """Read the run anew for another attempt and drop what its judge learned meanwhile."""
        line = self._line
        line.reasoner(line.agent(run.agent)).forget(run.agent, run.key)
        fresh = line.store.run(run.id)
        if fresh is not None:
            attempts = run.attempts
            for name in Run.__slots__:
                setattr(run, name, getattr(fresh, name))
            run.attempts = attempts
        return at_us

    async def _bury(self, run: Run, error: Exception) -> int | None:
        line = self._line
        if run.agent in line.fleet.agents:
            line.reasoner(line.agent(run.agent)).forget(run.agent, run.key)
        fresh = line.store.run(run.id) or run
        try:
            await bury(line, fresh, line.store.epoch, f"{type(error).__name__}: {error}")
        except Exception:
            # Whatever it is must not end this handler: the run stays and is tried again.
            line.metrics.count("store_failures")
            return line.clock.now_us() + _RETRY_US
        return None

    # --- waking -----------------------------------------------------------------------------

    async def _wake(self) -> None:
        """Look for runs whose wait is over, and for parked lanes that may go on."""
        while True:
            await asyncio.sleep(0.05)
            self.wake()

    def wake(self) -> None:
        """Queue what is due now."""
        line, now = self._line, self._line.clock.now_us()
        for lane, at_us in list(self._parked.items()):
            if at_us <= now and not self._stopped(lane):
                del self._parked[lane]
                self._next.put_nowait(lane)
        for run in line.store.due(now, 256):
            if line.stops.agent(run.agent) and run.waits != "approval":
                continue
            self._put(self._own_lane(run), run)
