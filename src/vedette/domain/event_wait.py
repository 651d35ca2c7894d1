"""An EventWait: the event that an awaited action looks for, and how it is found without a search.

It has a type, and values at places (JSON Pointers into `Event.root`: `/subject`, `/data/thread`).
All of that is in the key of one row of the engine's own, by which the acceptance of an event finds
who waits for it: for a type, the sets of places that are looked at, and for each set one look-up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from vedette.domain.base.canonical import canonicalize, normalize_json, sha256_hex
from vedette.domain.base.errors import BadProposal
from vedette.domain.event import Event
from vedette.domain.origin import resolve_path, split_pointer

# The collection of the rows that say who waits for events.
WAITS = "vedette:waits"
MAX_PLACES = 8
# Hexadecimal digits of each of the two parts with which a key begins: of the type, of the places.
PART = 24
_ROOTS = frozenset({"source", "id", "subject", "time", "data"})


class EventWait(Struct, frozen=True):
    """What is waited for: a type, and values by place, as a recorded action has them."""

    type: str
    where: Mapping[str, Any]

    @property
    def places(self) -> list[str]:
        """Return the places that are looked at, sorted."""
        return sorted(self.where)

    def matches(self, event: Event) -> bool:
        """Say whether an event is what is waited for."""
        return event.type == self.type and (
            digest_at(event, self.places) == _digest([self.where[at] for at in self.places])
        )

    def row_key(self, action: str) -> str:
        """Return the key of the row that says that an action waits for this."""
        values = [self.where[at] for at in self.places]
        return f"{type_part(self.type)}{places_part(self.places)}{_digest(values)}{action}"


def read_event_wait(args: Mapping[str, Any]) -> EventWait | None:
    """Return the event that a wait's arguments name; None if it is for none."""
    if "event" not in args:
        return None
    source = {"/source": args["source"]} if "source" in args else {}
    return EventWait(args["event"], {**args.get("where", {}), **source})


def action_of(row_key: str) -> str:
    """Return the action that a row's key is of."""
    return row_key[2 * PART + 64 :]


def find_place_fault(place: str) -> str | None:
    """Return why a place is none of an event; None if it is one."""
    try:
        root = split_pointer(place)[0]
    except BadProposal as error:
        return error.what
    return None if root in _ROOTS else f"{place!r} is no place of an event: one of /data, /subject"


def digest_at(event: Event, places: Sequence[str]) -> str | None:
    """Return the digest of an event's values at places; None if it has not all of them, or one that
    no wait can name: it has no canonical form.
    """
    root = event.root()
    try:
        return _digest([resolve_path(root, split_pointer(at)) for at in places])
    except (BadProposal, ValueError):
        return None


def type_part(type: str) -> str:
    """Return how the keys begin of those who wait for events of a type."""
    return sha256_hex(type.encode())[:PART]


def places_part(places: Sequence[str]) -> str:
    """Return what follows in the keys of those who look at these places."""
    return sha256_hex(canonicalize(list(places)))[:PART]


def _digest(values: Sequence[Any]) -> str:
    return sha256_hex(canonicalize(normalize_json(list(values))))
