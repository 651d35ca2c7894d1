"""Reserved names, which no event from outside may claim: attributes, types, others' sources.

The sources that adapters of this process make events under begin with the kind of the source, as
`[[sources]]` of vedette.toml names it, and a colon. Whoever else could use one would decide which
of the adapter's ids are known already, and so which of its events are never handled; and would be
trusted for what the adapter vouches for.
"""

from __future__ import annotations

from vedette.config.plugins import REINSTALL, plugins
from vedette.domain.base.errors import BadEvent, BadFleet
from vedette.domain.event import PRINCIPAL, REASON, Event
from vedette.domain.ports.plugin import SOURCES

# A person's name and reason come with the person's own order, over the local socket.
ENGINE_ATTRIBUTES = frozenset({PRINCIPAL, REASON})

# Ticks are made by the engine alone; nobody else may claim the instant it is.
_ENGINE_SOURCES, _ENGINE_TYPES = "vedette:", "vedette."


def source_kinds() -> tuple[str, ...]:
    """Return every kind that a table of `[[sources]]` may have, those of plugins too.

    Raises BadFleet if there is none: then nothing could be told apart.
    """
    kinds = plugins(SOURCES).names()
    if not kinds:
        raise BadFleet("no kind of source is known", where=SOURCES, mend=REINSTALL)
    return kinds


SOURCE_PREFIXES = tuple(f"{kind}:" for kind in source_kinds())


def reserved_attribute(event: Event, *, own_source: str | None = None) -> str | None:
    """Return the attribute in which an event from outside claims a reserved name; None if none.

    The engine's own attributes, types and sources are nobody else's. The sources that adapters make
    events under are theirs: `own_source` is the one whole source of the adapter that delivers it.
    """
    claimed = sorted(ENGINE_ATTRIBUTES & event.extensions.keys())
    if claimed:
        return claimed[0]
    if event.type.startswith(_ENGINE_TYPES):
        return "type"
    if event.source.startswith(_ENGINE_SOURCES):
        return "source"
    return (
        "source"
        if event.source.startswith(SOURCE_PREFIXES) and event.source != own_source
        else None
    )


def check_unreserved(event: Event, own_source: str) -> Event:
    """Return an event that claims no reserved name: the engine's or another source's.

    `own_source` is the whole source of the adapter that delivers it. Raises BadEvent.
    """
    claimed = reserved_attribute(event, own_source=own_source)
    if claimed is None:
        return event
    if claimed in ENGINE_ATTRIBUTES:
        raise BadEvent(f"attribute {claimed!r} is the engine's own", mend="leave it out")
    value = event.type if claimed == "type" else event.source
    raise BadEvent(
        f"{claimed} {value[:64]!r} belongs to the engine or to another source",
        mend=f"use a {claimed} of your own",
    )
