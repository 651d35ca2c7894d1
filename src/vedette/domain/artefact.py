"""Artefacts: large texts out of a tool's outcome, each kept once and told of by a reference.

An artefact is the content of an entry `artefact.stored` in the step that records the outcome. It is
found by its digest: the id is the event's half, as of all ids that lead home, and the beginning of
the salted digest by which the entry names its content. The salt makes it another id each time, so
that an id neither tells that two contents are alike nor lets anybody guess one that was erased.

A run's own tool `artefact.read` returns ranges of the content.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from vedette.domain.base.canonical import (
    canonical_json,
    normalize_json,
    salted_digest,
)
from vedette.domain.effect import Outcome
from vedette.domain.entry import Body
from vedette.domain.readers import Readers
from vedette.domain.tool import Tool

STORED_KIND = "artefact.stored"
ARTEFACT_ID = re.compile(r"art_[0-9a-f]{32}")
# An outcome whose data have more canonical bytes has artefacts: some 4,000 tokens in each turn.
MAX_OUTCOME_BYTES = 16 * 1024
# Then each text becomes one that is longer: a reference has a head of a quarter of it.
MIN_TEXT_CHARS = 2_000
HEAD_CHARS = 500
# What one read returns at most.
MAX_RANGE_CHARS = 8_192

# The field of a reference that names its artefact.
REFERENCE = "artefact"
# Who may read it, in its content, in a reference and in a range; absent where all may.
READERS = "readers"
TEXT, JSON = "text/plain", "application/json"

Label = Literal["trusted", "untrusted"]
# Whose artefact an action names: its run's own, or not.
Owner = Literal["own", "other"]


class Artefact(Struct, frozen=True):
    """A large text out of an outcome: its type, whether it is to be trusted, who may read it."""

    text: str
    type: str
    label: Label
    readers: Readers = None

    def to_body(self, salt: bytes, subject: str | None) -> Body:
        """Return the content of its entry, found by `subject` too, to be digested with `salt`."""
        value = {"label": self.label, "text": self.text, "type": self.type, **self._secrecy()}
        return Body(canonical_json(value), subject, salt)

    @classmethod
    def from_body(cls, value: Mapping[str, Any]) -> Artefact:
        """Return the artefact of an entry's parsed content."""
        return cls(value["text"], value["type"], value["label"], told_readers(value))

    def refer(self, id: str) -> dict[str, Any]:
        """Return what stands in its place, under this id; `size` is in characters."""
        return {
            REFERENCE: id,
            "head": self.text[:HEAD_CHARS],
            "label": self.label,
            "size": len(self.text),
            "type": self.type,
            **self._secrecy(),
        }

    def read_range(self, id: str, offset: int, length: int) -> dict[str, Any]:
        """Return what a read of a range answers; `next` is where to go on, if there is more.

        It says who may read it, as the reference does: what is made of it is as secret.
        """
        end = min(offset + length, len(self.text))
        more = {"next": end} if end < len(self.text) else {}
        return {
            REFERENCE: id,
            "offset": offset,
            "size": len(self.text),
            "text": self.text[offset:end],
            **more,
            **self._secrecy(),
        }

    def _secrecy(self) -> dict[str, list[str]]:
        return {} if self.readers is None else {READERS: sorted(self.readers)}


def told_readers(value: Mapping[str, Any]) -> Readers:
    """Return who may read an artefact, as its content, a reference or a range says."""
    return frozenset(value[READERS]) if READERS in value else None


class ArtefactHead(Struct, frozen=True):
    """What the entry at `seq` says of its artefact: action, tool, type, size in characters."""

    seq: int
    action: str
    tool: str
    type: str
    size: int


class StoredArtefact(Struct, frozen=True):
    """An artefact as a store has it, by the entry at `seq`: None once erased, or if it was edited.

    `run` and `action` are those whose outcome it is of.
    """

    id: str
    seq: int
    run: str
    agent: str
    action: str
    tool: str
    artefact: Artefact | None


def artefact_id(event: str, digest: str) -> str:
    """Return the id of an event's artefact: the event's half, then the digest of its content."""
    return f"art_{event[4:20]}{digest[:16]}"


class _Collector:
    """Takes texts out of an outcome's data, and gives references for them."""

    def __init__(
        self, event: str, subject: str | None, draw_salt: Callable[[int], bytes], label: Label,
        readers: Readers,
    ) -> None:  # fmt: skip
        self._event, self._subject, self._draw_salt = event, subject, draw_salt
        self._label, self._readers = label, readers
        self.found: list[tuple[Artefact, Body]] = []

    def add(self, text: str, type: str) -> dict[str, Any]:
        """Take a text for an artefact; return its reference."""
        artefact = Artefact(text, type, self._label, self._readers)
        salt = self._draw_salt(len(self.found))
        body = artefact.to_body(salt, self._subject)
        self.found.append((artefact, body))
        return artefact.refer(artefact_id(self._event, salted_digest(salt, body.data)))

    def take_texts(self, value: Any) -> Any:
        """Return a value with references in the place of its long texts."""
        if isinstance(value, str):
            return self.add(value, TEXT) if len(value) > MIN_TEXT_CHARS else value
        if isinstance(value, Mapping):
            return {name: self.take_texts(item) for name, item in value.items()}
        if isinstance(value, list):
            return [self.take_texts(item) for item in value]
        return value


def extract_artefacts(
    outcome: Outcome,
    event: str,
    subject: str | None,
    draw_salt: Callable[[int], bytes],
    *,
    label: Label,
    readers: Readers,
) -> tuple[Outcome, Sequence[tuple[Artefact, Body]]]:
    """Return an outcome without what is too large in it, and the artefacts made of that.

    Long texts are taken out; if what is left is still too large, the largest members of the data
    instead, until the rest fits; if it never does, all of the data as one. `draw_salt` returns
    other bytes for each number; `label` and `readers` are those of the outcome. Raises ValueError
    for data that are not JSON.
    """
    data = normalize_json(dict(outcome.data))
    raw = canonical_json(data)
    if len(raw) <= MAX_OUTCOME_BYTES:
        return outcome, ()
    collector = _Collector(event, subject, draw_salt, label, readers)
    left = collector.take_texts(data)
    if len(canonical_json(left)) > MAX_OUTCOME_BYTES:
        collector = _Collector(event, subject, draw_salt, label, readers)
        left = _take_members(collector, data, left)
    if left is None:
        collector = _Collector(event, subject, draw_salt, label, readers)
        left = collector.add(raw.decode(), JSON)
    return replace(outcome, data=left), collector.found


def _take_members(
    collector: _Collector, data: Mapping[str, Any], without_texts: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return data with references for the largest members, and for long texts in the others.

    How large each is counts without its texts. Returns None if members are too small, or too many,
    to get below the bound by.
    """
    sizes = {name: len(canonical_json(item)) for name, item in without_texts.items()}
    excess = len(canonical_json(without_texts)) - MAX_OUTCOME_BYTES
    left: dict[str, Any] = {}
    for name in sorted(sizes, key=lambda name: -sizes[name]):
        if excess <= 0 or sizes[name] <= MIN_TEXT_CHARS:
            break
        left[name] = collector.add(canonical_json(data[name]).decode(), JSON)
        excess += len(canonical_json(left[name])) - sizes[name]
    if excess > 0:
        return None
    return {
        name: left[name] if name in left else collector.take_texts(item)
        for name, item in data.items()
    }


def abridge_body(data: bytes) -> bytes:
    """Return an artefact's content with the beginning of its text (`head`) in the place of that.

    What is no artefact's is returned as it is.
    """
    try:
        # Not by orjson, which takes a dozen times the memory of a long text.
        value = msgspec.json.decode(data)
    except ValueError:
        return data
    if not isinstance(value, dict) or not isinstance(text := value.pop("text", None), str):
        return data
    return canonical_json({**value, "head": text[:HEAD_CHARS]})


# --- the tool ---------------------------------------------------------------------------------

# What performs it, in the place of a plugin's name: the engine itself.
ARTEFACT_PERFORMER = "artefact"
READ_TOOL = Tool(
    name="artefact.read",
    verb="read",
    resource="artefact",
    args={"id": "string", "offset": "integer?", "length": "integer?"},
    sinks=(),
    settles="transactional",
    function=ARTEFACT_PERFORMER,
    performer=ARTEFACT_PERFORMER,
    description="Reads a part of a large output that you were told of by reference: its id, from "
    f"which character (0 without offset), how many (at most {MAX_RANGE_CHARS}). The answer says "
    "under next where to go on.",
)
# By name, as an agent that has artefacts has them among its tools.
ARTEFACT_TOOLS: Mapping[str, Tool] = MappingProxyType({READ_TOOL.name: READ_TOOL})
