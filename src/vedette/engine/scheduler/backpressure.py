"""Backpressure: which runs are in memory, which wait in the store, and when intake has to wait.

Memory has room for so many events and bytes, shared fairly: what does not fit stays in the store
and is loaded, agent by agent and oldest first, as room appears. A store holds more than memory,
but not without end: intake waits for credits, which are given back when runs are finished. So a
source feels that an agent cannot keep up, and other agents do not. What a stopped agent has left
in the store takes neither room nor credits.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import islice

from msgspec import Struct, field

from vedette.domain.base.errors import DamagedSegment, StoreFailed
from vedette.domain.ports.run_store import AcceptedEvent
from vedette.domain.run import Run
from vedette.engine.services import Services

MIB = 1 << 20
# How many runs of an agent are read at once, and how few it may have in memory before that.
_LOAD = 256
# How many events are read with one that is asked for.
_EVENTS = 16
# An agent that has finished nothing for so long is stuck.
_STUCK_US = 2_000_000


class Bounds(Struct, frozen=True):
    """Bounds of events and bytes: of runs in memory, and of what is accepted and not finished.

    `max_stuck_events` is how many events of an agent that finishes nothing are accepted
    nevertheless.
    """

    room: int = 8192
    room_octets: int = 64 * MIB
    credits: int = 8192
    credit_octets: int = 64 * MIB
    max_stuck_events: int = 1_000_000


class Quota(Struct):
    """Counts events, and bytes of them, against backpressure's bounds: for each agent and together.

    An agent may have as much as is free (the dynamic threshold of Choudhury and Hahne, 1998): one
    alone takes half, and there is always room for one that comes later.
    """

    events: int
    octets: int
    total: tuple[int, int] = (0, 0)
    _held: dict[str, tuple[int, int]] = field(default_factory=dict)

    def has_room(self, agent: str) -> bool:
        """Say whether an agent may have one more. Each may have a few, however full it is."""
        events, octets = self._held.get(agent, (0, 0))
        free_events, free_octets = self.events - self.total[0], self.octets - self.total[1]
        return events < max(free_events, self.events // 128, 1) and octets < max(
            free_octets, self.octets // 128, 1
        )

    def add(self, agent: str, octets: int, events: int = 1) -> None:
        """Count events; with negative numbers, count them no more."""
        had = self._held.get(agent, (0, 0))
        held = (had[0] + events, had[1] + octets)
        self.total = (self.total[0] + events, self.total[1] + octets)
        if held == (0, 0):
            self._held.pop(agent, None)
        else:
            self._held[agent] = held

    def events_of(self, agent: str) -> int:
        """Return how many events of an agent are counted."""
        return self._held.get(agent, (0, 0))[0]


class IntakeCredits(Quota):
    """What has been accepted and is not finished, in memory or in the store: intake waits on it.

    What was counted when an event was accepted stands for its run (`assign_to_run`) until that is
    finished. Runs that a store had before are counted as `add_backlog`, and one by one when they
    are `add_loaded`.
    """

    _run_octets: dict[str, dict[str, int]] = field(default_factory=dict)
    _backlog_counts: dict[str, int] = field(default_factory=dict)

    def assign_to_run(self, run: str, agent: str, octets: int) -> None:
        """Let what was counted stand for a run until that is finished."""
        self._run_octets.setdefault(agent, {})[run] = octets

    def add_backlog(self, agent: str, runs: int) -> None:
        """Count runs that are in the store and were not seen yet."""
        self._backlog_counts[agent] = self._backlog_counts.get(agent, 0) + runs
        self.add(agent, 0, runs)

    def add_loaded(self, run: str, agent: str) -> None:
        """Count a run that was loaded from the store by itself."""
        counted = self._run_octets.setdefault(agent, {})
        if run in counted:
            return
        if self._backlog_counts.get(agent, 0):
            self._backlog_counts[agent] -= 1
        else:
            self.add(agent, 0)
        counted[run] = 0

    def release_run(self, run: str, agent: str) -> None:
        """Give back what a run counted for."""
        octets = self._run_octets.get(agent, {}).pop(run, None)
        if octets is not None:
            self.add(agent, -octets, -1)

    def release_agent(self, agent: str) -> None:
        """Give back everything of an agent: it is stopped, and its events are kept without end."""
        counted = self._run_octets.pop(agent, {})
        unseen = self._backlog_counts.pop(agent, 0)
        self.add(agent, -sum(counted.values()), -len(counted) - unseen)

    def clear(self) -> None:
        """Give back what counts for runs: they are counted anew."""
        for agent in {*self._run_octets, *self._backlog_counts}:
            self.release_agent(agent)


# An agent, and the bytes of an event that wakes it.
Charge = tuple[str, int]


class LoadedRun(Struct, frozen=True):
    """A run in memory, and its event if that came with it."""

    agent: str
    accepted: AcceptedEvent | None

    @property
    def octets(self) -> int:
        """Return how many bytes of events it has in memory."""
        return 0 if self.accepted is None else self.accepted.octets


class RunBuffer:
    """The runs of a dispatcher. `enqueue` is called with each run that comes into memory.

    `defer` says that a run stays in the store, where the dispatcher reads it when its key's turn
    comes. An agent's ready runs before its `_read_positions` are in memory or deferred, or their
    agent is stopped.
    """

    def __init__(
        self,
        services: Services,
        enqueue: Callable[[Run], None],
        bounds: Bounds,
        defer: Callable[[Run], bool],
    ) -> None:
        self._services = services
        self._enqueue, self._defer = enqueue, defer
        self._max_stuck_events = bounds.max_stuck_events
        self._last_release_us: dict[str, int] = {}
        self.memory = Quota(bounds.room, bounds.room_octets)
        self.credits = IntakeCredits(bounds.credits, bounds.credit_octets)
        self.loaded_runs: dict[str, LoadedRun] = {}
        # Events just offered, by agent and run, whose runs are read in the store's order.
        self._offered: dict[str, dict[str, AcceptedEvent]] = {}
        # Of the runs in memory, by agent and in their order, where the events lie that are not.
        self._unread: dict[str, dict[str, int]] = {}
        # Agents with ready runs in the store that are not in memory, and where to read on.
        self.spilled_agents: set[str] = set()
        self._read_positions: dict[str, int] = {}
        # The leases under which this was read; with others nothing is read before `start`.
        self._lease_rev = services.store.cluster.lease_rev
        # Up to where other workers' commits were looked through (see `load_changes`).
        self._change_counter, self._scan_position = services.store.cluster.change_counter, 0
        # Stopped agents that may have ready runs in the store.
        self._stopped_agents: set[str] = set()
        self._waiters: dict[str, deque[asyncio.Future[None]]] = {}

    # --- in: what sources hand over ---------------------------------------------------------

    async def wait_and_charge(self, charges: Sequence[Charge]) -> None:
        """Count events that are on their way into the store, once each agent may have one more."""
        for agent in sorted({agent for agent, _ in charges}):
            has_waited = False
            while not self._may_accept(agent):
                turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                waiting = self._waiters.setdefault(agent, deque())
                (waiting.appendleft if has_waited else waiting.append)(turn)
                has_waited = True
                try:
                    await turn
                finally:
                    if turn in waiting:
                        waiting.remove(turn)

        self.charge(charges)

    def charge(self, charges: Sequence[Charge]) -> None:
        """Count events that are on their way into the store."""
        for agent, octets in charges:
            self.credits.add(agent, octets)

    def refund(self, charges: Sequence[Charge]) -> None:
        """Count events no more that made no run: they were known, or could not be stored."""
        for agent, octets in charges:
            self.credits.add(agent, -octets, -1)

    def _may_accept(self, agent: str) -> bool:
        """Say whether one more event of an agent may be accepted.

        Waiting helps where work goes on. An agent that finishes nothing at all would hold up a
        source that it shares with others: its events are kept in the store, as those of a stopped
        one are, until there are very many.
        """
        if self.credits.has_room(agent) or self._services.stops.is_agent_stopped(agent):
            return True
        still_us = self._services.clock.monotonic_us() - self._last_release_us.get(agent, 0)
        return still_us > _STUCK_US and self.credits.events_of(agent) < self._max_stuck_events

    def offer(self, run: Run, accepted: AcceptedEvent) -> None:
        """Take a run that was just accepted, for which a credit was taken.

        Whoever has offered all of a batch calls `load_offered`.
        """
        agent, octets = run.agent, accepted.octets
        if agent in self._stopped_agents or self._services.stops.is_agent_stopped(agent):
            # Older ones are away, also between the resume and `reload_resumed`, which reads them
            # all.
            self._stopped_agents.add(agent)
            self.credits.add(agent, -octets, -1)
            return
        if self._services.store.cluster.lease_epoch(run) is None:
            self.credits.add(agent, -octets, -1)  # another worker handles it
            return
        self.credits.assign_to_run(run.id, agent, octets)
        if self._services.store.cluster.is_shared:
            # Another worker may have accepted older ones of its key: the store has them in order.
            self._offered.setdefault(agent, {})[run.id] = accepted
            self._mark_spilled(agent, run.position - 1)
            return
        if agent in self.spilled_agents or not self.memory.has_room(agent):
            # Older ones are still in the store; taking newer ones first would break order.
            self._mark_spilled(agent, run.position - 1)
            return
        self._read_positions[agent] = max(self._read_positions.get(agent, 0), run.position)
        self._add(run, accepted)

    def load_offered(self) -> None:
        """Read the runs that were offered where the store has their order."""
        try:
            for agent in sorted(self._offered):
                self._try_load(agent)
        finally:
            self._offered.clear()

    def load_changes(self) -> None:
        """See what other workers accepted that is ours to handle."""
        store = self._services.store
        if store.cluster.change_counter == self._change_counter:
            return
        news, head = store.cluster.change_counter, store.ledger.last_seq()
        runs = store.schedule.ready_runs(self._scan_position, _LOAD)
        firsts = {
            run.agent: run.position for run in reversed(runs) if run.id not in self.loaded_runs
        }
        for agent, position in firsts.items():
            self._load_from(agent, position - 1)
        if len(runs) < _LOAD:
            self._change_counter, self._scan_position = news, head
        else:
            self._scan_position = runs[-1].position - 1

    def _load_from(self, agent: str, position: int) -> None:
        """Read an agent's ready runs from a position on."""
        if agent in self._stopped_agents or self._services.stops.is_agent_stopped(agent):
            self._stopped_agents.add(agent)
            return
        self._mark_spilled(agent, position)
        self._try_load(agent)

    def _mark_spilled(self, agent: str, position: int) -> None:
        """Note that an agent has ready runs in the store behind a position."""
        self.spilled_agents.add(agent)
        self._read_positions[agent] = min(self._read_positions.get(agent, 0), position)

    def add_woken(self, run: Run) -> bool:
        """Take a run whose wait is over; False if it is here already, or its agent is stopped."""
        if run.id in self.loaded_runs:
            return False
        if self._services.stops.is_agent_stopped(run.agent):
            self._stopped_agents.add(run.agent)
            return False
        self._add(run, None)
        return True

    def _add(self, run: Run, accepted: AcceptedEvent | None) -> None:
        if run.id not in self.loaded_runs and not self._defer(run):
            loaded = self.loaded_runs[run.id] = LoadedRun(run.agent, accepted)
            self.memory.add(run.agent, loaded.octets)
            if accepted is None:
                self._unread.setdefault(run.agent, {})[run.id] = run.position
            self._enqueue(run)

    # --- in: what the store has waiting -----------------------------------------------------

    def start(self) -> None:
        """Begin with what the store has; also when this worker was given other runs."""
        self.credits.clear()
        self.spilled_agents.clear()
        self._read_positions.clear()
        self._lease_rev = self._services.store.cluster.lease_rev
        self._change_counter, self._scan_position = (
            self._services.store.cluster.change_counter,
            self._services.store.ledger.last_seq(),
        )
        for agent, runs in self._services.store.schedule.ready_counts().items():
            self._register_backlog(agent, runs)
        self.load_all()

    def _register_backlog(self, agent: str, runs: int) -> None:
        if self._services.stops.is_agent_stopped(agent):
            self._stopped_agents.add(agent)
            return
        self.credits.add_backlog(agent, runs)
        self.spilled_agents.add(agent)
        self._read_positions[agent] = 0

    def load_all(self) -> None:
        """Load for every agent that is behind, as far as there is room."""
        for agent in sorted(self.spilled_agents, key=lambda one: (self.memory.events_of(one), one)):
            self.load(agent)

    def load(self, agent: str) -> None:
        """Load the next runs of an agent that is behind, if it has few in memory."""
        share = max(16, self.memory.events // (4 * len(self.spilled_agents) or 1))
        limit = min(_LOAD, share)
        store = self._services.store
        while (
            agent in self.spilled_agents
            and self.memory.events_of(agent) < limit
            and self.memory.has_room(agent)
        ):
            runs = store.schedule.ready_runs(self._read_positions.get(agent, 0), limit, agent)
            if store.cluster.lease_rev != self._lease_rev:
                return  # of keys that came meanwhile the older ones are not here: `start` reads all
            offered = self._offered.get(agent, {})
            for run in runs:
                self._read_positions[agent] = run.position
                self.credits.add_loaded(run.id, agent)
                self._add(run, offered.get(run.id))
            if len(runs) < limit:
                self.spilled_agents.discard(agent)

    def _try_load(self, agent: str) -> None:
        """Load; if the store does not answer the agent stays behind, and it is done later."""
        with suppress(StoreFailed):
            self.load(agent)

    def reload_resumed(self) -> set[str]:
        """Load what was put away, once its agent may go on; return the agents."""
        back = {
            agent
            for agent in self._stopped_agents
            if not self._services.stops.is_agent_stopped(agent)
        }
        if back:
            counts = self._services.store.schedule.ready_counts()
            self._stopped_agents -= back
            for agent in sorted(back):
                self.credits.release_agent(agent)
                self._register_backlog(agent, counts.get(agent, 0))
                self._try_load(agent)
        return back

    def load_key(self, agent: str, key: str, limit: int) -> bool:
        """Load a key's next runs that wait to be judged; say whether there may be more of them."""
        runs = self._services.store.schedule.unjudged_runs(agent, key, limit)
        if runs and self._services.store.cluster.lease_epoch(runs[0]) is None:
            return False  # another worker reads them
        for run in runs:
            self.credits.add_loaded(run.id, agent)
            self._add(run, None)
        return len(runs) == limit

    def event_of(self, run: Run) -> AcceptedEvent | None:
        """Return the event of a run in memory, with its size and when it was accepted.

        It is read now if it did not come with the run. A segment holds the events of many: those
        of the agent's next runs are read with it, while there is room. None for one that cannot
        be read: who handles the run says why.
        """
        unread = self._unread.get(run.agent, {})
        if run.id in unread:
            more = _EVENTS if self.memory.has_room(run.agent) else 0
            wanted = {run.id: run.position, **dict(islice(unread.items(), more))}
            self._read_events(run, wanted)
        return self.loaded_runs[run.id].accepted

    def _read_events(self, first: Run, wanted: Mapping[str, int]) -> None:
        """Read the events of an agent's runs, by where they lie: each is asked for once here."""
        agent, unread = first.agent, self._unread[first.agent]
        try:
            found = self._services.store.runs.events_at(list(wanted.values()))
        except DamagedSegment:
            found = {}
        for run, position in wanted.items():
            accepted = found.get(position)
            if accepted is not None and run != first.id and not self.memory.has_room(agent):
                continue
            del unread[run]
            loaded = self.loaded_runs[run] = LoadedRun(agent, accepted)
            self.memory.add(agent, loaded.octets, 0)

    # --- out --------------------------------------------------------------------------------

    def unload(self, run: Run) -> None:
        """Drop a run from memory; one that is not done is read again with its key (`load_key`)."""
        held = self.loaded_runs.pop(run.id)
        self._unread.get(held.agent, {}).pop(run.id, None)
        self.memory.add(held.agent, -held.octets, -1)

    def release_run(self, run: Run) -> None:
        """Let go of a run that is finished, or waits at no compute."""
        self.unload(run)
        self.credits.release_run(run.id, run.agent)
        self._last_release_us[run.agent] = self._services.clock.monotonic_us()
        if run.agent in self.spilled_agents:
            self._try_load(run.agent)
        self.admit_waiter(run.agent)

    def unload_agent(self, agent: str, runs: Iterable[Run]) -> None:
        """Drop a stopped agent's runs from memory: the store has them, others need the room."""
        for run in runs:
            self.unload(run)
        self.spilled_agents.discard(agent)
        self.credits.release_agent(agent)
        self._stopped_agents.add(agent)
        self.admit_waiter(agent)

    def last_release_us(self, agent: str) -> int:
        """Return when an agent's run last left memory, by the monotonic clock; 0 if none did."""
        return self._last_release_us.get(agent, 0)

    def admit_waiter(self, agent: str) -> None:
        """Let the next who waits for an agent's credits look again."""
        waiting = self._waiters.get(agent)
        if waiting and self._may_accept(agent):
            while waiting:
                turn = waiting.popleft()
                if not turn.done():
                    turn.set_result(None)
                    break
            if not waiting:
                del self._waiters[agent]

    @property
    def has_waiters(self) -> bool:
        """Say whether a source waits for room."""
        return bool(self._waiters)

    def admit_waiters(self) -> None:
        """Let one of each agent's look again: what is free for one depends on all the others."""
        for agent in list(self._waiters):
            self.admit_waiter(agent)
