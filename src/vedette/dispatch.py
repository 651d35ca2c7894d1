"""Dispatch: which run next. Order is kept per (agent, key) here, not by the broker.

Every key has a lane, and runs of a lane are judged one after the other. A judge's next event may be
judged while the commit of the one before is still on its way (`AHEAD` bounds how many): commits
stay in order, and if one does not stand, those behind it are refused by the store; then the lane
waits until all have come back and goes on from what is durable. Once a run's first turn is durable
it leaves its lane: its effects are performed, in the order of the key, beside the key's next event.
A run that waits and wakes has a lane of its own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from vedette.case import Case, Superseded
from vedette.errors import StoreFailed, Temporary
from vedette.event import Event
from vedette.handle import bury, handle, see_through
from vedette.line import Line
from vedette.run import Lease, Run

Key = tuple[str, str]
T = TypeVar("T")

_ATTEMPTS = 5
_RETRY_US = 500_000
_LOAD = 2048
_SOON_US = 60_000_000
AHEAD = 32


@dataclass(slots=True)
class Lane:
    """The runs of one key. `busy` are being judged or committed, oldest first.

    `again_us` is set when one of them has to be tried again: then no other is begun before all
    have come back. `queued` says that the lane waits for a handler.
    """

    queue: deque[Run] = field(default_factory=deque)
    busy: int = 0
    again_us: int | None = None
    queued: bool = False

    def put_back(self, run: Run) -> None:
        """Put a run back in its place."""
        at = sum(1 for other in self.queue if other.position < run.position)
        self.queue.insert(at, run)


class Dispatcher:
    """Hands ready runs to handlers. `start` and `close` bound its life on one event loop.

    `room` bounds how many runs are held in memory: intake waits while there are more, and what
    the store holds beyond that is loaded as room appears.
    """

    def __init__(self, line: Line, *, handlers: int = 256, room: int = 8192) -> None:
        self._line = line
        self._room = room
        self._lanes: dict[Key, Lane] = {}
        self._next: asyncio.Queue[Key] = asyncio.Queue()
        self._parked: dict[Key, int] = {}
        self._known: dict[str, Event | None] = {}
        self._away: set[str] = set()
        self._after = 0
        self._behind = True
        self._space = asyncio.Event()
        self._space.set()
        self._handlers = handlers
        self._tasks: list[asyncio.Task[None]] = []
        self._finishing: set[asyncio.Task[None]] = set()
        self._failed: Callable[[str, BaseException | None], None] | None = None
        self._closing = False
        self.handled = 0

    # --- life -------------------------------------------------------------------------------

    def start(self, failed: Callable[[str, BaseException | None], None] | None = None) -> None:
        """Load what the store has waiting and begin to handle it.

        `failed` is told if a task of ours breaks: runs that it had in hand are never done then.
        """
        self._failed, self._closing = failed, False
        self._load()
        self._tasks = [
            self._minded(self._work(), f"handler {n}") for n in range(1, self._handlers + 1)
        ]
        self._tasks.append(self._minded(self._wake(), "waker"))

    def _minded(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._finishing.discard(task)
        if self._closing or self._failed is None:
            return
        if task.cancelled():
            self._failed(task.get_name(), asyncio.CancelledError("cancelled by nobody we know"))
        elif task.exception() is not None:
            self._failed(task.get_name(), task.exception())

    async def close(self) -> None:
        """Stop handling. What was not committed is found again by the next runner."""
        self._closing = True
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
            len(self._lanes[key].queue)
            for key, at_us in self._parked.items()
            if at_us > now or self._line.stops.agent(key[0])
        )
        return len(self._known) == aside and not self._behind

    @property
    def soon(self) -> bool:
        """Say whether a lane is parked until an instant near enough to stay up for."""
        now = self._line.clock.now_us()
        return any(
            at_us <= now + _SOON_US and not self._line.stops.agent(key[0])
            for key, at_us in self._parked.items()
        )

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
        if len(self._known) >= self._room and self._taken() >= self._room:
            self._space.clear()

    def _taken(self) -> int:
        """Return how much room is taken; what is parked for later must not keep others out."""
        soon = self._line.clock.now_us() + _SOON_US
        parked = (self._lanes[key] for key, at_us in self._parked.items() if at_us > soon)
        return len(self._known) - sum(len(lane.queue) for lane in parked)

    def _put(self, key: Key, run: Run, event: Event | None = None) -> None:
        if run.id in self._known:
            return
        if self._line.stops.agent(run.agent):
            self._away.add(run.agent)
            return
        self._known[run.id] = event
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = Lane()
        lane.queue.append(run)
        self._go_on(key, lane)

    def _put_away(self, key: Key, lane: Lane) -> None:
        """Drop a stopped agent's runs from memory: the store has them, others need the room."""
        for run in lane.queue:
            del self._known[run.id]
        lane.queue.clear()
        if not lane.busy:
            del self._lanes[key]
        self._away.add(key[0])
        self._make_room()

    def _fetch_back(self) -> None:
        """Load what was put away, once its agent may go on."""
        back = {agent for agent in self._away if not self._line.stops.agent(agent)}
        if back:
            self._away -= back
            self._after, self._behind = 0, True
            self._load()

    def _go_on(self, key: Key, lane: Lane) -> None:
        """Give a lane to a handler if another of its runs may be begun now."""
        may = lane.again_us is None and lane.busy < AHEAD and key not in self._parked
        if may and lane.queue and not lane.queued:
            lane.queued = True
            self._next.put_nowait(key)

    def _load(self) -> None:
        """Take the next runs from the store, as far as there is room."""
        while self._behind and len(self._known) < self._room:
            # From the last position on again: one event may have made runs of several agents.
            runs = self._line.store.backlog(self._after - 1, _LOAD)
            for run in runs:
                self._put((run.agent, run.key), run)
                self._after = max(self._after, run.position)
            self._behind = len(runs) == _LOAD

    # --- out --------------------------------------------------------------------------------

    async def _work(self) -> None:
        while True:
            key = await self._next.get()
            lane = self._lanes[key]
            lane.queued = False
            if lane.again_us is not None or not lane.queue:
                continue
            if self._line.stops.agent(key[0]):
                self._put_away(key, lane)
                continue
            await self._take(key, lane, lane.queue.popleft())

    async def _take(self, key: Key, lane: Lane, run: Run) -> None:
        """Handle the next run of a lane; the lane goes on as soon as its step is sent."""
        lane.busy += 1
        lease = Lease(run, self._line.store.epoch)
        sent = partial(self._go_on, key, lane)
        case = await self._guard(run, handle(self._line, lease, self._known[run.id], sent))
        lane.busy -= 1
        if isinstance(case, int):
            lane.put_back(run)
            lane.again_us = max(case, lane.again_us or 0)
        elif case is None:
            if run.state == "dead":
                # What was judged ahead of it counted on it.
                lane.again_us = lane.again_us or self._line.clock.now_us()
            self._forget(run)
        else:
            self._beside(self._finish(case))
        self._come_back(key, lane, run)

    def _come_back(self, key: Key, lane: Lane, run: Run) -> None:
        """A run of the lane has come back: go on, or start anew once all have."""
        if lane.again_us is None:
            self._go_on(key, lane)
        elif not lane.busy:
            # What was judged ahead of a commit that did not stand is forgotten with it.
            self._line.forget(run)
            if lane.queue:
                self._parked[key] = lane.again_us
            lane.again_us = None
        if not lane.queue and not lane.busy and not lane.queued:
            del self._lanes[key]

    async def _finish(self, case: Case) -> None:
        """See a run through while its key goes on."""
        run = case.run
        again_us = await self._guard(run, see_through(self._line, case))
        if isinstance(again_us, int):
            key = self._own_lane(run)
            lane = self._lanes[key] = Lane()
            lane.queue.append(run)
            self._parked[key] = again_us
        else:
            self._forget(run)

    def _forget(self, run: Run) -> None:
        del self._known[run.id]
        self.handled += 1
        self._make_room()

    def _make_room(self) -> None:
        near = len(self._known) < self._room // 2 or not self._space.is_set()
        if near and self._taken() < self._room // 2:
            self._load()
            self._space.set()

    def _beside(self, work: Coroutine[Any, Any, None]) -> None:
        self._finishing.add(self._minded(work, "finisher"))

    @staticmethod
    def _own_lane(run: Run) -> Key:
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
        except (Exception, asyncio.CancelledError, SystemExit) as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task and task.cancelling():
                raise
            # A judge or a tool's pure part is agents' code: whatever it raises ends this run only,
            # a cancellation of its own that it let escape too.
            return await self._bury(run, error)

    def _again(self, run: Run, at_us: int) -> int:
        """Read the run anew for another attempt and drop what its judge learned meanwhile."""
        line = self._line
        line.forget(run)
        fresh = line.store.run(run.id)
        if fresh is not None:
            attempts = run.attempts
            for name in Run.__slots__:
                setattr(run, name, getattr(fresh, name))
            run.attempts = attempts
        return at_us

    async def _bury(self, run: Run, error: BaseException) -> int | None:
        line = self._line
        line.forget(run)
        fresh = line.store.run(run.id) or run
        try:
            await bury(line, fresh, line.store.epoch, f"{type(error).__name__}: {error}")
        except Exception:
            # Whatever it is must not end this handler: the run stays and is tried again.
            line.metrics.count("store_failures")
            return line.clock.now_us() + _RETRY_US
        run.state = "dead"
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
        self._fetch_back()
        for key, at_us in list(self._parked.items()):
            if at_us <= now and not line.stops.agent(key[0]):
                del self._parked[key]
                self._go_on(key, self._lanes[key])
        stopped = [name for name in line.fleet.agents if line.stops.agent(name)]
        for run in line.store.due(now, 256, stopped):
            self._put(self._own_lane(run), run)
