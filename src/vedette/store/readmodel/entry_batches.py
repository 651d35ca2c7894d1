"""Entries in batches, as the read model takes them; it alone knows how a store keeps entries.

A batch ends where a commit group does, and has the mark of the ledger there: the signed head of the
group, or the digest of the last entry where no head is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import orjson
from msgspec import Struct

from vedette.domain.base.canonical import sha256_hex
from vedette.ledger.history.ledger_entry import LedgerEntry, to_ledger_entry
from vedette.ledger.history.projection import Key, ProjectionRow
from vedette.store.dialect import Database
from vedette.store.meta import VIEW_BASE, read_meta
from vedette.store.schema import in_list

_RUNS = 128


class EntryBatch(Struct, frozen=True):
    """Entries that follow one another, up to the entry `last`; `mark` is the ledger's there."""

    entries: list[LedgerEntry]
    last: int
    mark: str


class EntryBatches:
    """The entries of one store, in batches. Reads only."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def last_seq(self) -> int:
        """Return the seq of the last entry; 0 if there is none."""
        return int(self._database.rows("SELECT COALESCE(MAX(seq),0) FROM entry")[0][0])

    def first_seq(self) -> int:
        """Return the seq of the first entry that is not archived; 1 if there is none."""
        return int(self._database.rows("SELECT COALESCE(MIN(seq),1) FROM entry")[0][0])

    def accepted_us(self, seq: int) -> int | None:
        """Return when an entry was written, in microseconds; None if there is none."""
        rows = self._database.rows("SELECT at FROM entry WHERE seq=?", (seq,))
        return int(rows[0][0]) if rows else None

    def mark_at(self, seq: int) -> str | None:
        """Return the ledger's mark at an entry; None if it has none there, "" before the first."""
        if seq == 0:
            return ""
        rows = self._database.rows("SELECT note FROM checkpoint WHERE size=?", (seq,))
        if rows:
            return str(rows[0][0])
        rows = self._database.rows("SELECT bytes FROM entry WHERE seq=?", (seq,))
        return sha256_hex(rows[0][0]) if rows else None

    def read(self, after: int, limit: int) -> EntryBatch | None:
        """Return some `limit` entries after a seq, by whole groups; None if there are no more."""
        sql = "SELECT seq, about, bytes FROM entry WHERE seq>? ORDER BY seq LIMIT ?"
        rows = self._database.rows(sql, (after, limit))
        if not rows:
            return None
        if len(rows) == limit:
            rows = self._whole_groups(rows, after)
        last = int(rows[-1][0])
        entries = [to_ledger_entry(seq, raw, about) for seq, about, raw in rows]
        return EntryBatch(entries, last, self.mark_at(last) or "")

    def _whole_groups(self, rows: list[Any], after: int) -> list[Any]:
        """Cut entries off behind the last whole group, or add what their only group lacks."""
        last = int(rows[-1][0])
        sql = "SELECT MAX(size) FROM checkpoint WHERE size>? AND size<=?"
        ((end,),) = self._database.rows(sql, (after, last))
        if end is not None:
            return [row for row in rows if row[0] <= end]
        ((end,),) = self._database.rows("SELECT MIN(size) FROM checkpoint WHERE size>?", (last,))
        sql = "SELECT seq, about, bytes FROM entry WHERE seq>? AND seq<=? ORDER BY seq"
        return [*rows, *self._database.rows(sql, (last, last if end is None else end))]

    def of_runs(
        self, places: Iterable[tuple[int, str]], before: int
    ) -> Iterator[tuple[str, LedgerEntry]]:
        """Yield (run, entry) of the entries before a seq of events by agents (seq, agent), in order
        within a run.
        """
        wanted = sorted(set(places))
        for at in range(0, len(wanted), _RUNS):
            yield from self._of_some_runs(wanted[at : at + _RUNS], before)

    def _of_some_runs(
        self, places: Sequence[tuple[int, str]], before: int
    ) -> Iterator[tuple[str, LedgerEntry]]:
        marks, asked = in_list(places)
        sql = (
            f"SELECT seq, about, bytes FROM entry WHERE about IN ({marks}) AND agent IN ({marks}) "
            "AND seq<? ORDER BY seq"
        )
        values = [*(about for about, _ in asked), *(agent for _, agent in asked), before]
        for seq, about, raw in self._database.rows(sql, values):
            entry = to_ledger_entry(seq, raw, about)
            if entry.run is not None:
                yield entry.run, entry

    # --- what archived entries came to -----------------------------------------------------------

    def base_seq(self) -> int:
        """Return the entry up to which rows are kept with the store; 0 if none are."""
        return int(read_meta(self._database, VIEW_BASE) or 0)

    def base_rows(self) -> dict[Key, ProjectionRow]:
        """Return the rows that are kept with the store, for entries that are archived."""
        sql = "SELECT name, id, version, sort, data FROM view_base"
        return {
            (name, id): ProjectionRow(int(version), int(sort), orjson.loads(data))
            for name, id, version, sort, data in self._database.rows(sql)
        }
