"""The fair queue between agents: who gets the next handler.

Deficit round robin (Shreedhar and Varghese, 1995) over the agents that want a handler, with a bound
on the handlers of one agent. Pure arithmetic.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

from msgspec import Struct, field

K = TypeVar("K")

# An agent with no more runs than this waiting for a handler or at work is *light*, for so long.
_LIGHT_RUNS = 8
_LIGHT_US = 500_000


class _Agent(Struct, Generic[K]):
    # What waits for a handler, with its cost.
    queue: deque[tuple[K, int]] = field(default_factory=deque)
    # Handlers at work, those of them that it got while it was light, and those that wait.
    handlers: int = 0
    light_handlers: int = 0
    slow_handlers: int = 0
    deficit: int = 0
    in_ring: bool = False

    @property
    def demand(self) -> int:
        """Return how many of its runs want a handler or are at work in one."""
        return len(self.queue) + self.handlers


class FairScheduler(Generic[K]):
    """Shares handlers fairly between agents: says whose run gets the next one.

    One agent may have three quarters of the `handlers`. While a light agent was heard of within
    half a second another may have `shared_limit` only, and a heavy one a single handler while the
    light one has any: commits and calls of the one do not stand in the other's way. Handlers that
    `mark_slow` was told of wait for something and do not count, in neither, up to the three
    quarters: who hangs makes nobody heavy and bars nobody.
    """

    def __init__(self, handlers: int, *, shared_limit: int) -> None:
        self._agent_limit = max(1, handlers * 3 // 4)
        self._shared_limit = max(1, min(shared_limit, self._agent_limit))
        self._agents: dict[str, _Agent[K]] = {}
        self._ring: deque[str] = deque()
        self._light_handlers = 0
        self._last_light: tuple[str, int] = ("", -_LIGHT_US)
        self._previous_light: tuple[str, int] = ("", -_LIGHT_US)

    def enqueue(self, agent: str, what: K, now_us: int, cost: int = 1) -> None:
        """Queue something of an agent's for a handler. `now_us` is monotonic; 1 is a small cost."""
        mine = self._agents.get(agent)
        if mine is None:
            mine = self._agents[agent] = _Agent()
        mine.queue.append((what, cost))
        # Here what waits counts: who has much on its way is not light. It makes nobody heavy.
        if mine.demand + mine.slow_handlers <= _LIGHT_RUNS:
            if self._last_light[0] != agent:
                self._previous_light = self._last_light
            self._last_light = (agent, now_us)
        if not mine.in_ring:
            mine.in_ring = True
            self._ring.append(agent)

    @property
    def has_queued(self) -> bool:
        """Say whether something waits for a handler."""
        return bool(self._ring)

    def pop_next(self, now_us: int) -> tuple[str, K] | None:
        """Return whose turn it is and what is handled; None if nobody may have a handler now."""
        barred = 0
        while barred < len(self._ring):
            agent = self._ring[0]
            mine = self._agents[agent]
            has_most = mine.handlers + mine.slow_handlers >= self._agent_limit
            if has_most or mine.handlers >= self._handler_limit(agent, now_us):
                self._ring.rotate(-1)
                barred += 1
                continue
            what, cost = mine.queue[0]
            mine.deficit += 1
            if mine.deficit < cost:
                self._ring.rotate(-1)
                barred = 0
                continue
            mine.deficit = 0
            mine.handlers += 1
            if mine.demand + mine.slow_handlers <= _LIGHT_RUNS + 1:
                mine.light_handlers += 1
                self._light_handlers += 1
            mine.queue.popleft()
            self._ring.popleft()
            if mine.queue:
                self._ring.append(agent)
            else:
                mine.in_ring = False
            return agent, what
        return None

    def mark_slow(self, agent: str) -> None:
        """Count one of an agent's handlers as waiting for something that takes long."""
        mine = self._agents[agent]
        mine.slow_handlers += 1
        self._end_work(mine)

    def release_handler(self, agent: str, *, was_slow: bool = False) -> None:
        """Take a handler back; `was_slow` says that `mark_slow` counted it."""
        mine = self._agents[agent]
        if was_slow:
            mine.slow_handlers -= 1
        else:
            self._end_work(mine)
        if not (mine.handlers or mine.slow_handlers or mine.queue):
            del self._agents[agent]

    def _end_work(self, mine: _Agent[K]) -> None:
        mine.handlers -= 1
        if mine.light_handlers > mine.handlers:
            mine.light_handlers -= 1
            self._light_handlers -= 1

    def has_light_agent(self, now_us: int) -> bool:
        """Say whether a light agent was heard of lately."""
        return now_us - self._last_light[1] < _LIGHT_US

    def _handler_limit(self, agent: str, now_us: int) -> int:
        other = self._last_light if self._last_light[0] != agent else self._previous_light
        if now_us - other[1] >= _LIGHT_US:
            return self._agent_limit
        mine = self._agents[agent]
        heavy = mine.demand > _LIGHT_RUNS
        return 1 if heavy and self._light_handlers > mine.light_handlers else self._shared_limit
