"""Reconciliation of what was shipped to BigQuery with the ledger, entry by entry, by query."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import zip_longest

import orjson

from vedette.adapters.bigquery.tables import KINDS
from vedette.adapters.bigquery.warehouse import Warehouse
from vedette.domain.base.canonical import sha256_hex
from vedette.domain.ports.ledger_reader import LedgerReader

MAX_FINDINGS = 20
PAGE = 1000
# Entries that one query compares: it sorts them, and its answer comes as a whole.
SLICE = 1_000_000

# The table beside the view that leaves out what a restore replaced. An entry that was shipped
# twice is there twice.
_SHIPPED = """\
SELECT t.seq, t.digest, {content} AS content
FROM `{place}` AS t
JOIN `{entries}` AS e ON e.fleet = t.fleet AND e.history = t.history AND e.seq = t.seq
WHERE t.fleet = @fleet AND t.seq > @after AND t.seq <= @last
ORDER BY t.seq"""
_LEDGER = """\
SELECT t.seq, t.digest, TO_HEX(SHA256(t.entry)) AS content
FROM `{entries}` AS t
WHERE t.fleet = @fleet AND t.seq > @after AND t.seq <= @last
ORDER BY t.seq"""


def find_differences(
    warehouse: Warehouse, fleet: str, ledger: LedgerReader, last: int
) -> dict[str, tuple[int, list[str]]]:
    """Return for each BigQuery table how many rows it has up to entry `last`, and what is wrong.

    A row is compared by seq and digest, and in the ledger's table by the digest that BigQuery
    itself makes of the entry's bytes. At most `MAX_FINDINGS` findings. Entries that are archived
    are not compared. Synchronous; it reads the whole ledger.
    """
    first = next(iter(ledger.entries_after(0, 1)), (1, b""))[0]
    found: dict[str, tuple[int, list[str]]] = {}
    for table, kinds in KINDS.items():
        text = _LEDGER if kinds is None else _SHIPPED
        text = text.format(
            content="t.digest",
            place=warehouse.table_id(table),
            entries=warehouse.table_id("entries"),
        )
        rows = _shipped_rows(warehouse, text, fleet, first, last)
        found[table] = _compare_rows(_ledger_rows(ledger, kinds, first, last), rows)
    return found


def _shipped_rows(
    warehouse: Warehouse, text: str, fleet: str, first: int, last: int
) -> Iterator[tuple[int, str, str]]:
    for after in range(first - 1, last, SLICE):
        upto = min(after + SLICE, last)
        for row in warehouse.run_query(text, fleet=fleet, after=after, last=upto):
            yield int(row["seq"]), str(row["digest"]), str(row["content"])


def _ledger_rows(
    ledger: LedgerReader, kinds: frozenset[str] | None, first: int, last: int
) -> Iterator[tuple[int, str, str]]:
    at = first - 1
    while at < last and (page := ledger.entries_after(at, PAGE)):
        for seq, raw in page:
            if seq <= last and (kinds is None or orjson.loads(raw)["kind"] in kinds):
                digest = sha256_hex(raw)
                yield seq, digest, digest
        at = page[-1][0]


def _compare_rows(
    local: Iterable[tuple[int, str, str]], shipped: Iterable[tuple[int, str, str]]
) -> tuple[int, list[str]]:
    wrong: list[str] = []
    count = 0
    for ours, theirs in zip_longest(local, shipped):
        count += theirs is not None
        if ours == theirs or len(wrong) >= MAX_FINDINGS:
            continue
        if theirs is None or (ours is not None and ours[0] < theirs[0]):
            wrong.append(f"entry {ours[0]} is not there")
        elif ours is None or ours[0] > theirs[0]:
            wrong.append(f"entry {theirs[0]} is there once too often")
        else:
            wrong.append(f"entry {ours[0]} is another one there")
        if ours is None or theirs is None or ours[0] != theirs[0]:
            # From here on nothing stands beside its like.
            count += sum(1 for _ in shipped)
            break
    return count, wrong
