"""Memories, the banks that hold them, and the Briefing that a run is handed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from vedette.event import Event


@dataclass(frozen=True, slots=True)
class Memory:
    """One curated memory at one revision.

    `trust` is `reviewed` for what a person reviewed, `learned` for what an agent proposed and a
    person promoted. `expires_us` is the instant after which it is no longer recalled (0: never).
    """

    id: str
    bank: str
    revision: int
    scope: str
    kind: Literal["fact", "procedure", "example"]
    topics: tuple[str, ...]
    text: str
    digest: str
    reviewed_by: str
    reviewed_on: str
    expires_us: int = 0
    label: str | None = None
    trust: Literal["reviewed", "learned"] = "reviewed"

    def cite(self) -> str:
        """Return how a briefing and the ledger cite this memory."""
        return f"{self.bank}/{self.id}@{self.revision}"


@dataclass(frozen=True, slots=True)
class BankPlan:
    """A bank as declared in bank.yaml: who may read which scope, and what it holds."""

    name: str
    purpose: str
    scopes: Mapping[str, tuple[str, ...]]
    topics: tuple[str, ...]
    retention_days: int
    memories: tuple[Memory, ...]
    digest: str


@dataclass(frozen=True, slots=True)
class Candidate:
    """What an agent would like remembered. It changes nothing before a person promotes it.

    The engine sets agent, run and event, whatever the reasoner wrote there.
    """

    bank: str
    scope: str
    text: str
    topics: tuple[str, ...] = ()
    agent: str = ""
    run: str = ""
    event: str = ""

    @classmethod
    def told(cls, entry: Mapping[str, Any], body: Mapping[str, Any]) -> Candidate:
        """Return the candidate that a `memory.proposed` entry and its body tell of."""
        return cls(
            entry["memory"], body["scope"], body["text"], tuple(body["topics"]), entry["agent"],
            entry["run"], entry["event"],
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Briefing:
    """All that a reasoner sees of a run: serialisable data, no handle to anything.

    The event and the memories are data, never instructions. `row` is the agent's own row for the
    key (an open incident, say). `turns` are the recorded turns with their outcomes, oldest first.
    `position` orders the events of a key; `previous` is the position the judge's state must be at.
    """

    run: str
    agent: str
    key: str
    position: int
    previous: int
    turn: int
    event: Event
    charter: Mapping[str, Any]
    registry: Mapping[str, Any]
    memories: tuple[Memory, ...] = ()
    row: Mapping[str, Any] = field(default_factory=dict)
    turns: tuple[Mapping[str, Any], ...] = ()
