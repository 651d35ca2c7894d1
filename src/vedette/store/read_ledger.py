"""The ledger as a store has it: entries and their content, checkpoints, and what was archived."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import orjson

from vedette.domain.entry import is_body_of
from vedette.domain.ports.ledger_reader import ENTRY_COLUMNS, RawEntry
from vedette.domain.row_proof import DECIDED_KIND, PROOF_KINDS, EntryRecord
from vedette.domain.run import LossWindow
from vedette.store.dialect import Database
from vedette.store.meta import ARCHIVED, FRONTIER, KEY, RESTORED, read_meta
from vedette.store.read_archived_memories import read_salted_bodies
from vedette.store.readmodel.entry_lists import EntryPages
from vedette.store.readmodel.model import ReadModel
from vedette.store.row_check import RowMismatch, find_mismatches, find_view_mismatches
from vedette.store.row_mapper import find_position

_WITH_BODY = "FROM entry e LEFT JOIN body b ON b.seq=e.seq"


class LedgerReader:
    """Fits `ports.ledger_reader.LedgerReader`; has what verifies, archives and restores a store."""

    def __init__(self, database: Database, view: ReadModel | None = None) -> None:
        self._database = database
        self._view = view or ReadModel()

    # --- entries ----------------------------------------------------------------------------

    def last_seq(self) -> int:
        return int(self._database.rows("SELECT COALESCE(MAX(seq),0) FROM entry")[0][0])

    def seq_at(self, at_us: int) -> int:
        # By halving: instants hardly ever go back along the ledger.
        # Two queries in one: both ends in one SELECT would be looked for from end to end.
        sql = "SELECT (SELECT MIN(seq) FROM entry), (SELECT MAX(seq) FROM entry)"
        ((first, high),) = self._database.rows(sql)
        if high is None:
            return 0
        low = first - 1
        while low < high:
            middle = (low + high + 1) // 2
            at = self._database.rows("SELECT at FROM entry WHERE seq=?", (middle,))
            if at and at[0][0] <= at_us:
                low = middle
            else:
                high = middle - 1
        return int(low)

    def entry(self, seq: int) -> tuple[int, bytes, bytes | None] | None:
        rows = self._database.rows(
            f"SELECT e.seq, e.bytes, b.data {_WITH_BODY} WHERE e.seq=?", (seq,)
        )
        return (rows[0][0], rows[0][1], rows[0][2]) if rows else None

    def entries(
        self, column: str, value: str, limit: int = 1000
    ) -> list[tuple[int, bytes, bytes | None]]:
        if column not in ("run", "event", "action"):
            raise ValueError(f"entries are not found by {column}")
        abouts = [find_position(self._database, value)]
        if column == "event":
            sql = "SELECT seq FROM refused WHERE key=?"
            abouts += [seq for (seq,) in self._database.rows(sql, (value,))]
        sql = f"SELECT e.seq, e.bytes, b.data {_WITH_BODY} WHERE e.about=? ORDER BY e.seq"
        found = [
            (seq, raw, data)
            for about in abouts
            for seq, raw, data in self._database.rows(sql, (about,))
            if column == "event" or orjson.loads(raw).get(column) == value
        ]
        return sorted(found)[:limit]

    def entries_after(self, after: int, limit: int) -> list[tuple[int, bytes]]:
        sql = "SELECT seq, bytes FROM entry WHERE seq>? ORDER BY seq LIMIT ?"
        return [(int(seq), raw) for seq, raw in self._database.rows(sql, (after, limit))]

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
        sql = (
            "SELECT e.seq FROM entry e WHERE e.kind='action.decided' AND e.about IN "
            "(SELECT position FROM action GROUP BY position ORDER BY position DESC LIMIT ?) "
            "ORDER BY e.seq DESC LIMIT ?"
        )
        return [int(seq) for (seq,) in self._database.rows(sql, (limit, limit))]

    def latest_of_agent(self, agent: str, kinds: tuple[str, ...], runs: int) -> list[bytes]:
        marks = ",".join("?" * len(kinds))
        sql = (
            "SELECT bytes FROM entry WHERE about IN (SELECT position FROM run WHERE agent=? "
            f"ORDER BY position DESC LIMIT ?) AND agent=? AND kind IN ({marks}) ORDER BY seq DESC"
        )
        return [raw for (raw,) in self._database.rows(sql, (agent, runs, agent, *kinds))]

    def walk(self, kinds: tuple[str, ...] | None = None, after: int = 0) -> Iterator[RawEntry]:
        where = "e.seq>?"
        if kinds is not None:
            where += f" AND e.kind IN ({','.join('?' * len(kinds))})"
        sql = f"SELECT e.seq, e.bytes, b.salt, b.data {_WITH_BODY} WHERE {where} ORDER BY e.seq"
        rows: Iterator[Any] = self._database.iterate_rows(sql, (after, *(kinds or ())))
        yield from rows

    def proof_entries(self, actions: Collection[str]) -> dict[str, list[EntryRecord]]:
        # Of each action's decisions, which are many if it is stopped for long, the first and the
        # last are read; those have their bodies, and so has what follows.
        entries: dict[str, dict[int, Any]] = {action: {} for action in actions}
        if not entries:
            return {}
        about = find_position(self._database, next(iter(entries)))
        kinds = ",".join("?" * len(PROOF_KINDS))
        sql = f"SELECT seq, bytes FROM entry WHERE about=? AND kind IN ({kinds})"
        for seq, raw in self._database.rows(sql, (about, *PROOF_KINDS)):
            entry = orjson.loads(raw)
            if entry.get("action") in entries:
                entries[entry["action"]][seq] = entry
        wanted: set[int] = set()
        for newest in (False, True):
            left = set(entries)
            for seq, raw in self._read_decisions(about, newest=newest):
                entry = orjson.loads(raw)
                if (action := entry.get("action")) in left:
                    left.discard(action)
                    wanted |= {seq, *(other for other in entries[action] if newest and other > seq)}
                    entries[action][seq] = entry
                    if not left:
                        break
        bodies = self._read_bodies(sorted(wanted))
        found: dict[str, list[EntryRecord]] = {action: [] for action in entries}
        for action, of_action in entries.items():
            for seq, entry in sorted(of_action.items()):
                salt, data = bodies.get(seq, (b"", None))
                named = data is not None and is_body_of(entry, salt, data)
                found[action].append((entry, data if named else None))
        return found

    def _read_decisions(self, about: int, *, newest: bool) -> Iterator[tuple[int, bytes]]:
        """Yield (seq, bytes) of an event's decisions from one end, no more than are asked for."""
        sign, order, at = ("<", "DESC", 2**62) if newest else (">", "ASC", 0)
        sql = (
            f"SELECT seq, bytes FROM entry WHERE about=? AND kind=? AND seq{sign}? "
            f"ORDER BY seq {order} LIMIT 64"
        )
        while rows := self._database.rows(sql, (about, DECIDED_KIND, at)):
            yield from rows
            at = rows[-1][0]

    def _read_bodies(self, seqs: list[int]) -> dict[int, tuple[bytes, bytes]]:
        """Return the (salt, body) of entries by their seq, as far as they have one."""
        found: dict[int, tuple[bytes, bytes]] = {}
        for at in range(0, len(seqs), 500):
            part = seqs[at : at + 500]
            sql = f"SELECT seq, salt, data FROM body WHERE seq IN ({','.join('?' * len(part))})"
            rows = self._database.rows(sql, part)
            found |= {seq: (bytes(salt), data) for seq, salt, data in rows}
        return found

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
        return read_meta(self._database, FRONTIER)

    def entry_columns(self) -> Iterator[tuple[Any, ...]]:
        """Yield every entry's ENTRY_COLUMNS and its bytes, so that they can be compared."""
        sql = f"SELECT {','.join(ENTRY_COLUMNS)},bytes FROM entry ORDER BY seq"
        yield from self._database.iterate_rows(sql)

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
