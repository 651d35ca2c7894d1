"""Watchdog: runs that could go on and do not move, with the reason that can be found.

It looks at the oldest ready runs of each agent in the store, key by key, and asks the dispatcher
where each is. A run that is at work has the time that its work may take, once for each run that its
agent is at; one that waits for its turn is sound as long as its agent finishes anything. What
nobody is about to take up is read again after half the bound; what stands still after the bound is
*stuck*: counted, and the worker is not ready. So is what a store refuses for as long, be it ready
or woken: that is no attempt of the run, so nothing else ends it. All times are monotonic.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from msgspec import Struct

from vedette.domain.agent import Agent
from vedette.domain.base.errors import StoreFailed, VedetteError
from vedette.domain.run import Run
from vedette.engine.calls_in_flight import TIMES_TIMEOUT
from vedette.engine.scheduler.dispatcher import Dispatcher, RunLocation
from vedette.engine.services import Services
from vedette.engine.task_telemetry import TaskGauges

BOUND_US = 60_000_000
# How many looks there are within a bound, and how many of an agent's ready runs one takes in.
_LOOKS = 12
_RUNS = 64

_REASONS: dict[RunLocation, tuple[str, str]] = {
    "unread": ("not_read", "is in the store and nobody reads it"),
    "idle": ("lane", "is in memory and nobody is to handle it"),
    "queued": ("no_handler", "waits for a handler"),
    "spilled": ("no_room", "waits for room in memory"),
    "judging": ("judge", "is with its judge, which does not answer"),
    "performing": ("effects", "has effects under way, which do not end"),
    "leaseless": ("no_lease", "is of a key whose lease has run out here"),
    "refused": ("refused", "is tried again and again"),
}
# Where reading everything again helps.
_RELOADABLE = ("unread", "idle", "queued", "spilled")


class StuckRun(Struct, frozen=True):
    """The oldest ready run of a key that does not move: since when (monotonic), and why."""

    agent: str
    key: str
    run: str
    reason: str
    message: str
    since_us: int


class _Observation(Struct):
    mark: tuple[str, str, int, int]
    since_us: int


class Watchdog:
    """Watches one dispatcher. `check` is called often; it looks at the store a few times a bound.

    `has_worker` says whether an agent's judge has a process to run in; `is_remote`, whether that is
    on another host, which may be away for as long as it likes.
    """

    def __init__(
        self,
        services: Services,
        dispatcher: Dispatcher,
        *,
        bound_us: int = BOUND_US,
        has_worker: Callable[[str], bool] = lambda agent: True,
        is_remote: Callable[[str], bool] = lambda agent: False,
    ) -> None:
        self._services = services
        self._dispatcher = dispatcher
        self._bound_us = bound_us
        self._has_worker, self._is_remote = has_worker, is_remote
        self._observations: dict[tuple[str, str], _Observation] = {}
        self._answered_us = services.clock.monotonic_us()
        self._next_us = self._reloaded_us = self._store_away_us = self._answered_us
        self.stuck_runs: list[StuckRun] = []
        self._store_is_silent = False
        self._task_gauges = TaskGauges(services)

    @property
    def problems(self) -> list[str]:
        """Say why this worker is not to be counted on; empty if it is."""
        if self._store_is_silent:
            return ["runs: the store does not answer"]
        if not self.stuck_runs:
            return []
        first = self.stuck_runs[0]
        for_s = (self._services.clock.monotonic_us() - first.since_us) // 1_000_000
        more = f", and {len(self.stuck_runs) - 1} more" if len(self.stuck_runs) > 1 else ""
        return [f"runs: {first.run} of {first.agent} {first.message} ({for_s} s){more}"]

    def check(self) -> None:
        """Look at what is ready, if it is time to; mend and tell what does not move."""
        now = self._services.clock.monotonic_us()
        if now < self._next_us:
            return
        self._next_us = now + self._bound_us // _LOOKS
        if not self._services.store.steps.is_ready:
            self._store_away_us = now
        try:
            found = self._oldest_runs()
        except StoreFailed:
            found = None
        if found is None or self._dispatcher.poll_loop.failed:
            self._store_away_us = now
            self._store_is_silent = now - self._answered_us > self._bound_us
            return
        self._answered_us, self._store_is_silent = now, False
        stuck: list[StuckRun] = []
        seen: dict[tuple[str, str], _Observation] = {}
        mend = False
        for key, run in found.items():
            place = self._dispatcher.locate(run)
            mark = (run.id, run.state, run.steps, run.attempts)
            before = self._observations.get(key)
            known = (
                before if before is not None and before.mark == mark else _Observation(mark, now)
            )
            if place == "waiting" or (place == "judging" and self._is_remote(key[0])):
                known = _Observation(mark, now)
            seen[key] = known
            since, most = (
                self._last_move_us(key[0], place, known.since_us),
                self._time_limit_us(key[0], place),
            )
            mend |= place in _RELOADABLE and now - since > most // 2
            if now - since > most:
                stuck.append(self._describe(run, place, since))
        self._observations = seen
        for one in stuck:
            if all(one.run != earlier.run for earlier in self.stuck_runs):
                self._services.metrics.count("stuck", agent=one.agent, reason=one.reason)
        self.stuck_runs = sorted(stuck, key=lambda one: one.since_us)
        self._services.metrics.gauge("stuck_keys", len(stuck))
        with suppress(VedetteError):  # the line does not need it
            self._task_gauges.update()
        if mend and now - self._reloaded_us > self._bound_us // 2:
            self._reloaded_us = now
            self._services.metrics.count("stuck_mended")
            self._dispatcher.reload()

    def _oldest_runs(self) -> dict[tuple[str, str], Run]:
        """Return the oldest ready run of each key, and what else is tried: it was woken."""
        found: dict[tuple[str, str], Run] = {}
        for agent in sorted(self._services.fleet.agents):
            for run in self._services.store.schedule.ready_runs(0, _RUNS, agent):
                found.setdefault((run.agent, run.key), run)
        oldest = {run.id for run in found.values()}
        refused = [run for run, _ in self._dispatcher.refused_runs().values()]
        for run in [*refused, *(context.run for context in self._dispatcher.active_runs.values())]:
            if run.id not in oldest:
                found[run.agent, run.id] = run
        return found

    def _last_move_us(self, agent: str, place: RunLocation, since_us: int) -> int:
        """Return since when nothing has moved: who waits for a turn moves with its agent."""
        if place in ("queued", "spilled"):
            return max(since_us, self._dispatcher.buffer.last_release_us(agent))
        return max(since_us, self._store_away_us) if place == "refused" else since_us

    def _time_limit_us(self, agent: str, place: RunLocation) -> int:
        """Return for how long a run may be where it is (microseconds)."""
        if place in ("unread", "idle", "leaseless", "refused"):
            return self._bound_us
        own_us = max(self._step_us(known) for known in self._services.fleet.releases(agent))
        return self._bound_us + own_us * (1 + self._dispatcher.count_active(agent))

    def _step_us(self, release: Agent) -> int:
        """Return for how long a release of an agent may think or call (microseconds)."""
        models = self._services.models.routes(release) if release.asks_model else ()
        thinks = max((calls.model.timeout_us for calls in models), default=release.limits.time_us)
        return max(thinks, _calls_us(release))

    def _describe(self, run: Run, place: RunLocation, since: int) -> StuckRun:
        reason, message = _REASONS[place]
        if place == "judging" and not self._has_worker(run.agent):
            reason, message = "no_worker", "has no worker process to be judged in"
        if place == "refused":
            message += f": {self._dispatcher.refused_runs()[run.id][1]}"
        return StuckRun(run.agent, run.key, run.id, reason, message, since)


def _calls_us(agent: Agent) -> int:
    """Return how long a call of an agent's tools may keep a run from a step (microseconds)."""
    return TIMES_TIMEOUT * max((tool.timeout_us for tool in agent.tools.values()), default=0)
