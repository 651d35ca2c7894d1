"""Artefacts of a run: what is taken out of a large outcome, and the ranges that are read of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vedette.domain.action import Action
from vedette.domain.artefact import (
    MAX_RANGE_CHARS,
    STORED_KIND,
    Owner,
    extract_artefacts,
    find_references,
)
from vedette.domain.base import machine
from vedette.domain.base.canonical import SALT_BYTES
from vedette.domain.effect import Outcome
from vedette.domain.entry import Draft
from vedette.domain.event import DATA
from vedette.domain.run import ActionRow
from vedette.domain.tool import Tool
from vedette.engine.tool_calls import answer_readers

if TYPE_CHECKING:
    from vedette.engine.run_context import RunContext


def take_artefacts(
    context: RunContext, row: ActionRow, tool: Tool, outcome: Outcome
) -> tuple[Outcome, list[Draft]]:
    """Return a call's outcome with references to what is too large in it, and the entries of that.

    They belong into the step that records the outcome. An inverse is made of the outcome of its
    tool, so that stays whole.
    """
    if tool.inverse is not None:
        return outcome, []
    is_trusted = tool.output == "trusted" and "label_output" not in row.obliges.split(",")
    outcome, artefacts = extract_artefacts(
        outcome,
        context.run.event,
        context.subject,
        lambda: machine.random_bytes(SALT_BYTES),
        label="trusted" if is_trusted else "untrusted",
        readers=answer_readers(tool, row),
    )
    return outcome, [
        context.entry(
            STORED_KIND, after=row.last, action=row.id, tool=tool.name, what=artefact.type,
            size=len(artefact.text), body=body,
        )
        for artefact, body in artefacts
    ]  # fmt: skip


def find_owner(context: RunContext, action: Action) -> Owner:
    """Say whose artefact an action names: its run's, or one that its event hands over, or neither.

    An event hands over what it tells of in data that the engine vouches for: whoever else sends one
    may write any id into it.
    """
    id = action.args["id"]
    stored = context.services.store.runs.artefact(id)
    if stored is None:
        return "other"
    if stored.run == context.run.id:
        return "own"
    event = context.event
    return "handed" if DATA in event.vouched and id in find_references(event.data) else "other"


def read_artefact(context: RunContext, action: Action) -> Outcome:
    """Return what a permitted read of an artefact comes to: its range.

    What is read is untrusted, and as secret as the artefact (`tool_calls.label_answers`).
    """
    stored = context.services.store.runs.artefact(action.args["id"])
    offset = action.args.get("offset", 0)
    length = action.args.get("length", MAX_RANGE_CHARS)
    if stored is None or stored.artefact is None:
        return Outcome("failed", error="its content was erased")
    if offset < 0 or not 0 < length <= MAX_RANGE_CHARS:
        what = f"offset is at least 0, length from 1 to {MAX_RANGE_CHARS}"
        return Outcome("failed", error=what)
    return Outcome("done", stored.artefact.read_range(stored.id, offset, length))
