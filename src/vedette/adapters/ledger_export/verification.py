"""Verification of a store, an export or an archive: entries, bodies, and a store's own columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from vedette.adapters.ledger_export.files import (
    EntryRow,
    VerifiableLedger,
    archived_part,
    entry_object,
    note_size,
    read_witness,
    snapshot,
)
from vedette.domain.base.errors import DamagedSegment
from vedette.ledger.history.action import ACTION_KINDS, ActionHistory
from vedette.ledger.history.entry_view import view_entry
from vedette.ledger.merkle import Frontier, ProofError
from vedette.ledger.verify import Code, EntryStream, Finding, Report, verify_ledger

_MAX_FINDINGS = 100

_END_KINDS = ("run.closed", "run.dropped")
_ACTION_KINDS = (*sorted(ACTION_KINDS), *_END_KINDS)
# What an approval did not cover; all else that is wrong with an action was not permitted.
_CODES = {"approval": Code.APPROVAL_MISSING, "digest": Code.APPROVAL_MISSING}


def verify_store(
    record: VerifiableLedger,
    verifier_key: str,
    witness: Path | None = None,
    *,
    bodies: bool = True,
    one_witness: bool = False,
) -> Report:
    """Verify an export, an archive or a store by a key and a witness file: see `verify_ledger`.

    Every effect must have been permitted, and each permit by approval have its person's entry. Of a
    store the rows are held against the entries, and what it finds entries by. With `one_witness`
    nobody else shows this store's checkpoints: the file must have all of them. The witness is read
    before the entries, so a fleet that goes on running meanwhile is not mistaken for a cut. Raises
    ProofError for a malformed key; what is wrong with the record is reported.
    """
    shown = read_witness(witness)
    damage: list[Finding] = []
    with snapshot(record):
        archived = archived_part(record)
        stream = EntryStream(_read_to_damage(record.walk(after=archived.size), damage))
        report = verify_ledger(
            stream,
            record.checkpoints(),
            verifier_key,
            shown,
            stream if bodies else None,
            archived=archived,
        )
        column_findings = [*_check_sizes(record), *_check_tree(record, report)]
        store_findings = [
            *_check_checkpoints(record, shown, report, archived.size, one_witness=one_witness)
        ]
        if not damage:
            store_findings += _check_entries(record, report, archived.size)
    counts = dict(report.counts)
    if damage:
        counts[Code.DAMAGED_SEGMENT] = 1
    if stream.stray_count and bodies:
        counts[Code.BODY_MISMATCH] = counts.get(Code.BODY_MISMATCH, 0) + stream.stray_count
    if column_findings:
        counts[Code.COLUMN_MISMATCH] = len(column_findings)
    shown_findings: list[Finding] = []
    for one in store_findings:
        counts[one.code] = counts.get(one.code, 0) + 1
        if counts[one.code] <= _MAX_FINDINGS:
            shown_findings.append(one)
    findings = (
        *report.findings,
        *(stream.strays if bodies else ()),
        *damage,
        *column_findings[:_MAX_FINDINGS],
        *shown_findings,
    )
    return replace(report, counts=counts, findings=findings)


def _read_to_damage(rows: Iterable[EntryRow], damage: list[Finding]) -> Iterator[EntryRow]:
    """Yield rows up to the end, or to a segment that cannot be read; then say so in `damage`."""
    try:
        yield from rows
    except DamagedSegment as error:
        damage.append(Finding(Code.DAMAGED_SEGMENT, None, error.what))


def _check_entries(record: VerifiableLedger, report: Report, archived: int) -> Iterator[Finding]:
    """Yield what the entries say that cannot be, and what a store's rows say that these do not."""
    try:
        yield from _check_permits(record, archived)
        if report.ok:
            # Where the entries themselves are wrong, nothing can be held against them.
            yield from _check_rows(record)
    except DamagedSegment as error:  # of what is archived: it was not read before
        yield Finding(Code.DAMAGED_SEGMENT, None, error.what)


def _check_sizes(record: VerifiableLedger) -> list[Finding]:
    """Return the checkpoints that a store keeps under another size than they sign."""
    read: Callable[[], Iterator[tuple[int, str]]] | None = getattr(
        record, "sized_checkpoints", None
    )
    return [
        Finding(
            Code.COLUMN_MISMATCH, size, f"the checkpoint kept as {size} is one of {note_size(n)}"
        )
        for size, n in (read() if read is not None else ())
        if size != note_size(n)
    ]


def _check_tree(record: VerifiableLedger, report: Report) -> list[Finding]:
    """Return the finding that a store would go on with another tree than that of its entries.

    Where the entries themselves are wrong, theirs is the wrong one.
    """
    read: Callable[[], str | None] | None = getattr(record, "frontier", None)
    stored = read() if read is not None else None
    if stored is None or not report.ok:
        return []
    try:
        tree = Frontier.from_bytes(bytes.fromhex(stored))
        if (tree.size, tree.root()) == (report.size, report.root):
            return []
        what = f"the store keeps a tree of {tree.size} entries that is not that of its entries"
    except (ProofError, ValueError) as error:
        what = f"the tree that the store keeps is not readable: {error}"
    return [Finding(Code.COLUMN_MISMATCH, None, what)]


def _check_checkpoints(
    record: VerifiableLedger,
    shown: Sequence[str],
    report: Report,
    archived: int,
    *,
    one_witness: bool,
) -> Iterator[Finding]:
    """Yield the checkpoints that the store has lost, or its witness: each has what the other has.

    Nothing is said of a restored ledger, whose two histories have checkpoints of their own.
    """
    if getattr(record, "sized_checkpoints", None) is None or report.restored:
        return
    stored = {note_size(note) for note in record.checkpoints()}
    seen = {note_size(note) for note in shown}
    missing = sorted(size for size in seen - stored if archived < size <= report.size)
    if missing or (not stored and report.size > archived):
        what = (
            f"the store has lost {len(missing)} checkpoints that the witness saw"
            if missing
            else f"the store has no checkpoint of its {report.size} entries"
        )
        yield Finding(Code.CHECKPOINTS_GONE, missing[0] if missing else None, what)
    if not one_witness:
        return
    # The last one is shown after its commit, and a runner that was killed had no time to.
    unseen = sorted(stored - seen - {max(stored, default=0)})
    outside = [size for size in unseen if not min(seen, default=0) < size < max(seen, default=0)]
    outside = [size for size in outside if size > archived]
    if outside:
        what = f"the witness lacks {len(outside)} checkpoints that the store has: it was cut"
        yield Finding(Code.WITNESS_SHORT, outside[0], what)


def _check_permits(record: VerifiableLedger, archived: int) -> Iterator[Finding]:
    """Yield what the entries say of actions that cannot have come about by permission."""
    actions: dict[str, ActionHistory] = {}
    of_run: dict[str, list[str]] = {}
    for seq, raw, _, data in record.walk(_ACTION_KINDS):
        value = entry_object(raw)
        if int(value.get("about") or seq) <= archived:
            continue  # its beginning is not at hand
        if value.get("kind") in _END_KINDS:
            for id in of_run.pop(str(value.get("run")), ()):
                del actions[id]
            continue
        if "action" not in value:
            continue
        id = str(value["action"])
        if id not in actions:
            actions[id] = ActionHistory(id)
            of_run.setdefault(str(value.get("run")), []).append(id)
        try:
            entry = view_entry(seq, value, data)
        except ValueError:
            continue  # such a body is found where its digest is compared
        faults = actions[id].faults(entry)
        actions[id] = actions[id].with_entry(entry.without_content(value))
        for one in faults:
            code = _CODES.get(one["code"], Code.UNPERMITTED)
            yield Finding(code, seq, f"entry {seq}: {one['what']}")


def _check_rows(record: VerifiableLedger) -> Iterator[Finding]:
    """Yield what a store's rows say that its entries do not."""
    read: Callable[[], Iterator[Any]] | None = getattr(record, "row_mismatches", None)
    for odd in read() if read is not None else ():
        policy = odd.table in ("policy", "bundle")
        yield Finding(Code.POLICY_MISMATCH if policy else Code.ROW_MISMATCH, None, str(odd))
