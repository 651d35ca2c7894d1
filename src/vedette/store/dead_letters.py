"""Dead letters in the store's tables: taken up again, or closed for good, as a person orders.

On the writer's thread, in a savepoint of an order's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import orjson

from vedette.domain.base.errors import BadCommand, NotFound
from vedette.domain.entry import Draft
from vedette.domain.ports.command_store import DeadLetterResult
from vedette.domain.row_proof import OUTDATED_REVISION, REDRIVEN_RULE
from vedette.domain.run import ActionRow, Run
from vedette.store.dialect import Database
from vedette.store.ledger_writer import LedgerWriter
from vedette.store.row_mapper import read_actions, read_run
from vedette.store.sessions import find_session_run, reopen_session
from vedette.store.stored_entries import EntryReader
from vedette.store.write_buffer import WriteBuffer

# The rule written into the actions that ended when their run became a dead letter.
DEAD_RULE = "run.dead"
MOVE_RUN = (
    "UPDATE run SET state=?, steps=steps+1, entries=?, last=?, attempts=0, wake_us=?, "
    "waits=NULL WHERE position=? AND agent=?"
)


def redrive_dead_letters(
    database: Database,
    ledger: LedgerWriter,
    buffer: WriteBuffer,
    runs: Sequence[str],
    draft: Draft,
    at_us: int,
) -> DeadLetterResult:
    """Reopen dead letters in the tables. Raises BadCommand if the only one named cannot be.

    They come back as runs whose wait is over, so that a worker that lives finds them by its clock.
    """

    def reopen(run: Run, seq: int) -> None:
        for row in read_actions(database, run.position, run.id):
            if row.rule == DEAD_RULE:
                reopen_action(row)
                buffer.add_action(run.position, row, 0)
        reopen_session(database, run)
        values = ("waiting", run.entries + 1, seq, 1, run.position, run.agent)
        database.execute(MOVE_RUN, values)

    return _move_letters(database, ledger, runs, draft, at_us, _missing_content, reopen)


def drop_dead_letters(
    database: Database, ledger: LedgerWriter, runs: Sequence[str], draft: Draft, at_us: int
) -> DeadLetterResult:
    """Close dead letters in the tables. Raises BadCommand if the only one named cannot be."""

    def close(run: Run, seq: int) -> None:
        database.execute(MOVE_RUN, ("done", run.entries + 1, seq, 0, run.position, run.agent))

    return _move_letters(database, ledger, runs, draft, at_us, lambda *_: "", close)


def _move_letters(
    database: Database,
    ledger: LedgerWriter,
    runs: Sequence[str],
    draft: Draft,
    at_us: int,
    find_obstacle: Callable[[Database, Run], str],
    move: Callable[[Run, int], None],
) -> DeadLetterResult:
    """Write the entry of each run that is a dead letter and has no obstacle, and move the run."""
    moved, refused = [], []
    for name in runs:
        run = read_run(database, name)
        if run is None:
            raise NotFound(f"there is no run {name!r}", mend="see `vedette dead`")
        why = f"it is no dead letter, it is {run.state}" if run.state != "dead" else ""
        if why := why or find_obstacle(database, run):
            refused.append((name, why))
            continue
        fields = {**draft.fields, "event": run.event, "agent": run.agent}
        placed = Draft(draft.kind, fields, run.last, 0, draft.body)
        move(run, ledger.append([placed], run.id, run.entries, at_us, run.position))
        moved.append(run.id)
    if not moved and len(refused) == 1:
        name, why = refused[0]
        raise BadCommand(f"run {name} stays as it is: {why}", mend="see `vedette dead`")
    return DeadLetterResult(tuple(moved), tuple(refused))


def reopen_action(row: ActionRow) -> None:
    """Undo what a dead letter did to an action's row; what may have happened is yet to be found.

    Whatever is to be repeated is decided anew before (`OUTDATED_REVISION`).
    """
    row.waits, row.until_us, row.not_before_us, row.policy_rev = None, 0, 0, OUTDATED_REVISION
    row.approver = None
    if row.hold == "denied":
        row.hold = None
    if row.effect == "unknown":
        row.decided, row.rule = "permit", REDRIVEN_RULE
    else:
        row.decided, row.rule, row.effect = None, "", None


def _missing_content(database: Database, run: Run) -> str:
    """Return what a run would need and the store has no more."""
    entries = EntryReader(database)
    if not entries.has_content(run.position):
        return "its content was erased"
    if (other := find_session_run(database, run)) is not None:
        return f"its session goes on in run {other}"
    if run.turn:
        bare = EntryReader(database, content=False)
        turns = bare.of_events([run.position], kinds=("turn.reasoned",))
        of_run = [one.seq for one in turns if orjson.loads(one.raw).get("agent") == run.agent]
        if sum(one.data is not None for one in entries.find_all(of_run).values()) < run.turn:
            return "its recorded turns were erased or archived"
    return ""
