"""Effects: the life of a change outside, and what a tool answers.

intended --start--> started --answer--> done | failed
intended --answer--> done | failed        (idempotent by key: a repeat is harmless)
started --crash--> unknown --query--> done | failed | intended | unknown   (ask, then repeat)
intended --policy changed--> cancelled    (decided again: no longer permitted)
intended --store restored--> unknown      (it may have happened, and only a person can find out)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, cast

from msgspec import Struct, field

from vedette.domain.base.canonical import sha256_hex
from vedette.domain.base.dataclass_fields import DataclassFields
from vedette.domain.base.errors import Permanent
from vedette.domain.event import HOPS, LINEAGE, READERS
from vedette.domain.readers import Readers, format_readers

EffectState = Literal["intended", "started", "done", "failed", "unknown", "cancelled"]

_TRANSITIONS: dict[EffectState, frozenset[EffectState]] = {
    "intended": frozenset({"started", "done", "failed", "unknown", "cancelled"}),
    "started": frozenset({"done", "failed", "unknown", "intended", "cancelled"}),
    "unknown": frozenset({"done", "failed", "intended", "cancelled", "unknown"}),
    "done": frozenset(),
    "failed": frozenset(),
    "cancelled": frozenset(),
}

FINAL_STATES: frozenset[EffectState] = frozenset({"done", "failed", "cancelled"})
# Of these nobody knows the end.
OPEN_STATES: frozenset[EffectState] = frozenset({"intended", "started", "unknown"})


# For how long a permit to start a call holds: whoever makes the call later asks again. It outlives
# a stop by no more, so a stop is waited for that much longer.
PERMIT_LIFE_US = 100_000


def state_after(kind: str) -> EffectState:
    """Return the state that an entry `effect.*` says an effect is in from then on.

    What is known not to have happened (`effect.absent`) is planned, as it was before its call.
    """
    state = kind.removeprefix("effect.")
    return "intended" if state == "absent" else cast(EffectState, state)


def transition(present: EffectState, to: EffectState) -> EffectState:
    """Return `to` if an effect's states let it go there from `present`, else raise Permanent."""
    if to not in _TRANSITIONS[present]:
        raise Permanent(f"an effect that is {present} cannot become {to}")
    return to


class Outcome(Struct, frozen=True):
    """The outcome of a tool's call.

    `done` with data, `failed` for good, `retry` (the target said that nothing happened), or
    `unknown` (no answer: it may or may not have happened). With `retry_after_us` the target said
    how long it wants to be left alone.
    """

    __dataclass_fields__ = DataclassFields()

    state: Literal["done", "failed", "retry", "unknown"]
    data: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""
    retry_after_us: int = 0


class Call(Struct, frozen=True):
    """One call of a tool: exact arguments, the idempotency key, and where to (the target).

    `lineage` names the agents whose effects led here, the calling agent last; a tool passes it on
    with what it sends (`vedettelineage`), so that an agent's own effects never wake it. `person`
    says that a person approved this very action; without it policy alone permitted it. `readers`
    are those who may read what it carries, and go along likewise (`labels`).
    """

    __dataclass_fields__ = DataclassFields()

    tool: str
    args: Mapping[str, Any]
    key: str
    agent: str
    run: str
    target: Mapping[str, Any]
    lineage: tuple[str, ...]
    attempt: int
    timeout_us: int
    person: bool = False
    readers: Readers = None

    @property
    def labels(self) -> dict[str, str]:
        """Return the attributes of an event that say where it came through and who may read it."""
        attributes = {HOPS: str(len(self.lineage)), LINEAGE: ",".join(self.lineage)}
        return (
            attributes
            if self.readers is None
            else {**attributes, READERS: format_readers(self.readers)}
        )

    @property
    def traceparent(self) -> str:
        """Return the W3C trace context to send along (https://www.w3.org/TR/trace-context/)."""
        return f"00-{trace_id(self.run)}-{span_id(self.key)}-01"


def trace_id(run: str) -> str:
    """Return the trace id of a run's event: all runs of one event share it."""
    return sha256_hex(f"vedette.trace/1 {run[4:20]}".encode())[:32]


def span_id(name: str) -> str:
    """Return the id of the span that belongs to a run, an event or an idempotency key."""
    return sha256_hex(f"vedette.span/1 {name}".encode())[:16]


class RowWrite(Struct, frozen=True):
    """A tool's row of a fleet-owned collection, written in the step. `row` None deletes it."""

    __dataclass_fields__ = DataclassFields()

    collection: str
    key: str
    row: Mapping[str, Any] | None
