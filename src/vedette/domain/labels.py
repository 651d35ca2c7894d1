"""Where a run's labels of secrecy come from, and how its record and its rows keep them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from vedette.domain.agent import Agent
from vedette.domain.event import Event
from vedette.domain.memory import Memory
from vedette.domain.readers import Labels, Readers, meet

# In a row of the fleet's own, beside what a tool wrote there; no tool sees it.
ROW_READERS = "vedette.readers"


def build_run_labels(
    agent: Agent,
    event: Event,
    memories: Iterable[Memory],
    row: Readers,
    answers: Mapping[str, Readers],
) -> Labels | None:
    """Return who may read what a run has before it; None if all of it is public.

    `row` is the label of its row, `answers` have those of its outcomes by place (`outcome/0`). What
    an agent may be taught counts whole, whatever it was briefed with: its judge is made of all
    that its scopes hold.
    """
    scopes = {(scope.bank, scope.scope): scope.readers for scope in agent.scopes}
    run = meet(event.readers, row, *scopes.values(), *answers.values())
    if run is None:
        return None
    places = {"event": event.readers, "row": row, **answers}
    for memory in memories:
        # Who is briefed with what it does not declare may tell nobody.
        readers = scopes.get((memory.bank, memory.scope), frozenset())
        places[f"memory/{memory.id}"] = readers
    return Labels(run, places)


def argument_readers(record: Mapping[str, Any]) -> dict[str, frozenset[str]]:
    """Return who may read the arguments of a recorded action, as far as they are secret."""
    return {at: frozenset(readers) for at, readers in record.get("readers", {}).items()}


def unpack_row(row: Mapping[str, Any]) -> tuple[dict[str, Any], Readers]:
    """Return what a tool wrote into a row, and who may read it."""
    values = dict(row)
    readers = values.pop(ROW_READERS, None)
    return values, None if readers is None else frozenset(readers)


def pack_row(row: Mapping[str, Any], readers: Readers) -> dict[str, Any]:
    """Return a row as it is kept: what a tool wrote, with who may read it."""
    values, _ = unpack_row(row)
    return values if readers is None else {**values, ROW_READERS: sorted(readers)}
