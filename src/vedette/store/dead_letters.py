"""Dead letters: taking them up again, or closing them for good, as a person orders.

On the writer's thread, in a savepoint of an order's own.
"""

from __future__ import annotations

from collections.abc import Sequence

from vedette.domain.base.errors import BadCommand, NotFound
from vedette.domain.entry import Draft
from vedette.domain.ports.store import DeadLetterResult
from vedette.domain.row_proof import OUTDATED_REVISION, REDRIVEN_RULE
from vedette.domain.run import ActionRow, Run
from vedette.store.dialect import Database
from vedette.store.ledger_writer import LedgerWriter
from vedette.store.row_mapper import ACTION_FIELDS, SELECT_RUNS, find_position, to_action, to_run
from vedette.store.write_buffer import WriteBuffer

# The rule written into the actions that ended when their run became a dead letter.
DEAD_RULE = "run.dead"
MOVE_RUN = (
    "UPDATE run SET state=?, steps=steps+1, entries=?, last=?, attempts=0, wake_us=?, "
    "waits=NULL WHERE position=? AND agent=?"
)


def redrive(
    database: Database,
    ledger: LedgerWriter,
    buffer: WriteBuffer,
    runs: Sequence[str],
    draft: Draft,
    at_us: int,
) -> DeadLetterResult:
    """Let dead letters be handled again. Raises BadCommand if the only one named cannot be.

    They come back as runs whose wait is over, so that a worker that lives finds them by its clock.
    """
    moved, refused = [], []
    for name in runs:
        run, why = _find_letter(database, name)
        why = why or _missing_content(database, run)
        if why:
            refused.append((name, why))
            continue
        seq = _append_entry(ledger, run, draft, at_us)
        for row in _rows(database, run):
            if row.rule == DEAD_RULE:
                reopen_action(row)
                buffer.add_action(run.position, row, 0)
        database.execute(MOVE_RUN, ("waiting", run.entries + 1, seq, 1, run.position, run.agent))
        moved.append(run.id)
    _raise_if_none(moved, refused)
    return DeadLetterResult(tuple(moved), tuple(refused))


def drop(
    database: Database, ledger: LedgerWriter, runs: Sequence[str], draft: Draft, at_us: int
) -> DeadLetterResult:
    """Close dead letters for good. Raises BadCommand if the only one named cannot be."""
    moved, refused = [], []
    for name in runs:
        run, why = _find_letter(database, name)
        if why:
            refused.append((name, why))
            continue
        seq = _append_entry(ledger, run, draft, at_us)
        database.execute(MOVE_RUN, ("done", run.entries + 1, seq, 0, run.position, run.agent))
        moved.append(run.id)
    _raise_if_none(moved, refused)
    return DeadLetterResult(tuple(moved), tuple(refused))


def reopen_action(row: ActionRow) -> None:
    """Undo what a dead letter did to an action; what may have happened is still to be found out.

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


def _find_letter(database: Database, name: str) -> tuple[Run, str]:
    position = find_position(database, name)
    rows = database.rows(f"{SELECT_RUNS} WHERE r.position=? AND r.id=?", (position, name))
    if not rows:
        raise NotFound(f"there is no run {name!r}", mend="see `vedette dead`")
    run = to_run(rows[0])
    return run, "" if run.state == "dead" else f"it is no dead letter, it is {run.state}"


def _missing_content(database: Database, run: Run) -> str:
    """Return what a run would need and the store has no more."""
    if not database.rows("SELECT 1 FROM body WHERE seq=?", (run.position,)):
        return "its content was erased"
    if run.turn:
        sql = (
            "SELECT COUNT(*) FROM entry e JOIN body b ON b.seq=e.seq "
            "WHERE e.about=? AND e.agent=? AND e.kind='turn.reasoned'"
        )
        ((turns,),) = database.rows(sql, (run.position, run.agent))
        if turns < run.turn:
            return "its recorded turns were erased or archived"
    return ""


def _rows(database: Database, run: Run) -> list[ActionRow]:
    sql = f"SELECT {ACTION_FIELDS} FROM action WHERE position=? AND run=? ORDER BY turn, ordinal"
    return [to_action(row) for row in database.rows(sql, (run.position, run.id))]


def _append_entry(ledger: LedgerWriter, run: Run, draft: Draft, at_us: int) -> int:
    fields = {**draft.fields, "event": run.event, "agent": run.agent}
    placed = Draft(draft.kind, fields, run.last, 0, draft.body)
    return ledger.append([placed], run.id, run.entries, at_us, run.position)


def _raise_if_none(moved: list[str], refused: list[tuple[str, str]]) -> None:
    if not moved and len(refused) == 1:
        name, why = refused[0]
        raise BadCommand(f"run {name} stays as it is: {why}", mend="see `vedette dead`")
