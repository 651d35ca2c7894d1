"""Dispatch: which run next. Order is kept per (agent, key) here, not by the broker.

Every key has a lane, and runs of a lane are judged one after the other. A judge's next event may be
judged while the commit of the one before is still on its way (`AHEAD` bounds how many): commits
stay in order, and if one does not stand, those behind it are refused by the store; then the lane
waits until all have come back and goes on from what is durable. Once a run's first turn is durable
it leaves its lane: its effects are performed, in the order of the key, beside the key's next event.
A run that waits and wakes has a lane of its own.

A lane that has to wait keeps its first run in memory and leaves the others in the store: they are
read when it goes on, oldest first. So it is with a lane that turns out to lack one (`_short`).

Lanes take turns by agent (`fair.Turns`), and what is in memory is shared by agent (`supply`): an
agent that is slow, or has a storm of events, is in nobody else's way.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import field, replace
from functools import partial
from typing import Any, Literal

from vedette.domain.base.clock import MICROS, until_beat, within
from vedette.domain.base.dataclass import dataclass
from vedette.domain.base.errors import Permanent, StoreFailed
from vedette.domain.base.fleet_clock import Jump
from vedette.domain.conflict import Superseded
from vedette.domain.event import Event
from vedette.domain.run import Answer, Lease, Run, Step
from vedette.engine.handle import handle, see_through
from vedette.engine.kill_switch import StoreWatch, lift_ended, tell_jump
from vedette.engine.run_context import Case
from vedette.engine.scheduler.backpressure import Bounds, Supply
from vedette.engine.scheduler.failure_policy import ATTEMPTS, Guard
from vedette.engine.scheduler.fair_queue import OCTETS_A_TURN, Turns
from vedette.engine.scheduler.wakeups import Waking
from vedette.engine.services import Line

# How long nothing is looked for where nothing can be found.
REST_S = 1.0
Key = tuple[str, str]
# Where a ready run is: waiting for an instant or a person; with a judge; performed; in a lane that
# is to have a handler, or that nobody looks at; to be read; not to be read; of no lease; to be
# tried again, as a store that is well by all else that is known of it refused the last attempt.
Place = Literal[
    "aside", "hand", "effects", "queued", "idle", "behind", "unread", "leaseless", "refused"
]

# A target whose next trial is further off than this has failed several in a row.
_TRIAL_SOON_US = 10_000_000
_SOON_US = 60_000_000
AHEAD = 32
# How many runs of a key are read at once; more than may be under way, so that one is new.
_PAGE = 2 * AHEAD
# A lane that waits for longer than this leaves the room to others.
_REST_US = 200_000
# A lane whose instant was so long ago is looked at by nobody.
_LATE_US = 5_000_000
# A handler that is at one run for longer than this waits for a judge, a model or a store.
_SLOW_US = 500_000
# Handlers of one agent while another that asks for little is about. Whatever is in hand for the
# one stands before the other's next step, in every commit and every round of the loop.
BESIDE = 6


@dataclass(slots=True)
class Lane:
    """The runs of one key. `busy` are being judged or committed, oldest first.

    `again_us` is set when one of them has to be tried again: then no other is begun before all
    have come back. `queued` says that the lane waits for a handler. `judged` is the run whose step
    is not sent yet: its reasoner may be in another process, and the next run is briefed after it.
    """

    queue: deque[Run] = field(default_factory=deque)
    busy: int = 0
    again_us: int | None = None
    queued: bool = False
    judged: str | None = None

    def put_back(self, run: Run) -> None:
        """Put a run back in its place."""
        at = len(self.queue)
        while at and self.queue[at - 1].position > run.position:
            at -= 1
        self.queue.insert(at, run)


@dataclass(slots=True, eq=False)
class Hand:
    """A handler at a run of a key, since an instant of the monotonic clock."""

    key: Key
    since_us: int
    slow: bool = False


class Dispatcher:
    """Hands ready runs to handlers. `start` and `close` bound its life on one event loop.

    `room` bounds how many runs are held in memory, `bounds` all that is bounded; see `supply`.
    """

    def __init__(
        self,
        line: Line,
        *,
        handlers: int = 256,
        room: int | None = None,
        bounds: Bounds | None = None,
    ) -> None:
        bounds = bounds or Bounds()
        self._line = line
        self.supply = Supply(
            line, self._put, replace(bounds, room=room or bounds.room), self._later
        )
        self.waking = Waking(line, self.supply)
        self._guarding = Guard(line, self._passed)
        self._guard = self._guarding.do
        self._lanes: dict[Key, Lane] = {}
        self._turns: Turns[Key] = Turns(handlers, beside=BESIDE, cost=self._cost)
        self._hands: set[Hand] = set()
        self._free: deque[asyncio.Future[None]] = deque()
        self._parked: dict[Key, int] = {}
        # Keys of which more is in the store than in their lanes.
        self._short: set[Key] = set()
        # Those of them that the store did not give when they were last asked for.
        self._unread: set[Key] = set()
        # Whether a store that is ready refused the last look at it.
        self.blind = False
        self._handlers = handlers
        self._charge: set[str] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._finishing: dict[asyncio.Task[None], None] = {}
        # Runs whose first turn is durable, whatever the store says of them: they are seen through.
        self.under_way: dict[str, Case] = {}
        self._failed: Callable[[str, BaseException | None], None] | None = None
        self._closing = False
        self._moved_us = line.clock.moved_us
        # Jumps of the wall clock that are to be recorded, oldest first.
        self._untold: list[Jump] = []
        self.handled = 0

    # --- life -------------------------------------------------------------------------------

    def start(self, failed: Callable[[str, BaseException | None], None] | None = None) -> None:
        """Load what the store has waiting and begin to handle it.

        `failed` is told if a task of ours breaks: runs that it had in hand are never done then.
        """
        self._failed, self._closing = failed, False
        if self._line.in_hand is not None:
            self._charge = set(self._line.in_hand.left_over())
        self.supply.start()
        self.waking.start()
        self._tasks = [
            self._minded(self._work(), f"handler {n}") for n in range(1, self._handlers + 1)
        ]
        self._tasks.append(self._minded(self._wake(), "waker"))

    def _minded(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._finishing.pop(task, None)
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
        return len(self.supply.known)

    @property
    def idle(self) -> bool:
        """Say whether there is nothing to handle now.

        Lanes of stopped agents, and lanes parked until a later instant, are aside; see `soon`.
        """
        line, now = self._line, self._line.clock.now_us()
        aside = sum(
            len(self._lanes[key].queue)
            for key, at_us in self._parked.items()
            if at_us > now or line.stops.agent(key[0])
        )
        behind = any(not line.stops.agent(agent) for agent in self.supply.behind)
        short = any(
            self._parked.get(key, 0) <= now and not line.stops.agent(key[0]) for key in self._short
        )
        aside_all = len(self.supply.known) == aside
        return aside_all and not behind and not short and not self.waking.due

    def at_work(self, agent: str, *, judging: bool = True) -> bool:
        """Say whether runs of an agent are being handled; without `judging` only beyond that."""
        if any(case.run.agent == agent for case in self.under_way.values()):
            return True
        return judging and any(lane.busy for key, lane in self._lanes.items() if key[0] == agent)

    def in_hand(self, agent: str) -> int:
        """Return how many runs of an agent are being judged or performed."""
        seen = sum(case.run.agent == agent for case in self.under_way.values())
        return seen + sum(hand.key[0] == agent for hand in self._hands)

    def place(self, run: Run) -> Place:
        """Return where a run is that the store says is ready."""
        key = (run.agent, run.key)
        if self._line.stops.agent(run.agent):
            return "aside"
        if self._line.store.lease(run) is None:
            return "leaseless"
        if run.id in self._guarding.refused and self._line.store.ready:
            return "refused"
        if run.id not in self.supply.known:
            if key in self._short:
                return "unread" if key in self._unread else self._lane_place(key)
            return "behind" if run.agent in self.supply.behind else "unread"
        for at in (key, self._own_lane(run)):
            lane = self._lanes.get(at)
            if lane is not None and any(other.id == run.id for other in lane.queue):
                return self._lane_place(at)
        lane = self._lanes.get(key)
        return "hand" if lane is not None and lane.busy else "effects"

    def refused(self) -> dict[str, tuple[Run, str]]:
        """Return the runs in memory whose last attempt a store refused, and why, by their id."""
        return self._guarding.refused_of(self.supply.known)

    def _lane_place(self, key: Key) -> Place:
        at_us = self._parked.get(key)
        if at_us is not None:
            late = self._line.store.ready and at_us + _LATE_US < self._line.clock.now_us()
            return "idle" if late else "aside"
        lane = self._lanes.get(key)
        if lane is None:
            return "idle"
        return "hand" if lane.busy else "queued" if lane.queued else "idle"

    def read_again(self) -> None:
        """Begin anew with what the store has, beside what is in hand. Raises StoreFailed."""
        self.supply.start()
        self.waking.start()
        for key, lane in list(self._lanes.items()):
            self._go_on(key, lane)
        self._call_handler()

    @property
    def soon(self) -> bool:
        """Say whether something waits for an instant near enough to stay up for."""
        now = self._line.clock.now_us()
        return self.waking.soon(now + _TRIAL_SOON_US) or any(
            at_us <= now + _SOON_US and not self._line.stops.agent(key[0])
            for key, at_us in self._parked.items()
        )

    # --- lanes ------------------------------------------------------------------------------

    def _put(self, run: Run) -> None:
        """Queue a run that came into memory: in the order of its key, or beside it if it waited.

        One that waited before its first turn (for a budget) still has its place in the order.
        """
        first = run.state == "ready" or not run.turn
        key = (run.agent, run.key) if first else self._own_lane(run)
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = Lane()
        lane.put_back(run)
        self._go_on(key, lane)

    def _later(self, run: Run) -> bool:
        """Say whether a run stays in the store until its lane reads on."""
        key = (run.agent, run.key)
        if key not in self._short or run.turn or run.state != "ready":
            return False
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = Lane()
        self._go_on(key, lane)
        return key in self._short or run.id in self.supply.known

    def _passed(self, run: Run) -> None:
        """A run came before an earlier one of its key, which is not here: read the key again."""
        self._read_on((run.agent, run.key))

    def _shorten(self, key: Key, lane: Lane) -> None:
        """Leave the runs of a lane in the store that wait for its first."""
        kept = deque[Run]()
        for run in lane.queue:
            fresh = run.state == "ready" and not run.turn and not run.attempts
            if kept and fresh and run.id not in self._charge:
                self.supply.put_back(run)
                self.waking.gone(run)
                self._short.add(key)
            else:
                kept.append(run)
        lane.queue = kept

    def _read_on(self, key: Key) -> None:
        """Read a lane's next runs from the store, oldest first."""
        self._short.discard(key)
        self._unread.discard(key)
        more = True
        try:
            more = self.supply.read_on(*key, _PAGE)
        except StoreFailed:
            self._unread.add(key)
            self._line.metrics.count("store_failures")
            self._parked[key] = self._line.clock.now_us() + _REST_US
        if more:
            self._short.add(key)

    def _put_away(self, key: Key, lane: Lane) -> None:
        """Drop a stopped agent's runs from memory: the store has them, others need the room."""
        self.supply.put_away(key[0], lane.queue)
        for run in lane.queue:
            self.waking.gone(run)
        lane.queue.clear()
        self._short.discard(key)
        if not lane.busy:
            self._drop(key)

    def _drop(self, key: Key) -> None:
        """Forget a lane that has nothing left."""
        self._lanes.pop(key, None)
        self._parked.pop(key, None)
        self._unread.discard(key)

    def _go_on(self, key: Key, lane: Lane) -> None:
        """Give a lane to a handler if another of its runs may be begun now."""
        if key in self._short and not lane.queue and key not in self._parked:
            self._read_on(key)
        may = lane.again_us is None and lane.busy < AHEAD and key not in self._parked
        if may and lane.queue and not lane.queued and lane.judged is None:
            lane.queued = True
            self._turns.want(key[0], key, self._line.clock.monotonic_us())
            self._call_handler()

    def _cost(self, key: Key) -> int:
        queue = self._lanes[key].queue
        held = self.supply.known.get(queue[0].id) if queue else None
        return 1 + (held.octets // OCTETS_A_TURN if held else 0)

    def others_about(self) -> bool:
        """Say whether an agent that asks for little was heard of lately."""
        return self._turns.light_about(self._line.clock.monotonic_us())

    # --- handlers ---------------------------------------------------------------------------

    def _call_handler(self) -> None:
        while self._free:
            free = self._free.popleft()
            if not free.done():
                free.set_result(None)
                return

    async def _work(self) -> None:
        while True:
            turn = self._turns.next(self._line.clock.monotonic_us())
            if turn is None:
                free = asyncio.get_running_loop().create_future()
                self._free.append(free)
                await free
                continue
            # There may be more to do than handlers were called for, when a bound was raised.
            self._call_handler()
            agent, key = turn
            hand = Hand(key, self._line.clock.monotonic_us())
            self._hands.add(hand)
            try:
                await self._serve(key)
            finally:
                self._hands.discard(hand)
                self._turns.done(agent, slow=hand.slow)

    async def _serve(self, key: Key) -> None:
        """Take the next run of a lane, if it may still be taken."""
        lane = self._lanes[key]
        lane.queued = False
        if lane.again_us is not None or not lane.queue or key in self._parked:
            return
        if self._line.stops.agent(key[0]):
            self._put_away(key, lane)
            return
        run = lane.queue.popleft()
        epoch = self._line.store.lease(run)
        if epoch is None:
            # Another worker has it by now.
            self._short.discard(key)
            self._forget(run)
            self._come_back(key, lane, run)
            return
        await self._take(key, lane, Lease(run, epoch))

    async def _take(self, key: Key, lane: Lane, lease: Lease) -> None:
        """Handle a run of a lane; the lane goes on as soon as its step is sent."""
        run = lease.run
        lane.busy += 1
        lane.judged = run.id
        sent = partial(self._sent, key, lane, run)
        event = self.supply.known[run.id].event
        case = await self._guard(run, self._first(lease, event, sent))
        lane.busy -= 1
        lane.judged = None if lane.judged == run.id else lane.judged
        if isinstance(case, int):
            lane.put_back(run)
            lane.again_us = max(case, lane.again_us or 0)
        elif case is None:
            if run.state == "dead":
                # What was judged ahead of it counted on it.
                lane.again_us = lane.again_us or self._line.clock.now_us()
            self._forget(run)
        else:
            self.waking.release(case)
            self.under_way[run.id] = case
            self._beside(self._finish(case))
        self._come_back(key, lane, run)

    def _sent(self, key: Key, lane: Lane, run: Run) -> None:
        if lane.judged == run.id:
            lane.judged = None
            self._go_on(key, lane)

    async def _first(
        self, lease: Lease, event: Event | None, sent: Callable[[], None]
    ) -> Case | int | None:
        """Handle a run; one that was in hand when the process before this one died is charged."""
        run = lease.run
        if run.id in self._charge:
            self._charge.discard(run.id)
            if run.attempts + 1 >= ATTEMPTS:
                raise Permanent(f"the process died {ATTEMPTS} times with this event in hand")
            await self._charge_attempt(lease)
        return await handle(self._line, lease, event, sent)

    async def _charge_attempt(self, lease: Lease) -> None:
        run = lease.run
        charged = Step(
            drafts=[], run=run.id, position=run.position, agent=run.agent, expects=run.steps,
            entries_before=run.entries, epoch=lease.epoch, state=run.state, turn=run.turn,
            attempts=run.attempts + 1, wake_us=run.wake_us, waits=run.waits, observed=run.observed,
        )  # fmt: skip
        committed = await self._line.store.commit(charged)
        if committed.answer is not Answer.COMMITTED:
            raise Superseded("the run was moved on by somebody else")
        run.steps, run.attempts = run.steps + 1, run.attempts + 1

    def _come_back(self, key: Key, lane: Lane, run: Run) -> None:
        """A run of the lane has come back: go on, or start anew once all have."""
        if lane.again_us is None:
            self._go_on(key, lane)
        elif not lane.busy:
            # What was judged ahead of a commit that did not stand is forgotten with it.
            self._line.forget(run)
            if lane.again_us > self._line.clock.now_us() + _REST_US:
                self._shorten(key, lane)
            if lane.queue:
                self._parked[key] = lane.again_us
            lane.again_us = None
            if not lane.queue:
                self._go_on(key, lane)
        if not lane.queue and not lane.busy and not lane.queued and key not in self._short:
            self._drop(key)
            self._line.let_go(run)

    async def _finish(self, case: Case) -> None:
        """See a run through while its key goes on."""
        run = case.run
        try:
            again_us = await self._guard(run, see_through(self._line, case))
        finally:
            self.under_way.pop(run.id, None)
        if isinstance(again_us, int):
            key = self._own_lane(run)
            lane = self._lanes[key] = Lane()
            lane.queue.append(run)
            self._parked[key] = again_us
        else:
            self.waking.finished(case)
            self._forget(run)

    def _forget(self, run: Run) -> None:
        self.supply.forget(run)
        self.waking.gone(run)
        self.handled += 1

    def _beside(self, work: Coroutine[Any, Any, None]) -> None:
        self._finishing[self._minded(work, "finisher")] = None

    @staticmethod
    def _own_lane(run: Run) -> Key:
        return (run.agent, f"\0{run.id}")

    # --- waking -----------------------------------------------------------------------------

    async def _wake(self) -> None:
        """Look for runs whose wait is over, parked lanes that may go on, and stops that end."""
        watch = StoreWatch(self._line)
        committed = asyncio.Event()
        self._line.store.listen(committed.set)
        while True:
            try:
                if not self._rests() or await within(committed, until_beat(REST_S)):
                    await asyncio.sleep(self.waking.pause_s)
                committed.clear()
                await watch.look()
                await self._look_at_clock()
                self.wake()
                await lift_ended(self._line, self._line.clock.expiry_us())
                self.blind = False
            except StoreFailed:
                self.blind = self._line.store.ready
                self._line.metrics.count("store_failures")
                await asyncio.sleep(self.waking.pause_s)

    def _rests(self) -> bool:
        """Say whether nothing is to be looked for within a second, unless something is committed.

        Raises StoreFailed.
        """
        line = self._line
        by_us = line.clock.now_us() + int(REST_S * MICROS)
        stopped = [name for name in line.fleet.agents if line.stops.agent(name)]
        return not (
            not (self.idle and line.store.ready)
            or line.stops.unrecorded
            or line.recall.behind
            or self.supply.waited_for
            or any(at_us <= by_us and key[0] not in stopped for key, at_us in self._parked.items())
            or self.waking.soon(by_us)
            or any(stop.until_us <= by_us for stop in line.stops.ends)
            or line.store.due(by_us, 1, stopped)
        )

    async def _look_at_clock(self) -> None:
        """Tell of a jump of the wall clock; where it was confirmed, waits in memory move along."""
        line = self._line
        self._untold += filter(None, (line.clock.look(),))
        off_us = 0 if line.clock.jump is None else line.clock.jump.by_us
        line.metrics.gauge("clock_jump_seconds", off_us // MICROS)
        if (by_us := line.clock.moved_us - self._moved_us) != 0:
            self._moved_us += by_us
            for lane in self._lanes.values():
                lane.again_us = None if lane.again_us is None else lane.again_us + by_us
            self._parked = {key: at_us + by_us for key, at_us in self._parked.items()}
            for breaker in line.breakers.listed():
                breaker.retry_us += by_us
            line.tight.clear()
            self.waking.look_anew()
        while self._untold and line.store.ready:
            await tell_jump(line, self._untold[0])
            del self._untold[0]

    def wake(self) -> None:
        """Queue what is due now."""
        line, now = self._line, self._line.clock.now_us()
        before_us = line.clock.monotonic_us() - _SLOW_US
        for hand in self._hands:
            if hand.since_us < before_us and not hand.slow:
                hand.slow = True
                self._turns.slow(hand.key[0])
        if self.waking.leases_moved():
            self._drop_lost()
        if not line.store.ready:
            return  # whatever went on would come back at once: it could not be committed
        for key, at_us in list(self._parked.items()):
            if at_us <= now and not line.stops.agent(key[0]):
                del self._parked[key]
                self._go_on(key, self._lanes[key])
        self.waking.look(now)
        self.supply.let_all_in()
        self._call_handler()

    def _drop_lost(self) -> None:
        """Drop queued runs that are another worker's now; what is being handled is fenced."""
        for key, lane in list(self._lanes.items()):
            lost = [run for run in lane.queue if self._line.store.lease(run) is None]
            for run in lost:
                lane.queue.remove(run)
                self._forget(run)
            if lost:
                self._short.discard(key)
            if lost and not lane.queue and not lane.busy and not lane.queued:
                self._drop(key)
