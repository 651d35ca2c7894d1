"""The upgrade of entries to segments: from the tables `entry` and `body` of schemas 2 and 3.

The new form is filled beside the old one, in chunks, and goes on where it was broken off. Nobody
believes it before it was proved: entry by entry the two are the same, and the ledger that they
hold verifies by its keys. Whoever owns the tables does the rest (`vedette.store.sqlite`,
`vedette.store.postgres`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import zip_longest

from msgspec import Struct

from vedette.domain.base.errors import BadStore, DamagedSegment
from vedette.domain.base.failpoint import hit_failpoint
from vedette.domain.ports.ledger_reader import RawEntry
from vedette.ledger.merkle import Frontier, ProofError
from vedette.ledger.pruned_log import ArchivedPrefix
from vedette.ledger.verify import EntryStream, Report, verify_ledger
from vedette.store.dialect import Database
from vedette.store.meta import ARCHIVED, read_meta
from vedette.store.place_check import find_place_mismatches
from vedette.store.schema import LINE_KINDS
from vedette.store.segment import StoredEntry
from vedette.store.stored_entries import EntryReader, kind_of, write_entries

# The schema that a store had before it was upgraded: in its meta table from then on.
UPGRADED = "upgraded_from"
# Where schemas 2 and 3 kept the tree, in hexadecimal; it lies with the newest checkpoint since.
OLD_FRONTIER = "frontier"

# A chunk is one transaction. It ends with the commit group that reaches either.
_CHUNK_ENTRIES = 4000
_CHUNK_BYTES = 1 << 24
_LINE_KINDS = frozenset(LINE_KINDS)

# Told what is done ("fill" or "prove"), and how many entries of how many were.
Progress = Callable[[str, int, int], None]


class UpgradeResult(Struct, frozen=True):
    """What an upgrade did: entries, the tree's root over them, and bytes on the disk.

    `schema` is that of before; `kept` is where the old store lies, None if it does not any more.
    """

    schema: int
    size: int
    entries: int
    root: str
    bytes_before: int
    bytes_after: int
    kept: str | None = None


class UpgradeDifference(Exception):
    """The error of a new form that is not what the old one holds: it is made anew."""


class OldEntries:
    """The entries of a store of schema 2 or 3, as `EntryReader` gives today's. Reads only."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def count(self) -> int:
        """Return how many entries there are."""
        return int(self._database.rows("SELECT COUNT(*) FROM entry")[0][0])

    def bounds(self) -> tuple[int, int]:
        """Return the first and the last seq; 1 and 0 without any entry."""
        ((first, last),) = self._database.rows(
            "SELECT COALESCE(MIN(seq),1), COALESCE(MAX(seq),0) FROM entry"
        )
        return int(first), int(last)

    def walk(self, after: int = 0) -> Iterator[StoredEntry]:
        """Yield the entries behind a seq, in order, with their content."""
        sql = (
            "SELECT e.seq, e.bytes, e.about, b.salt, b.data FROM entry e "
            "LEFT JOIN body b ON b.seq=e.seq WHERE e.seq>? ORDER BY e.seq"
        )
        for seq, raw, about, salt, data in self._database.iterate_rows(sql, (after,)):
            yield StoredEntry(int(seq), raw, about, salt, data)

    def groups(self, after: int) -> Iterator[list[StoredEntry]]:
        """Yield the entries behind a seq by commit groups: to where a checkpoint was signed.

        One of more entries than a chunk comes in parts: where the checkpoints of archived entries
        went before the entries did, all of those are one.
        """
        sql = "SELECT size FROM checkpoint WHERE size>? ORDER BY size"
        ends = (int(size) for (size,) in self._database.iterate_rows(sql, (after,)))
        end = next(ends, None)
        group: list[StoredEntry] = []
        for one in self.walk(after):
            while end is not None and end < one.seq:
                end = next(ends, None)
            group.append(one)
            if one.seq == end or len(group) == _CHUNK_ENTRIES:
                yield group
                group = []
        if group:
            yield group

    def stray_body(self) -> int | None:
        """Return the seq of content that lies beside no entry; None if all lies beside its own."""
        rows = self._database.rows(
            "SELECT MIN(seq) FROM body WHERE seq NOT IN (SELECT seq FROM entry)"
        )
        return None if rows[0][0] is None else int(rows[0][0])


def fill_segments(source: Database, target: Database, progress: Progress) -> None:
    """Write the entries of `source` that `target` has not yet as segments, in chunks.

    Each chunk is a transaction by whole commit groups, so a segment never holds entries of two.
    Raises UpgradeDifference where those that it has are of another beginning, BadStore for a gap.
    """
    old, new = OldEntries(source), EntryReader(target)
    with source.snapshot():
        first, last = old.bounds()
        reached = new.last_seq()
        if reached and new.first_seq() != first:
            raise UpgradeDifference(f"the old store begins at entry {first}")
        reached = reached or first - 1
        progress("fill", reached + 1 - first, last + 1 - first)
        chunk: list[list[StoredEntry]] = []
        entries = size = 0
        for group in old.groups(reached):
            for one in group:
                if one.seq != reached + 1:
                    raise refuse_store(f"entry {reached + 1} is missing")
                reached = one.seq
            chunk.append(group)
            entries += len(group)
            size += sum(len(one.raw) + len(one.data or b"") for one in group)
            if entries >= _CHUNK_ENTRIES or size >= _CHUNK_BYTES:
                _write_chunk(target, chunk)
                progress("fill", reached + 1 - first, last + 1 - first)
                chunk, entries, size = [], 0, 0
        if chunk:
            _write_chunk(target, chunk)
            progress("fill", last + 1 - first, last + 1 - first)


def _write_chunk(target: Database, chunk: list[list[StoredEntry]]) -> None:
    target.begin()
    try:
        for group in chunk:
            kinds = ((kind_of(one.raw), one.seq) for one in group)
            write_entries(target, group, [rare for rare in kinds if rare[0] not in _LINE_KINDS])
        target.commit()
    finally:
        target.rollback()
    hit_failpoint("upgrade:chunk")


def move_frontier(target: Database) -> None:
    """Put the tree that schemas 2 and 3 kept by name to the newest checkpoint, its head."""
    stored = read_meta(target, OLD_FRONTIER)
    if stored is not None:
        sql = "UPDATE checkpoint SET frontier=? WHERE size=(SELECT MAX(size) FROM checkpoint)"
        target.execute(sql, (_parse_frontier(stored),))
        target.execute("DELETE FROM meta WHERE name=?", (OLD_FRONTIER,))


def _parse_frontier(stored: str) -> bytes:
    try:
        return bytes.fromhex(stored)
    except ValueError as error:
        raise refuse_store(f"the tree that it keeps is not readable: {error}") from error


# --- the proof ------------------------------------------------------------------------------------


def prove_entries(
    source: Database, target: Database, verifier_key: str, progress: Progress
) -> Report:
    """Prove that `target` holds the entries of `source`, and that these are the ledger's.

    The two are walked side by side; what both say is verified by its checkpoints and keys, with
    all content. Raises UpgradeDifference where they differ, BadStore, naming the entry, where what
    both say is not the ledger's: then the old store is not what it was.
    """
    with source.snapshot(), target.snapshot():
        if (seq := OldEntries(source).stray_body()) is not None:
            raise refuse_store(f"content lies beside entry {seq}, which is not there")
        kept = read_meta(source, ARCHIVED)
        notes = source.rows("SELECT note FROM checkpoint ORDER BY size")
        try:
            archived = ArchivedPrefix.from_bytes(kept.encode() if kept is not None else None)
            stream = EntryStream(_compare_entries(source, target, archived.size, progress))
            report = verify_ledger(
                stream, (str(note) for (note,) in notes), verifier_key, (), stream,
                archived=archived,
            )  # fmt: skip
        except DamagedSegment as error:
            raise UpgradeDifference(error.what) from error
        except ProofError as error:
            raise refuse_store(str(error)) from error
        for finding in (*report.findings, *stream.strays):
            raise refuse_store(finding.sentence)
        _check_tree(source, report)
        for odd in find_place_mismatches(target):
            raise refuse_store(
                f"{odd.table} {odd.row} says {odd.actual!r}, and should say {odd.expected!r}"
            )
    return report


def _compare_entries(
    source: Database, target: Database, archived: int, progress: Progress
) -> Iterator[RawEntry]:
    """Yield what is not archived, as both forms have it. Raises UpgradeDifference."""
    before = OldEntries(source)
    first, last = before.bounds()
    for old, new in zip_longest(before.walk(), EntryReader(target).walk()):
        if old is None or old != new:
            raise UpgradeDifference(_describe_difference(old, new))
        if old.seq % _CHUNK_ENTRIES == 0 or old.seq == last:
            progress("prove", old.seq + 1 - first, last + 1 - first)
        if old.seq > archived:
            yield old.seq, old.raw, old.salt, old.data


def _describe_difference(old: StoredEntry | None, new: StoredEntry | None) -> str:
    there = old or new
    assert there is not None
    if old is None or new is None or old.seq != new.seq:
        seq = min(one.seq for one in (old, new) if one is not None)
        return f"entry {seq} is in one of the two alone"
    names = [
        name for name in StoredEntry.__struct_fields__ if getattr(old, name) != getattr(new, name)
    ]
    return f"entry {there.seq} differs in {', '.join(names)}"


def _check_tree(source: Database, report: Report) -> None:
    stored = read_meta(source, OLD_FRONTIER)
    try:
        tree = Frontier.from_bytes(_parse_frontier(stored)) if stored else Frontier()
    except ProofError as error:
        raise refuse_store(f"the tree that it keeps is not readable: {error}") from error
    if (tree.size, tree.root()) != (report.size, report.root):
        raise refuse_store(f"its tree of {tree.size} entries is not that of its entries")


def refuse_store(what: str) -> BadStore:
    """Return the error of an old store that does not verify, and so is not upgraded."""
    return BadStore(
        f"the store does not verify: {what}",
        mend="see `vedette verify` of the version that wrote it, or restore a backup; nothing was "
        "changed",
    )


def begin_anew(error: Exception, attempt: int) -> None:
    """Let a new form be made anew, once. Raises BadStore for a second difference."""
    if attempt > 1:
        raise BadStore(
            f"what was written twice is not what was read: {error}",
            mend="see that disk and memory are well; the old store was not changed",
        ) from error
