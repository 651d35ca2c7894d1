"""The Line: everything that handling a run needs, wired once by `app`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import field
from typing import Any

from vedette.domain.agent import Agent, Fleet
from vedette.domain.base.dataclass import dataclass
from vedette.domain.base.errors import BadFleet
from vedette.domain.base.fleet_clock import FleetClock
from vedette.domain.budget import Budgets, Shortage
from vedette.domain.effect import RowWrite
from vedette.domain.loss_window import Doubt
from vedette.domain.origin import Known, known_in
from vedette.domain.ports import InHand, Metrics, Performer, Reasoner, Store
from vedette.domain.rate_limit import Tallies
from vedette.domain.readers import Readers
from vedette.domain.run import ActionRow, Run
from vedette.domain.stop import Stops
from vedette.domain.tool import Tool
from vedette.engine.circuit_breaker import Breakers
from vedette.engine.keyed_lock import NameLocks
from vedette.engine.parked_runs import Parking
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


@dataclass(slots=True)
class Line:
    """One fleet at work. Belongs to the event loop it was made on.

    `heads` is the position of the last observed event of every (agent, key) seen so far; what is
    known of a key holds under the lease under which it was learned (`lead`) and no other. `in_hand`
    remembers, beyond the death of this process, whose judge was at work. `called` are actions
    whose call was let go here and whose outcome is not durable; `since` is the ledger's last entry
    before this process. `scope_readers` are those to whom a scope of a bank may be told.
    `catch_up` makes the policy live that the store says is: its commit stood although it raised.
    """

    fleet: Fleet
    store: Store
    gateway: Gateway
    recall: Recall
    reasoners: Mapping[str, Reasoner]
    performer: Performer
    clock: FleetClock
    stops: Stops
    metrics: Metrics
    targets: Mapping[str, Mapping[str, Any]]
    registry: Mapping[str, Any] = field(default_factory=dict)
    scope_readers: Mapping[tuple[str, str], Readers] = field(default_factory=dict)
    budgets: Budgets = field(default_factory=Budgets)
    tight: dict[str, Shortage] = field(default_factory=dict)
    heads: dict[tuple[str, str], int] = field(default_factory=dict)
    breakers: Breakers = field(default_factory=Breakers)
    parking: Parking = field(default_factory=Parking)
    quiet: QuietTimes = field(default_factory=QuietTimes)
    tallies: Tallies = field(default_factory=Tallies)
    in_hand: InHand | None = None
    doubt: Doubt | None = None
    catch_up: Callable[[], Awaitable[None]] | None = None
    called: set[str] = field(default_factory=set)
    since: int = 0
    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(CALLS))
    _slots: dict[tuple[str, str], asyncio.Semaphore] = field(default_factory=dict)
    _rows: dict[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict)
    _epochs: dict[tuple[str, str], int] = field(default_factory=dict)
    _known: dict[str, tuple[object, object, Known]] = field(default_factory=dict)
    _locks: NameLocks = field(default_factory=NameLocks)
    _in_flight: dict[object, int] = field(default_factory=dict)
    _calling: dict[tuple[str, str], int] = field(default_factory=dict)

    def agent(self, name: str) -> Agent:
        """Return an agent of the fleet. Raises BadFleet if a run outlived its agent."""
        agent = self.fleet.agents.get(name)
        if agent is None:
            raise BadFleet(
                f"a run belongs to the agent {name!r}, which the fleet no longer has",
                mend="bring its folder back, or let the run be a dead letter",
            )
        return agent

    def known(self, agent: Agent) -> Known:
        """Return the values that the agent's charter and the registry make known, as of now."""
        found = self._known.get(agent.name)
        if found is None or found[0] is not agent.charter or found[1] is not self.registry:
            known = known_in(agent.charter, self.registry)
            found = self._known[agent.name] = (agent.charter, self.registry, known)
        return found[2]

    def reasoner(self, agent: Agent) -> Reasoner:
        """Return the reasoner that the agent declares."""
        return self.reasoners[agent.reasoner]

    def lead(self, run: Run, epoch: int) -> None:
        """Begin with a run's key under a lease; what is known from another one is forgotten.

        The store refuses steps of another lease than the key's, so a step is made of what was the
        last word on its key: nobody else has written under this one.
        """
        key = (run.agent, run.key)
        if self._epochs.setdefault(key, epoch) != epoch:
            self.forget(run)
            self._epochs[key] = epoch

    def previous(self, agent: str, key: str, position: int) -> int:
        """Return the position of the last observed event of a key before `position`."""
        head = self.heads.get((agent, key))
        if head is None:
            head = self.heads[(agent, key)] = self.store.previous(agent, key, position)
        return head

    def forget(self, run: Run) -> None:
        """Forget what was judged and written ahead of commits for a run's key."""
        agent = self.fleet.agents.get(run.agent)
        if agent is None:
            return
        self.reasoner(agent).forget(run.agent, run.key)
        self.heads.pop((run.agent, run.key), None)
        if agent.collection is not None:
            self._rows.pop((agent.collection, run.key), None)

    def let_go(self, run: Run) -> None:
        """Forget a key that nothing is under way for, once there are many: the store knows it."""
        if len(self._epochs) + len(self._rows) > KEYS:
            self.forget(run)
            self._epochs.pop((run.agent, run.key), None)

    def row(self, collection: str, key: str) -> dict[str, Any]:
        """Return a row of a fleet-owned collection as of the last step sent; empty if none."""
        known = self._rows.get((collection, key))
        if known is None:
            known = self._rows[(collection, key)] = self.store.row(collection, key) or {}
        return dict(known)

    def wrote(self, writes: Sequence[RowWrite]) -> None:
        """Take over rows of a step that was just sent."""
        for write in writes:
            self._rows[(write.collection, write.key)] = write.row or {}

    def in_doubt(self, run: Run, row: ActionRow) -> bool:
        """Say whether an effect may have happened in history that was lost.

        What was tried, or left to a person, after the restore is beyond that.
        """
        doubt = self.doubt
        if doubt is None or not doubt.covers(run.position):
            return False
        return not (row.tries > 0 and row.last > doubt.seq)

    def may_have_begun(self, row: ActionRow, settles: str | None, *, loaded: bool) -> bool:
        """Say whether a call may have been made that left no mark before it.

        A tool that may be repeated under its key needs none, so after a crash nothing durable
        tells. What this process planned it knows; `loaded` are actions that it did not, which
        with several workers on one store another may have begun.
        """
        if row.effect != "intended" or settles not in ("idempotent", None):
            return False
        if row.tries > 0 or row.id in self.called or row.last <= self.since:
            return True
        return loaded and self.store.several

    def tight_now(self, agent: str, now_us: int) -> Shortage | None:
        """Return what an agent's actions lately had no room for, until its window turns.

        It only spares an attempt in vain: whether there is room is for the store to say.
        """
        short = self.tight.get(agent)
        if short is not None and short.until_us <= now_us:
            del self.tight[agent]
            return None
        return short

    def in_order(self, agent: str, key: str) -> AbstractAsyncContextManager[None]:
        """Let the effects of one key be tried one after the other, in the order they came."""
        return _InOrder(self, agent, key)

    def alone(self, collection: str | None, key: str) -> AbstractAsyncContextManager[None]:
        """Let nobody else decide what is written to a row until this step is committed.

        A run that goes on beside its key's next event may want to write the same row.
        """
        return _NOTHING if collection is None else self._locks.of(("row", collection, key))

    def calling(
        self, run: Run, tool: Tool, target: str, policy_rev: int
    ) -> AbstractAsyncContextManager[None]:
        """Hold a slot for one call; the call counts as in flight under `policy_rev`.

        Slots are an agent's own at each target: what hangs takes none from anybody else. Its key
        counts as calling (`keys_calling`) until the key's effects are let go of (`in_order`).
        """
        mine = self._slots.get((run.agent, target))
        if mine is None:
            mine = asyncio.Semaphore(CALLS_AT_A_TARGET)
            self._slots[(run.agent, target)] = mine
        return _Calling(self, mine, (run.agent, run.key), _WAITS * tool.timeout_us, policy_rev)

    def keys_calling(self) -> list[tuple[str, str]]:
        """Return (agent, key) of calls whose outcome is not durable and whose tool has time left.

        May be asked by any thread. Raises RuntimeError if the calls changed meanwhile.
        """
        now = self.clock.monotonic_us()
        return [key for key, until_us in self._calling.items() if until_us > now]

    def in_flight_before(self, policy_rev: int) -> int:
        """Return how many calls are on their way that started under an older revision."""
        return sum(1 for revision in self._in_flight.values() if revision < policy_rev)


# Written out, as a generator under `asynccontextmanager` costs ten times as much, for every event.


class _InOrder:
    """The effects of one key, held within an `async with`."""

    __slots__ = ("_key", "_line")

    def __init__(self, line: Line, agent: str, key: str) -> None:
        self._line, self._key = line, (agent, key)

    async def __aenter__(self) -> None:
        await self._line._locks.take(("effects", *self._key))

    async def __aexit__(self, *ended: object) -> None:
        self._line._calling.pop(self._key, None)
        self._line._locks.give(("effects", *self._key))


class _Calling:
    """The slots of one call, held within an `async with`, and that it is on its way."""

    __slots__ = ("_key", "_line", "_mine", "_policy_rev", "_takes_us")

    def __init__(
        self,
        line: Line,
        mine: asyncio.Semaphore,
        key: tuple[str, str],
        takes_us: int,
        policy_rev: int,
    ) -> None:
        self._line, self._mine, self._key = line, mine, key
        self._takes_us, self._policy_rev = takes_us, policy_rev

    async def __aenter__(self) -> None:
        line = self._line
        await self._mine.acquire()
        try:
            await line.slots.acquire()
        except BaseException:
            self._mine.release()
            raise
        line._in_flight[self] = self._policy_rev
        line._calling[self._key] = line.clock.monotonic_us() + self._takes_us

    async def __aexit__(self, *ended: object) -> None:
        del self._line._in_flight[self]
        self._line.slots.release()
        self._mine.release()
