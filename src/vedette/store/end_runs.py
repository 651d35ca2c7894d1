"""Ending what waits, so that its content may go: each hold is denied, then the run is dropped.

In the transaction that erases, so that nothing is half done and no worker is needed for it.
"""

from __future__ import annotations

from collections.abc import Iterable

from vedette.domain.base.errors import BadCommand
from vedette.domain.entry import Body, Draft
from vedette.domain.hold import FINAL_STATES, transition
from vedette.domain.run import ActionRow, Run
from vedette.store.dead_letters import MOVE_RUN
from vedette.store.dialect import Database
from vedette.store.ledger_writer import LedgerWriter
from vedette.store.row_mapper import ACTION_FIELDS, SELECT_RUNS, to_action, to_run
from vedette.store.write_buffer import WriteBuffer

_POSSIBLE_EFFECTS = ("intended", "started", "unknown")


def open_runs(database: Database, abouts: Iterable[int]) -> list[Run]:
    """Return the runs of these events that have not ended, in order."""
    sql = f"{SELECT_RUNS} WHERE r.position=? AND r.state IN ('ready','waiting') ORDER BY r.agent"
    return [to_run(row) for about in sorted(abouts) for row in database.rows(sql, (about,))]


def open_holds(database: Database, run: Run) -> list[ActionRow]:
    """Return the actions of a run that are held, or approved and not decided again yet."""
    return [row for row in _actions(database, run) if row.hold in ("open", "approved")]


def end_run(
    database: Database,
    ledger: LedgerWriter,
    buffer: WriteBuffer,
    run: Run,
    actor: str,
    body: Body | None,
    at_us: int,
) -> None:
    """Deny what a waiting run holds, and drop it, as a person's order.

    Raises BadCommand for a run that is being handled, or that has an effect which may have
    happened: what came of that must not be lost.
    """
    if run.state != "waiting":
        raise BadCommand(
            f"run {run.id} is being handled, or is about to be", mend="let it finish, then again"
        )
    rows = _actions(database, run)
    for row in rows:
        if row.effect in _POSSIBLE_EFFECTS or row.waits == "policy":
            raise BadCommand(
                f"{row.tool} of run {run.id} may have happened ({row.effect or 'denied since'})",
                mend="wait until it is settled, or settle it: `vedette hold`",
            )
    for row in rows:
        if row.hold is None or row.hold in FINAL_STATES:
            continue
        fields = {
            "event": run.event, "agent": run.agent, "action": row.id, "action_digest": row.digest,
            "tool": row.tool, "actor": actor,
        }  # fmt: skip
        row.hold = "denied" if row.hold == "released" else transition(row.hold, "denied")
        row.decided, row.rule, row.waits = "deny", "hold.denied", None
        row.approver, row.until_us = actor, 0
        draft = Draft("hold.denied", fields, row.last or run.last, 0, body)
        run.last = row.last = ledger.append([draft], run.id, run.entries, at_us, run.position)
        run.entries += 1
        buffer.add_action(run.position, row, 0)
    fields = {"actor": actor, "event": run.event, "agent": run.agent}
    draft = Draft("run.dropped", fields, run.last, 0, body)
    seq = ledger.append([draft], run.id, run.entries, at_us, run.position)
    entries = run.entries + 1
    database.execute(MOVE_RUN, ("done", entries, seq, 0, run.position, run.agent))


def _actions(database: Database, run: Run) -> list[ActionRow]:
    sql = f"SELECT {ACTION_FIELDS} FROM action WHERE position=? AND run=? ORDER BY turn, ordinal"
    return [to_action(row) for row in database.rows(sql, (run.position, run.id))]
