"""Archives: closed segments of the ledger in folders, and the ledger read over both.

A segment is an export of the entries from behind the one before up to a checkpoint, named by its
first and last entry, with `growth.json`: the proof that its last checkpoint is a beginning of the
newest one at that time. It is written beside its final name, verified there, and then renamed; so
what bears a segment's name is whole.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from vedette.adapters.ledger_export.files import (
    EntryRow,
    LedgerExport,
    VerifiableLedger,
    archived_part,
    entry_object,
    export,
    note_size,
    snapshot,
    sync_folder,
)
from vedette.adapters.ledger_export.proofs import ProofTree
from vedette.adapters.ledger_export.verification import verify_store
from vedette.domain.base.disk_errors import convert_disk_errors
from vedette.domain.base.errors import BadCommand, BadStore
from vedette.domain.base.failpoint import hit_failpoint
from vedette.ledger.pruned_log import ArchivedPrefix

_NAME = re.compile(r"([0-9]{12})-([0-9]{12})\Z")
_PART = ".part"
GROWTH = "growth.json"


def checkpoint_size_before(record: VerifiableLedger, before_us: int, open_from: int | None) -> int:
    """Return the largest checkpoint size to archive: its entries are all older than an instant.

    `open_from` is the first entry of the oldest run that has not ended: nothing from there on is
    closed. Returns 0, or what is archived already, if there is nothing more.
    """
    with snapshot(record):
        archived_size = archived_part(record).size
        closed = archived_size
        for seq, raw, _, _ in record.walk(after=archived_size):
            at = entry_object(raw).get("at")
            if type(at) is not int or at >= before_us or (open_from and seq >= open_from):
                break
            closed = seq
        return max(
            (s for s in map(note_size, record.checkpoints()) if archived_size < s <= closed),
            default=archived_size,
        )


def write_segment(
    record: VerifiableLedger, folder: Path, size: int, verifier_key: str
) -> ArchivedPrefix:
    """Export the entries up to a checkpoint's size as the next segment of an archive folder.

    Returns what stays of them beside the rest; the caller lets the entries go only now. A segment
    that begins there already is one whose entries were not let go of: if it verifies it is taken,
    though it may end before `size`, as no two may overlap. Raises BadCommand if the archive does
    not end where the record begins, BadStore if what was written does not verify, StoreFailed where
    the disk refused something.
    """
    archived = archived_part(record)
    left = sorted(folder.glob(f"{archived.size + 1:012}-{'[0-9]' * 12}"))
    path = left[0] if left else folder / f"{archived.size + 1:012}-{size:012}"
    if (end := int(path.name[-12:])) > size:
        raise BadCommand(
            f"a segment up to entry {end} was written, and its entries are still in the store",
            where=str(path), mend="archive that far, or move the segment away",
        )  # fmt: skip
    size = end
    proof_tree = ProofTree.read(record)
    proof_tree.find_note(size)
    with convert_disk_errors(path):
        if not path.exists():
            _write(record, proof_tree, path, size, verifier_key)
        _check(path, verifier_key, archived, size, proof_tree)
    tree = proof_tree.tree.base.copy()
    for leaf in proof_tree.tree.leaves[: size - archived.size]:
        tree.append(leaf)
    return ArchivedPrefix(size, tree.peaks, proof_tree.handovers(size))


def _write(
    record: VerifiableLedger, proof_tree: ProofTree, path: Path, size: int, verifier_key: str
) -> None:
    part = path.with_name(path.name + _PART)
    if part.exists():
        shutil.rmtree(part)
    path.parent.mkdir(parents=True, exist_ok=True)
    hit_failpoint("segment:before")
    export(record, part, verifier_key=verifier_key, witness=None, upto=size)
    proof: dict[str, Any] = {
        "schema": "vedette.consistency/1",
        "from": proof_tree.find_note(size),
        "to": proof_tree.notes[-1],
        "proof": [node.hex() for node in proof_tree.tree.consistency(size)],
        "handovers": [
            one.to_json() for one in proof_tree.handovers(note_size(proof_tree.notes[-1]))
        ],
    }
    (part / GROWTH).write_bytes(orjson.dumps(proof) + b"\n")
    sync_folder(part)
    hit_failpoint("segment:mid")
    part.rename(path)
    sync_folder(path)
    hit_failpoint("segment:after")


def _check(
    path: Path, verifier_key: str, archived: ArchivedPrefix, size: int, proof_tree: ProofTree
) -> None:
    """Raise BadStore unless a segment proves, by itself, to be what the record says it is."""
    segment = LedgerExport(path)
    report = verify_store(segment, verifier_key, None, bodies=False)
    same = (report.archived, report.size) == (archived.size, size)
    tree = proof_tree.tree_at(size)
    root = tree.base.copy()
    for leaf in tree.leaves:
        root.append(leaf)
    if not (report.ok and same and report.root == root.root()):
        why = report.findings[0].sentence if report.findings else "it holds other entries"
        raise BadStore(
            f"the segment does not verify: {why}",
            where=str(path),
            mend="move it away and archive again; the store still holds its entries",
        )


@dataclass(slots=True)
class Archive:
    """The exported segments of an archive folder, in order."""

    folder: Path
    segments: list[tuple[int, int, LedgerExport]] = field(init=False)

    def __post_init__(self) -> None:
        """Raises BadStore if there is no segment, or one is missing between two."""
        self.segments = []
        paths = sorted(self.folder.iterdir()) if self.folder.is_dir() else []
        for path in paths:
            named = _NAME.match(path.name)
            if named is None:
                continue
            first, last = int(named[1]), int(named[2])
            if self.segments and self.segments[-1][1] + 1 != first:
                what = f"entries {self.segments[-1][1] + 1} to {first - 1} are missing"
                raise BadStore(what, where=str(self.folder), mend="bring the segments together")
            self.segments.append((first, last, LedgerExport(path)))
        if not self.segments:
            mend = "name the folder that `vedette ledger archive` wrote into"
            raise BadStore("there is no archive here", where=str(self.folder), mend=mend)


class JoinedLedger:
    """An archive folder with the record behind it: one ledger, from its first entry at hand.

    Segments that the record has not let go of yet are left aside.
    """

    def __init__(self, archive: Archive, record: VerifiableLedger) -> None:
        """Raises BadCommand if the archive does not reach to where the record begins."""
        self._record = record
        archived_size = archived_part(record).size
        self._segments = [one for _, last, one in archive.segments if last <= archived_size]
        end = max((last for _, last, _ in archive.segments if last <= archived_size), default=0)
        if end != archived_size:
            raise BadCommand(
                f"the archive ends at entry {end}, the store begins behind entry {archived_size}",
                where=str(archive.folder),
                mend="name the folder that holds all segments",
            )
        self.snapshot = lambda: snapshot(record)
        for name in ("sized_checkpoints", "frontier"):
            method: Callable[[], Any] | None = getattr(record, name, None)
            if method is not None:
                setattr(self, name, method)

    def archived(self) -> bytes | None:
        """Return what lies before the first segment."""
        return self._segments[0].archived() if self._segments else None

    def walk(self, kinds: tuple[str, ...] | None = None, after: int = 0) -> Iterator[EntryRow]:
        """Yield the entries of the segments, then those of the record.

        A segment has no content; what the record keeps of it comes with its entry.
        """
        ask: Callable[[], dict[int, tuple[bytes, bytes]]] | None
        ask = getattr(self._record, "archived_bodies", None)
        bodies = ask() if ask is not None else {}
        for segment in self._segments:
            for seq, raw, salt, data in segment.walk(kinds, after):
                salt_and_data = bodies.get(seq, (salt, data))
                yield seq, raw, *salt_and_data
        yield from self._record.walk(kinds, max(after, archived_part(self._record).size))

    def checkpoints(self) -> Iterator[str]:
        """Yield all signed checkpoints in order."""
        for segment in self._segments:
            yield from segment.checkpoints()
        archived_size = archived_part(self._record).size
        for note in self._record.checkpoints():
            # Until all of what was let go is deleted the record has some of them, too.
            if not 0 < note_size(note) <= archived_size:
                yield note
