"""The Line: everything that handling a run needs, wired once by `app`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

from msgspec import Struct, field

from vedette.domain.agent import Agent, Fleet
from vedette.domain.base.errors import BadFleet
from vedette.domain.base.fleet_clock import FleetClock
from vedette.domain.budget import BudgetPolicy, Shortage
from vedette.domain.effect import RowWrite
from vedette.domain.loss_window import LossWindow
from vedette.domain.origin import KnownValues, collect_known_values
from vedette.domain.ports.reasoner import Metrics, Reasoner, RunJournal, ToolExecutor
from vedette.domain.ports.store import Store
from vedette.domain.rate_limit import RateCounters
from vedette.domain.readers import Readers
from vedette.domain.run import ActionRow, Run
from vedette.domain.stop import StopState
from vedette.domain.tool import Tool
from vedette.engine.circuit_breaker import CircuitBreakers
from vedette.engine.keyed_lock import KeyedLocks
from vedette.engine.parked_runs import ParkedRuns
from vedette.engine.quiet_time import QuietTimes
from vedette.memory.retrieval import Recall
from vedette.policy.gateway import Gateway

# Calls on their way: of the whole fleet, and of one agent at one target. An agent's hands have more
# threads than this, and refuse none before more hang: one target's calls leave room for another's.
CALLS = 512
CALLS_AT_A_TARGET = 12
# How often a call may take its tool's time: for an earlier one of its key, for itself, and for
# what the target says of it.
_WAITS = 3
# Keys of which more is held than the store's rows, while nothing is under way for them.
KEYS = 65_536
_NOTHING = nullcontext()


class Services(Struct):
    """One fleet at work. Belongs to the event loop it was made on.

    `positions` is the position of the last observed event of every (agent, key) seen so far; what
    is known of a key holds under the lease under which it was learned (`adopt_lease`) and no other.
    `run_journal` remembers, beyond the death of this process, whose judge was at work.
    `unrecorded_calls` are actions whose call was let go here and whose outcome is not durable;
    `start_seq` is the ledger's last entry before this process. `scope_readers` are those to whom a
    scope of a bank may be told. `catch_up_policy` makes the policy live that the store says is: its
    commit stood although it raised.
    """

    fleet: Fleet
    store: Store
    gateway: Gateway
    recall: Recall
    reasoners: Mapping[str, Reasoner]
    tool_executor: ToolExecutor
    clock: FleetClock
    stops: StopState
    metrics: Metrics
    targets: Mapping[str, Mapping[str, Any]]
    registry: Mapping[str, Any] = field(default_factory=dict)
    scope_readers: Mapping[tuple[str, str], Readers] = field(default_factory=dict)
    budgets: BudgetPolicy = field(default_factory=BudgetPolicy)
    shortages: dict[str, Shortage] = field(default_factory=dict)
    positions: dict[tuple[str, str], int] = field(default_factory=dict)
    breakers: CircuitBreakers = field(default_factory=CircuitBreakers)
    parked_runs: ParkedRuns = field(default_factory=ParkedRuns)
    quiet_times: QuietTimes = field(default_factory=QuietTimes)
    rate_counters: RateCounters = field(default_factory=RateCounters)
    run_journal: RunJournal | None = None
    loss_window: LossWindow | None = None
    catch_up_policy: Callable[[], Awaitable[None]] | None = None
    unrecorded_calls: set[str] = field(default_factory=set)
    start_seq: int = 0
    fleet_slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(CALLS))
    _agent_slots: dict[tuple[str, str], asyncio.Semaphore] = field(default_factory=dict)
    _rows: dict[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict)
    _epochs: dict[tuple[str, str], int] = field(default_factory=dict)
    _known_values: dict[str, tuple[object, object, KnownValues]] = field(default_factory=dict)
    _locks: KeyedLocks = field(default_factory=KeyedLocks)
    _call_revisions: dict[object, int] = field(default_factory=dict)
    _call_deadlines: dict[tuple[str, str], int] = field(default_factory=dict)

    def agent(self, name: str) -> Agent:
        """Return an agent of the fleet. Raises BadFleet if a run outlived its agent."""
        agent = self.fleet.agents.get(name)
        if agent is None:
            raise BadFleet(
                f"a run belongs to the agent {name!r}, which the fleet no longer has",
                mend="bring its folder back, or let the run be a dead letter",
            )
        return agent

    def known_values(self, agent: Agent) -> KnownValues:
        """Return the values that the agent's charter and the registry make known, as of now."""
        found = self._known_values.get(agent.name)
        if found is None or found[0] is not agent.charter or found[1] is not self.registry:
            known = collect_known_values(agent.charter, self.registry)
            found = self._known_values[agent.name] = (agent.charter, self.registry, known)
        return found[2]

    def reasoner(self, agent: Agent) -> Reasoner:
        """Return the reasoner that the agent declares."""
        return self.reasoners[agent.reasoner]

    def adopt_lease(self, run: Run, epoch: int) -> None:
        """Begin with a run's key under a lease; what is known from another one is forgotten.

        The store refuses steps of another lease than the key's, so a step is made of what was the
        last word on its key: nobody else has written under this one.
        """
        key = (run.agent, run.key)
        if self._epochs.setdefault(key, epoch) != epoch:
            self.forget_key(run)
            self._epochs[key] = epoch

    def previous_position(self, agent: str, key: str, position: int) -> int:
        """Return the position of the last observed event of a key before `position`."""
        head = self.positions.get((agent, key))
        if head is None:
            head = self.positions[(agent, key)] = self.store.previous_position(agent, key, position)
        return head

    def forget_key(self, run: Run) -> None:
        """Forget what was judged and written ahead of commits for a run's key."""
        agent = self.fleet.agents.get(run.agent)
        if agent is None:
            return
        self.reasoner(agent).drop_state(run.agent, run.key)
        self.positions.pop((run.agent, run.key), None)
        if agent.collection is not None:
            self._rows.pop((agent.collection, run.key), None)

    def evict_key(self, run: Run) -> None:
        """Forget a key that nothing is under way for, once there are many: the store knows it."""
        if len(self._epochs) + len(self._rows) > KEYS:
            self.forget_key(run)
            self._epochs.pop((run.agent, run.key), None)

    def collection_row(self, collection: str, key: str) -> dict[str, Any]:
        """Return a row of a fleet-owned collection as of the last step sent; empty if none."""
        known = self._rows.get((collection, key))
        if known is None:
            known = self._rows[(collection, key)] = self.store.row(collection, key) or {}
        return dict(known)

    def cache_rows(self, writes: Sequence[RowWrite]) -> None:
        """Take over rows of a step that was just sent."""
        for write in writes:
            self._rows[(write.collection, write.key)] = write.row or {}

    def in_loss_window(self, run: Run, row: ActionRow) -> bool:
        """Say whether an effect may have happened in history that was lost.

        What was tried, or left to a person, after the restore is beyond that.
        """
        loss_window = self.loss_window
        if loss_window is None or not loss_window.covers(run.position):
            return False
        return not (row.tries > 0 and row.last > loss_window.seq)

    def may_have_begun(self, row: ActionRow, settles: str | None, *, loaded: bool) -> bool:
        """Say whether a call may have been made that left no mark before it.

        A tool that may be repeated under its key needs none, so after a crash nothing durable
        tells. What this process planned it knows; `loaded` are actions that it did not, which
        with several workers on one store another may have begun.
        """
        if row.effect != "intended" or settles not in ("idempotent", None):
            return False
        if row.tries > 0 or row.id in self.unrecorded_calls or row.last <= self.start_seq:
            return True
        return loaded and self.store.multi_worker

    def current_shortage(self, agent: str, now_us: int) -> Shortage | None:
        """Return what an agent's actions lately had no room for, until its window turns.

        It only spares an attempt in vain: whether there is room is for the store to say.
        """
        short = self.shortages.get(agent)
        if short is not None and short.until_us <= now_us:
            del self.shortages[agent]
            return None
        return short

    def effects_lock(self, agent: str, key: str) -> AbstractAsyncContextManager[None]:
        """Let the effects of one key be tried one after the other, in the order they came."""
        return _EffectsLock(self, agent, key)

    def row_lock(self, collection: str | None, key: str) -> AbstractAsyncContextManager[None]:
        """Let nobody else decide what is written to a row until this step is committed.

        A run that goes on beside its key's next event may want to write the same row.
        """
        return _NOTHING if collection is None else self._locks.lock(("row", collection, key))

    def call_slot(
        self, run: Run, tool: Tool, target: str, policy_rev: int
    ) -> AbstractAsyncContextManager[None]:
        """Hold a slot for one call; the call counts as in flight under `policy_rev`.

        Slots are an agent's own at each target: what hangs takes none from anybody else. Its key
        counts as calling (`keys_with_calls`) until the key's effects are let go of
        (`effects_lock`).
        """
        agent_slots = self._agent_slots.get((run.agent, target))
        if agent_slots is None:
            agent_slots = asyncio.Semaphore(CALLS_AT_A_TARGET)
            self._agent_slots[(run.agent, target)] = agent_slots
        return _CallSlot(
            self, agent_slots, (run.agent, run.key), _WAITS * tool.timeout_us, policy_rev
        )

    def keys_with_calls(self) -> list[tuple[str, str]]:
        """Return (agent, key) of calls whose outcome is not durable and whose tool has time left.

        May be asked by any thread. Raises RuntimeError if the calls changed meanwhile.
        """
        now = self.clock.monotonic_us()
        return [key for key, until_us in self._call_deadlines.items() if until_us > now]

    def count_calls_before(self, policy_rev: int) -> int:
        """Return how many calls are on their way that started under an older revision."""
        return sum(1 for revision in self._call_revisions.values() if revision < policy_rev)


# Written out, as a generator under `asynccontextmanager` costs ten times as much, for every event.


class _EffectsLock:
    """The effects of one key, held within an `async with`."""

    __slots__ = ("_key", "_services")

    def __init__(self, services: Services, agent: str, key: str) -> None:
        self._services, self._key = services, (agent, key)

    async def __aenter__(self) -> None:
        await self._services._locks.acquire(("effects", *self._key))

    async def __aexit__(self, *ended: object) -> None:
        self._services._call_deadlines.pop(self._key, None)
        self._services._locks.release(("effects", *self._key))


class _CallSlot:
    """The slots of one call, held within an `async with`, and that it is on its way."""

    __slots__ = ("_agent_slots", "_call_time_us", "_key", "_policy_rev", "_services")

    def __init__(
        self,
        services: Services,
        agent_slots: asyncio.Semaphore,
        key: tuple[str, str],
        call_time_us: int,
        policy_rev: int,
    ) -> None:
        self._services, self._agent_slots, self._key = services, agent_slots, key
        self._call_time_us, self._policy_rev = call_time_us, policy_rev

    async def __aenter__(self) -> None:
        services = self._services
        await self._agent_slots.acquire()
        try:
            await services.fleet_slots.acquire()
        except BaseException:
            self._agent_slots.release()
            raise
        services._call_revisions[self] = self._policy_rev
        services._call_deadlines[self._key] = services.clock.monotonic_us() + self._call_time_us

    async def __aexit__(self, *ended: object) -> None:
        del self._services._call_revisions[self]
        self._services.fleet_slots.release()
        self._agent_slots.release()
