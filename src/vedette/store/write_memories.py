"""Corrections of runs, and what people make of memories, written inside the store's transaction.

Each is one item of the writer: the entry, and whatever belongs to it, stand together or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from msgspec.structs import replace

from vedette.domain.base.errors import AlreadyDone, BadCommand, NotFound
from vedette.domain.compensation import erased_error
from vedette.domain.entry import Draft
from vedette.domain.memory_state import LedgerMemory, check_transition
from vedette.domain.ports.run_store import AcceptResult, Arrival
from vedette.store.dialect import Database
from vedette.store.ledger_writer import LedgerWriter
from vedette.store.read_memories import MemoryReader
from vedette.store.row_mapper import find_position, read_run
from vedette.store.stored_entries import EntryReader
from vedette.store.write_runs import StepWriter

_RECORDED = "SELECT 1 FROM action WHERE position=? AND id=? AND record IS NOT NULL"


def move_memories(
    database: Database,
    ledger: LedgerWriter,
    moves: Sequence[tuple[Draft, Sequence[str]]],
    at_us: int,
) -> list[LedgerMemory]:
    """Append entries that move memories (`bank/id`) in the store; return where they stand then.

    Raises what `vedette.domain.memory_state.check_transition` raises if one may not be moved so;
    then none is.
    """
    known = MemoryReader(database).all()
    moved = []
    for draft, names in moves:
        for name in dict.fromkeys(names):
            bank, _, id = name.partition("/")
            # What no entry tells of is a reviewed file that was never taken back.
            one = known.setdefault(name, LedgerMemory(bank, id, "active"))
            check_transition(draft.kind, one)
            about = find_position(database, one.event) or None if one.event else None
            fields = {**draft.fields, "memory": name, "event": one.event or None}
            placed = replace(draft, fields=fields, cause=one.last or None)
            one.last = ledger.append([placed], None, 0, at_us, about)
            one.apply(draft.kind, str(draft.fields["actor"]), at_us)
            moved.append(one)
    return moved


def propose_memory(database: Database, ledger: LedgerWriter, draft: Draft, at_us: int) -> int:
    """Append the entry of what a person proposes, unless the store has it; return its seq."""
    name = f"{draft.fields['memory']}/{draft.fields['what']}"
    if name in MemoryReader(database).all():
        raise AlreadyDone(f"{name} was proposed already")
    return ledger.append([draft], None, 0, at_us)


def corrections(database: Database, run: str) -> list[tuple[Mapping[str, Any], Any]]:
    """Return the rows (entry, body) of a run's corrections, oldest first; body None if erased."""
    position = find_position(database, run)
    found = EntryReader(database).of_events([position], kinds=("run.corrected",))
    entries = (
        (orjson.loads(one.raw), None if one.data is None else orjson.loads(one.data))
        for one in found
    )
    return [(entry, body) for entry, body in entries if entry["run"] == run]


def record_correction(
    database: Database,
    ledger: LedgerWriter,
    step_writer: StepWriter,
    run: str,
    draft: Draft,
    arrival: Arrival | None,
    at_us: int,
) -> tuple[int, AcceptResult | None]:
    """Append the entry of a correction, and accept the event that tells the curators of it.

    Returns the entry's seq and what was accepted. Raises AlreadyDone if that is what this person
    said of it last, NotFound without such a run, BadCommand if its content was erased.
    """
    found = read_run(database, run)
    if found is None:
        raise NotFound(f"there is no run {run!r}", mend="see `vedette runs`")
    if not EntryReader(database).has_content(found.position):
        raise BadCommand(f"the content of run {run} was erased", mend="there is nothing to learn")
    assert draft.body is not None
    said, who = orjson.loads(draft.body.data), draft.fields["actor"]
    mine = [one for one in corrections(database, run) if one[0].get("actor") == who]
    if mine:
        entry, body = mine[-1]
        same = body is not None and body.get("should") == said.get("should")
        if same and entry["outcome"] == draft.fields["outcome"]:
            raise AlreadyDone(f"{who} said so of run {run} already")
    fields = {**draft.fields, "event": found.event, "agent": found.agent}
    if arrival is not None:
        fields["what"] = arrival.event.key
    placed = Draft(draft.kind, fields, found.last, 0, draft.body)
    seq = ledger.append([placed], run, found.entries, at_us, found.position)
    database.execute(
        "UPDATE run SET steps=steps+1, entries=entries+1, last=? WHERE position=? AND agent=?",
        (seq, found.position, found.agent),
    )
    if arrival is None:
        return seq, None
    return seq, accept_order(step_writer, replace(arrival, cause=seq))


def accept_undo(
    database: Database, step_writer: StepWriter, action: str, arrival: Arrival
) -> AcceptResult:
    """Accept into the store the event of an undo, which holds a copy of its action's record.

    Raises AlreadyDone if it was accepted already, BadCommand if what it was made of was erased
    since: an erasure before this did not find the copy.
    """
    position = find_position(database, action)
    recorded = database.rows(_RECORDED, (position, action))
    if not recorded or not EntryReader(database).has_content(position):
        raise erased_error(action)
    return accept_order(step_writer, arrival)


def accept_order(step_writer: StepWriter, arrival: Arrival) -> AcceptResult:
    """Accept the event of an order into the store. Raises AlreadyDone if it was before."""
    (accepted,) = step_writer.accept([arrival], None)
    if accepted.duplicate:
        raise AlreadyDone(f"event {accepted.event} was accepted already")
    return accepted
