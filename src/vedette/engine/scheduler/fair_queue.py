"""Fairness between agents: who gets the next handler, and how much may be in hand for whom.

Two rules, both pure arithmetic. `MemoryQuota` bounds what is in hand, in events and in bytes: an
agent may have as much as is free (the dynamic threshold of Choudhury and Hahne, 1998), so one alone
takes half, and there is always room for one that comes later. `FairScheduler` is deficit round
robin (Shreedhar and Varghese, 1995) over the agents that want a handler, with a bound on the
handlers of one agent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from msgspec import Struct, field

K = TypeVar("K")

# Bytes of an event that cost a turn more than a small one.
OCTETS_A_TURN = 32_768
# How long an agent that asked for little counts as one that others must leave room for.
_LIGHT_US = 500_000
# An agent with no more runs than this wanting or having a handler asks for little.
_LIGHT_RUNS = 8


class MemoryQuota(Struct):
    """How much is in hand: events and their bytes, for each agent and together."""

    events: int
    octets: int
    _held: dict[str, tuple[int, int]] = field(default_factory=dict)
    _total: tuple[int, int] = (0, 0)

    def has_room(self, agent: str) -> bool:
        """Say whether an agent may have one more. Each may have a few, however full it is."""
        events, octets = self._held.get(agent, (0, 0))
        free_events, free_octets = self.events - self._total[0], self.octets - self._total[1]
        return events < max(free_events, self.events // 128, 1) and octets < max(
            free_octets, self.octets // 128, 1
        )

    def acquire(self, agent: str, octets: int, events: int = 1) -> None:
        """Count events as in hand."""
        self._adjust(agent, events, octets)

    def release(self, agent: str, octets: int, events: int = 1) -> None:
        """Count events as out of hand."""
        self._adjust(agent, -events, -octets)

    def events_of(self, agent: str) -> int:
        """Return how many events of an agent are in hand."""
        return self._held.get(agent, (0, 0))[0]

    @property
    def total(self) -> tuple[int, int]:
        """Return (events, bytes) in hand together."""
        return self._total

    def _adjust(self, agent: str, events: int, octets: int) -> None:
        had = self._held.get(agent, (0, 0))
        held = (had[0] + events, had[1] + octets)
        self._total = (self._total[0] + events, self._total[1] + octets)
        if held == (0, 0):
            self._held.pop(agent, None)
        else:
            self._held[agent] = held


class IntakeCredits(Struct):
    """What has been accepted and is not finished, in memory or in the store: intake waits on it.

    Runs that a store had before are counted as `add_backlog`, and one by one when they are
    `add_loaded`.
    """

    quota: MemoryQuota
    _run_octets: dict[str, dict[str, int]] = field(default_factory=dict)
    _backlog_counts: dict[str, int] = field(default_factory=dict)

    def has_room(self, agent: str) -> bool:
        """Say whether one more event may be accepted for an agent."""
        return self.quota.has_room(agent)

    def acquire(self, agent: str, octets: int) -> None:
        """Count an event that is on its way into the store."""
        self.quota.acquire(agent, octets)

    def assign_to_run(self, run: str, agent: str, octets: int) -> None:
        """Let what was taken stand for a run until that is finished."""
        self._run_octets.setdefault(agent, {})[run] = octets

    def release(self, agent: str, octets: int) -> None:
        """Give back what was taken for an event that made no new run."""
        self.quota.release(agent, octets)

    def add_backlog(self, agent: str, runs: int) -> None:
        """Count runs that are in the store and were not seen yet."""
        self._backlog_counts[agent] = self._backlog_counts.get(agent, 0) + runs
        self.quota.acquire(agent, 0, runs)

    def add_loaded(self, run: str, agent: str) -> None:
        """Count a run that was loaded from the store by itself."""
        counted = self._run_octets.setdefault(agent, {})
        if run in counted:
            return
        if self._backlog_counts.get(agent, 0):
            self._backlog_counts[agent] -= 1
        else:
            self.quota.acquire(agent, 0)
        counted[run] = 0

    def release_run(self, run: str, agent: str) -> None:
        """Give back what a run counted for."""
        octets = self._run_octets.get(agent, {}).pop(run, None)
        if octets is not None:
            self.quota.release(agent, octets)

    def clear(self) -> None:
        """Give back what counts for runs: they are counted anew."""
        for agent in {*self._run_octets, *self._backlog_counts}:
            self.release_agent(agent)

    def release_agent(self, agent: str) -> None:
        """Give back everything of an agent: it is stopped, and its events are kept without end."""
        counted = self._run_octets.pop(agent, {})
        unseen = self._backlog_counts.pop(agent, 0)
        self.quota.release(agent, sum(counted.values()), len(counted) + unseen)


class _Agent(Struct, Generic[K]):
    queue: deque[K] = field(default_factory=deque)
    handlers: int = 0
    light_handlers: int = 0
    slow_handlers: int = 0
    deficit: int = 0
    in_ring: bool = False


class FairScheduler(Generic[K]):
    """Who gets the next handler. `cost` says what a queued thing costs (1 for a small one).

    One agent may have three quarters of the `handlers`; while another that asks for little was
    heard of within half a second it may have `shared_limit` only, and one while the other has a
    handler, so that commits and calls of the first do not stand in the other's way. A `mark_slow`
    one stands in nobody's way: it waits.
    """

    def __init__(self, handlers: int, *, shared_limit: int, cost: Callable[[K], int]) -> None:
        self._agent_limit = max(1, handlers * 3 // 4)
        self._shared_limit = max(1, min(shared_limit, self._agent_limit))
        self._cost = cost
        self._agents: dict[str, _Agent[K]] = {}
        self._ring: deque[str] = deque()
        self._light_handlers = 0
        self._last_light: tuple[str, int] = ("", -_LIGHT_US)
        self._previous_light: tuple[str, int] = ("", -_LIGHT_US)

    def enqueue(self, agent: str, what: K, now_us: int) -> None:
        """Queue something of an agent's for a handler. `now_us` is monotonic."""
        mine = self._agents.get(agent)
        if mine is None:
            mine = self._agents[agent] = _Agent()
        mine.queue.append(what)
        if len(mine.queue) + mine.handlers <= _LIGHT_RUNS:
            if self._last_light[0] != agent:
                self._previous_light = self._last_light
            self._last_light = (agent, now_us)
        if not mine.in_ring:
            mine.in_ring = True
            self._ring.append(agent)

    def pop_next(self, now_us: int) -> tuple[str, K] | None:
        """Return whose turn it is and what is handled; None if nobody may have a handler now."""
        barred = 0
        while barred < len(self._ring):
            agent = self._ring[0]
            mine = self._agents[agent]
            held = (
                mine.handlers
                if mine.handlers >= self._agent_limit
                else mine.handlers - mine.slow_handlers
            )
            if held >= self._handler_limit(agent, now_us):
                self._ring.rotate(-1)
                barred += 1
                continue
            mine.deficit += 1
            if mine.deficit < self._cost(mine.queue[0]):
                self._ring.rotate(-1)
                barred = 0
                continue
            mine.deficit = 0
            mine.handlers += 1
            if len(mine.queue) + mine.handlers <= _LIGHT_RUNS + 1:
                mine.light_handlers += 1
                self._light_handlers += 1
            what = mine.queue.popleft()
            self._ring.popleft()
            if mine.queue:
                self._ring.append(agent)
            else:
                mine.in_ring = False
            return agent, what
        return None

    def mark_slow(self, agent: str) -> None:
        """Count one of an agent's handlers as waiting for something that takes long."""
        self._agents[agent].slow_handlers += 1

    def release_handler(self, agent: str, *, was_slow: bool = False) -> None:
        """Take a handler back; `mark_slow` says that it was counted as such."""
        mine = self._agents[agent]
        mine.handlers -= 1
        mine.slow_handlers -= was_slow
        if mine.light_handlers > mine.handlers:
            mine.light_handlers -= 1
            self._light_handlers -= 1
        if not mine.handlers and not mine.queue:
            del self._agents[agent]

    def has_light_agent(self, now_us: int) -> bool:
        """Say whether an agent that asks for little was heard of lately."""
        return now_us - self._last_light[1] < _LIGHT_US

    def _handler_limit(self, agent: str, now_us: int) -> int:
        other = self._last_light if self._last_light[0] != agent else self._previous_light
        if now_us - other[1] >= _LIGHT_US:
            return self._agent_limit
        mine = self._agents[agent]
        heavy = len(mine.queue) + mine.handlers > _LIGHT_RUNS
        return 1 if heavy and self._light_handlers > mine.light_handlers else self._shared_limit
