"""Verification of a store, an export or an archive: entries, bodies, and a store's own columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from vedette.adapters.ledger_file.files import (
    Walk,
    Walked,
    archived_of,
    read_object,
    read_witness,
    size_of,
    snapshot,
)
from vedette.proof import Frontier, ProofError
from vedette.verify import Code, Finding, Report, verify_ledger

# The typed columns that a store keeps beside the bytes, in the order in which it yields them.
COLUMNS = (
    "seq", "at", "kind", "about", "agent", "outcome", "rule", "policy_rev", "actor", "cause",
)  # fmt: skip

_LIMIT = 100


class _Stream:
    """Hands entries to the verifier one by one, and with each the body that lies beside it."""

    def __init__(self, rows: Iterable[Walked], found: list[Finding]) -> None:
        self._rows = rows
        self._found = found
        self._body: tuple[bytes, bytes] | None = None
        self._asked = True
        self.strays = 0

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        for seq, raw, salt, data in self._rows:
            self._body = None if salt is None or data is None else (salt, data)
            self._asked = self._body is None
            yield seq, raw
            if not self._asked:
                # It would be shown beside an entry that vouches for nothing.
                self.strays += 1
                if self.strays <= _LIMIT:
                    what = f"a body lies beside entry {seq}, which has none"
                    self._found.append(Finding(Code.BODY_MISMATCH, seq, what))

    def get(self, digest: str, /) -> tuple[bytes, bytes] | None:
        """Return the body of the entry at hand, whatever its digest: the verifier compares."""
        self._asked = True
        return self._body


def verify_store(
    record: Walk, verifier_key: str, witness: Path | None = None, *, bodies: bool = True
) -> Report:
    """Verify a store or an export against a key and a witness file: see `verify_ledger`.

    Of a store the typed columns are held against the bytes too. The witness is read before the
    entries, so a fleet that goes on running meanwhile is not mistaken for a cut. Raises ProofError
    for a malformed key; what is wrong with the record is reported.
    """
    shown = read_witness(witness)
    found: list[Finding] = []
    with snapshot(record):
        begun = archived_of(record)
        stream = _Stream(record.walk(after=begun.size), found)
        report = verify_ledger(
            stream,
            record.notes(),
            verifier_key,
            shown,
            stream if bodies else None,
            archived=begun,
        )
        wrong, columns = _columns(record)
        beside = [*_sizes(record), *_tree(record, report)]
    counts = dict(report.counts)
    if stream.strays and bodies:
        counts[Code.BODY_MISMATCH] = counts.get(Code.BODY_MISMATCH, 0) + stream.strays
        columns = found + columns
    if wrong or beside:
        counts[Code.COLUMN_MISMATCH] = wrong + len(beside)
    findings = (*report.findings, *columns, *beside[:_LIMIT])
    return replace(report, counts=counts, findings=findings)


def _columns(record: Walk) -> tuple[int, list[Finding]]:
    """Return how many entries have a column that differs from their bytes, and the first ones."""
    read: Callable[[], Iterator[tuple[Any, ...]]] | None = getattr(record, "columns", None)
    wrong, found = 0, []
    accepted: dict[str, int] = {}
    for row in read() if read is not None else ():
        *columns, raw = row
        value = read_object(raw)
        if "about" not in value:
            _say_about(value, accepted)
        bad = [n for n, c in zip(COLUMNS, columns, strict=True) if c != value.get(n)]
        if bad:
            wrong += 1
            if wrong <= _LIMIT:
                what = f"column {bad[0]} of entry {row[0]} is not what the entry's bytes say"
                found.append(Finding(Code.COLUMN_MISMATCH, row[0], what))
    return wrong, found


def _say_about(value: dict[str, Any], accepted: dict[str, int]) -> None:
    """Say what an entry is about that was made before entries said so themselves.

    Its store has moved it since to where its event lies (see `vedette.adapters.sqlite.migrate`).
    """
    event, kind, seq = value.get("event"), value.get("kind"), value.get("seq")
    if not isinstance(seq, int):
        return
    if kind == "event.accepted":
        accepted[str(event)] = seq
    if kind == "event.refused":
        value["about"] = seq
    elif isinstance(event, str):
        value["about"] = accepted.get(event)


def _sizes(record: Walk) -> list[Finding]:
    """Return the checkpoints that a store keeps under another size than they sign."""
    read: Callable[[], Iterator[tuple[int, str]]] | None = getattr(record, "sized", None)
    return [
        Finding(Code.COLUMN_MISMATCH, size, f"the checkpoint kept as {size} is one of {size_of(n)}")
        for size, n in (read() if read is not None else ())
        if size != size_of(n)
    ]


def _tree(record: Walk, report: Report) -> list[Finding]:
    """Return the finding that a store would go on with another tree than that of its entries.

    Where the entries themselves are wrong, theirs is the wrong one.
    """
    read: Callable[[], str | None] | None = getattr(record, "tree", None)
    kept = read() if read is not None else None
    if kept is None or not report.ok:
        return []
    try:
        tree = Frontier.from_bytes(bytes.fromhex(kept))
        if (tree.size, tree.root()) == (report.size, report.root):
            return []
        what = f"the store keeps a tree of {tree.size} entries that is not that of its entries"
    except (ProofError, ValueError) as error:
        what = f"the tree that the store keeps is not readable: {error}"
    return [Finding(Code.COLUMN_MISMATCH, None, what)]
