"""Retrieval: the memories a run is briefed with, each read decided by policy.

Searching before every event costs more than the rest of the line, so answers are kept by (agent,
scope, query, bank version, policy revision): a change of any of these is a new question. An
agent that declares no topics is briefed by text, so its queries hardly repeat; the cache is
bounded and drops the oldest.

The banks follow the ledger: what became of an order is durable before they are brought to it. Where
that fails they are behind, and until they were brought up nobody is briefed who might hear what a
person has taken back. A commit that raised may stand all the same, so it counts as one that they
did not follow. A bank that cannot be read is told like one that is behind, until it can be.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import Any, TypeVar

from msgspec import Struct, field

from vedette.domain.agent import Agent, MemoryScope
from vedette.domain.base.disk_errors import FAILURE_MEND
from vedette.domain.base.errors import StoreFailed, VedetteError
from vedette.domain.decision import (
    DecisionContext,
    DecisionRecord,
    NullPolicyEngine,
    build_difference_entry,
)
from vedette.domain.entry import Body, Draft
from vedette.domain.event import Event
from vedette.domain.memory import Memory
from vedette.domain.ports.memory_bank import BankStore
from vedette.domain.ports.policy_engine import MemoryAuthorizer

_CACHE_SIZE = 4096
_FRESH_US = 60_000_000
T = TypeVar("T")


class Recall(Struct):
    """The retrieval of memories for agents. `drafts` of new decisions wait for the next step.

    `lag_reason` says why the banks lack something that is durable, or cannot be read; "" if they
    are well. `is_closed` says that what they lack may be an order to forget; `rebuild_banks` makes
    up for it.
    """

    banks: BankStore
    gateway: MemoryAuthorizer
    rebuild_banks: Callable[[], object] = lambda: None
    lag_reason: str = ""
    is_closed: bool = False
    _needs_rebuild: bool = False
    # By bank and scope: a read that the disk refused, to be tried again.
    _failed_reads: dict[tuple[str, str], Callable[[], object]] = field(default_factory=dict)
    _read_permits: dict[tuple[str, str, str, int], bool] = field(default_factory=dict)
    _cache: OrderedDict[tuple[Any, ...], tuple[int, tuple[Memory, ...]]] = field(
        default_factory=OrderedDict
    )

    def find_memories(
        self, agent: Agent, event: Event, now_us: int, cited: Collection[str] = ()
    ) -> tuple[tuple[Memory, ...], list[Draft]]:
        """Return the memories for this event and the entries of reads decided on the way.

        Those in `cited` (`Memory.cite`) were recalled before: they are returned if they may still
        be read, whether or not others matter more by now.

        Raises StoreFailed while a bank is behind an order, or cannot be read.
        """
        if self.is_closed and agent.scopes:
            raise StoreFailed(
                "the memory bank is behind what people ordered",
                where="memory.db",
                mend=FAILURE_MEND,
            )
        memories: list[Memory] = []
        drafts: list[Draft] = []
        for scope in agent.scopes:
            if self._may_read(agent, event, scope, now_us, drafts):
                memories.extend(self._search(agent, event, scope, now_us))
                missing = set(cited)
                if missing:
                    missing -= {memory.cite() for memory in memories}
                if missing:
                    active = self._read(
                        scope, partial(self.banks.lessons, scope.bank, scope.scope, now_us)
                    )
                    memories.extend(memory for memory in active if memory.cite() in missing)
        unique = {(memory.bank, memory.id, memory.revision): memory for memory in memories}
        return tuple(unique.values()), drafts

    def update_banks(self, work: Callable[[], object], *, order: bool) -> bool:
        """Bring the banks to what was just made durable; False if they are behind now.

        `order`: it is a person's, so nobody may be briefed by what stood before.
        """
        try:
            work()
        except Exception as error:
            # Whatever it is, the commit stands: it is done again from the ledger.
            self._mark_behind(error, order=order)
            return False
        return True

    async def await_commit(self, commit: Awaitable[T], *, order: bool) -> T:
        """Return what a commit answers that the banks have to follow (`order` as in
        `update_banks`).

        Raises what it raises. Unless it was refused it may stand unheard, and a second order would
        find nothing left to do: then the banks are behind until the ledger was read.
        """
        try:
            return await commit
        except BaseException as error:
            if isinstance(error, StoreFailed) or not isinstance(error, VedetteError):
                self._mark_behind(error, order=order)
            raise

    def catch_up(self) -> None:
        """Bring up banks that are behind, and read what could not be read, if possible by now."""
        try:
            if self._needs_rebuild:
                self.rebuild_banks()
                self._needs_rebuild = self.is_closed = False
            for place, read in list(self._failed_reads.items()):
                read()
                del self._failed_reads[place]
            self.lag_reason = ""
        except Exception as error:  # as in `update_banks`
            self.lag_reason = _error_text(error)

    def _mark_behind(self, error: BaseException, *, order: bool) -> None:
        self.lag_reason, self._needs_rebuild, self.is_closed = (
            _error_text(error),
            True,
            self.is_closed or order,
        )

    def forget_permits(self) -> None:
        """Forget what was decided of reads: a step with its entries did not stand."""
        self._read_permits.clear()

    def _may_read(
        self, agent: Agent, event: Event, scope: MemoryScope, now_us: int, drafts: list[Draft]
    ) -> bool:
        read_key = (agent.release, scope.bank, scope.scope, self.gateway.policy_rev)
        known = self._read_permits.get(read_key)
        if known is None:
            decision_record = self.gateway.may_read(
                DecisionContext(agent, event, 1, now_us), scope.bank, scope.scope
            )
            known = decision_record.decision.outcome == "permit"
            # What nobody decided is asked again: an engine may answer next time.
            if decision_record.engine != NullPolicyEngine.name:
                self._read_permits[read_key] = known
            drafts += recall_entries(agent, scope, decision_record)
        return known

    def _search(
        self, agent: Agent, event: Event, scope: MemoryScope, now_us: int
    ) -> tuple[Memory, ...]:
        text = build_query(event)
        query = scope.bank, scope.scope, scope.topics, text, now_us, scope.limit
        recall = partial(self.banks.recall, *query)
        version = self._read(scope, partial(self.banks.version, scope.bank))
        key = (agent.name, scope, text, version, self.gateway.policy_rev)
        found = self._cache.get(key)
        if found is not None and now_us - found[0] < _FRESH_US:
            return found[1]
        memories = tuple(self._read(scope, recall))
        self._cache[key] = (now_us, memories)
        if len(self._cache) > _CACHE_SIZE:
            self._cache.popitem(last=False)
        return memories

    def _read(self, scope: MemoryScope, read: Callable[[], T]) -> T:
        """Return what a bank answers. Raises StoreFailed if it cannot be read."""
        try:
            return read()
        except StoreFailed as error:
            # No attempt of the run counts, so a person would hear of it by nothing else.
            self.lag_reason, self._failed_reads[scope.bank, scope.scope] = str(error), read
            raise


def _error_text(error: BaseException) -> str:
    return str(error) or type(error).__name__


def build_query(event: Event) -> str:
    """Return the query for an event's memories: a message's subject and text, or its type."""
    if isinstance(event.data, dict):
        parts = [event.data.get("subject"), event.data.get("text")]
        text = " ".join(part for part in parts if isinstance(part, str))
        if text:
            return text[:2000]
    return f"{event.type} {event.subject or ''}"


def recall_entries(
    agent: Agent, scope: MemoryScope, decision_record: DecisionRecord
) -> list[Draft]:
    """Return the entry of a decided read of a memory scope, and that of a difference of engines."""
    memory = f"{scope.bank}/{scope.scope}"
    read = Draft(
        "recall.decided",
        {
            "agent": agent.name,
            "release": agent.release,
            "memory": memory,
            "outcome": decision_record.decision.outcome,
            "rule": decision_record.decision.rule,
            "policy_rev": decision_record.policy_rev,
            "bundle": decision_record.bundle,
            "engine": decision_record.engine,
        },
        body=Body(decision_record.to_body()),
    )
    if not decision_record.answers:
        return [read]
    return [
        read,
        build_difference_entry(decision_record, "permit", agent=agent.name, memory=memory),
    ]
