"""Pages of entries: by key, newest first, each filter by an index that ends in seq.

Nothing here scans. A filter that no single index answers in order is merged from ranges, each of
which one does: an agent's entries from those of its kinds, the runs closed from those of the
agents. What has no index is not a filter (see `vedette.ledger.history.changes`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from vedette.domain.entry import KINDS
from vedette.store.dialect import Database
from vedette.store.row_mapper import find_position
from vedette.store.schema import in_list

# A partial index is used only where the query's own text implies its condition.
_RARE = "kind NOT IN ('event.accepted', 'run.closed')"
_DECIDED = "kind='action.decided'"
_RANGE = "SELECT * FROM (SELECT {0} AS lane, seq FROM {1} WHERE {2} ORDER BY seq {3} LIMIT ?) AS l"
# How much is read of each of several ranges at first; few of them have more on the page.
_FIRST_READ = 3
# How many ranges one statement takes.
_MAX_RANGES = 64


class IndexRange(Struct, frozen=True):
    """Some entries that lie in order in one index of a table, from the entry `low` on."""

    where: str
    values: tuple[Any, ...] = ()
    table: str = "entry"
    low: int = 0


class EntryPages:
    """Pages of entries by an SQL index, for `LedgerReader.entries_page` and `latest_entries`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def page(
        self, filters: Mapping[str, Any], *, before: int | None, after: int | None, limit: int
    ) -> list[tuple[int, bytes]]:
        """Return (seq, bytes) of entries, newest first, on one side of a seq."""
        newer = after is not None
        edge = after if newer else 2**62 if before is None else before
        assert edge is not None
        seqs = None
        if filters == {"kind": "run.closed"}:
            seqs = self._scan_near(edge, newer, limit)
        if seqs is None:
            seqs = self._merge_ranges(
                self._index_ranges(filters, edge, newer, limit), edge, newer, limit
            )
        return self._read_entries(seqs)

    def latest(self, kinds: Sequence[str], after: int, limit: int) -> list[tuple[int, bytes]]:
        """Return (seq, bytes) of the newest entries of some kinds after a seq, oldest first."""
        ranges = [IndexRange(f"kind=? AND {_RARE}", (kind,), low=after + 1) for kind in kinds]
        return self._read_entries(self._merge_ranges(ranges, 2**62, False, limit))[::-1]

    def _index_ranges(
        self, filters: Mapping[str, Any], edge: int, newer: bool, limit: int
    ) -> list[IndexRange]:
        names, get = frozenset(filters), filters.__getitem__
        if not names:
            return [IndexRange("1=1")]
        if names == {"agent"}:
            agent = get("agent")
            return [IndexRange("agent=? AND kind=?", (agent, kind)) for kind in sorted(KINDS)]
        if names == {"agent", "kind"}:
            return [IndexRange("agent=? AND kind=?", (get("agent"), get("kind")))]
        if names == {"kind"}:
            return self._kind_ranges(get("kind"), edge, newer, limit)
        if names == {"run"}:
            return self._run_ranges(get("run"))
        if names == {"event"}:
            return self._event_ranges(get("event"))
        if names == {"rule", "outcome"}:
            return [
                IndexRange(f"rule=? AND outcome=? AND {_DECIDED}", (get("rule"), get("outcome")))
            ]
        if names == {"policy_rev", "outcome"}:
            values = (get("policy_rev"), get("outcome"))
            return [IndexRange(f"policy_rev=? AND outcome=? AND {_DECIDED}", values)]
        if names == {"actor"}:
            return [IndexRange("actor=?", (get("actor"),))]
        raise ValueError(f"no index answers {', '.join(sorted(names))}")

    def _kind_ranges(self, kind: str, edge: int, newer: bool, limit: int) -> list[IndexRange]:
        if kind == "event.accepted":
            # The table of events is the list of them; it outlives entries that are archived.
            ((first,),) = self._database.rows("SELECT COALESCE(MIN(seq),1) FROM entry")
            return [IndexRange("1=1", (), "event", first)]
        if kind != "run.closed":
            return [IndexRange(f"kind=? AND {_RARE}", (kind,))]
        order, side = ("ASC", ">") if newer else ("DESC", "<")
        sql = (
            "SELECT v.id, (SELECT e.seq FROM entry e WHERE e.agent=v.id AND e.kind='run.closed' "
            f"AND e.seq{side}? ORDER BY e.seq {order} LIMIT 1) FROM view v WHERE v.name='agent'"
        )
        heads = [
            (seq, agent) for agent, seq in self._database.rows(sql, (edge,)) if seq is not None
        ]
        # Only agents whose nearest one is among the nearest can have any on the page.
        near = sorted(heads, reverse=not newer)[:limit]
        return [IndexRange("agent=? AND kind='run.closed'", (agent,)) for _, agent in near]

    def _scan_near(self, edge: int, newer: bool, limit: int) -> list[int] | None:
        """Return the runs closed next to the edge if they are as near as they mostly are.

        They are in no index of their own, since every event has one; but so they are a good part
        of any stretch of the ledger. None if a bounded stretch has too few.
        """
        ends = "(SELECT MIN(seq) FROM entry), (SELECT MAX(seq) FROM entry)"
        ((first, last),) = self._database.rows(f"SELECT {ends}")
        for width in (4 * limit, 24 * limit):
            low = max(edge, (first or 1) - 1) if newer else min(edge, (last or 0) + 1) - width - 1
            sql = (
                "SELECT seq FROM entry WHERE seq>? AND seq<? AND kind||''='run.closed' ORDER BY seq"
            )
            seqs = [int(seq) for (seq,) in self._database.rows(sql, (low, low + width + 1))]
            whole = low + width >= (last or 0) if newer else low < (first or 1)
            if len(seqs) >= limit or whole:
                return (seqs[:limit] if newer else seqs[-limit:])[::-1]
        return None

    def _run_ranges(self, run: str) -> list[IndexRange]:
        position = find_position(self._database, run)
        found = self._database.rows(
            "SELECT agent FROM run WHERE position=? AND id=?", (position, run)
        )
        # An event makes one run of an agent, and about an event there are few entries.
        return [IndexRange("about=? AND agent=?", (position, agent)) for (agent,) in found]

    def _event_ranges(self, event: str) -> list[IndexRange]:
        refused = [
            seq for (seq,) in self._database.rows("SELECT seq FROM refused WHERE key=?", (event,))
        ]
        position = find_position(self._database, event)
        abouts = [position, *refused] if position else refused
        return [IndexRange("about=?", (about,)) for about in abouts]

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
            for number, one in part:
                # Of two lower bounds the wrong one might be searched by: there is never but one.
                where = f"{one.where} AND seq{side}?{'' if newer else ' AND seq>=?'}"
                sql.append(_RANGE.format(number, one.table, where, order))
                ends = [max(edge, one.low - 1)] if newer else [edge, one.low]
                values += [*one.values, *ends, limit]
            for number, seq in self._database.rows(" UNION ALL ".join(sql), values):
                found[number].append(int(seq))
        for seqs in found:
            seqs.sort(reverse=not newer)
        return found

    def _read_entries(self, seqs: Sequence[int]) -> list[tuple[int, bytes]]:
        """Return the entries of these seqs, in their order."""
        if not seqs:
            return []
        marks, asked = in_list(seqs)
        sql = f"SELECT seq, bytes FROM entry WHERE seq IN ({marks})"
        found: dict[int, bytes] = dict(self._database.rows(sql, asked))
        return [(seq, found[seq]) for seq in seqs if seq in found]


def _nearest(found: Sequence[Sequence[int]], newer: bool, limit: int) -> list[int]:
    return sorted({seq for seqs in found for seq in seqs}, reverse=not newer)[:limit]


def _batches(ranges: Sequence[IndexRange]) -> Iterator[list[tuple[int, IndexRange]]]:
    """Yield numbered ranges, as many as one statement takes."""
    numbered = list(enumerate(ranges))
    for at in range(0, len(numbered), _MAX_RANGES):
        yield numbered[at : at + _MAX_RANGES]
