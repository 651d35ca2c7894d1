"""The dispatcher: which run next. Order is kept per (agent, key) here, not by the broker.

Every key has a lane, and runs of a lane are judged one after the other. A judge's next event may be
judged while the commit of the one before is still on its way (`MAX_IN_PROGRESS` bounds how many):
commits stay in order, and if one does not stand, those behind it are refused by the store; then the
lane waits until all have come back and goes on from what is durable. Once a run's first turn is
durable it leaves its lane: its effects are performed, in the order of the key, beside the key's
next event. A run that waits and wakes has a lane of its own.

A lane that has to wait keeps its first run in memory and leaves the others in the store: they are
read when it goes on, oldest first. So it is with a lane that turns out to lack one
(`_on_overtake`).

Lanes take turns by agent (`FairScheduler`), and memory is shared by agent (`RunBuffer`): an agent
that is slow, or has a storm of events, is in nobody else's way.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Literal

from msgspec import Struct, field

from vedette.domain.base.errors import Permanent, StoreFailed
from vedette.domain.run import Lease, Run, Step
from vedette.engine.handle import handle, run_to_completion
from vedette.engine.run_context import RunContext
from vedette.engine.scheduler.backpressure import Bounds, RunBuffer
from vedette.engine.scheduler.failure_policy import ATTEMPTS, FailurePolicy
from vedette.engine.scheduler.fair_queue import FairScheduler
from vedette.engine.scheduler.wakeups import PollLoop, Wakeups
from vedette.engine.services import Services

Key = tuple[str, str]
# Where a run is that the store says is ready.
RunLocation = Literal[
    "waiting",  # for an instant or a person, or its agent is stopped
    "judging",  # with a judge
    "performing",  # its effects are under way
    "queued",  # in a lane that waits for a handler
    "idle",  # in a lane that nobody looks at
    "spilled",  # in the store, until there is room in memory
    "unread",  # in the store, and nobody is about to read it
    "leaseless",  # of a key whose lease has run out here
    "refused",  # to be tried again: a store that is well by all else refused the last attempt
]

# A target whose next trial is further off than this has failed several in a row.
_TRIAL_SOON_US = 10_000_000
_SOON_US = 60_000_000
MAX_IN_PROGRESS = 32
# How many runs of a key are read at once; more than may be under way, so that one is new.
_PAGE = 2 * MAX_IN_PROGRESS
# Bytes of an event that cost a turn more than a small one.
_OCTETS_A_TURN = 32_768
# A lane that waits for longer than this leaves the room to others.
_REST_US = 200_000
# A lane whose instant was so long ago is looked at by nobody.
_OVERDUE_US = 5_000_000
# A handler that is at one run for longer than this waits for a judge, a model or a store.
_SLOW_US = 500_000
# Handlers of one agent while another that asks for little is about. Whatever is in hand for the
# one stands before the other's next step, in every commit and every round of the loop.
SHARED_HANDLERS = 6


class Lane(Struct):
    """The runs of one key. `in_progress` are being judged or committed, oldest first.

    `retry_at_us` is set when one of them has to be tried again: then no other is begun before all
    have come back. `is_queued` says that the lane waits for a handler. `unsent_run` is the run
    whose step is not sent yet: its reasoner may be in another process, and the next run is briefed
    after it.
    """

    queue: deque[Run] = field(default_factory=deque)
    in_progress: int = 0
    retry_at_us: int | None = None
    is_queued: bool = False
    unsent_run: str | None = None

    def insert(self, run: Run) -> None:
        """Put a run back in its place."""
        at = len(self.queue)
        while at and self.queue[at - 1].position > run.position:
            at -= 1
        self.queue.insert(at, run)


class BusyHandler(Struct, eq=False):
    """A handler at a run of a key, since an instant of the monotonic clock."""

    key: Key
    since_us: int
    is_slow: bool = False


class Dispatcher:
    """Hands ready runs to handlers. `start` and `close` bound its life on one event loop."""

    def __init__(
        self, services: Services, *, handlers: int = 256, bounds: Bounds | None = None
    ) -> None:
        self._services = services
        self.buffer = RunBuffer(services, self._enqueue, bounds or Bounds(), self._defer)
        self.wakeups = Wakeups(services, self.buffer)
        self.poll_loop = PollLoop(services, self)
        self.scheduler: FairScheduler[Key] = FairScheduler(handlers, shared_limit=SHARED_HANDLERS)
        self._failure_policy = FailurePolicy(services, self._on_overtake)
        self._lanes: dict[Key, Lane] = {}
        self._busy_handlers: set[BusyHandler] = set()
        self._idle_handlers: deque[asyncio.Future[None]] = deque()
        self._parked_until: dict[Key, int] = {}
        # Keys of which more is in the store than in their lanes.
        self._spilled_keys: set[Key] = set()
        # Those of them that the store did not give when they were last asked for.
        self._unread_keys: set[Key] = set()
        self._handlers = handlers
        self._unfinished_runs: set[str] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._finishers: dict[asyncio.Task[None], None] = {}
        # Runs whose first turn is durable: they go on beside their keys' next events.
        self.active_runs: dict[str, RunContext] = {}
        self._on_failure: Callable[[str, BaseException | None], None] | None = None
        self._closing = False
        self.handled_count = 0

    # --- life -------------------------------------------------------------------------------

    def start(self, on_failure: Callable[[str, BaseException | None], None] | None = None) -> None:
        """Load what the store has waiting and begin to handle it.

        `on_failure` is called if a task of ours breaks: runs that it was at are never done then.
        """
        self._on_failure, self._closing = on_failure, False
        if self._services.run_journal is not None:
            self._unfinished_runs = set(self._services.run_journal.unfinished())
        self.buffer.start()
        self.wakeups.reload_parked()
        self._tasks = [
            self._supervise(self._run_handler(), f"handler {n}")
            for n in range(1, self._handlers + 1)
        ]
        self._tasks.append(self._supervise(self.poll_loop.run(), "waker"))

    def _supervise(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(self._on_task_end)
        return task

    def _on_task_end(self, task: asyncio.Task[None]) -> None:
        self._finishers.pop(task, None)
        if self._closing or self._on_failure is None:
            return
        if task.cancelled():
            self._on_failure(task.get_name(), asyncio.CancelledError("cancelled by nobody we know"))
        elif task.exception() is not None:
            self._on_failure(task.get_name(), task.exception())

    async def close(self) -> None:
        """Stop handling. What was not committed is found again by the next runner."""
        self._closing = True
        tasks = [*self._tasks, *self._finishers]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def pending(self) -> int:
        """Return how many runs are in memory, queued or being handled."""
        return len(self.buffer.loaded_runs)

    @property
    def is_idle(self) -> bool:
        """Say whether there is nothing to handle now.

        Lanes of stopped agents, and lanes that wait for a later instant, do not count; see
        `is_due_soon`.
        """
        now, stopped = self._services.clock.now_us(), self._services.stops.is_agent_stopped
        waiting = sum(
            len(self._lanes[key].queue)
            for key, at_us in self._parked_until.items()
            if at_us > now or stopped(key[0])
        )
        return (
            len(self.buffer.loaded_runs) == waiting
            and all(stopped(agent) for agent in self.buffer.spilled_agents)
            and all(
                self._parked_until.get(key, 0) > now or stopped(key[0])
                for key in self._spilled_keys
            )
            and not self._services.parked_runs.has_woken
        )

    @property
    def is_due_soon(self) -> bool:
        """Say whether something waits for an instant near enough to stay up for."""
        now = self._services.clock.now_us()
        return self.wakeups.has_trial_by(now + _TRIAL_SOON_US) or self.has_wait_by(now + _SOON_US)

    def has_wait_by(self, by_us: int) -> bool:
        """Say whether a lane waits for an instant up to `by_us`, and its agent is not stopped."""
        return any(
            at_us <= by_us and not self._services.stops.is_agent_stopped(key[0])
            for key, at_us in self._parked_until.items()
        )

    def move_waits(self, by_us: int) -> None:
        """Have lanes wait for so much longer: the clock that they wait by was set."""
        for lane in self._lanes.values():
            lane.retry_at_us = None if lane.retry_at_us is None else lane.retry_at_us + by_us
        self._parked_until = {key: at_us + by_us for key, at_us in self._parked_until.items()}

    def is_active(self, agent: str, *, judging: bool = True) -> bool:
        """Say whether runs of an agent are being handled; without `judging` only beyond that."""
        if any(context.run.agent == agent for context in self.active_runs.values()):
            return True
        return judging and any(
            lane.in_progress for key, lane in self._lanes.items() if key[0] == agent
        )

    def judged_keys(self, agent: str) -> list[str]:
        """Return the keys of an agent of which a run is being judged."""
        return [key for (name, key), lane in self._lanes.items()
                if name == agent and lane.in_progress]  # fmt: skip

    def count_active(self, agent: str) -> int:
        """Return how many runs of an agent are being judged or performed."""
        performing = sum(context.run.agent == agent for context in self.active_runs.values())
        return performing + sum(handler.key[0] == agent for handler in self._busy_handlers)

    def locate(self, run: Run) -> RunLocation:
        """Return where a run is that the store says is ready."""
        key, store = (run.agent, run.key), self._services.store
        if self._services.stops.is_agent_stopped(run.agent):
            return "waiting"
        if store.cluster.lease_epoch(run) is None:
            return "leaseless"
        if run.id in self._failure_policy.refused_runs and store.steps.is_ready:
            return "refused"
        if run.id not in self.buffer.loaded_runs:
            if key in self._spilled_keys:
                return "unread" if key in self._unread_keys else self._locate_lane(key)
            return "spilled" if run.agent in self.buffer.spilled_agents else "unread"
        for at in (key, self._own_lane_key(run)):
            lane = self._lanes.get(at)
            if lane is not None and any(other.id == run.id for other in lane.queue):
                return self._locate_lane(at)
        lane = self._lanes.get(key)
        return "judging" if lane is not None and lane.in_progress else "performing"

    def _locate_lane(self, key: Key) -> RunLocation:
        at_us = self._parked_until.get(key)
        if at_us is not None:
            is_late = at_us + _OVERDUE_US < self._services.clock.now_us()
            return "idle" if is_late and self._services.store.steps.is_ready else "waiting"
        lane = self._lanes.get(key)
        if lane is None:
            return "idle"
        return "judging" if lane.in_progress else "queued" if lane.is_queued else "idle"

    def refused_runs(self) -> dict[str, tuple[Run, str]]:
        """Return the runs in memory whose last attempt a store refused, and why, by their id."""
        return self._failure_policy.retain_refused(self.buffer.loaded_runs)

    def reload(self) -> None:
        """Begin anew with what the store has, beside what is under way. Raises StoreFailed."""
        self.buffer.start()
        self.wakeups.reload_parked()
        for key, lane in list(self._lanes.items()):
            self._advance_lane(key, lane)
        self._wake_handler()

    # --- lanes ------------------------------------------------------------------------------

    def _enqueue(self, run: Run) -> None:
        """Queue a run that came into memory: in the order of its key, or beside it if it waited.

        One that waited before its first turn (for a budget) still has its place in the order.
        """
        first = run.state == "ready" or not run.turn
        key = (run.agent, run.key) if first else self._own_lane_key(run)
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = Lane()
        lane.insert(run)
        self._advance_lane(key, lane)

    def _defer(self, run: Run) -> bool:
        """Say whether a run stays in the store until its lane reads on."""
        key = (run.agent, run.key)
        if key not in self._spilled_keys or run.turn or run.state != "ready":
            return False
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = Lane()
        self._advance_lane(key, lane)
        return key in self._spilled_keys or run.id in self.buffer.loaded_runs

    def _on_overtake(self, run: Run) -> None:
        """A run came before an earlier one of its key, which is not here: read the key again."""
        self._load_lane((run.agent, run.key))

    def _spill_lane(self, key: Key, lane: Lane) -> None:
        """Leave the runs of a lane in the store that wait for its first."""
        remaining = deque[Run]()
        for run in lane.queue:
            fresh = run.state == "ready" and not run.turn and not run.attempts
            if remaining and fresh and run.id not in self._unfinished_runs:
                self.buffer.unload(run)
                self.wakeups.forget_run(run)
                self._spilled_keys.add(key)
            else:
                remaining.append(run)
        lane.queue = remaining

    def _load_lane(self, key: Key) -> None:
        """Read a lane's next runs from the store, oldest first."""
        self._spilled_keys.discard(key)
        self._unread_keys.discard(key)
        more = True
        try:
            more = self.buffer.load_key(*key, _PAGE)
        except StoreFailed:
            self._unread_keys.add(key)
            self._services.metrics.count("store_failures")
            self._parked_until[key] = self._services.clock.now_us() + _REST_US
        if more:
            self._spilled_keys.add(key)

    def _unload_lane(self, key: Key, lane: Lane) -> None:
        """Drop a stopped agent's runs from memory: the store has them, others need the room."""
        self.buffer.unload_agent(key[0], lane.queue)
        for run in lane.queue:
            self.wakeups.forget_run(run)
        lane.queue.clear()
        self._spilled_keys.discard(key)
        if not lane.in_progress:
            self._drop_lane(key)

    def _drop_lane(self, key: Key) -> None:
        """Forget a lane that has nothing left."""
        self._lanes.pop(key, None)
        self._parked_until.pop(key, None)
        self._unread_keys.discard(key)

    def _advance_lane(self, key: Key, lane: Lane) -> None:
        """Give a lane to a handler if another of its runs may be begun now."""
        if key in self._spilled_keys and not lane.queue and key not in self._parked_until:
            self._load_lane(key)
        may = (
            lane.retry_at_us is None
            and lane.in_progress < MAX_IN_PROGRESS
            and key not in self._parked_until
        )
        if may and lane.queue and not lane.is_queued and lane.unsent_run is None:
            lane.is_queued = True
            cost = 1 + self.buffer.loaded_runs[lane.queue[0].id].octets // _OCTETS_A_TURN
            self.scheduler.enqueue(key[0], key, self._services.clock.monotonic_us(), cost)
            self._wake_handler()

    # --- handlers ---------------------------------------------------------------------------

    def _wake_handler(self) -> None:
        """Wake a handler that has nothing to do, if something waits for one."""
        while self._idle_handlers and self.scheduler.has_queued:
            free = self._idle_handlers.popleft()
            if not free.done():
                free.set_result(None)
                return

    async def _run_handler(self) -> None:
        while True:
            now_us = self._services.clock.monotonic_us()
            turn = self.scheduler.pop_next(now_us)
            if turn is None:
                free = asyncio.get_running_loop().create_future()
                self._idle_handlers.append(free)
                await free
                continue
            # There may be more to do than handlers were called for, when a bound was raised.
            self._wake_handler()
            agent, key = turn
            handler = BusyHandler(key, now_us)
            self._busy_handlers.add(handler)
            try:
                await self._serve_lane(key)
            finally:
                self._busy_handlers.discard(handler)
                self.scheduler.release_handler(agent, was_slow=handler.is_slow)

    async def _serve_lane(self, key: Key) -> None:
        """Take the next run of a lane, if it may still be taken."""
        lane = self._lanes[key]
        lane.is_queued = False
        if lane.retry_at_us is not None or not lane.queue or key in self._parked_until:
            return
        if self._services.stops.is_agent_stopped(key[0]):
            self._unload_lane(key, lane)
            return
        run = lane.queue.popleft()
        epoch = self._services.store.cluster.lease_epoch(run)
        if epoch is None:
            # Another worker has it by now.
            self._spilled_keys.discard(key)
            self._forget_run(run)
            self._resume_lane(key, lane, run)
            return
        await self._handle_run(key, lane, Lease(run, epoch))

    async def _handle_run(self, key: Key, lane: Lane, lease: Lease) -> None:
        """Handle a run of a lane; the lane goes on as soon as its step is sent."""
        run = lease.run
        lane.in_progress += 1
        lane.unsent_run = run.id
        on_sent = partial(self._on_sent, key, lane, run)
        work = self._run_first_turn(lease, on_sent)
        result = await self._failure_policy.apply(run, work)
        lane.in_progress -= 1
        lane.unsent_run = None if lane.unsent_run == run.id else lane.unsent_run
        if isinstance(result, int):
            lane.insert(run)
            lane.retry_at_us = max(result, lane.retry_at_us or 0)
        elif result is None:
            if run.state == "dead":
                # What was judged ahead of it counted on it.
                lane.retry_at_us = lane.retry_at_us or self._services.clock.now_us()
            self._forget_run(run)
        else:
            self._services.parked_runs.release_waits(run, result.actions)
            self.active_runs[run.id] = result
            self._finishers[self._supervise(self._complete_run(result), "finisher")] = None
        self._resume_lane(key, lane, run)

    def _on_sent(self, key: Key, lane: Lane, run: Run) -> None:
        if lane.unsent_run == run.id:
            lane.unsent_run = None
            self._advance_lane(key, lane)

    async def _run_first_turn(
        self, lease: Lease, on_sent: Callable[[], None]
    ) -> RunContext | int | None:
        """Handle a run; one that was in hand when the process before this one died is charged."""
        run = lease.run
        if run.id in self._unfinished_runs:
            self._unfinished_runs.discard(run.id)
            if run.attempts + 1 >= ATTEMPTS:
                raise Permanent(f"the process died {ATTEMPTS} times with this event in hand")
            await self._charge_attempt(lease)
        return await handle(self._services, lease, self.buffer.event_of(run), on_sent)

    async def _charge_attempt(self, lease: Lease) -> None:
        run = lease.run
        charged = Step.following(run, lease.epoch, attempts=run.attempts + 1)
        (await self._services.store.steps.commit(charged)).raise_for_status()
        run.steps, run.attempts = run.steps + 1, run.attempts + 1

    def _resume_lane(self, key: Key, lane: Lane, run: Run) -> None:
        """A run of the lane has come back: go on, or start anew once all have."""
        if lane.retry_at_us is None:
            self._advance_lane(key, lane)
        elif not lane.in_progress:
            # What was judged ahead of a commit that did not stand is forgotten with it.
            self._services.forget_key(run)
            if lane.retry_at_us > self._services.clock.now_us() + _REST_US:
                self._spill_lane(key, lane)
            if lane.queue:
                self._parked_until[key] = lane.retry_at_us
            lane.retry_at_us = None
            if not lane.queue:
                self._advance_lane(key, lane)
        if (
            not lane.queue
            and not lane.in_progress
            and not lane.is_queued
            and key not in self._spilled_keys
        ):
            self._drop_lane(key)
            if self._services.keys.is_full:
                self._services.forget_key(run)
                self._services.keys.drop_lease(run.agent, run.key)

    async def _complete_run(self, context: RunContext) -> None:
        """Bring a run to its end, or to where it waits, while its key goes on."""
        run, services = context.run, self._services
        work = run_to_completion(services, context)
        try:
            retry_us = await self._failure_policy.apply(run, work)
        finally:
            self.active_runs.pop(run.id, None)
        if isinstance(retry_us, int):
            key = self._own_lane_key(run)
            lane = self._lanes[key] = Lane()
            lane.queue.append(run)
            self._parked_until[key] = retry_us
        else:
            # As it stands by now: a person's answer may have had the context read it anew.
            now, ended = services.clock.now_us(), context.run
            services.parked_runs.park_or_leave(ended, context.actions, context.agent.tools, now)
            self._forget_run(run)

    def _forget_run(self, run: Run) -> None:
        self.buffer.release_run(run)
        self.wakeups.forget_run(run)
        self.handled_count += 1

    @staticmethod
    def _own_lane_key(run: Run) -> Key:
        return (run.agent, f"\0{run.id}")

    # --- by the clock -----------------------------------------------------------------------

    def wake_due(self) -> None:
        """Queue what is due now."""
        services, now = self._services, self._services.clock.now_us()
        before_us = services.clock.monotonic_us() - _SLOW_US
        for handler in self._busy_handlers:
            if handler.since_us < before_us and not handler.is_slow:
                handler.is_slow = True
                self.scheduler.mark_slow(handler.key[0])
        if self.wakeups.reload_on_lease_change():
            self._drop_lost_runs()
        if not services.store.steps.is_ready:
            return  # whatever went on would come back at once: it could not be committed
        for key, at_us in list(self._parked_until.items()):
            if at_us <= now and not services.stops.is_agent_stopped(key[0]):
                del self._parked_until[key]
                self._advance_lane(key, self._lanes[key])
        self.wakeups.poll(now)
        self.buffer.admit_waiters()
        self._wake_handler()

    def _drop_lost_runs(self) -> None:
        """Drop queued runs that are another worker's now; what is being handled is fenced."""
        for key, lane in list(self._lanes.items()):
            lost = [
                run for run in lane.queue if self._services.store.cluster.lease_epoch(run) is None
            ]
            for run in lost:
                lane.queue.remove(run)
                self._forget_run(run)
            if lost:
                self._spilled_keys.discard(key)
            if lost and not lane.queue and not lane.in_progress and not lane.is_queued:
                self._drop_lane(key)
