"""Sessions in the store's tables: which run of one is open (`vedette.engine.sessions`)."""

from __future__ import annotations

import orjson

from vedette.domain.base.canonical import canonical_json
from vedette.domain.run import Run
from vedette.domain.session import SESSIONS, session_row_key
from vedette.store.dialect import Database
from vedette.store.row_mapper import read_run

_MOVE = 'UPDATE "row" SET data=? WHERE collection=? AND key=?'
_ROW = 'SELECT data FROM "row" WHERE collection=? AND key=?'


def find_session_run(database: Database, run: Run) -> str | None:
    """Return the other run in which a run's session goes on, if one is open."""
    rows = database.rows(_ROW, (SESSIONS, session_row_key(run.agent, run.key)))
    other = read_run(database, str(orjson.loads(rows[0][0]).get("run"))) if rows else None
    if other is None or other.id == run.id or other.state in ("done", "dead"):
        return None
    return other.id


def reopen_session(database: Database, run: Run) -> None:
    """Have a run that is taken up again take its session's events in, if it is of one."""
    data = canonical_json({"run": run.id})
    database.execute(_MOVE, (data, SESSIONS, session_row_key(run.agent, run.key)))
