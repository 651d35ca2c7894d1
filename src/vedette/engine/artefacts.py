"""Artefacts of a run: what is taken out of a large outcome, and the ranges that are read of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from vedette.domain.action import Action
from vedette.domain.artefact import (
    MAX_RANGE_CHARS,
    STORED_KIND,
    Artefact,
    Owner,
    extract_artefacts,
)
from vedette.domain.base import machine
from vedette.domain.base.canonical import SALT_BYTES
from vedette.domain.effect import Outcome
from vedette.domain.entry import Draft
from vedette.domain.run import ActionRow
from vedette.domain.tool import Tool
from vedette.engine.tool_calls import answer_readers

if TYPE_CHECKING:
    from vedette.engine.run_context import RunContext

# How many characters the artefacts have that one step reads of, if there are several: a turn may
# propose dozens of reads, and while they are unpacked nothing else is done.
MAX_STEP_CHARS = 16 * 1024 * 1024
# What is kept of the error of an outcome.
MAX_ERROR_CHARS = 2_000


class ArtefactReads(Struct):
    """What one step reads of artefacts: the sizes of its run's, and those that were unpacked."""

    sizes: Mapping[str, int]
    unpacked: dict[str, Artefact | None] = field(default_factory=dict)


class RunArtefacts:
    """The artefacts of runs as steps keep and read them: those in the store."""

    def draw_salt(self, action: str, number: int) -> bytes:
        """Return the salt of an action's artefact, by its number: random bytes."""
        return machine.random_bytes(SALT_BYTES)

    def find_owner(self, context: RunContext, action: Action) -> Owner:
        """Say whose artefact an action names: its run's, or another. No content is read."""
        return "own" if action.args["id"] in _reads_of(context).sizes else "other"

    def read(self, context: RunContext, action: Action) -> Outcome:
        """Return what a permitted read of an artefact comes to: its range.

        What is read is untrusted, and as secret as the artefact (`tool_calls.label_answers`).
        """
        id, reads = action.args["id"], _reads_of(context)
        offset = action.args.get("offset", 0)
        length = action.args.get("length", MAX_RANGE_CHARS)
        if offset < 0 or not 0 < length <= MAX_RANGE_CHARS:
            what = f"offset is at least 0, length from 1 to {MAX_RANGE_CHARS}"
            return Outcome("failed", error=what)
        if id not in reads.unpacked:
            size = sum(reads.sizes.get(one, 0) for one in (*reads.unpacked, id))
            if reads.unpacked and size > MAX_STEP_CHARS:
                what = "other artefacts were read in this turn that are large: read it in the next"
                return Outcome("failed", error=what)
            stored = context.services.store.runs.artefact(id)
            reads.unpacked[id] = None if stored is None else stored.artefact
        artefact = reads.unpacked[id]
        if artefact is None:
            return Outcome("failed", error="its content was erased")
        return Outcome("done", artefact.read_range(id, offset, length))


def _reads_of(context: RunContext) -> ArtefactReads:
    """Return what the step that is being made reads of artefacts."""
    if context.artefact_reads is None:
        sizes = context.services.store.runs.artefact_sizes(context.run.id)
        context.artefact_reads = ArtefactReads(sizes)
    return context.artefact_reads


def take_artefacts(
    context: RunContext, row: ActionRow, tool: Tool, outcome: Outcome
) -> tuple[Outcome, list[Draft]]:
    """Return a call's outcome with references to what is too large in it, and the entries of that.

    They belong into the step that records the outcome. An inverse is made of the outcome of its
    tool, so the data of that stay whole. An error is cut, and says so.
    """
    if len(outcome.error) > MAX_ERROR_CHARS:
        cut = f"{outcome.error[:MAX_ERROR_CHARS]}… (cut: {len(outcome.error)} characters)"
        outcome = replace(outcome, error=cut)
    if tool.inverse is not None or not outcome.data:
        return outcome, []
    is_trusted = tool.output == "trusted" and "label_output" not in row.obliges.split(",")
    outcome, artefacts = extract_artefacts(
        outcome,
        context.run.event,
        context.subject,
        lambda number: context.services.artefacts.draw_salt(row.id, number),
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
