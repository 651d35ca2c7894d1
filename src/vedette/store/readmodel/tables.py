"""The read tables as they are kept: written at the end of a group, in the entries' transaction.

What entries come to is `vedette.ledger.history.projection`; here it is fetched, kept in memory
between groups, written and made again. The rows in memory are forgotten whenever somebody else may
have written, or what was written here may not stand.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import Any

import orjson

from vedette.domain.base.canonical import canonical_json
from vedette.domain.base.errors import BadCommand
from vedette.domain.base.failpoint import hit_failpoint
from vedette.ledger.history.projection import (
    Key,
    LedgerEntry,
    Projection,
    ProjectionRow,
    fold_entries,
    to_ledger_entry,
)
from vedette.store.dialect import Database
from vedette.store.schema import in_list

# Rows and runs kept in memory; beyond that all are forgotten and read again as they are needed.
_CACHE_ROWS = 16_384
_BATCH = 128

_PUT = (
    "INSERT INTO view(name,id,version,sort,data) VALUES(?,?,?,?,?) "
    "ON CONFLICT(name,id) DO UPDATE SET version=excluded.version, data=excluded.data"
)
_DROP = "DELETE FROM view WHERE (name,id) IN (VALUES(?,?))"
_DELETE_MINUTES = "DELETE FROM view WHERE name='minute' AND sort<?"
_COLUMNS = ("version", "sort", "data")
_ALL = "SELECT name, id, version, sort, data FROM view ORDER BY name, id"


class ReadTables:
    """The read tables of one writer. Only for who writes the group, in its transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._projection = Projection(self._fetch, self._earlier_entries)
        self._earlier: dict[str, list[LedgerEntry]] = {}

    def forget(self, *, runs: bool = True) -> None:
        """Forget what is in memory; with `runs` False not what stands of runs."""
        self._projection.forget(runs=runs)

    def write(self, entries: Sequence[LedgerEntry]) -> None:
        """Fold a group's entries into the tables."""
        view = self._projection
        if len(view.rows) > _CACHE_ROWS or len(view.runs) > _CACHE_ROWS:
            view.forget()
        self._fetch_runs(entries)
        view.add_entries(entries)
        self._earlier.clear()
        many = self._database.execute_many
        if view.dropped_keys:
            many(_DROP, sorted(view.dropped_keys))
        rows = view.rows
        changed = [(key, rows[key]) for key in sorted(view.changed_keys)]
        many(_PUT, [_values(key, row) for key, row in changed])
        if view.has_new_minute:
            self._database.execute(_DELETE_MINUTES, (view.first_minute,))
        view.mark_stored()

    def rebuild(self) -> int:
        """Make the tables anew from all entries; return how many rows they have.

        Raises BadCommand for a store whose first entries were archived.
        """
        self.forget()
        made = rebuild_rows(self._database)
        hit_failpoint("view:before")
        self._database.execute("DELETE FROM view")
        self._database.execute_many(_PUT, [_values(key, made[key]) for key in sorted(made)])
        hit_failpoint("view:after")
        return len(made)

    def _fetch(self, key: Key) -> ProjectionRow | None:
        sql = "SELECT version, sort, data FROM view WHERE name=? AND id=?"
        rows = self._database.rows(sql, key)
        return _row(*rows[0]) if rows else None

    def _earlier_entries(self, run: str, about: int | None, before: int) -> list[LedgerEntry]:
        return self._earlier.pop(run, [])

    def _fetch_runs(self, entries: Sequence[LedgerEntry]) -> None:
        """Read the earlier entries of runs that go on and are not known, many in a statement."""
        runs = self._projection.runs
        last: dict[str, int] = {}
        wanted: dict[str, tuple[int, str]] = {}
        for _, _, _, run, n, about, fields in entries:
            if run is not None and about is not None:
                known = last.get(run) or (runs[run]["n"] if run in runs else 0)
                if n > 1 and known != n - 1:
                    wanted.setdefault(run, (about, fields["agent"]))
                last[run] = n
        places = sorted(set(wanted.values()))
        for at in range(0, len(places), _BATCH):
            self._read_runs(places[at : at + _BATCH], entries[0][0], wanted)

    def _read_runs(
        self, places: Sequence[tuple[int, str]], before: int, wanted: Container[str]
    ) -> None:
        marks, asked = in_list(places)
        # With the text joined the agent is not looked up in an index that has all it ever did.
        sql = (
            f"SELECT seq, bytes FROM entry WHERE about IN ({marks}) AND agent || '' IN ({marks}) "
            "AND seq<? ORDER BY seq"
        )
        values = [*(about for about, _ in asked), *(agent for _, agent in asked), before]
        for seq, raw in self._database.rows(sql, values):
            entry = orjson.loads(raw)
            if entry.get("run") in wanted:
                self._earlier.setdefault(entry["run"], []).append(to_ledger_entry(seq, entry))


def rebuild_rows(database: Database) -> dict[Key, ProjectionRow]:
    """Return the read tables' rows as a store's entries make them, or raise BadCommand."""
    first = database.rows("SELECT COALESCE(MIN(seq), 1) FROM entry")[0][0]
    if first != 1:
        raise BadCommand(
            f"the ledger's entries before {first} are archived: not all can be counted again",
            mend="the tables are kept as they are; a backup has them as of its time",
        )
    return fold_entries(_read_entries(database))


def find_wrong_rows(database: Database) -> list[Key]:
    """Return the read tables' rows that entries contradict in any byte. Raises BadCommand."""
    return sorted({(name, id) for name, id, _, _, _ in find_differences(database)})


def find_differences(database: Database) -> Iterator[tuple[str, str, str, Any, Any]]:
    """Yield (name, id, column, says, should say) where read tables and entries differ.

    The column is * for a row that is missing, or that nothing tells of. Raises BadCommand.
    """
    made = {key: _values(key, row) for key, row in rebuild_rows(database).items()}
    found = {(row[0], row[1]): tuple(row) for row in database.iterate_rows(_ALL)}
    for key in sorted(made.keys() | found.keys()):
        right, says = made.get(key), found.get(key)
        if right is None or says is None:
            yield (*key, "*", says, right)
            continue
        for column, one, other in zip(_COLUMNS, says[2:], right[2:], strict=True):
            if one != other:
                yield (*key, column, one, other)


def _read_entries(database: Database) -> Iterator[LedgerEntry]:
    for seq, raw in database.iterate_rows("SELECT seq, bytes FROM entry ORDER BY seq"):
        yield to_ledger_entry(seq, orjson.loads(raw))


def _values(key: Key, row: ProjectionRow) -> tuple[Any, ...]:
    return (*key, row.version, row.sort, canonical_json(row.data))


def _row(version: int, sort: int, data: bytes) -> ProjectionRow:
    return ProjectionRow(version, sort, orjson.loads(data), stored=True)
