"""Which runs wait for an event, found as it is accepted, in the same transaction.

Who waits has a row under a key that begins with what is waited for (`vedette.domain.event_wait`).
The first event that matches takes the row away, writes into the run that waits which one it was,
and makes it due. A store in which nobody waits looks for nothing: that is known, and asked again
only where somebody else may have written.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from vedette.domain.entry import MATCHED_KIND, Draft
from vedette.domain.event import Event
from vedette.domain.event_wait import (
    WAITS,
    action_of,
    digest_at,
    find_place_fault,
    places_part,
    type_part,
)
from vedette.domain.run import RunWake
from vedette.store.dialect import Database
from vedette.store.ledger_writer import LedgerWriter
from vedette.store.row_mapper import find_position, read_action
from vedette.store.run_wakes import wake_run

_ANY = 'SELECT 1 FROM "row" WHERE collection=? LIMIT 1'
_NEXT = 'SELECT key, data FROM "row" WHERE collection=? AND key>=? AND key<? ORDER BY key LIMIT 1'
_ALL = 'SELECT key, data FROM "row" WHERE collection=? AND key>=? AND key<? ORDER BY key'
_DELETE = 'DELETE FROM "row" WHERE collection=? AND key=?'
# After every hexadecimal digit.
_END = "g"


def has_waits(database: Database) -> bool:
    """Say whether any run waits for an event."""
    return bool(database.rows(_ANY, (WAITS,)))


def wake_waiting(
    database: Database, ledger: LedgerWriter, event: Event, seq: int, at_us: int
) -> Iterator[tuple[int, str, str]]:
    """Wake all that wait for an event, accepted at `seq`; yield their places and ids.

    An event that comes of an agent's own effects wakes none of its runs, as it begins none. All
    that the group has of runs and rows is written by then.
    """
    for key, agent in list(_find_waits(database, event)):
        if agent in event.lineage:
            continue
        database.execute(_DELETE, (WAITS, key))
        id = action_of(key)
        action = read_action(database, find_position(database, id), id)
        if action is None or not action.is_awaited:
            continue  # its run ended otherwise
        fields = {"action": action.id, "tool": action.tool}
        wake = RunWake(action.run, Draft(MATCHED_KIND, fields, seq))
        position, name = wake_run(database, ledger, wake, at_us)
        if position:
            yield position, name, action.run


def _find_waits(database: Database, event: Event) -> Iterator[tuple[str, str]]:
    """Yield the key of each row whose action waits for an event, and the name of its agent."""
    first = type_part(event.type)
    after = first
    while rows := database.rows(_NEXT, (WAITS, after, first + _END)):
        ((key, data),) = rows
        row = _read_row(data)
        if row is None:
            database.execute(_DELETE, (WAITS, key))
            continue
        looked = first + places_part(row["places"])
        if (digest := digest_at(event, row["places"])) is not None:
            prefix = looked + digest
            for each, data in database.rows(_ALL, (WAITS, prefix, prefix + _END)):
                yield each, (_read_row(data) or row)["agent"]
        after = max(looked, key[: len(looked)]) + _END


def _read_row(data: bytes) -> dict[str, Any] | None:
    """Return what a row says; None if somebody edited it: an event is accepted all the same."""
    try:
        row = orjson.loads(data)
        places = [place for place in row["places"] if find_place_fault(place) is None]
        return row if type(row["agent"]) is str and places == row["places"] else None
    except (ValueError, LookupError, TypeError, AttributeError):
        return None
