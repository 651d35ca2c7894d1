"""Erasing content: out of the tables, and out of the file and its log.

The writing connection runs with secure_delete, so what is freed is overwritten; the log still
holds the pages as they were until it is written back and cut to nothing, which is `scrub`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from vedette.adapters.sqlite.ledger import Ledger
from vedette.entry import Draft
from vedette.errors import BadCommand
from vedette.ports import Erased

if TYPE_CHECKING:
    import apsw

_WHERE = {"event": "e.event=?", "subject": "b.subject=?", "entry": "b.seq=?"}

# How long an erasure waits for readers of older pages of the log.
WAIT_MS = 1000


def erase(
    connection: apsw.Connection,
    ledger: Ledger,
    *,
    event: str | None,
    subject: str | None,
    entry: int | None,
    draft: Draft,
    at_us: int,
) -> Erased:
    """Delete the bodies found by exactly one of event, subject and entry, and say so in the ledger.

    In a transaction of the writer's. Raises BadCommand if there is none, or if a run needs it.
    """

    def fetch(sql: str, *values: Any) -> list[tuple[Any, ...]]:
        return connection.execute(sql, values).fetchall()

    ((by, value),) = (
        (by, value)
        for by, value in (("event", event), ("subject", subject), ("entry", entry))
        if value is not None
    )
    found = fetch(
        "SELECT b.seq, e.bytes, e.event FROM body b JOIN entry e ON e.seq=b.seq "
        f"WHERE {_WHERE[by]}",
        value,
    )
    if not found:
        raise BadCommand(f"no body is found by {by} {value!r}")
    events = sorted({row[2] for row in found if row[2]})
    positions = [
        seq for key in events for (seq,) in fetch("SELECT seq FROM event WHERE key=?", key)
    ]
    for position in positions:
        for run, state in fetch("SELECT id,state FROM run WHERE position=?", position):
            if state in ("ready", "waiting"):
                raise BadCommand(
                    f"run {run} still needs this content",
                    mend="settle its holds (approve, deny) or let it finish first",
                )
    for row in found:
        connection.execute("DELETE FROM body WHERE seq=?", (row[0],))
    for position in positions:
        connection.execute(
            "UPDATE action SET record=NULL, answer=NULL "
            "WHERE run IN (SELECT id FROM run WHERE position=?)",
            (position,),
        )
    digests = sorted(str(orjson.loads(row[1])["body"]) for row in found)
    placed = Draft(draft.kind, {**draft.fields, "erased": digests}, body=draft.body)
    ledger.append([placed], None, 0, at_us)
    return Erased(tuple(digests), tuple(events))


def scrub(connection: apsw.Connection, wait_ms: int = 0) -> bool:
    """Write the log back and cut it to nothing; False if a reader still needs it.

    Outside of any transaction; waits up to `wait_ms` for readers. Never raises for what SQLite
    says: the erasure itself stands, and the log can be cut later.
    """
    import apsw

    connection.set_busy_timeout(wait_ms)
    try:
        rows: list[Any] = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return bool(rows[0][0] == 0)
    except apsw.Error:
        return False
    finally:
        connection.set_busy_timeout(10_000)
