"""Rows as nouns, and how an id leads to its rows."""

from __future__ import annotations

from vedette.domain.run import ActionRow, Run
from vedette.store.dialect import Database, Row
from vedette.store.schema import tag

# Run's own fields in their order; the event's key comes from the event.
RUN_FIELDS = (
    "r.id, e.key, r.agent, r.key, r.position, r.state, r.steps, r.entries, r.turn, r.last, "
    "r.attempts, r.wake_us, r.waits, r.observed"
)
SELECT_RUNS = f"SELECT {RUN_FIELDS} FROM run r JOIN event e ON e.seq=r.position"

# ActionRow's own fields in their order.
ACTION_FIELDS = (
    "id, run, turn, ordinal, agent, tool, digest, record, decided, rule, policy_rev, decisions, "
    "hold, waits, until_us, approver, effect, tries, not_before_us, answer, obliges, seq, last, "
    "counted_us"
)

# The last observed position of a key before another, by the chain of what was observed, and the
# first at or after it (0 if there is none).
FIND_PRIOR = (
    "WITH RECURSIVE chain(position, later) AS ("
    "SELECT position, CAST(0 AS BIGINT) FROM head WHERE agent=? AND key=? UNION ALL "
    "SELECT r.prior, c.position FROM chain c JOIN run r ON r.position=c.position AND r.agent=? "
    "WHERE c.position>=?) SELECT position, later FROM chain WHERE position<? LIMIT 1"
)


def to_run(row: Row) -> Run:
    """Make a Run of a row selected as RUN."""
    run = Run(*row)
    run.observed = bool(run.observed)
    return run


def to_action(row: Row) -> ActionRow:
    """Make an ActionRow of a row selected as COLUMNS; an erased record is empty."""
    action = ActionRow(*row)
    action.record = action.record or b""
    return action


def find_position(database: Database, id: str) -> int:
    """Return the position of an event, a run or an action by its id; 0 if it is unknown."""
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
