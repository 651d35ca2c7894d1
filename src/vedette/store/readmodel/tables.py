"""The read model's rows as they are kept: entries folded into them, a batch in a transaction.

What entries come to is `vedette.ledger.history.projection`; here it is fetched, kept in memory
between batches, written, and made again to be compared. The rows in memory are forgotten whenever
somebody else may have written, or what was written here may not stand.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import orjson

from vedette.domain.base.canonical import canonical_json
from vedette.domain.base.errors import BadCommand
from vedette.ledger.history.ledger_entry import LedgerEntry
from vedette.ledger.history.projection import Key, Projection, ProjectionRow
from vedette.store.dialect import Database
from vedette.store.meta import VIEW_BASE, write_meta
from vedette.store.readmodel.entry_batches import EntryBatches

# Rows and runs kept in memory; beyond that all are forgotten and read again as they are needed.
_CACHE_ROWS = 16_384
# How many entries are folded at a time where all rows are in memory.
FOLD_SLICE = 500

_PUT = (
    "INSERT INTO view_row(name,id,version,sort,data) VALUES(?,?,?,?,?) "
    "ON CONFLICT(name,id) DO UPDATE SET version=excluded.version, data=excluded.data"
)
_DROP = "DELETE FROM view_row WHERE name=? AND id=?"
_DELETE_MINUTES = "DELETE FROM view_row WHERE name='minute' AND sort<?"
_COLUMNS = ("version", "sort", "data")
_ALL = "SELECT name, id, version, sort, data FROM view_row ORDER BY name, id"


class EarlierEntries:
    """The entries of runs that go on in a batch and are not in memory: read once for each batch."""

    def __init__(self, batches: EntryBatches) -> None:
        self._batches = batches
        self._of_run: dict[str, list[LedgerEntry]] = {}

    def read(self, entries: Sequence[LedgerEntry], view: Projection) -> None:
        """Read those of the runs in a batch that a projection does not know."""
        last: dict[str, int] = {}
        wanted: dict[str, tuple[int, str]] = {}
        for entry in entries:
            run, n = entry.run, entry.n
            if run is not None and entry.about is not None:
                known = last.get(run) or (view.runs[run]["n"] if run in view.runs else 0)
                if n > 1 and known != n - 1:
                    wanted.setdefault(run, (entry.about, entry.agent))
                last[run] = n
        self._of_run.clear()
        if wanted:
            for run, entry in self._batches.of_runs(wanted.values(), entries[0].seq):
                if run in wanted:
                    self._of_run.setdefault(run, []).append(entry)

    def __call__(self, run: str, about: int | None, before: int) -> list[LedgerEntry]:
        """Return a run's entries before the batch; none if asked again, when it is in memory."""
        return self._of_run.pop(run, [])


class ReadTables:
    """The rows of one read model. Only for who writes them, in its transaction."""

    def __init__(self, database: Database, batches: EntryBatches) -> None:
        self._database = database
        self._earlier = EarlierEntries(batches)
        self._projection = Projection(self._fetch, self._earlier)

    def forget(self) -> None:
        """Forget what is in memory."""
        self._projection.forget()

    def write(self, entries: Sequence[LedgerEntry]) -> None:
        """Fold entries into the rows."""
        view = self._projection
        if len(view.rows) > _CACHE_ROWS or len(view.runs) > _CACHE_ROWS:
            view.forget()
        self._earlier.read(entries, view)
        view.add_entries(entries)
        many = self._database.execute_many
        if view.dropped_keys:
            many(_DROP, sorted(view.dropped_keys))
        rows = view.rows
        changed = [(key, rows[key]) for key in sorted(view.changed_keys)]
        many(_PUT, [to_values(key, row) for key, row in changed])
        if view.has_new_minute:
            self._database.execute(_DELETE_MINUTES, (view.first_minute,))
        view.mark_stored()

    def replace(self, rows: dict[Key, ProjectionRow]) -> None:
        """Put rows in the place of all there are."""
        self.forget()
        self._database.execute("DELETE FROM view_row")
        self._database.execute_many(_PUT, [to_values(key, rows[key]) for key in sorted(rows)])

    def _fetch(self, key: Key) -> ProjectionRow | None:
        sql = "SELECT version, sort, data FROM view_row WHERE name=? AND id=?"
        rows = self._database.rows(sql, key)
        return _row(*rows[0]) if rows else None


# --- made again, to be kept or compared -----------------------------------------------------------


class RowFold:
    """The rows that a store's entries come to, in memory: from what is kept of archived ones on."""

    def __init__(self, batches: EntryBatches) -> None:
        self._batches = batches
        self._earlier = EarlierEntries(batches)
        self._view = Projection(earlier_entries=self._earlier)
        self.reached = batches.base_seq()
        self._view.rows = batches.base_rows() if self.reached else {}

    def slices(self, upto: int) -> Iterator[None]:
        """Fold all entries up to one; yields now and then, so that it can be broken off.

        It ends before where somebody archives and deletes them meanwhile.
        """
        view = self._view
        # No cursor is open between two slices.
        while self.reached < upto and (batch := self._batches.read(self.reached, FOLD_SLICE)):
            part = [entry for entry in batch.entries if entry.seq <= upto]
            if not part:
                return
            self._earlier.read(part, view)
            view.add_entries(part)
            self.reached = part[-1].seq
            if view.has_new_minute:
                view.drop_old_minutes()
            yield

    def values(self) -> dict[Key, tuple[Any, ...]]:
        """Return (name, id, version, sort, data) of the rows, by their key."""
        return {key: to_values(key, row) for key, row in self._view.rows.items()}


def fold_ledger(batches: EntryBatches, upto: int) -> dict[Key, tuple[Any, ...]]:
    """Return the rows as the entries up to one make them. Raises BadCommand if some are gone."""
    first = batches.first_seq()
    if first != 1:
        raise BadCommand(
            f"the ledger's entries before {first} are archived: not all can be counted again",
            mend="what they came to is kept with the store; a backup has them as of its time",
        )
    fold = RowFold(batches)
    for _ in fold.slices(upto):
        pass
    return fold.values()


def compare_rows(
    database: Database, made: dict[Key, tuple[Any, ...]]
) -> Iterator[tuple[str, str, str, Any, Any]]:
    """Yield (name, id, column, says, should say) where a model's rows are not those that were made.

    The column is * for a row that is missing, or that nothing tells of.
    """
    found = {(row[0], row[1]): tuple(row) for row in database.iterate_rows(_ALL)}
    for key in sorted(made.keys() | found.keys()):
        right, says = made.get(key), found.get(key)
        if right is None or says is None:
            yield (*key, "*", says, right)
            continue
        for column, one, other in zip(_COLUMNS, says[2:], right[2:], strict=True):
            if one != other:
                yield (*key, column, one, other)


def write_base(database: Database, reached: int, rows: Iterable[tuple[Any, ...]]) -> None:
    """Keep rows with the store in the place of those kept before, inside its transaction."""
    database.execute("DELETE FROM view_base")
    database.execute_many(
        "INSERT INTO view_base(name,id,version,sort,data) VALUES(?,?,?,?,?)", list(rows)
    )
    write_meta(database, VIEW_BASE, reached)


def to_values(key: Key, row: ProjectionRow) -> tuple[Any, ...]:
    """Return a row of the projection as it is kept."""
    return (*key, row.version, row.sort, canonical_json(row.data))


def _row(version: int, sort: int, data: bytes) -> ProjectionRow:
    return ProjectionRow(version, sort, orjson.loads(data), stored=True)
