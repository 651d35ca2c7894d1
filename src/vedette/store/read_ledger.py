"""What a store says of its ledger as a record: what was archived, its tree, its keys, restores."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from vedette.domain.run import LossWindow
from vedette.store.dialect import Database, Row

ARCHIVED = "archived"
INSTANCE = "instance"
KEY = "ledger_key"
RESTORED = "restored"


class LedgerState:
    """Reads for verification, archives and recovery; shared by all who open a store."""

    _database: Database

    def _rows(self, sql: str, *values: Any) -> list[Row]:
        raise NotImplementedError

    def _meta(self, name: str) -> str | None:
        rows = self._rows("SELECT value FROM meta WHERE name=?", name)
        return str(rows[0][0]) if rows else None

    def archived(self) -> bytes | None:
        """Return what was archived, as `vedette.ledger.pruned_log.ArchivedPrefix` reads it."""
        told = self._meta(ARCHIVED)
        return told.encode() if told is not None else None

    def tree(self) -> str | None:
        """Return the tree that the store goes on with, in hexadecimal."""
        return self._meta("frontier")

    def sized(self) -> Iterator[tuple[int, str]]:
        """Yield the signed checkpoints, each with the size it is kept under."""
        rows: Iterator[Any] = self._database.iterate_rows(
            "SELECT size, note FROM checkpoint ORDER BY size"
        )
        yield from rows

    def newest_note(self) -> str | None:
        """Return the last signed checkpoint; None before the first."""
        rows = self._rows("SELECT note FROM checkpoint ORDER BY size DESC LIMIT 1")
        return str(rows[0][0]) if rows else None

    def key_in_force(self) -> str | None:
        """Return the verifier key that the last rotation named; None if there was none."""
        return self._meta(KEY)

    def loss_window(self) -> LossWindow | None:
        """Return from where effects may have happened in history that was lost."""
        told = self._meta(RESTORED)
        if told is None:
            return None
        value = orjson.loads(told)
        return LossWindow(value["seq"], value.get("until", 0))

    def first_open_entry(self) -> int | None:
        """Return the first entry of the oldest run that has not ended; None if all have."""
        rows = self._rows(
            "SELECT MIN(position) FROM run WHERE state='ready' UNION ALL "
            "SELECT MIN(position) FROM run WHERE state='waiting' AND state IN ('waiting', 'dead')"
        )
        return min((int(row[0]) for row in rows if row[0] is not None), default=None)
