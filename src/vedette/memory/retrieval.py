"""Recall: the memories a run is briefed with, each read decided by policy.

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
from collections.abc import Awaitable, Callable
from dataclasses import field
from functools import partial
from typing import Any, TypeVar

from vedette.domain.agent import Agent, Scope
from vedette.domain.base.dataclass import dataclass
from vedette.domain.base.disk_errors import LOOK_AT_IT
from vedette.domain.base.errors import StoreFailed, VedetteError
from vedette.domain.decision_request import Decided, Nobody, Situation, difference
from vedette.domain.entry import Body, Draft
from vedette.domain.event import Event
from vedette.domain.memory import Memory
from vedette.domain.ports import BankStore, Gate

_KEPT = 4096
_FRESH_US = 60_000_000
T = TypeVar("T")


@dataclass(slots=True)
class Recall:
    """Reads banks for agents. `drafts` of new decisions wait to be written with the next step.

    `behind` says why the banks lack something that is durable, or cannot be read; "" if they are
    well. `closed` says that what they lack may be an order to forget; `bring_up` makes up for it.
    """

    banks: BankStore
    gateway: Gate
    bring_up: Callable[[], object] = lambda: None
    behind: str = ""
    closed: bool = False
    _lacks: bool = False
    # By bank and scope: a read that the disk refused, to be tried again.
    _unread: dict[tuple[str, str], Callable[[], object]] = field(default_factory=dict)
    _may: dict[tuple[str, str, str, int], bool] = field(default_factory=dict)
    _known: OrderedDict[tuple[Any, ...], tuple[int, tuple[Memory, ...]]] = field(
        default_factory=OrderedDict
    )

    def brief(
        self, agent: Agent, event: Event, now_us: int
    ) -> tuple[tuple[Memory, ...], list[Draft]]:
        """Return the memories for this event and the entries of reads decided on the way.

        Raises StoreFailed while a bank is behind an order, or cannot be read.
        """
        if self.closed and agent.scopes:
            raise StoreFailed(
                "the memory bank is behind what people ordered", where="memory.db", mend=LOOK_AT_IT
            )
        memories: list[Memory] = []
        drafts: list[Draft] = []
        for scope in agent.scopes:
            if self._may_read(agent, event, scope, now_us, drafts):
                memories.extend(self._search(agent, event, scope, now_us))
        unique = {memory.cite(): memory for memory in memories}
        return tuple(unique.values()), drafts

    def follow(self, work: Callable[[], object], *, order: bool) -> bool:
        """Bring the banks to what was just made durable; False if they are behind now.

        `order`: it is a person's, so nobody may be briefed by what stood before.
        """
        try:
            work()
        except Exception as error:
            # Whatever it is, the commit stands: it is done again from the ledger.
            self._fall_behind(error, order=order)
            return False
        return True

    async def await_commit(self, commit: Awaitable[T], *, order: bool) -> T:
        """Return what a commit answers that the banks have to follow (`order` as in `follow`).

        Raises what it raises. Unless it was refused it may stand unheard, and a second order would
        find nothing left to do: then the banks are behind until the ledger was read.
        """
        try:
            return await commit
        except BaseException as error:
            if isinstance(error, StoreFailed) or not isinstance(error, VedetteError):
                self._fall_behind(error, order=order)
            raise

    def catch_up(self) -> None:
        """Bring up banks that are behind, and read what could not be read, if possible by now."""
        try:
            if self._lacks:
                self.bring_up()
                self._lacks = self.closed = False
            for place, read in list(self._unread.items()):
                read()
                del self._unread[place]
            self.behind = ""
        except Exception as error:  # as in `follow`
            self.behind = _told(error)

    def _fall_behind(self, error: BaseException, *, order: bool) -> None:
        self.behind, self._lacks, self.closed = _told(error), True, self.closed or order

    def forget(self) -> None:
        """Forget what was decided of reads: a step with its entries did not stand."""
        self._may.clear()

    def _may_read(
        self, agent: Agent, event: Event, scope: Scope, now_us: int, drafts: list[Draft]
    ) -> bool:
        asked = (agent.release, scope.bank, scope.scope, self.gateway.policy_rev)
        known = self._may.get(asked)
        if known is None:
            decided = self.gateway.may_read(
                Situation(agent, event, 1, now_us), scope.bank, scope.scope
            )
            known = decided.decision.outcome == "permit"
            # What nobody decided is asked again: an engine may answer next time.
            if decided.engine != Nobody.name:
                self._may[asked] = known
            drafts += read_drafts(agent, scope, decided)
        return known

    def _search(self, agent: Agent, event: Event, scope: Scope, now_us: int) -> tuple[Memory, ...]:
        text = query_text(event)
        of = scope.bank, scope.scope, scope.topics, text, now_us, scope.limit
        read = partial(self.banks.recall, *of)
        try:
            version = self.banks.version(scope.bank)
            key = (agent.name, scope, text, version, self.gateway.policy_rev)
            found = self._known.get(key)
            if found is not None and now_us - found[0] < _FRESH_US:
                return found[1]
            memories = tuple(read())
        except StoreFailed as error:
            # No attempt of the run counts, so a person would hear of it by nothing else.
            self.behind, self._unread[scope.bank, scope.scope] = str(error), read
            raise
        self._known[key] = (now_us, memories)
        if len(self._known) > _KEPT:
            self._known.popitem(last=False)
        return memories


def _told(error: BaseException) -> str:
    return str(error) or type(error).__name__


def query_text(event: Event) -> str:
    """Return the text a bank is searched with: subject line and text of a message, or the key."""
    if isinstance(event.data, dict):
        parts = [event.data.get("subject"), event.data.get("text")]
        told = " ".join(part for part in parts if isinstance(part, str))
        if told:
            return told[:2000]
    return f"{event.type} {event.subject or ''}"


def read_drafts(agent: Agent, scope: Scope, decided: Decided) -> list[Draft]:
    """Return the entry of a decided read, and that of a difference if two engines differed."""
    memory = f"{scope.bank}/{scope.scope}"
    read = Draft(
        "recall.decided",
        {
            "agent": agent.name,
            "release": agent.release,
            "memory": memory,
            "outcome": decided.decision.outcome,
            "rule": decided.decision.rule,
            "policy_rev": decided.policy_rev,
            "bundle": decided.bundle,
            "engine": decided.engine,
        },
        body=Body(decided.record()),
    )
    if not decided.answers:
        return [read]
    return [read, difference(decided, "permit", agent=agent.name, memory=memory)]
