"""Which runs wait for an event, found as it is accepted, in the same transaction.

Who waits has a row under a key that begins with what is waited for (`vedette.domain.event_wait`).
The first event that matches takes the row away, writes into the run that waits which one it was,
and makes it due. An event of a type that nobody waits for is not looked at: the types are known,
and asked for again only where somebody else may have written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from vedette.domain.entry import MATCHED_KIND, Draft
from vedette.domain.event import Event
from vedette.domain.event_wait import (
    PART,
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

_NEXT = 'SELECT key, data FROM "row" WHERE collection=? AND key>=? AND key<? ORDER BY key LIMIT 1'
_ALL = 'SELECT key, data FROM "row" WHERE collection=? AND key>=? AND key<? ORDER BY key'
_DELETE = 'DELETE FROM "row" WHERE collection=? AND key=?'
# After every hexadecimal digit.
_END = "g"


class EventWaits:
    """Who waits for events in a store's tables. Only for who writes the group, in its transaction.

    All that the group has of runs and rows is to be written before it is asked.
    """

    def __init__(self, database: Database, ledger: LedgerWriter) -> None:
        self._database, self._ledger = database, ledger
        # How the keys of those who wait begin, which says for what type; None: not known.
        self.types: set[str] | None = set(self._read_types())

    def forget(self) -> None:
        """Forget what is waited for: somebody else may have written."""
        self.types = None

    def note_written(self, row_key: str) -> None:
        """Say that a row of this key was written, or taken away."""
        if self.types is not None:
            self.types.add(row_key[:PART])

    def is_awaited(self, event: Event) -> bool:
        """Say whether a run may wait for an event of this type."""
        if self.types is None:
            self.types = set(self._read_types())
        return bool(self.types) and type_part(event.type) in self.types

    def find(self, event: Event) -> list[str]:
        """Return the keys of the rows of all that wait for an event; nothing is changed but edited
        rows taken away.

        An event that comes of an agent's own effects wakes none of its runs, as it begins none.
        """
        first = type_part(event.type)
        found = [key for key, agent in self._find_all(event) if agent not in event.lineage]
        if not found:
            self._drop_if_empty(first)
        return found

    def wake(self, row_keys: Sequence[str], seq: int, at_us: int) -> Iterator[tuple[int, str, str]]:
        """Wake all whose rows `find` found for the event that was accepted at `seq`; yield their
        runs' places and ids.
        """
        database = self._database
        for key in row_keys:
            database.execute(_DELETE, (WAITS, key))
            id = action_of(key)
            action = read_action(database, find_position(database, id), id)
            if action is None or not action.is_awaited:
                continue  # its run ended otherwise
            fields = {"action": action.id, "tool": action.tool}
            wake = RunWake(action.run, Draft(MATCHED_KIND, fields, seq))
            position, name = wake_run(database, self._ledger, wake, at_us)
            if position:
                yield position, name, action.run
        for first in {key[:PART] for key in row_keys}:
            self._drop_if_empty(first)

    def _drop_if_empty(self, first: str) -> None:
        """Drop a type that nobody waits for any more."""
        if self.types and not self._database.rows(_NEXT, (WAITS, first, first + _END)):
            self.types.discard(first)

    def _read_types(self) -> Iterator[str]:
        after = ""
        while rows := self._database.rows(_NEXT, (WAITS, after, _END)):
            first = rows[0][0][:PART]
            yield first
            after = first + _END

    def _find_all(self, event: Event) -> Iterator[tuple[str, str]]:
        """Yield the key of each row whose action waits for an event, and the name of its agent."""
        database, first = self._database, type_part(event.type)
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
