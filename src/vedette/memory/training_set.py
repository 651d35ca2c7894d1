"""The training set: the memories a judge is made of, each scope decided by policy first.

A judge keeps what it was made of, so it must not be made of what its agent may not read. The
scopes are decided once under each revision; an agent for which the answer became another loses
its judge, which is made anew of what may be read now.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from vedette.domain.agent import Agent
from vedette.domain.decision import DecisionContext
from vedette.domain.entry import Draft
from vedette.domain.event import ENVELOPE, Event
from vedette.domain.memory import Memory
from vedette.domain.ports.memory_bank import BankStore
from vedette.domain.ports.policy_engine import MemoryAuthorizer
from vedette.memory.retrieval import recall_entries

# What a read outside any run is asked about: the engine's own event, which wakes nobody.
LESSON_READ_EVENT = Event("vedette:engine", "lessons", "vedette.lessons", vouched=ENVELOPE)

# By agent: the (bank, scope) pairs it may read, each once, in the order agent.yaml names them.
ReadableScopes = Mapping[str, tuple[tuple[str, str], ...]]


class Lessons(Struct):
    """The training set of each of `agents`. Nobody is taught anything before `adopt`."""

    banks: BankStore
    agents: dict[str, Agent]
    policy_rev: int = 0
    _readable: ReadableScopes = field(default_factory=dict)
    _taught_versions: dict[str, tuple[tuple[str, str, int], ...]] = field(default_factory=dict)
    # By agent: when the first of what it was taught expires; without an entry nothing does.
    _expiries: dict[str, int] = field(default_factory=dict)

    def decide_scopes(
        self, gate: MemoryAuthorizer, now_us: int, release: Agent | None = None
    ) -> tuple[ReadableScopes, list[Draft]]:
        """Ask `gate` about every scope; return what may be read and the entries that say so.

        With `release`, a release that is to come, for it instead of the agent of its name. Changes
        nothing: the answer is in force once its entries are durable and it is taken.
        """
        readable: dict[str, tuple[tuple[str, str], ...]] = {}
        drafts: list[Draft] = []
        for name, present in self.agents.items():
            agent = release if release is not None and release.name == name else present
            granted = []
            for scope in {(scope.bank, scope.scope): scope for scope in agent.scopes}.values():
                decision_context = DecisionContext(agent, LESSON_READ_EVENT, 1, now_us)
                decision_record = gate.may_read(decision_context, scope.bank, scope.scope)
                drafts += recall_entries(agent, scope, decision_record)
                if decision_record.decision.outcome == "permit":
                    granted.append((scope.bank, scope.scope))
            readable[agent.name] = tuple(granted)
        return readable, drafts

    def adopt(self, readable: ReadableScopes, policy_rev: int) -> list[str]:
        """Put an answer in force; return the agents for which it is another than before."""
        changed = [
            name for name in self.agents if readable.get(name, ()) != self._readable.get(name, ())
        ]
        self._readable, self.policy_rev = readable, policy_rev
        return changed

    def catch_up(self, gate: MemoryAuthorizer, live: int, now_us: int) -> list[Draft]:
        """Put in force what a live revision says, unless it is; return the entries of what it read.

        A revision that was published by this process is in force already.
        """
        if self.policy_rev == live:
            return []
        readable, drafts = self.decide_scopes(gate, now_us)
        self.adopt(readable, live)
        return drafts

    def outdated_agents(self) -> list[str]:
        """Return the agents whose scopes changed since their judge was taught: it is made anew.

        An agent that was not taught yet has nothing to forget.
        """
        return [
            name for name, known in self._taught_versions.items() if known != self._versions(name)
        ]

    def _versions(self, agent: str) -> tuple[tuple[str, str, int], ...]:
        version = self.banks.version
        return tuple((bank, scope, version(bank)) for bank, scope in self._readable.get(agent, ()))

    def load_lessons(self, agent: str, now_us: int) -> list[Memory]:
        """Return all active memories of the scopes that the agent may read."""
        self._taught_versions[agent] = self._versions(agent)
        taught = self.preview_lessons(agent, now_us)
        self._expiries.pop(agent, None)
        if ends := [memory.expires_us for memory in taught if memory.expires_us]:
            self._expiries[agent] = min(ends)
        return taught

    def pop_expired(self, agent: str, now_us: int) -> bool:
        """Say, once, that something has expired that the agent was taught: it is taught anew."""
        ends = self._expiries.get(agent)
        if ends is None or now_us < ends:
            return False
        del self._expiries[agent]
        return True

    def readable_versions(self, agent: str) -> tuple[tuple[str, str, int], ...]:
        """Return the scopes that an agent may read, as (bank, scope, version)."""
        return self._versions(agent)

    def agents_taught(self, bank: str, scope: str) -> list[str]:
        """Return the agents whose judges are taught a scope."""
        return [name for name, scopes in self._readable.items() if (bank, scope) in scopes]

    def preview_lessons(self, agent: str, now_us: int) -> list[Memory]:
        """Return what `load_lessons` would teach, for a reader who makes no judge of it."""
        return [
            memory
            for bank, scope in self._readable.get(agent, ())
            for memory in self.banks.lessons(bank, scope, now_us)
        ]


class CanaryLessons(Lessons):
    """The training set of an agent's canary release: what `live` lets the agent read by now.

    So nobody has to tell the canary of a policy or a memory that changed: whoever makes its
    judge anew where `pop_expired` says so, before each judgement, has it taught anew.
    """

    live: Lessons | None = None
    _taught: dict[str, tuple[tuple[str, str, int], ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, live: Lessons, agent: Agent) -> CanaryLessons:
        """Return the lessons of a canary of an agent that `live` teaches."""
        return cls(live.banks, {agent.name: agent}, live=live)

    def load_lessons(self, agent: str, now_us: int) -> list[Memory]:
        """Return all active memories of the scopes that the agent may read by now."""
        assert self.live is not None
        self._taught[agent] = self.live.readable_versions(agent)
        taught = self.live.preview_lessons(agent, now_us)
        self._expiries.pop(agent, None)
        if ends := [memory.expires_us for memory in taught if memory.expires_us]:
            self._expiries[agent] = min(ends)
        return taught

    def pop_expired(self, agent: str, now_us: int) -> bool:
        """Say, once, that the judge is to be taught anew: something expired, or has changed."""
        assert self.live is not None
        is_expired = super().pop_expired(agent, now_us)
        known = self._taught.get(agent)
        if known is None or (known == self.live.readable_versions(agent) and not is_expired):
            return False
        del self._taught[agent]
        return True
