"""The ledger as a store has it: entries and their content, checkpoints, and what was archived."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from typing import Any

import orjson

from vedette.domain.artefact import STORED_KIND, abridge_body
from vedette.domain.entry import is_body_of
from vedette.domain.ports.ledger_reader import EntryWithBody, RawEntry
from vedette.domain.row_proof import DECIDED_KIND, PROOF_KINDS, EntryRecord
from vedette.domain.run import LossWindow
from vedette.store.dialect import Database
from vedette.store.meta import ARCHIVED, KEY, RESTORED, read_meta
from vedette.store.read_archived_memories import read_salted_bodies
from vedette.store.readmodel.entry_lists import EntryPages
from vedette.store.readmodel.model import ReadModel
from vedette.store.row_check import RowMismatch, find_mismatches, find_view_mismatches
from vedette.store.row_mapper import find_position
from vedette.store.schema import NEWEST_FRONTIER
from vedette.store.segment import StoredEntry
from vedette.store.stored_entries import EntryReader, kind_of


class LedgerReader:
    """Fits `ports.ledger_reader.LedgerReader`; has what verifies, archives and restores a store."""

    def __init__(self, database: Database, view: ReadModel | None = None) -> None:
        self._database = database
        self._entries = EntryReader(database)
        self._bare = EntryReader(database, content=False)
        self._view = view or ReadModel()

    # --- entries ----------------------------------------------------------------------------

    def last_seq(self) -> int:
        return self._bare.last_seq()

    def seq_at(self, at_us: int) -> int:
        return self._bare.seq_at(at_us)

    def entry(self, seq: int) -> EntryWithBody | None:
        found = self._entries.find(seq)
        return (seq, found.raw, found.data) if found is not None else None

    def entries(
        self, column: str, value: str, limit: int = 1000, after: int = 0
    ) -> list[EntryWithBody]:
        if column not in ("run", "event", "action"):
            raise ValueError(f"entries are not found by {column}")
        abouts = [find_position(self._database, value)]
        if column == "event":
            sql = "SELECT seq FROM refused WHERE key=?"
            abouts += [seq for (seq,) in self._database.rows(sql, (value,))]
        found = (
            one
            for one in self._bare.of_events(abouts)
            if one.seq > after and (column == "event" or orjson.loads(one.raw).get(column) == value)
        )
        raws = {one.seq: one.raw for one in islice(found, limit)}
        content = dict(self._read_content(raws))
        return [(seq, raw, content.get(seq)) for seq, raw in raws.items()]

    def _read_content(self, raws: Mapping[int, bytes]) -> Iterator[tuple[int, bytes | None]]:
        """Yield (seq, content) of entries: of an artefact, read alone, no more than its head."""
        artefacts = [seq for seq, raw in raws.items() if kind_of(raw) == STORED_KIND]
        for one in self._entries.find_all(raws.keys() - artefacts).values():
            yield one.seq, one.data
        for seq in artefacts:
            stored = self._entries.find(seq)
            if stored is not None and stored.data is not None:
                yield seq, abridge_body(stored.data)

    def run_entries(self, run: str, kinds: Sequence[str]) -> list[EntryWithBody]:
        about = find_position(self._database, run)
        of_run = [
            one.seq
            for one in self._bare.of_events([about], kinds=kinds)
            if orjson.loads(one.raw).get("run") == run
        ]
        return [(one.seq, one.raw, one.data) for one in self._entries.find_all(of_run).values()]

    def entries_after(self, after: int, limit: int) -> list[tuple[int, bytes]]:
        return [(one.seq, one.raw) for one in self._bare.read(after, limit)]

    def entries_page(
        self, filters: Mapping[str, Any], *, before: int | None, after: int | None, limit: int
    ) -> list[tuple[int, bytes]]:
        pages = EntryPages(self._database, self._view)
        return pages.page(filters, before=before, after=after, limit=limit)

    def latest_entries(
        self, kinds: Sequence[str], after: int, limit: int
    ) -> list[tuple[int, bytes]]:
        return EntryPages(self._database, self._view).latest(kinds, after, limit)

    def latest_decisions(self, limit: int) -> list[int]:
        # Not by the read model: a policy's loosening is looked for in these.
        sql = "SELECT position FROM action GROUP BY position ORDER BY position DESC LIMIT ?"
        abouts = [int(at) for (at,) in self._database.rows(sql, (limit,))]
        found = [one.seq for one in self._bare.of_events(abouts, kinds=(DECIDED_KIND,))]
        return found[: -limit - 1 : -1]

    def latest_of_agent(self, agent: str, kinds: tuple[str, ...], runs: int) -> list[bytes]:
        sql = "SELECT position FROM run WHERE agent=? ORDER BY position DESC LIMIT ?"
        abouts = [int(at) for (at,) in self._database.rows(sql, (agent, runs))]
        found = [one.raw for one in self._bare.of_events(abouts, kinds=kinds)]
        return [raw for raw in reversed(found) if orjson.loads(raw).get("agent") == agent]

    def walk(self, kinds: tuple[str, ...] | None = None, after: int = 0) -> Iterator[RawEntry]:
        for one in self._entries.walk(kinds, after):
            yield one.seq, one.raw, one.salt, one.data

    def proof_entries(self, actions: Collection[str]) -> dict[str, list[EntryRecord]]:
        # Of each action's decisions, which are many if it is stopped for long, the first and the
        # last count; those have their bodies, and so has what follows.
        entries: dict[str, list[tuple[int, dict[str, Any]]]] = {one: [] for one in actions}
        if not entries:
            return {}
        about = find_position(self._database, next(iter(entries)))
        for one in self._bare.of_events([about], kinds=(*PROOF_KINDS, DECIDED_KIND)):
            entry = orjson.loads(one.raw)
            if (of_action := entries.get(entry.get("action"))) is not None:
                of_action.append((one.seq, entry))
        return {action: self._proofs(found) for action, found in entries.items()}

    def _proofs(self, found: Sequence[tuple[int, dict[str, Any]]]) -> list[EntryRecord]:
        decided = [seq for seq, entry in found if entry["kind"] == DECIDED_KIND]
        first, last = (decided[0], decided[-1]) if decided else (0, 0)
        kept = [
            (seq, entry)
            for seq, entry in found
            if entry["kind"] != DECIDED_KIND or seq in (first, last)
        ]
        content = self._entries.find_all(seq for seq, _ in kept if seq == first or seq >= last)
        return [(entry, _named_body(entry, content.get(seq))) for seq, entry in kept]

    def loss_window(self) -> LossWindow | None:
        kept = read_meta(self._database, RESTORED)
        if kept is None:
            return None
        value = orjson.loads(kept)
        return LossWindow(value["seq"], value.get("until", 0))

    # --- what verification, archives and recovery ask -----------------------------------------

    def snapshot(self) -> AbstractContextManager[None]:
        """Let all reads inside see one state of the store."""
        return self._database.snapshot()

    def checkpoints(self) -> Iterator[str]:
        """Yield the signed checkpoints in order."""
        for (note,) in self._database.iterate_rows("SELECT note FROM checkpoint ORDER BY size"):
            yield note

    def sized_checkpoints(self) -> Iterator[tuple[int, str]]:
        """Yield the signed checkpoints, each with the size it is kept under."""
        rows: Iterator[Any] = self._database.iterate_rows(
            "SELECT size, note FROM checkpoint ORDER BY size"
        )
        yield from rows

    def last_checkpoint(self) -> str | None:
        """Return the last signed checkpoint; None before the first."""
        rows = self._database.rows("SELECT note FROM checkpoint ORDER BY size DESC LIMIT 1")
        return str(rows[0][0]) if rows else None

    def archived(self) -> bytes | None:
        """Return what was archived, as `vedette.ledger.pruned_log.ArchivedPrefix` reads it."""
        kept = read_meta(self._database, ARCHIVED)
        return kept.encode() if kept is not None else None

    def archived_bodies(self) -> dict[int, tuple[bytes, bytes]]:
        """Return (salt, body) of archived entries whose content is kept here, by their seq."""
        return read_salted_bodies(self._database)

    def frontier(self) -> str | None:
        """Return the tree that the store goes on with, in hexadecimal."""
        rows = self._database.rows(NEWEST_FRONTIER)
        return bytes(rows[0][0] or b"").hex() if rows else None

    def row_mismatches(self) -> Iterator[RowMismatch]:
        """Yield every column of a row that the entries contradict. Reads the whole ledger."""
        yield from find_mismatches(self._database)
        yield from find_view_mismatches(self._view)

    def key_in_force(self) -> str | None:
        """Return the verifier key that the last rotation named; None if there was none."""
        return read_meta(self._database, KEY)

    def first_open_entry(self) -> int | None:
        """Return the first entry of the oldest run that has not ended; None if all have."""
        rows = self._database.rows(
            "SELECT MIN(position) FROM run WHERE state='ready' UNION ALL "
            "SELECT MIN(position) FROM run WHERE state='waiting' AND state IN ('waiting', 'dead')"
        )
        return min((int(row[0]) for row in rows if row[0] is not None), default=None)


def _named_body(entry: Mapping[str, Any], stored: StoredEntry | None) -> bytes | None:
    """Return an entry's content if it is there and the one that the entry names."""
    if stored is None or stored.salt is None or stored.data is None:
        return None
    return stored.data if is_body_of(entry, stored.salt, stored.data) else None
