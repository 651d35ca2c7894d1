"""An Event: what happened, in CloudEvents 1.0 words, and how far its sender vouches for it."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from msgspec import Struct, field

from vedette.domain.base.canonical import canonical_json, normalize_json, short_id
from vedette.domain.base.dataclass_fields import DataclassFields
from vedette.domain.base.errors import BadEvent
from vedette.domain.readers import Readers

# Types of events that the engine alone makes. A schedule's time has come:
TICK_TYPE = "vedette.tick"
# a person wants an effect taken back, which wakes the agent of the effect and no other;
UNDO_TYPE = "vedette.undo"
# a person said what a run should have been, in the commit of that word.
CORRECTION_TYPE = "vedette.correction"
# an agent whose reasoning happens at its client calls a tool; who it is was authenticated.
CALL_TYPE = "vedette.call"
# a person gives an agent a task, whose goal and conditions are the payload.
TASK_TYPE = "vedette.task"

# Attributes of the envelope that a source may vouch for; never the payload.
ENVELOPE = frozenset({"source", "id", "type", "subject", "time"})

# What the engine alone vouches for, in the ticks and tasks that it makes itself: their payload.
DATA = "data"
# In an undo, which the engine makes of the record, it vouches for single places of the payload:
# for the action that is taken back, and for the values that were trusted when it was decided.
UNDO_ACTION = "data/action"

# Of these the engine alone may speak, whatever a source says of its payload.
ENGINE_ONLY = frozenset({DATA, UNDO_ACTION})

# What a source can vouch for in an event that an agent's effect led to: that it is the one, and of
# which kind. The rest of its envelope is what an agent wrote, out of whatever it had read.
EFFECT_ENVELOPE = frozenset({"source", "id", "type"})

# What `vouches` of a sender or publisher means.
VOUCH_LEVELS: Mapping[str, frozenset[str]] = {
    "envelope": ENVELOPE, "event": EFFECT_ENVELOPE, "none": frozenset(),
}  # fmt: skip

# CloudEvents extension attributes that carry lineage between fleets and their targets.
HOPS = "vedettehops"
LINEAGE = "vedettelineage"
# … and who may read what they carry (`vedette.domain.readers`): whoever sends it can only narrow
# it.
READERS = "vedettereaders"

# CloudEvents extension attributes of an event that a person sent: who, and why. The engine alone
# sets and vouches for them.
PRINCIPAL = "vedetteprincipal"
REASON = "vedettereason"
# … and of a task that an agent gives another: the run that asked.
PARENT = "vedetteparent"


class Event(Struct, frozen=True):
    """One event. `(source, id)` is its key: a second delivery of the same key is the same event.

    `hops` counts the agents whose effects led here, `lineage` names them, oldest first.
    `vouched` names what the source vouches for, only that is trusted: attributes of the envelope
    whose value no stranger chose, and the places of the payload (`data/COLUMN`) that its operator
    listed. `readers` are those who may read it; None where everybody may.
    """

    __dataclass_fields__ = DataclassFields()

    source: str
    id: str
    type: str
    subject: str | None = None
    time: str | None = None
    data: Any = None
    hops: int = 0
    lineage: tuple[str, ...] = ()
    vouched: frozenset[str] = frozenset()
    extensions: Mapping[str, str | int | bool] = field(default_factory=dict)
    readers: Readers = None

    @property
    def key(self) -> str:
        """Return the id under which the engine knows this event; a function of (source, id)."""
        return short_id("evt", self.source, self.id)

    @property
    def is_undo(self) -> bool:
        """Say whether this is the engine's own order to take an effect back."""
        return self.type == UNDO_TYPE and UNDO_ACTION in self.vouched

    @property
    def is_task(self) -> bool:
        """Say whether this is a task that a person or an agent gives, as the engine makes it."""
        return self.type == TASK_TYPE and (DATA in self.vouched or PARENT in self.vouched)

    @property
    def is_delegated(self) -> bool:
        """Say whether an agent gives this task: of its payload no person vouches for anything."""
        return self.type == TASK_TYPE and PARENT in self.vouched

    @property
    def cause(self) -> int | None:
        """Return the ledger entry that the event follows from, where the engine made it of one."""
        if self.is_delegated:
            return int(self.data["delegation"]["cause"])
        return int(self.data["cause"]) if self.is_undo else None

    def root(self) -> dict[str, Any]:
        """Return what a proposal may point at under /event."""
        return {
            "source": self.source,
            "id": self.id,
            "type": self.type,
            "subject": self.subject,
            "time": self.time,
            "data": self.data,
        }

    def to_body(self) -> bytes:
        """Return the canonical bytes of the whole event: the body that the ledger digests."""
        # Only where it is secret, so that all others stay as they were.
        label = {} if self.readers is None else {"readers": sorted(self.readers)}
        return canonical_json(
            {
                **label,
                "data": normalize_json(self.data),
                "extensions": normalize_json(dict(self.extensions)),
                "hops": self.hops,
                "id": self.id,
                "lineage": list(self.lineage),
                "source": self.source,
                "subject": self.subject,
                "time": self.time,
                "type": self.type,
                "vouched": sorted(self.vouched),
            }
        )

    @classmethod
    def from_body(cls, value: Mapping[str, Any]) -> Event:
        """Rebuild an event from the parsed bytes of `to_body`.

        Fractions in `data` come back as decimal strings: this is the form in which reasoners,
        policies and the ledger see every event, on its first delivery too.
        """
        return cls(
            source=value["source"],
            id=value["id"],
            type=value["type"],
            subject=value["subject"],
            time=value["time"],
            data=value["data"],
            hops=value["hops"],
            lineage=tuple(value["lineage"]),
            vouched=frozenset(value["vouched"]),
            extensions=value["extensions"],
            readers=frozenset(value["readers"]) if "readers" in value else None,
        )


def vouched_attributes(
    vouches: str, columns: Mapping[str, str | None], listed: Collection[str]
) -> frozenset[str]:
    """Return what a source of rows vouches for in each Event that it makes of one.

    `columns` are the attributes and the columns that they come from, None for what the source
    makes itself. Whoever writes rows chooses what is in them, so a column's value is vouched for
    where the operator `listed` the column, in the envelope and in the payload; with "envelope" the
    writers are trusted for all of the envelope.
    """
    chosen = {name for name, column in columns.items() if column is not None} - {
        name for name, column in columns.items() if column in listed
    }
    envelope = ENVELOPE if vouches == "envelope" else ENVELOPE - chosen
    places = (column.replace("~", "~0").replace("/", "~1") for column in listed)
    return envelope | {f"{DATA}/{place}" for place in places}


def check_event(event: Event, *, max_bytes: int) -> bytes:
    """Return the event's canonical payload, or raise BadEvent naming the attribute and the mend."""
    for name in ("source", "id", "type"):
        value = getattr(event, name)
        if not isinstance(value, str) or not value.strip():
            raise BadEvent(
                f"attribute {name!r} is missing or empty", mend=f"give the event a {name}"
            )
        if len(value) > 1024:
            raise BadEvent(f"attribute {name!r} is longer than 1024 characters", mend="shorten it")
    for name, value in (("subject", event.subject), ("time", event.time)):
        if value is not None and not isinstance(value, str):
            raise BadEvent(f"attribute {name!r} is no text", mend="send a text, or leave it out")
    # CloudEvents has no control characters in these; this one no store keeps alike.
    if "\0" in event.source + event.id + event.type + (event.subject or "") + (event.time or ""):
        names = ("source", "id", "type", "subject", "time")
        name = next(name for name in names if "\0" in (getattr(event, name) or ""))
        raise BadEvent(f"attribute {name!r} holds a NUL character", mend="leave it out")
    if event.subject is not None and len(event.subject) > 1024:
        raise BadEvent("attribute 'subject' is longer than 1024 characters", mend="shorten it")
    if event.hops < 0 or event.hops < len(event.lineage):
        raise BadEvent("attribute 'hops' is smaller than the lineage it counts", mend="send both")
    try:
        payload = event.to_body()
    except (ValueError, TypeError) as error:
        raise BadEvent(f"data has no JSON form: {error}", mend="send JSON in UTF-8") from error
    if "\0" in (subject_of(event) or ""):
        raise BadEvent("the sender in data holds a NUL character", mend="leave it out")
    if len(payload) > max_bytes:
        raise BadEvent(
            f"event is {len(payload)} bytes, the limit is {max_bytes}",
            mend="send a reference instead of the content, or raise max_event_bytes",
        )
    return payload


def subject_of(event: Event) -> str | None:
    """Return under which subject an Event's content is found: for mail its sender, else its own."""
    if event.type.startswith("mail.") and isinstance(event.data, dict):
        sender = event.data.get("from")
        if isinstance(sender, str) and sender:
            return sender.lower()
    return event.subject


def metric_value(data: object) -> float | None:
    """Return the finite number `value` of a metric's data, None if it has none.

    Fractions come as decimal strings (see `Event.from_body`).
    """
    value = data.get("value") if isinstance(data, Mapping) else None
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
