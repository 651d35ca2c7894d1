"""Triggers: what wakes an agent. A Schedule makes ticks, a Subscription matches events."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Literal

from msgspec import Struct, field

from vedette.domain.event import Event

MissedTickPolicy = Literal["skip", "latest", "all"]

TICK_TYPE = "vedette.tick"
# A person wants an effect taken back; wakes the agent of the effect and no other.
UNDO_TYPE = "vedette.undo"
# A person said what a run should have been; the engine alone says so, in the commit of that word.
CORRECTION_TYPE = "vedette.correction"

# What a run that takes an effect back was woken by; no trigger of an agent is called so.
UNDO_TRIGGER = "undo"


class Subscription(Struct, frozen=True):
    """Wakes the agent on events whose attributes match all given patterns (fnmatch, case kept).

    Without a name it is called by its patterns (`trigger_name`), as policy is told what woke a run.
    """

    types: tuple[str, ...]
    sources: tuple[str, ...] = ("*",)
    subjects: tuple[str, ...] = ("*",)
    name: str = ""

    @property
    def trigger_name(self) -> str:
        """Return the name: its own, or its types with what narrows them, `mail.*@imap:*`."""
        if self.name:
            return self.name
        text = ",".join(self.types)
        if self.sources != ("*",):
            text += "@" + ",".join(self.sources)
        return text if self.subjects == ("*",) else text + "#" + ",".join(self.subjects)

    def find_mismatch(self, event: Event) -> str | None:
        """Return which attribute does not match, or None if the event wakes the agent."""
        if not any(fnmatchcase(event.type, pattern) for pattern in self.types):
            return f"type {event.type!r} is not among {', '.join(self.types)}"
        if not any(fnmatchcase(event.source, pattern) for pattern in self.sources):
            return f"source {event.source!r} is not among {', '.join(self.sources)}"
        if not any(fnmatchcase(event.subject or "", pattern) for pattern in self.subjects):
            return f"subject {event.subject!r} is not among {', '.join(self.subjects)}"
        return None


class Schedule(Struct, frozen=True):
    """Wakes the agent at nominal instants.

    Exactly one of `every_us` (a period, counted from the epoch), `cron` (five fields) and
    `daily` (HH:MM local time) is given. `missed` says what becomes of instants that passed while
    nothing ran, none of them older than `max_age_us`.
    """

    name: str
    every_us: int | None = None
    cron: str | None = None
    daily: str | None = None
    zone: str = "UTC"
    missed: MissedTickPolicy = "latest"
    max_age_us: int = 7 * 86_400_000_000
    data: Mapping[str, object] = field(default_factory=dict)
