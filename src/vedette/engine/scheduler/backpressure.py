"""Supply: which runs are in memory, which wait in the store, and when intake has to wait.

Memory has room for so many events and bytes, shared fairly: what does not fit stays in the store
and is loaded, agent by agent and oldest first, as room appears. A store holds more than memory,
but not without end: intake waits for credits, which are given back when runs are finished. So a
source feels that an agent cannot keep up, and other agents do not. What a stopped agent has left
in the store takes neither room nor credits.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress

from vedette.domain.base.dataclass import dataclass
from vedette.domain.base.errors import StoreFailed
from vedette.domain.event import Event
from vedette.domain.run import Run
from vedette.engine.scheduler.fair_queue import Credits, Room
from vedette.engine.services import Line

MIB = 1 << 20
# How many runs of an agent are read at once, and how few it may have in memory before that.
_LOAD = 256
# An agent that has finished nothing for so long is stuck.
_STUCK_US = 2_000_000


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much is in memory, and how much may be accepted and not finished; events and bytes.

    `most` is how many events of an agent that finishes nothing are accepted nevertheless.
    """

    room: int = 8192
    room_octets: int = 64 * MIB
    credits: int = 8192
    credit_octets: int = 64 * MIB
    most: int = 1_000_000


@dataclass(frozen=True, slots=True)
class Held:
    """A run in memory: its event, if it came with it, and how many bytes that has."""

    agent: str
    event: Event | None
    octets: int


class Supply:
    """The runs of a dispatcher. `put` is called with each run that comes into memory.

    `later` says that the dispatcher reads a run by itself when its key's turn comes. Up to
    `_after` an agent's ready runs are in memory, are read so, or are away with their agent.
    """

    def __init__(
        self,
        line: Line,
        put: Callable[[Run], None],
        bounds: Bounds,
        later: Callable[[Run], bool] = lambda run: False,
    ) -> None:
        self._line = line
        self._put, self._later = put, later
        self._most = bounds.most
        self._moved_us: dict[str, int] = {}
        self.room = Room(bounds.room, bounds.room_octets)
        self.credits = Credits(Room(bounds.credits, bounds.credit_octets))
        self.known: dict[str, Held] = {}
        # Agents with ready runs in the store that are not in memory, and where to read on.
        self.behind: set[str] = set()
        self._after: dict[str, int] = {}
        # The leases under which this was read; with others nothing is read before `start`.
        self._lease_rev = line.store.lease_rev
        # Up to where other workers' commits were looked through (see `look_for_news`).
        self._news, self._head = line.store.news, 0
        # Stopped agents that may have ready runs in the store.
        self._away: set[str] = set()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    # --- in: what sources hand over ---------------------------------------------------------

    async def space(self, agents: Iterable[str]) -> None:
        """Return when each of these agents may be given one more event."""
        for agent in agents:
            again = False
            while not self._may_come(agent):
                turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                waiting = self._waiting.setdefault(agent, deque())
                (waiting.appendleft if again else waiting.append)(turn)
                again = True
                try:
                    await turn
                finally:
                    if turn in waiting:
                        waiting.remove(turn)

    def _may_come(self, agent: str) -> bool:
        """Say whether one more event of an agent may be accepted.

        Waiting helps where work goes on. An agent that finishes nothing at all would hold up a
        source that it shares with others: its events are kept in the store, as those of a stopped
        one are, until there are very many.
        """
        if self.credits.fits(agent) or self._line.stops.agent(agent):
            return True
        still_us = self._line.clock.monotonic_us() - self._moved_us.get(agent, 0)
        return still_us > _STUCK_US and self.credits.room.held(agent) < self._most

    def offer(self, run: Run, event: Event, octets: int) -> None:
        """Take a run that was just accepted, for which a credit was taken."""
        agent = run.agent
        if agent in self._away or self._line.stops.agent(agent):
            # Older ones are away, also between the resume and `fetch_back`, which reads them all.
            self._away.add(agent)
            self.credits.give(agent, octets)
            return
        if self._line.store.lease(run) is None:
            self.credits.give(agent, octets)  # another worker handles it
            return
        self.credits.keep(run.id, agent, octets)
        if self._line.store.shared:
            # Another worker may have accepted older ones of its key: the store has them in order.
            self._look_from(agent, run.position - 1)
            return
        if agent in self.behind or not self.room.fits(agent):
            # Older ones are still in the store; taking newer ones first would break order.
            self.behind.add(agent)
            after = self._after.get(agent, 0)
            self._after[agent] = min(after, run.position - 1)
            return
        self._after[agent] = max(self._after.get(agent, 0), run.position)
        self._take(run, event, octets)

    def look_for_news(self) -> None:
        """See what other workers accepted that is ours to handle."""
        store = self._line.store
        if store.news == self._news:
            return
        news, head = store.news, store.head()
        runs = store.backlog(self._head, _LOAD)
        firsts = {run.agent: run.position for run in reversed(runs) if run.id not in self.known}
        for agent, position in firsts.items():
            self._look_from(agent, position - 1)
        if len(runs) < _LOAD:
            self._news, self._head = news, head
        else:
            self._head = runs[-1].position - 1

    def _look_from(self, agent: str, position: int) -> None:
        """Read an agent's ready runs from a position on."""
        if agent in self._away or self._line.stops.agent(agent):
            self._away.add(agent)
            return
        self.behind.add(agent)
        self._after[agent] = min(self._after.get(agent, 0), position)
        self._try_to_load(agent)

    def woken(self, run: Run) -> bool:
        """Take a run whose wait is over; False if it is here already, or its agent is stopped."""
        if run.id in self.known:
            return False
        if self._line.stops.agent(run.agent):
            self._away.add(run.agent)
            return False
        self._take(run, None, 0)
        return True

    def _take(self, run: Run, event: Event | None, octets: int) -> None:
        if run.id not in self.known and not self._later(run):
            self.known[run.id] = Held(run.agent, event, octets)
            self.room.take(run.agent, octets)
            self._put(run)

    # --- in: what the store has waiting -----------------------------------------------------

    def start(self) -> None:
        """Begin with what the store has; also when this worker was given other runs."""
        self.credits.clear()
        self.behind.clear()
        self._after.clear()
        self._lease_rev = self._line.store.lease_rev
        self._news, self._head = self._line.store.news, self._line.store.head()
        for agent, runs in self._line.store.backlogged().items():
            self._fetch(agent, runs)
        self.load_all()

    def _fetch(self, agent: str, runs: int) -> None:
        if self._line.stops.agent(agent):
            self._away.add(agent)
            return
        self.credits.backlog(agent, runs)
        self.behind.add(agent)
        self._after[agent] = 0

    def load_all(self) -> None:
        """Load for every agent that is behind, as far as there is room."""
        for agent in sorted(self.behind, key=lambda one: (self.room.held(one), one)):
            self.load(agent)

    def load(self, agent: str) -> None:
        """Load the next runs of an agent that is behind, if it has few in memory."""
        share = max(16, self.room.events // (4 * len(self.behind) or 1))
        limit = min(_LOAD, share)
        store = self._line.store
        while agent in self.behind and self.room.held(agent) < limit and self.room.fits(agent):
            runs = store.backlog(self._after.get(agent, 0), limit, agent)
            if store.lease_rev != self._lease_rev:
                return  # of keys that came meanwhile the older ones are not here: `start` reads all
            for run in runs:
                self._after[agent] = run.position
                self.credits.seen(run.id, agent)
                self._take(run, None, 0)
            if len(runs) < limit:
                self.behind.discard(agent)

    def _try_to_load(self, agent: str) -> None:
        """Load; if the store does not answer the agent stays behind, and it is done later."""
        with suppress(StoreFailed):
            self.load(agent)

    def fetch_back(self) -> set[str]:
        """Load what was put away, once its agent may go on; return the agents."""
        back = {agent for agent in self._away if not self._line.stops.agent(agent)}
        if back:
            counts = self._line.store.backlogged()
            self._away -= back
            for agent in sorted(back):
                self.credits.forget(agent)
                self._fetch(agent, counts.get(agent, 0))
                self._try_to_load(agent)
        return back

    def read_on(self, agent: str, key: str, limit: int) -> bool:
        """Load a key's next runs that wait to be judged; say whether there may be more of them."""
        runs = self._line.store.unjudged(agent, key, limit)
        if runs and self._line.store.lease(runs[0]) is None:
            return False  # another worker reads them
        for run in runs:
            self.credits.seen(run.id, agent)
            self._take(run, None, 0)
        return len(runs) == limit

    # --- out --------------------------------------------------------------------------------

    def put_back(self, run: Run) -> None:
        """Drop a run from memory that is read again with its key (`read_on`)."""
        self._drop(run)

    def forget(self, run: Run) -> None:
        """Let go of a run that is finished, or waits at no compute."""
        self._drop(run)
        self.credits.finish(run.id, run.agent)
        self._moved_us[run.agent] = self._line.clock.monotonic_us()
        if run.agent in self.behind:
            self._try_to_load(run.agent)
        self.let_in(run.agent)

    def put_away(self, agent: str, runs: Iterable[Run]) -> None:
        """Drop a stopped agent's runs from memory: the store has them, others need the room."""
        for run in runs:
            self._drop(run)
        self.behind.discard(agent)
        self.credits.forget(agent)
        self._away.add(agent)
        self.let_in(agent)

    def _drop(self, run: Run) -> None:
        held = self.known.pop(run.id)
        self.room.give(held.agent, held.octets)

    def moved_us(self, agent: str) -> int:
        """Return when an agent's run last left memory, by the monotonic clock; 0 if none did."""
        return self._moved_us.get(agent, 0)

    def let_in(self, agent: str) -> None:
        """Let the next who waits for an agent's credits look again."""
        waiting = self._waiting.get(agent)
        if waiting and self._may_come(agent):
            while waiting:
                turn = waiting.popleft()
                if not turn.done():
                    turn.set_result(None)
                    break
            if not waiting:
                del self._waiting[agent]

    @property
    def waited_for(self) -> bool:
        """Say whether a source waits for room."""
        return bool(self._waiting)

    def let_all_in(self) -> None:
        """Let one of each agent's look again: what is free for one depends on all the others."""
        for agent in list(self._waiting):
            self.let_in(agent)
