"""Wakeups: what is looked for by the clock, for as long as the fleet runs.

Runs that waited and may go on: what the store says is due, what a target's trial or its recovery
lets go, what is first in its key by now (`ParkedRuns`). And beside them a store that takes writes
again, a wall clock that jumped, stops that end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Protocol

from vedette.domain.base.canonical import canonical_json
from vedette.domain.base.clock import MICROS, aligned_delay_s, wait_for_event
from vedette.domain.base.errors import StoreFailed
from vedette.domain.base.fleet_clock import Jump, describe_jump
from vedette.domain.entry import Body, Draft
from vedette.domain.run import Run
from vedette.engine.kill_switch import lift_expired_stops, record_stops, reload_stops
from vedette.engine.model_calls import ModelCalls
from vedette.engine.scheduler.backpressure import RunBuffer
from vedette.engine.services import Services
from vedette.engine.tool_calls import LAST_RETRY_US

# How long nothing is looked for where nothing can be found.
REST_S = 1.0
# How often it is looked for what is due, and how many runs that woke may be in memory at once.
_EVERY_S = 0.05
_WINDOW = 256
# How many more are looked at while ends of holds are not counted: they are due, and stay.
_HELD = 4096
# No more than this share of the time goes into looking, so a long look is followed by a longer
# pause. But a look may have been long because a server did not answer: it says nothing of the next.
_SHARE = 20
MAX_PAUSE_S = 1.0
# After how long a store that cannot commit is tried again, first and at most.
_PROBE_US, _LAST_PROBE_US = 250_000, 4_000_000


class Wakeups:
    """Brings runs that waited back into memory. Belongs to a dispatcher."""

    def __init__(self, services: Services, buffer: RunBuffer) -> None:
        self._services = services
        self._buffer = buffer
        # By id: the agents of runs that woke and are in memory.
        self._woken_agents: dict[str, str] = {}
        self._pending_wakes: set[str] = set()
        self._next_trial_us: dict[str, int] = {}
        self._lease_rev = services.store.cluster.lease_rev
        self._stale = False
        self.pause_s = _EVERY_S

    def reload_parked(self) -> None:
        """Find again in the store who is parked; the first of each key is looked at at once."""
        services, now = self._services, self._services.clock.now_us()
        runs, since_us = [], services.clock.monotonic_us()
        for run in services.store.schedule.parked_runs():
            epoch = services.store.cluster.lease_epoch(run)
            if epoch is not None:
                # Its target may be asked that much sooner when it comes back.
                services.calls.note_lease(epoch, since_us)
                runs.append(run)
        services.parked_runs.clear()
        for run in runs:
            # A retry comes back by the clock, and sooner than what is parked.
            parked, agent = run.wake_us > now + LAST_RETRY_US, services.fleet.agents.get(run.agent)
            if run.waits == "model" and parked and agent is not None:
                for calls in services.models.routes(agent):
                    services.parked_runs.park_for_model(run, calls.breaker.target, 0)
            elif run.waits == "model" and run.turn:
                pass  # it holds up nobody
            elif parked:
                services.parked_runs.park_behind(run)
            else:
                services.parked_runs.park_timed(run)
        for run in runs:
            services.parked_runs.wake_if_first(run.id, (run.agent, run.key))

    def mark_stale(self) -> None:
        """Find parked runs again at the next look: the clock that they wait by was set."""
        self._stale = True
        self._next_trial_us.clear()

    def reload_on_lease_change(self) -> bool:
        """Say whether this worker has been given other runs; then what it may handle is reread."""
        rev = self._services.store.cluster.lease_rev
        if rev == self._lease_rev:
            return False
        self._buffer.start()
        self.reload_parked()
        # Only now: if the store did not answer it is done again.
        self._lease_rev = rev
        return True

    def has_trial_by(self, by_us: int) -> bool:
        """Say whether a target or model that runs wait for is tried again by an instant."""
        services, now = self._services, self._services.clock.now_us()
        waiting = services.parked_runs.count_waiting
        return any(
            breaker.retry_us <= by_us and waiting(breaker.target)
            for breaker in services.breakers.list_tripped()
        ) or any(
            waiting(calls.breaker.target)
            and calls.breaker.state == "closed"
            and (start_us := calls.next_start_us(now)) is not None
            and start_us <= by_us
            for calls in services.models.in_use()
        )

    def poll(self, now_us: int) -> None:
        """Bring in what may go on now."""
        services = self._services
        began = services.clock.monotonic_us()
        self._buffer.load_changes()
        self._stale |= bool(self._buffer.reload_resumed())
        if self._stale:
            self.reload_parked()
            self._stale = False
        # What could not be loaded when there was room for it, because the store did not answer.
        self._buffer.load_all()
        for breaker in services.breakers.list_tripped():
            # One trial at a time; if nothing comes of it another is sent a second later.
            if (
                breaker.is_trial_due(now_us)
                and self._next_trial_us.get(breaker.target, 0) <= now_us
            ):
                services.parked_runs.wake_oldest(breaker.target, is_trial=True)
                self._next_trial_us[breaker.target] = now_us + 1_000_000
        for calls in services.models.in_use():
            self._wake_for_model(calls, now_us)
        self._load_woken()
        self._load_due(now_us)
        took_s = (services.clock.monotonic_us() - began) / 1_000_000
        self.pause_s = min(MAX_PAUSE_S, max(_EVERY_S, took_s * _SHARE))

    def _wake_for_model(self, calls: ModelCalls, now_us: int) -> None:
        """Wake as many as a model that is well has room for, if its limits let any call begin."""
        if calls.breaker.state != "closed" or calls.next_start_us(now_us) != now_us:
            return
        for _ in range(calls.model.calls_in_flight - calls.in_flight):
            if not self._services.parked_runs.wake_oldest(calls.breaker.target):
                return

    def _load_woken(self) -> None:
        store, parked_runs = self._services.store, self._services.parked_runs
        while len(self._woken_agents) < _WINDOW and (name := parked_runs.pop_woken()) is not None:
            try:
                run = store.runs.run(name)
            except StoreFailed:
                parked_runs.wake(name)
                raise
            if run is None or run.state in ("done", "dead"):
                if run is not None:
                    parked_runs.unpark(run)
            elif name in self._buffer.loaded_runs:
                # It is about to wait, and was woken before it did.
                self._pending_wakes.add(name)
            elif self._load_run(run):
                parked_runs.mark_released(name)

    def _load_due(self, now_us: int) -> None:
        services = self._services
        # Agents that are stopped, or have many runs here that woke, are left out: the window
        # is for the others.
        share = _WINDOW // 2
        counts: dict[str, int] = {}
        for agent in self._woken_agents.values():
            counts[agent] = counts.get(agent, 0) + 1
        full = [agent for agent, number in counts.items() if number >= share]
        stopped = services.stops.stopped_among(services.fleet.agents)
        limit = _WINDOW + len(self._woken_agents)
        expiry_us = services.clock.expiry_us()
        if expiry_us < now_us:
            limit += _HELD
        for run in services.store.schedule.due_runs(now_us, limit, [*stopped, *full]):
            # What waits for a person is not over while nobody can tell the time.
            if run.waits != "approval" or run.wake_us <= expiry_us:
                self._load_run(run)

    def load_due(self, runs: Iterable[str]) -> None:
        """Bring in at once runs that something durable made due; the clock finds what is left."""
        with suppress(StoreFailed):
            for name in runs:
                run = self._services.store.runs.run(name)
                if run is not None and run.state == "waiting":
                    self._load_run(run)

    def _load_run(self, run: Run) -> bool:
        if self._services.store.cluster.lease_epoch(run) is None or not self._buffer.add_woken(run):
            return False
        self._woken_agents[run.id] = run.agent
        return True

    def forget_run(self, run: Run) -> None:
        """A run is not in memory any more."""
        self._woken_agents.pop(run.id, None)
        parked_runs = self._services.parked_runs
        parked_runs.unmark_released(run.id)
        if run.id in self._pending_wakes:
            self._pending_wakes.discard(run.id)
            parked_runs.wake(run.id)
        if parked_runs.has_woken:
            # If the store does not answer they are looked for again by the clock.
            with suppress(StoreFailed):
                self._load_woken()


class Lanes(Protocol):
    """What the rounds of a `PollLoop` ask of a dispatcher."""

    wakeups: Wakeups
    buffer: RunBuffer

    @property
    def is_idle(self) -> bool: ...

    def wake_due(self) -> None: ...

    def has_wait_by(self, by_us: int) -> bool:
        """Say whether a lane waits for an instant up to `by_us`, and its agent is not stopped."""
        ...

    def move_waits(self, by_us: int) -> None:
        """Have lanes wait for so much longer: the clock that they wait by was set."""
        ...


class PollLoop:
    """Looks for runs to wake. `failed` says that a store which is ready refused the last round."""

    def __init__(self, services: Services, lanes: Lanes) -> None:
        self._services, self._lanes = services, lanes
        self._next_probe_us = self._probe_pause_us = 0
        self._clock_shift_us = services.clock.shift_us
        self._next_due_us = 0
        # Jumps of the wall clock that are to be recorded, oldest first.
        self._unrecorded_jumps: list[Jump] = []
        self.failed = False

    async def run(self) -> None:
        """Look around for as long as the fleet runs; at rest once a second and at any commit."""
        services, wakeups = self._services, self._lanes.wakeups
        committed = asyncio.Event()
        services.store.subscribe(committed.set)
        while True:
            try:
                if not self._may_rest() or await wait_for_event(committed, aligned_delay_s(REST_S)):
                    await asyncio.sleep(self._pause_s())
                committed.clear()
                await self._check_store()
                await self._check_clock()
                self._lanes.wake_due()
                await lift_expired_stops(services, services.clock.expiry_us())
                self.failed = False
            except StoreFailed:
                self.failed = services.store.steps.is_ready
                services.metrics.count("store_failures")
                await asyncio.sleep(wakeups.pause_s)

    def _may_rest(self) -> bool:
        """Say whether nothing is to be looked for within a second, unless something is committed.

        Raises StoreFailed.
        """
        services, lanes = self._services, self._lanes
        by_us = services.clock.now_us() + int(REST_S * MICROS)
        return not (
            not (lanes.is_idle and services.store.steps.is_ready)
            or services.stops.unrecorded
            or services.recall.lag_reason
            or lanes.buffer.has_waiters
            or lanes.has_wait_by(by_us)
            or lanes.wakeups.has_trial_by(by_us)
            or any(stop.until_us <= by_us for stop in services.stops.timed_stops)
            or self._has_due_by(by_us)
        )

    def _has_due_by(self, by_us: int) -> bool:
        services = self._services
        stopped = services.stops.stopped_among(services.fleet.agents)
        found = services.store.schedule.due_runs(by_us, 1, stopped)
        self._next_due_us = found[0].wake_us if found else 0
        return bool(found)

    def _pause_s(self) -> float:
        """Return how long until the next look: no longer than until the next run is due."""
        left_us = self._next_due_us - self._services.clock.now_us()
        pause_s = self._lanes.wakeups.pause_s
        return min(pause_s, left_us / MICROS) if left_us > 0 else pause_s

    async def _check_store(self) -> None:
        """Try a store that cannot commit, and banks that are behind; record what could not be.

        Raises StoreFailed.
        """
        services = self._services
        store, stops, recall = services.store, services.stops, services.recall
        if (
            store.steps.is_ready
            and store.cluster.policy_rev > services.gateway.policy_rev
            and services.catch_up_policy is not None
        ):
            await services.catch_up_policy()  # first: banks may be behind for long
        if store.steps.is_ready and not stops.unrecorded and not recall.lag_reason:
            self._probe_pause_us = 0
            if store.cluster.stop_epoch > stops.epoch:
                # One stands that could not be read back, or another worker's.
                reload_stops(services)
            return
        now = services.clock.monotonic_us()
        if now < self._next_probe_us and self._probe_pause_us:
            return
        self._probe_pause_us = min(2 * self._probe_pause_us or _PROBE_US, _LAST_PROBE_US)
        self._next_probe_us = now + self._probe_pause_us
        # The stops first: nothing else may go on before them.
        await record_stops(services)
        if not store.steps.is_ready:
            await store.steps.probe()
        if recall.lag_reason:
            recall.catch_up()

    async def _check_clock(self) -> None:
        """Record a jump of the wall clock; where it was confirmed, waits in memory move along."""
        services, clock = self._services, self._services.clock
        self._unrecorded_jumps += filter(None, (clock.check_wall_clock(),))
        off_us = 0 if clock.jump is None else clock.jump.by_us
        services.metrics.gauge("clock_jump_seconds", off_us // MICROS)
        if (by_us := clock.shift_us - self._clock_shift_us) != 0:
            self._clock_shift_us += by_us
            self._lanes.move_waits(by_us)
            for breaker in services.breakers.list_tripped():
                breaker.retry_us += by_us
            services.models.move_clock(by_us)
            services.shortages.clear()
            self._lanes.wakeups.mark_stale()
        while self._unrecorded_jumps and services.store.steps.is_ready:
            await services.store.commands.append_entries([jump_entry(self._unrecorded_jumps[0])])
            services.metrics.count("clock_jumps")
            del self._unrecorded_jumps[0]


def jump_entry(jump: Jump) -> Draft:
    """Return the entry with which the poll loop records a jump of the wall clock."""
    what = f"{jump.by_us // 1_000_000:+d}" if jump.by_us else "away"
    return Draft(
        "clock.jumped", {"what": what}, body=Body(canonical_json({"why": describe_jump(jump)}))
    )
