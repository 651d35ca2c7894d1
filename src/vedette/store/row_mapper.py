"""Rows of the store as nouns, and how an id leads to its rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vedette.domain.run import ActionRow, Run
from vedette.store.dialect import Database, Row
from vedette.store.schema import tag

_RUN_FIELDS = ", ".join("e.key" if f == "event" else f"r.{f}" for f in Run.__struct_fields__)
SELECT_RUNS = f"SELECT {_RUN_FIELDS} FROM run r JOIN event e ON e.seq=r.position"
SELECT_ACTIONS = f"SELECT {', '.join(ActionRow.__struct_fields__)} FROM action"

# The last observed position of a key before another, by the chain of what was observed, and the
# first at or after it (0 if there is none).
FIND_PRIOR = (
    "WITH RECURSIVE chain(position, later) AS ("
    "SELECT position, CAST(0 AS BIGINT) FROM head WHERE agent=? AND key=? UNION ALL "
    "SELECT r.prior, c.position FROM chain c JOIN run r ON r.position=c.position AND r.agent=? "
    "WHERE c.position>=?) SELECT position, later FROM chain WHERE position<? LIMIT 1"
)


def to_run(row: Row) -> Run:
    """Make a Run of a row of SELECT_RUNS."""
    run = Run(*row)
    run.observed = bool(run.observed)
    return run


def to_action(row: Row) -> ActionRow:
    """Make an ActionRow of a row of SELECT_ACTIONS; an erased record is empty."""
    action = ActionRow(*row)
    action.record = action.record or b""
    return action


def select_runs(database: Database, rest: str, values: Sequence[Any] = ()) -> list[Run]:
    """Return the runs that an SQL condition on `r` and `e` selects, in its order."""
    return [to_run(row) for row in database.rows(f"{SELECT_RUNS} {rest}", values)]


def read_run(database: Database, run: str) -> Run | None:
    """Return a run, read from its row by its id."""
    of = (find_position(database, run), run)
    return next(iter(select_runs(database, "WHERE r.position=? AND r.id=?", of)), None)


def read_actions(database: Database, position: int, run: str) -> list[ActionRow]:
    """Return the actions of a run, read from their rows, in order."""
    sql = f"{SELECT_ACTIONS} WHERE position=? AND run=? ORDER BY turn, ordinal"
    return [to_action(row) for row in database.rows(sql, (position, run))]


def read_action(database: Database, position: int, action: str) -> ActionRow | None:
    """Return an action, read from its row by its id, at the position of its run."""
    rows = database.rows(f"{SELECT_ACTIONS} WHERE position=? AND id=?", (position, action))
    return to_action(rows[0]) if rows else None


def find_position(database: Database, id: str) -> int:
    """Return the position of an event, run or action in the tables by its id; 0 if unknown."""
    try:
        number = tag(id)
    except ValueError:
        return 0
    rows = database.rows("SELECT seq, key FROM event WHERE tag=?", (number,))
    if id.startswith("evt_"):
        return next((int(seq) for seq, key in rows if key == id), 0)
    table = "run" if id.startswith("run_") else "action"
    for seq, _ in rows:
        if database.rows(f"SELECT 1 FROM {table} WHERE position=? AND id=?", (seq, id)):
            return int(seq)
    return _old_position(database, id)


def _old_position(database: Database, id: str) -> int:
    """Find what was named before ids led home, or belongs to a run that was."""
    rows = database.rows("SELECT position FROM old_id WHERE id=?", (id,))
    if not rows and id.startswith("act_"):
        run = f"run_{id[4:20]}"
        rows = database.rows("SELECT position FROM old_id WHERE id>=? AND id<?", (run, run + "g"))
    return int(rows[0][0]) if rows else 0
