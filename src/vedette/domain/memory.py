"""Memories, the banks that hold them, and the Briefing that a run is handed."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Literal

from msgspec import Struct, field

from vedette.domain.base.canonical import short_id
from vedette.domain.base.dataclass_fields import DataclassFields
from vedette.domain.event import Event
from vedette.domain.readers import Readers


class Memory(Struct, frozen=True):
    """One curated memory at one revision.

    `trust` is `reviewed` for what a person reviewed, `learned` for what an agent proposed and a
    person promoted. `expires_us` is the instant after which it is no longer recalled (0: never).
    """

    __dataclass_fields__ = DataclassFields()

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


def cite_memories(memories: Iterable[Memory]) -> list[tuple[str, str]]:
    """Return (cite, trust) of each memory, as the record of a turn has them."""
    return [(memory.cite(), memory.trust) for memory in memories]


def reviewed_ids(memories: Iterable[Memory]) -> frozenset[str]:
    """Return the ids of the memories that people reviewed as files, label and all.

    What was proposed to the running fleet and promoted is none of these: an agent's label, as its
    text, may be the words of whoever wrote what it read.
    """
    return frozenset(memory.id for memory in memories if memory.trust == "reviewed")


def reviewed_citation_ids(cited: Iterable[tuple[str, str]]) -> frozenset[str]:
    """Return the ids of the memories, given as (cite, trust), that people reviewed as files."""
    ids = (
        cite.partition("/")[2].rpartition("@")[0] for cite, trust in cited if trust == "reviewed"
    )
    return frozenset(ids)


class BankPlan(Struct, frozen=True):
    """A memory bank's declaration: who may read, or propose to, which scope; what it holds.

    `permitted_readers` are, by scope, those to whom what is remembered there may be told.
    """

    name: str
    purpose: str
    scopes: Mapping[str, tuple[str, ...]]
    topics: tuple[str, ...]
    retention_days: int
    memories: tuple[Memory, ...]
    digest: str
    writers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    permitted_readers: Mapping[str, Readers] = field(default_factory=dict)


MemoryKind = Literal["fact", "procedure", "example"]
MEMORY_KINDS: tuple[MemoryKind, ...] = ("fact", "procedure", "example")

# Where a candidate stands: waits for a person, is recalled, was turned down, was taken back.
MemoryState = Literal["candidate", "active", "rejected", "off"]


class Candidate(Struct, frozen=True):
    """What an agent, or a person, would like remembered. A person's promotion makes it a memory.

    The engine sets id, agent, run and event, whatever the reasoner wrote there; without an agent a
    person proposed it. `evidence` are ids of events and runs that it rests on; `replaces` names the
    memory of the same bank that is not recalled while this one is. A memory keeps the id.
    """

    __dataclass_fields__ = DataclassFields()

    bank: str
    scope: str
    text: str
    topics: tuple[str, ...] = ()
    agent: str = ""
    run: str = ""
    event: str = ""
    kind: MemoryKind = "fact"
    label: str | None = None
    evidence: tuple[str, ...] = ()
    replaces: str | None = None
    id: str = ""

    @property
    def key(self) -> str:
        """Return the id; of one from before candidates had ids, what it was known by."""
        return self.id or short_id("cnd", self.bank, self.scope, self.agent, self.run, self.text)

    def to_json(self) -> dict[str, Any]:
        """Return what its entry's body holds: all that somebody wrote."""
        content: dict[str, Any] = {
            "scope": self.scope, "text": self.text, "topics": list(self.topics), "kind": self.kind,
        }  # fmt: skip
        if self.label is not None:
            content["label"] = self.label
        if self.evidence:
            content["evidence"] = list(self.evidence)
        if self.replaces is not None:
            content["replaces"] = self.replaces
        return content

    @classmethod
    def from_entry(cls, entry: Mapping[str, Any], body: Mapping[str, Any]) -> Candidate:
        """Return the candidate that a `memory.proposed` entry and its body tell of."""
        return cls(
            entry["memory"], body["scope"], body["text"], tuple(body["topics"]),
            entry.get("agent", ""), entry.get("run", ""), entry.get("event", ""),
            body.get("kind", "fact"), body.get("label"), tuple(body.get("evidence", ())),
            body.get("replaces"), entry.get("what", ""),
        )  # fmt: skip


MAX_TEXT = 20_000  # characters, as of a reviewed file
_MAX_LABEL = 200  # characters of a label
_MAX_EVIDENCE = 1000
_EVIDENCE = re.compile(r"(?:evt|run)_[0-9a-f]{1,64}")


def find_candidate_fault(candidate: Candidate, topics: Collection[str]) -> str:
    """Say why a candidate is not kept as it is written; "" if it is. `topics` are its bank's.

    Whoever promotes it reads what stands there, so it must say what it is and nothing else.
    """
    if (
        not isinstance(candidate.text, str)
        or not 0 < len(candidate.text.strip()) <= len(candidate.text) <= MAX_TEXT
    ):
        return f"a memory has 1 to {MAX_TEXT} characters"
    if candidate.kind not in MEMORY_KINDS:
        return f"{str(candidate.kind)[:40]!r} is no kind"
    if candidate.label is not None and (why := find_label_fault(candidate.label)):
        return why
    if candidate.kind == "example" and candidate.label is None:
        return "an example needs a label"
    for topic in candidate.topics:
        if topic not in topics:
            return f"bank {candidate.bank!r} has no topic {str(topic)[:40]!r}"
    if len(candidate.evidence) > _MAX_EVIDENCE:
        return f"a memory rests on {_MAX_EVIDENCE} events and runs at most"
    for id in candidate.evidence:
        if not isinstance(id, str) or _EVIDENCE.fullmatch(id) is None:
            return f"{str(id)[:40]!r} is no id of an event or a run"
    return ""


def find_label_fault(text: object) -> str:
    """Say why a text cannot be the label of a Memory; "" if it can."""
    one_line = isinstance(text, str) and text.isprintable()
    if one_line and 0 < len(str(text).strip()) <= len(str(text)) <= _MAX_LABEL:
        return ""
    return f"a label is one printable line of 1 to {_MAX_LABEL} characters"


class Briefing(Struct, frozen=True):
    """All that a reasoner sees of a run: serialisable data, no handle to anything.

    The event and the memories are data, never instructions. `row` is the agent's own row for the
    key (an open incident, say). `turns` are the recorded turns with their outcomes, oldest first.
    `position` orders the events of a key; `previous` is the position the judge's state must be at.
    `anew` asks a model's reasoner to begin its context anew: the one before was refused.
    `model` names the entry of [models] that is to be asked, if the agent names one; `opinion` is
    what its judge thought of the event, if it deferred to the model. `notes` are turn notes:
    what the run's last turn left for this one. `task` is empty unless the run is a task, else it is
    told as JSON: `goal` (text), `conditions` (`name`, `held`, `why` each) and `items` (`of`,
    `open`, `done`, `failed`, `set_aside` as counts; `current` is the item that is worked on, if
    any).
    """

    __dataclass_fields__ = DataclassFields()

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
    anew: bool = False
    model: str = ""
    opinion: Mapping[str, Any] = field(default_factory=dict)
    notes: Any = None
    task: Mapping[str, Any] = field(default_factory=dict)
    hand_off: Mapping[str, Any] = field(default_factory=dict)
    context_ended: bool = False
