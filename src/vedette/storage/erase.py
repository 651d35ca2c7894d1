"""Erasing content: bodies, and what action records hold of them. The proof still holds."""

from __future__ import annotations

import orjson

from vedette.entry import Draft
from vedette.errors import BadCommand
from vedette.ports import Erased
from vedette.storage.database import Database, Row
from vedette.storage.ledger import Ledger
from vedette.storage.rows import find_position

_FOUND = "SELECT b.seq, e.bytes, e.about FROM body b JOIN entry e ON e.seq=b.seq WHERE "


def erase(
    database: Database,
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
    found = _bodies(database, event, subject, entry)
    if not found:
        by, value = next(
            (by, value)
            for by, value in (("event", event), ("subject", subject), ("entry", entry))
            if value is not None
        )
        raise BadCommand(f"no body is found by {by} {value!r}")
    abouts = sorted({row[2] for row in found if row[2] is not None})
    events = []
    for about in abouts:
        events += [key for (key,) in database.rows("SELECT key FROM event WHERE seq=?", (about,))]
        runs = database.rows("SELECT id, state FROM run WHERE position=?", (about,))
        for run, state in runs:
            if state in ("ready", "waiting"):
                raise BadCommand(
                    f"run {run} still needs this content",
                    mend="settle its holds (approve, deny) or let it finish first",
                )
    database.many("DELETE FROM body WHERE seq=?", [(row[0],) for row in found])
    gone = [(about,) for about in abouts]
    database.many("UPDATE action SET record=NULL, answer=NULL WHERE position=?", gone)
    if entry is None:
        # Under whose name it was goes with the content.
        database.many("UPDATE event SET subject=NULL WHERE seq=?", gone)
        database.many("UPDATE refused SET subject=NULL WHERE seq=?", gone)
    digests = sorted(str(orjson.loads(row[1])["body"]) for row in found)
    placed = Draft(draft.kind, {**draft.fields, "erased": digests}, body=draft.body)
    ledger.append([placed], None, 0, at_us)
    return Erased(tuple(digests), tuple(sorted(events)))


def _bodies(
    database: Database, event: str | None, subject: str | None, entry: int | None
) -> list[Row]:
    """Return (seq, entry bytes, about) of what is found."""
    if entry is not None:
        return database.rows(f"{_FOUND} b.seq=?", (entry,))
    if event is not None:
        abouts = [find_position(database, event)]
        abouts += [seq for (seq,) in database.rows("SELECT seq FROM refused WHERE key=?", (event,))]
    else:
        sql = "SELECT seq FROM event WHERE subject=? UNION SELECT seq FROM refused WHERE subject=?"
        abouts = [seq for (seq,) in database.rows(sql, (subject, subject))]
    return [
        row
        for about in sorted(set(abouts))
        for row in database.rows(f"{_FOUND} e.about=?", (about,))
    ]
