"""Entries in batches, as the read model takes them; it alone knows how a store keeps entries.

A batch ends where a commit group does, and has the mark of the ledger there: the signed head of the
group, or the digest of the last entry where no head is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import orjson
from msgspec import Struct

from vedette.domain.base.canonical import sha256_hex
from vedette.ledger.history.ledger_entry import LedgerEntry, to_ledger_entry
from vedette.ledger.history.projection import Key, ProjectionRow
from vedette.store.dialect import Database
from vedette.store.meta import VIEW_BASE, read_meta
from vedette.store.segment import StoredEntry
from vedette.store.stored_entries import EntryReader, at_us_of


class EntryBatch(Struct, frozen=True):
    """Entries that follow one another, up to the entry `last`; `mark` is the ledger's there."""

    entries: list[LedgerEntry]
    last: int
    mark: str


class EntryBatches:
    """The entries of one store, in batches. Reads only."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._entries = EntryReader(database, content=False)

    def last_seq(self) -> int:
        """Return the seq of the last entry; 0 if there is none."""
        return self._entries.last_seq()

    def first_seq(self) -> int:
        """Return the seq of the first entry that is not archived; 1 if there is none."""
        return self._entries.first_seq()

    def accepted_us(self, seq: int) -> int | None:
        """Return when an entry was written, in microseconds; None if there is none."""
        found = self._entries.find(seq)
        return at_us_of(found.raw) if found is not None else None

    def mark_at(self, seq: int) -> str | None:
        """Return the ledger's mark at an entry; None if it has none there, "" before the first."""
        if seq == 0:
            return ""
        rows = self._database.rows("SELECT note FROM checkpoint WHERE size=?", (seq,))
        if rows:
            return str(rows[0][0])
        found = self._entries.find(seq)
        return sha256_hex(found.raw) if found is not None else None

    def read(self, after: int, limit: int) -> EntryBatch | None:
        """Return some `limit` entries after a seq, by whole groups; None if there are no more."""
        found = self._entries.read(after, limit)
        if not found:
            return None
        if len(found) == limit:
            found = self._whole_groups(found, after)
        last = found[-1].seq
        entries = [to_ledger_entry(one.seq, one.raw, one.about) for one in found]
        return EntryBatch(entries, last, self.mark_at(last) or "")

    def _whole_groups(self, found: list[StoredEntry], after: int) -> list[StoredEntry]:
        """Cut entries off behind the last whole group, or add what their only group lacks."""
        last = found[-1].seq
        sql = "SELECT MAX(size) FROM checkpoint WHERE size>? AND size<=?"
        ((end,),) = self._database.rows(sql, (after, last))
        if end is not None:
            return found[: end - found[0].seq + 1]
        ((end,),) = self._database.rows("SELECT MIN(size) FROM checkpoint WHERE size>?", (last,))
        return [*found, *self._entries.walk(after=last, upto=last if end is None else end)]

    def of_runs(
        self, places: Iterable[tuple[int, str]], before: int
    ) -> Iterator[tuple[str, LedgerEntry]]:
        """Yield (run, entry) of the entries before a seq of events by agents (seq, agent), in order
        within a run.
        """
        wanted = set(places)
        for one in self._entries.of_events({about for about, _ in wanted}):
            if one.seq < before:
                entry = to_ledger_entry(one.seq, one.raw, one.about)
                if entry.run is not None and (entry.about, entry.agent) in wanted:
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
