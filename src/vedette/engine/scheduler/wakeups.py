"""Waking: runs that waited and may go on, and those whose turn has come.

By the clock: what the store says is due. By a target: its breaker lets a trial through, or has
closed. By the key: the run in front is settled (`parking`).
"""

from __future__ import annotations

from contextlib import suppress

from vedette.domain.base.errors import StoreFailed
from vedette.domain.run import ActionRow, Run
from vedette.engine.quiet_time import MARGIN_US
from vedette.engine.run_context import RunContext
from vedette.engine.scheduler.backpressure import RunBuffer
from vedette.engine.services import Services
from vedette.engine.tool_calls import LAST_RETRY_US

# How often it is looked for what is due, and how many runs that woke may be in memory at once.
_EVERY_S = 0.05
_WINDOW = 256
# How many more are looked at while ends of holds are not counted: they are due, and stay.
_HELD = 4096
# No more than this share of the time goes into looking, so a long look is followed by a longer
# pause. But a look may have been long because a server did not answer: it says nothing of the next.
_SHARE = 20
MOST_PAUSE_S = 1.0


class Wakeups:
    """Brings runs that waited back into memory. Belongs to a dispatcher."""

    def __init__(self, services: Services, buffer: RunBuffer) -> None:
        self._services = services
        self._buffer = buffer
        self._woken_agents: dict[str, str] = {}
        self._released_runs: set[str] = set()
        self._early_wakes: set[str] = set()
        self._next_trial_us: dict[str, int] = {}
        self._lease_rev = services.store.lease_rev
        self.pause_s = _EVERY_S
        self._stale = False

    def reload_parked(self) -> None:
        """Find again in the store who is parked; the first of each key is looked at at once."""
        services, now = self._services, self._services.clock.now_us()
        runs, since_us = [], services.clock.monotonic_us()
        for run in services.store.parked_runs():
            epoch = services.store.lease_epoch(run)
            if epoch is not None:
                # Its target may be asked that much sooner when it comes back.
                services.quiet_times.note_lease(epoch, since_us)
                runs.append(run)
        services.parked_runs.clear()
        for run in runs:
            # A retry comes back by the clock, and sooner than what is parked.
            if run.wake_us > now + LAST_RETRY_US:
                services.parked_runs.park_behind(run)
            else:
                services.parked_runs.park_timed(run)
        for run in runs:
            services.parked_runs.wake_if_first(run.id, (run.agent, run.key))

    def mark_stale(self) -> None:
        """Find parked runs again at the next look: the clock that they wait by was set."""
        self._stale = True
        self._next_trial_us.clear()

    def reload_if_leases_moved(self) -> bool:
        """Say whether this worker has been given other runs; then what it may handle is reread."""
        rev = self._services.store.lease_rev
        if rev == self._lease_rev:
            return False
        self._buffer.start()
        self.reload_parked()
        # Only now: if the store did not answer it is done again.
        self._lease_rev = rev
        return True

    @property
    def has_due(self) -> bool:
        """Say whether somebody was woken and is not in memory yet."""
        return self._services.parked_runs.has_woken

    def has_trial_by(self, by_us: int) -> bool:
        """Say whether a target that runs wait for is tried again by an instant."""
        services = self._services
        return any(
            breaker.retry_us <= by_us and services.parked_runs.count_waiting(breaker.target)
            for breaker in services.breakers.list_tripped()
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
                services.parked_runs.wake_oldest(breaker.target)
                self._next_trial_us[breaker.target] = now_us + 1_000_000
        self._load_woken()
        self._load_due(now_us)
        took_s = (services.clock.monotonic_us() - began) / 1_000_000
        self.pause_s = min(MOST_PAUSE_S, max(_EVERY_S, took_s * _SHARE))

    def _load_woken(self) -> None:
        services = self._services
        while (
            len(self._woken_agents) < _WINDOW
            and (name := services.parked_runs.pop_woken()) is not None
        ):
            try:
                run = services.store.run(name)
            except StoreFailed:
                services.parked_runs.wake(name)
                raise
            if run is None or run.state in ("done", "dead"):
                if run is not None:
                    services.parked_runs.unpark(run)
                continue
            if name in self._buffer.loaded_runs:
                # It is about to wait, and was woken before it did.
                self._early_wakes.add(name)
            elif self._load_run(run):
                self._released_runs.add(name)

    def _load_due(self, now_us: int) -> None:
        services = self._services
        # Agents that are stopped, or have many runs here that woke, are left out: the window
        # is for the others.
        share = _WINDOW // 2
        counts: dict[str, int] = {}
        for agent in self._woken_agents.values():
            counts[agent] = counts.get(agent, 0) + 1
        full = [agent for agent, number in counts.items() if number >= share]
        stopped = [name for name in services.fleet.agents if services.stops.is_agent_stopped(name)]
        most = _WINDOW + len(self._woken_agents)
        held_us = services.clock.expiry_us()
        if held_us < now_us:
            most += _HELD
        for run in services.store.due_runs(now_us, most, [*stopped, *full]):
            # What waits for a person is not over while nobody can tell the time.
            if run.waits != "approval" or run.wake_us <= held_us:
                self._load_run(run)

    def _load_run(self, run: Run) -> bool:
        if self._services.store.lease_epoch(run) is None or not self._buffer.add_woken(run):
            return False
        self._woken_agents[run.id] = run.agent
        return True

    # --- out --------------------------------------------------------------------------------

    def release_parked(self, context: RunContext) -> None:
        """Let a run that was woken try what it was parked with, though its time has not come.

        As often as it is taken up until it leaves memory: what came of a try may not be durable.
        """
        if context.run.id in self._released_runs:
            for row in context.actions:
                if row.waits == "target" and not self._services.parked_runs.has_retry_after(row):
                    row.not_before_us = 0

    def finish_run(self, context: RunContext) -> None:
        """A run is settled, or waits: whoever waits behind it may go on, or not yet."""
        run, parking = context.run, self._services.parked_runs
        waits = run.state == "waiting" and any(
            row.waits == "target" and not row.is_final for row in context.actions
        )
        if not waits:
            parking.unpark(run)
            return
        parking.park_timed(run)
        # One row may be parked while another came back by the clock: the clock wakes nobody for it.
        parked = any(self._is_parked(context, row) for row in context.actions)
        if parked and not parking.waits_for_target(run):
            parking.park_behind(run)
            parking.wake_if_first(run.id, (run.agent, run.key))

    def _is_parked(self, context: RunContext, row: ActionRow) -> bool:
        """Say whether a row was parked: it waits longer than any call, and no target asked for it.

        It may have been tried before: a person had it repeated, or its outcome is asked for.
        """
        if row.waits != "target" or row.is_final or self._services.parked_runs.has_retry_after(row):
            return False
        tool = context.agent.tools.get(row.tool)
        longest_us = max(LAST_RETRY_US, tool.timeout_us + MARGIN_US if tool else 0)
        return row.not_before_us > self._services.clock.now_us() + longest_us

    def forget_run(self, run: Run) -> None:
        """A run is not in memory any more."""
        self._woken_agents.pop(run.id, None)
        self._released_runs.discard(run.id)
        if run.id in self._early_wakes:
            self._early_wakes.discard(run.id)
            self._services.parked_runs.wake(run.id)
        if self._services.parked_runs.has_woken:
            # If the store does not answer they are looked for again by the clock.
            with suppress(StoreFailed):
                self._load_woken()
