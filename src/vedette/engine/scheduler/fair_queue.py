"""Fairness between agents: who gets the next handler, and how much may be in hand for whom.

Two rules, both pure arithmetic. `Room` bounds what is in hand, in events and in bytes: an agent
may have as much as is free (the dynamic threshold of Choudhury and Hahne, 1998), so one alone
takes half, and there is always room for one that comes later. `Turns` is deficit round robin
(Shreedhar and Varghese, 1995) over the agents that want a handler, with a bound on the handlers
of one agent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import field
from typing import Generic, TypeVar

from vedette.domain.base.dataclass import dataclass

K = TypeVar("K")

# Bytes of an event that cost a turn more than a small one.
OCTETS_A_TURN = 32_768
# How long an agent that asked for little counts as one that others must leave room for.
_LIGHT_US = 500_000
# An agent with no more runs than this wanting or having a handler asks for little.
_LIGHT = 8


@dataclass(slots=True)
class Room:
    """How much is in hand: events and their bytes, for each agent and together."""

    events: int
    octets: int
    _held: dict[str, tuple[int, int]] = field(default_factory=dict)
    _total: tuple[int, int] = (0, 0)

    def fits(self, agent: str) -> bool:
        """Say whether an agent may have one more. Each may have a few, however full it is."""
        events, octets = self._held.get(agent, (0, 0))
        free_events, free_octets = self.events - self._total[0], self.octets - self._total[1]
        return events < max(free_events, self.events // 128, 1) and octets < max(
            free_octets, self.octets // 128, 1
        )

    def take(self, agent: str, octets: int, events: int = 1) -> None:
        """Count events as in hand."""
        self._add(agent, events, octets)

    def give(self, agent: str, octets: int, events: int = 1) -> None:
        """Count events as out of hand."""
        self._add(agent, -events, -octets)

    def held(self, agent: str) -> int:
        """Return how many events of an agent are in hand."""
        return self._held.get(agent, (0, 0))[0]

    @property
    def total(self) -> tuple[int, int]:
        """Return (events, bytes) in hand together."""
        return self._total

    def _add(self, agent: str, events: int, octets: int) -> None:
        had = self._held.get(agent, (0, 0))
        held = (had[0] + events, had[1] + octets)
        self._total = (self._total[0] + events, self._total[1] + octets)
        if held == (0, 0):
            self._held.pop(agent, None)
        else:
            self._held[agent] = held


@dataclass(slots=True)
class Credits:
    """What has been accepted and is not finished, in memory or in the store: intake waits on it.

    Runs that a store had before are counted as `backlog`, and one by one when they are `seen`.
    """

    room: Room
    _counted: dict[str, dict[str, int]] = field(default_factory=dict)
    _unseen: dict[str, int] = field(default_factory=dict)

    def fits(self, agent: str) -> bool:
        """Say whether one more event may be accepted for an agent."""
        return self.room.fits(agent)

    def take(self, agent: str, octets: int) -> None:
        """Count an event that is on its way into the store."""
        self.room.take(agent, octets)

    def keep(self, run: str, agent: str, octets: int) -> None:
        """Let what was taken stand for a run until that is finished."""
        self._counted.setdefault(agent, {})[run] = octets

    def give(self, agent: str, octets: int) -> None:
        """Give back what was taken for an event that made no new run."""
        self.room.give(agent, octets)

    def backlog(self, agent: str, runs: int) -> None:
        """Count runs that are in the store and were not seen yet."""
        self._unseen[agent] = self._unseen.get(agent, 0) + runs
        self.room.take(agent, 0, runs)

    def seen(self, run: str, agent: str) -> None:
        """Count a run that was loaded from the store by itself."""
        counted = self._counted.setdefault(agent, {})
        if run in counted:
            return
        if self._unseen.get(agent, 0):
            self._unseen[agent] -= 1
        else:
            self.room.take(agent, 0)
        counted[run] = 0

    def finish(self, run: str, agent: str) -> None:
        """Give back what a run counted for."""
        octets = self._counted.get(agent, {}).pop(run, None)
        if octets is not None:
            self.room.give(agent, octets)

    def clear(self) -> None:
        """Give back what counts for runs: they are counted anew."""
        for agent in {*self._counted, *self._unseen}:
            self.forget(agent)

    def forget(self, agent: str) -> None:
        """Give back everything of an agent: it is stopped, and its events are kept without end."""
        counted = self._counted.pop(agent, {})
        unseen = self._unseen.pop(agent, 0)
        self.room.give(agent, sum(counted.values()), len(counted) + unseen)


@dataclass(slots=True)
class _Agent(Generic[K]):
    queue: deque[K] = field(default_factory=deque)
    held: int = 0
    light: int = 0
    slow: int = 0
    deficit: int = 0
    waits: bool = False


class Turns(Generic[K]):
    """Who gets the next handler. `cost` says what a queued thing costs (1 for a small one).

    One agent may have three quarters of the `hands`; while another that asks for little was heard
    of within half a second it may have `beside` only, and one while the other has a handler, so
    that commits and calls of the first do not stand in the other's way. A `slow` one stands in
    nobody's way: it waits.
    """

    def __init__(self, hands: int, *, beside: int, cost: Callable[[K], int]) -> None:
        self._alone = max(1, hands * 3 // 4)
        self._beside = max(1, min(beside, self._alone))
        self._cost = cost
        self._agents: dict[str, _Agent[K]] = {}
        self._ring: deque[str] = deque()
        self._light_held = 0
        self._light: tuple[str, int] = ("", -_LIGHT_US)
        self._light_before: tuple[str, int] = ("", -_LIGHT_US)

    def want(self, agent: str, what: K, now_us: int) -> None:
        """Queue something of an agent's for a handler. `now_us` is monotonic."""
        mine = self._agents.get(agent)
        if mine is None:
            mine = self._agents[agent] = _Agent()
        mine.queue.append(what)
        if len(mine.queue) + mine.held <= _LIGHT:
            if self._light[0] != agent:
                self._light_before = self._light
            self._light = (agent, now_us)
        if not mine.waits:
            mine.waits = True
            self._ring.append(agent)

    def next(self, now_us: int) -> tuple[str, K] | None:
        """Return whose turn it is and what is handled; None if nobody may have a handler now."""
        barred = 0
        while barred < len(self._ring):
            agent = self._ring[0]
            mine = self._agents[agent]
            held = mine.held if mine.held >= self._alone else mine.held - mine.slow
            if held >= self._limit(agent, now_us):
                self._ring.rotate(-1)
                barred += 1
                continue
            mine.deficit += 1
            if mine.deficit < self._cost(mine.queue[0]):
                self._ring.rotate(-1)
                barred = 0
                continue
            mine.deficit = 0
            mine.held += 1
            if len(mine.queue) + mine.held <= _LIGHT + 1:
                mine.light += 1
                self._light_held += 1
            what = mine.queue.popleft()
            self._ring.popleft()
            if mine.queue:
                self._ring.append(agent)
            else:
                mine.waits = False
            return agent, what
        return None

    def slow(self, agent: str) -> None:
        """Count one of an agent's handlers as waiting for something that takes long."""
        self._agents[agent].slow += 1

    def done(self, agent: str, *, slow: bool = False) -> None:
        """Take a handler back; `slow` says that it was counted as such."""
        mine = self._agents[agent]
        mine.held -= 1
        mine.slow -= slow
        if mine.light > mine.held:
            mine.light -= 1
            self._light_held -= 1
        if not mine.held and not mine.queue:
            del self._agents[agent]

    def light_about(self, now_us: int) -> bool:
        """Say whether an agent that asks for little was heard of lately."""
        return now_us - self._light[1] < _LIGHT_US

    def _limit(self, agent: str, now_us: int) -> int:
        other = self._light if self._light[0] != agent else self._light_before
        if now_us - other[1] >= _LIGHT_US:
            return self._alone
        mine = self._agents[agent]
        heavy = len(mine.queue) + mine.held > _LIGHT
        return 1 if heavy and self._light_held > mine.light else self._beside
