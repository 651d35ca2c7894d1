"""The read tables as they are kept: written at the end of a group, in the entries' transaction.

What entries come to is `vedette.view`; here it is fetched, kept in memory between groups, written
and made again. The rows in memory are forgotten whenever somebody else may have written, or what
was written here may not stand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from vedette.crashpoint import reach
from vedette.digest import canonical
from vedette.errors import BadCommand
from vedette.storage.database import Database
from vedette.view import Key, Row, Told, View, folded, told_of

# Rows kept in memory; beyond that all are forgotten and read again as they are needed.
_KEPT = 16_384
_BATCH = 128

_PUT = (
    "INSERT INTO view(name,id,version,sort,data) VALUES(?,?,?,?,?) "
    "ON CONFLICT(name,id) DO UPDATE SET version=excluded.version, data=excluded.data"
)
_DROP = "DELETE FROM view WHERE (name,id) IN (VALUES(?,?))"
_TURN = "DELETE FROM view WHERE name='minute' AND sort<?"
_ALL = "SELECT name, id, version, sort, data FROM view ORDER BY name, id"


class Views:
    """Keeps the read tables of one writer. On its thread only, inside its transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._view = View(self._fetch)

    def forget(self) -> None:
        """Forget what is in memory."""
        self._view.forget()

    def write(self, told: Sequence[Told]) -> None:
        """Fold a group's entries into the tables."""
        view = self._view
        if len(view.rows) > _KEPT:
            view.forget()
        self._fetch_runs(told)
        view.take(told)
        many = self._database.many
        if view.gone:
            many(_DROP, sorted(view.gone))
        rows = view.rows
        changed = [(key, rows[key]) for key in sorted(view.changed)]
        many(_PUT, [_values(key, row) for key, row in changed])
        if view.turned:
            self._database.run(_TURN, (view.first_minute,))
        view.written()

    def rebuild(self) -> int:
        """Make the tables anew from all entries; return how many rows they have.

        Raises BadCommand for a store whose first entries were archived.
        """
        self.forget()
        made = remade(self._database)
        reach("view:before")
        self._database.run("DELETE FROM view")
        self._database.many(_PUT, [_values(key, made[key]) for key in sorted(made)])
        reach("view:after")
        return len(made)

    def _fetch(self, key: Key) -> Row | None:
        sql = "SELECT version, sort, data FROM view WHERE name=? AND id=?"
        rows = self._database.rows(sql, key)
        return _row(*rows[0]) if rows else None

    def _fetch_runs(self, told: Sequence[Told]) -> None:
        """Read the runs that a group goes on with, many in a statement."""
        rows = self._view.rows
        runs = {run for _, _, _, run, n, _, _ in told if n > 1 and run is not None}
        missing = sorted(run for run in runs if ("run", run) not in rows)
        for at in range(0, len(missing), _BATCH):
            ids = missing[at : at + _BATCH]
            # Few lengths, so that there are few statements to prepare.
            ids += ids[-1:] * ((1 << (len(ids) - 1).bit_length()) - len(ids))
            sql = (
                "SELECT id, version, sort, data FROM view "
                f"WHERE name='run' AND id IN ({','.join('?' * len(ids))})"
            )
            for id, *values in self._database.rows(sql, ids):
                rows[("run", id)] = _row(*values)


def remade(database: Database) -> dict[Key, Row]:
    """Return the rows that a store's entries come to. Raises BadCommand if some are archived."""
    first = database.rows("SELECT COALESCE(MIN(seq), 1) FROM entry")[0][0]
    if first != 1:
        raise BadCommand(
            f"the ledger's entries before {first} are archived: not all can be counted again",
            mend="the tables are kept as they are; a backup has them as of its time",
        )
    return folded(_told(database))


def spoilt(database: Database) -> list[Key]:
    """Return the rows that are not, byte by byte, what the entries come to. Raises BadCommand."""
    made = {key: _values(key, row) for key, row in remade(database).items()}
    found = {(row[0], row[1]): tuple(row) for row in database.each(_ALL)}
    return sorted(key for key in made.keys() | found.keys() if made.get(key) != found.get(key))


def _told(database: Database) -> Iterator[Told]:
    for seq, raw in database.each("SELECT seq, bytes FROM entry ORDER BY seq"):
        yield told_of(seq, orjson.loads(raw))


def _values(key: Key, row: Row) -> tuple[Any, ...]:
    return (*key, row.version, row.sort, canonical(row.data))


def _row(version: int, sort: int, data: bytes) -> Row:
    return Row(version, sort, orjson.loads(data), stored=True)
