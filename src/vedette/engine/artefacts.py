"""Artefacts of a run as its steps read them: whose one is, and ranges of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from vedette.domain.action import Action
from vedette.domain.artefact import (
    MAX_RANGE_CHARS,
    Artefact,
    Owner,
)
from vedette.domain.base import machine
from vedette.domain.base.canonical import SALT_BYTES
from vedette.domain.effect import Outcome
from vedette.domain.ports.run_store import RunReader
from vedette.domain.run import ActionRow
from vedette.domain.work_tools import ASK_TOOL
from vedette.engine.tool_calls import answer_data

# How many characters the artefacts have that one step reads of, if there are several: a turn may
# propose dozens of reads, and while they are unpacked nothing else is done.
MAX_STEP_CHARS = 16 * 1024 * 1024


class ArtefactReads(Struct):
    """What one step reads of artefacts: the sizes of its run's, and those that were unpacked."""

    runs: RunReader
    sizes: Mapping[str, int]
    unpacked: dict[str, Artefact | None] = field(default_factory=dict)


def open_reads(runs: RunReader, run: str, actions: Sequence[ActionRow]) -> ArtefactReads:
    """Return what a step of a run reads of artefacts: of its own, and of those that runs which it
    asked have named to it.
    """
    sizes = dict(runs.artefact_sizes(run))
    for row in actions:
        if row.tool == ASK_TOOL and (named := answer_data(row).get("artefacts")):
            found = runs.artefact_sizes(answer_data(row)["run"])
            sizes |= {id: found[id] for id in named if id in found}
    return ArtefactReads(runs, sizes)


class RunArtefacts:
    """The artefacts of runs as steps keep and read them: those in the store."""

    def draw_salt(self, action: str, number: int) -> bytes:
        """Return the salt of an action's artefact, by its number: random bytes."""
        return machine.random_bytes(SALT_BYTES)

    def find_owner(self, reads: ArtefactReads, action: Action) -> Owner:
        """Say whose artefact an action names: its run's, or another. No content is read."""
        return "own" if action.args["id"] in reads.sizes else "other"

    def read(self, reads: ArtefactReads, action: Action) -> Outcome:
        """Return what a permitted read of an artefact comes to: its range.

        What is read is untrusted, and as secret as the artefact (`tool_calls.label_answers`).
        """
        id = action.args["id"]
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
            stored = reads.runs.artefact(id)
            reads.unpacked[id] = None if stored is None else stored.artefact
        artefact = reads.unpacked[id]
        if artefact is None:
            return Outcome("failed", error="its content was erased")
        return Outcome("done", artefact.read_range(id, offset, length))
