"""Pages of entries: by key, newest first, each filter by an index that ends in seq.

Nothing here scans. What every event leaves is found by the lists of the read model, what is rare by
the store's own table of it, and what is about one event by its places. A filter that no single
index answers in order is merged from ranges, each of which one does: an agent's entries from those
of its kinds. What has no index is not a filter (see `vedette.ledger.history.changes`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson
from msgspec import Struct

from vedette.domain.entry import KINDS
from vedette.store.dialect import Database
from vedette.store.readmodel.entry_index import (
    ListKey,
    actor_list,
    agent_list,
    kind_list,
    list_name,
    revision_list,
    rule_list,
)
from vedette.store.readmodel.model import ReadModel
from vedette.store.row_mapper import find_position
from vedette.store.schema import LINE_KINDS, in_list
from vedette.store.stored_entries import EntryReader

_RANGE = "SELECT * FROM (SELECT {0} AS lane, seq FROM {1} WHERE {2} ORDER BY seq {3} LIMIT ?) AS l"
# How much is read of each of several ranges at first; few of them have more on the page.
_FIRST_READ = 3
# How many ranges one statement takes.
_MAX_RANGES = 64


class IndexRange(Struct, frozen=True):
    """Some entries that lie in order in one index of a table, from the entry `low` on.

    `listed` says that the table is the read model's.
    """

    where: str
    values: tuple[Any, ...]
    table: str
    low: int = 0
    listed: bool = False


class EntryPages:
    """Pages of entries by an SQL index, for `LedgerReader.entries_page` and `latest_entries`."""

    def __init__(self, database: Database, view: ReadModel) -> None:
        self._database = database
        self._entries = EntryReader(database, content=False)
        self._view = view

    def page(
        self, filters: Mapping[str, Any], *, before: int | None, after: int | None, limit: int
    ) -> list[tuple[int, bytes]]:
        """Return (seq, bytes) of entries, newest first, on one side of a seq."""
        newer = after is not None
        # The lists may be ahead of the snapshot that the entries are read in.
        edge = after if after is not None else self._entries.last_seq() + 1
        if before is not None and not newer:
            edge = min(edge, before)
        seqs = self._given_seqs(filters)
        if seqs is not None:
            return self._read_entries(_beside(seqs, edge, newer, limit))
        return self._read_entries(
            self._merge_ranges(self._index_ranges(filters), edge, newer, limit)
        )

    def latest(self, kinds: Sequence[str], after: int, limit: int) -> list[tuple[int, bytes]]:
        """Return (seq, bytes) of the newest entries of some kinds after a seq, oldest first."""
        ranges = [one for kind in kinds for one in self._kind_ranges(kind, after + 1)]
        edge = self._entries.last_seq() + 1
        return self._read_entries(self._merge_ranges(ranges, edge, False, limit))[::-1]

    def _given_seqs(self, filters: Mapping[str, Any]) -> Sequence[int] | None:
        """Return the seqs of all entries that a filter is answered by, where no index is asked."""
        names = frozenset(filters)
        if not names:
            return range(self._entries.first_seq(), self._entries.last_seq() + 1)
        if names == {"run"}:
            return self._run_seqs(filters["run"])
        if names == {"event"}:
            return self._event_seqs(filters["event"])
        return None

    def _index_ranges(self, filters: Mapping[str, Any]) -> list[IndexRange]:
        names, get = frozenset(filters), filters.__getitem__
        if names == {"agent"}:
            return self._lists(*(agent_list(get("agent"), kind) for kind in sorted(KINDS)))
        if names == {"agent", "kind"}:
            return self._lists(agent_list(get("agent"), get("kind")))
        if names == {"kind"}:
            return self._kind_ranges(get("kind"), 0)
        if names == {"rule", "outcome"}:
            return self._lists(rule_list(get("rule"), get("outcome")))
        if names == {"policy_rev", "outcome"}:
            return self._lists(revision_list(get("policy_rev"), get("outcome")))
        if names == {"actor"}:
            return self._lists(actor_list(get("actor")))
        raise ValueError(f"no index answers {', '.join(sorted(names))}")

    def _lists(self, *keys: ListKey, low: int = 0) -> list[IndexRange]:
        """Return the ranges of some of the read model's lists, as far as there are such lists."""
        marks, names = in_list([list_name(key) for key in keys])
        found = self._view.rows(f"SELECT id FROM view_list WHERE name IN ({marks})", names)
        # What is archived is in no page; a list may name it still.
        low = max(low, self._entries.first_seq())
        return [IndexRange("list=?", (id,), "view_entry", low, listed=True) for (id,) in found]

    def _kind_ranges(self, kind: str, low: int) -> list[IndexRange]:
        if kind == "event.accepted":
            # The table of events is the list of them; it outlives entries that are archived.
            return [IndexRange("1=1", (), "event", max(low, self._entries.first_seq()))]
        if kind in LINE_KINDS:
            return self._lists(kind_list(kind), low=low)
        return [IndexRange("kind=?", (kind,), "rare_entry", low)]

    def _run_seqs(self, run: str) -> list[int]:
        position = find_position(self._database, run)
        sql = "SELECT agent FROM run WHERE position=? AND id=?"
        # An event makes one run of an agent, and about an event there are few entries.
        agents = {agent for (agent,) in self._database.rows(sql, (position, run))}
        about = self._entries.of_events([position]) if agents else []
        return [one.seq for one in about if orjson.loads(one.raw).get("agent") in agents]

    def _event_seqs(self, event: str) -> list[int]:
        rows = self._database.rows("SELECT seq FROM refused WHERE key=?", (event,))
        abouts = [find_position(self._database, event), *(int(seq) for (seq,) in rows)]
        return [one.seq for one in self._entries.of_events([at for at in abouts if at])]

    def _merge_ranges(
        self, ranges: Sequence[IndexRange], edge: int, newer: bool, limit: int
    ) -> list[int]:
        """Return the seqs next to the edge over all ranges, newest first."""
        if not ranges:
            return []
        share = (
            limit if len(ranges) == 1 else min(limit, max(_FIRST_READ, 3 * limit // len(ranges)))
        )
        found = self._read_ranges(ranges, edge, newer, share)
        nearest = _nearest(found, newer, limit)
        if share < limit and nearest:
            # A range that was cut off before the page's end may have more on the page.
            last = nearest[-1] if len(nearest) == limit else None
            short = [
                one
                for one, seqs in zip(ranges, found, strict=True)
                if len(seqs) == share
                and (last is None or (seqs[-1] < last if newer else seqs[-1] > last))
            ]
            if short:
                nearest = _nearest(
                    [*found, *self._read_ranges(short, edge, newer, limit)], newer, limit
                )
        return nearest if not newer else nearest[::-1]

    def _read_ranges(
        self, ranges: Sequence[IndexRange], edge: int, newer: bool, limit: int
    ) -> list[list[int]]:
        found: list[list[int]] = [[] for _ in ranges]
        side, order = (">", "ASC") if newer else ("<", "DESC")
        for part in _batches(ranges):
            sql, values = [], []
            ask = self._view.stored_rows if part[0][1].listed else self._database.rows
            for number, one in part:
                # Of two lower bounds the wrong one might be searched by: there is never but one.
                where = f"{one.where} AND seq{side}?{'' if newer else ' AND seq>=?'}"
                sql.append(_RANGE.format(number, one.table, where, order))
                ends = [max(edge, one.low - 1)] if newer else [edge, one.low]
                values += [*one.values, *ends, limit]
            for number, seq in ask(" UNION ALL ".join(sql), values):
                found[number].append(int(seq))
        for seqs in found:
            seqs.sort(reverse=not newer)
        return found

    def _read_entries(self, seqs: Sequence[int]) -> list[tuple[int, bytes]]:
        """Return the entries of these seqs, in their order."""
        found = self._entries.find_all(seqs)
        return [(seq, found[seq].raw) for seq in seqs if seq in found]


def _beside(seqs: Sequence[int], edge: int, newer: bool, limit: int) -> list[int]:
    """Return those of seqs in order that are next to an edge on one side of it, newest first."""
    if newer:
        at = bisect_right(seqs, edge)
        return list(reversed(seqs[at : at + limit]))
    at = bisect_left(seqs, edge)
    return list(reversed(seqs[max(0, at - limit) : at]))


def _nearest(found: Sequence[Sequence[int]], newer: bool, limit: int) -> list[int]:
    return sorted({seq for seqs in found for seq in seqs}, reverse=not newer)[:limit]


def _batches(ranges: Sequence[IndexRange]) -> Iterator[list[tuple[int, IndexRange]]]:
    """Yield numbered ranges of one database, as many as one statement takes."""
    numbered = list(enumerate(ranges))
    for listed in (False, True):
        those = [one for one in numbered if one[1].listed is listed]
        for at in range(0, len(those), _MAX_RANGES):
            yield those[at : at + _MAX_RANGES]
