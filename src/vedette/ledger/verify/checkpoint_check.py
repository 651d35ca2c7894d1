"""Checkpoint checks: signed ones are held against the entries, and against each other.

A note is believed once the key in force at its size has signed it; which key that was, the
entries say (`vedette.ledger.key_history`). A checkpoint that differs from the entries is a fork, a
cut or a rewriting, unless an authenticated `store.restored` accounts for it: see `_account`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

from msgspec import Struct, field

from vedette.ledger.key_history import KeyChain, read_next_key
from vedette.ledger.merkle import (
    Checkpoint,
    ProofError,
    parse_note,
    parse_verifier_key,
    verify_note,
)
from vedette.ledger.pruned_log import ArchivedPrefix
from vedette.ledger.verify.finding import Code, Findings, RecordedLoss, format_value

STORE = "store"
WITNESS = "witness"


class _CheckpointNote(Struct):
    """A note with the checkpoint that it claims to be; `is_signed` once its signature held."""

    source: str
    number: int
    text: str
    point: Checkpoint
    is_signed: bool = False
    is_lost: bool = False
    error: str = ""


class CheckpointResult(Struct):
    """What the checkpoints of a verification came to: see `Report`."""

    agreed_sizes: dict[str, int]
    reach: int
    restored: tuple[RecordedLoss, ...]
    lost: int
    keys: int


class CheckpointChecker(Struct):
    """Holds the signed checkpoints of one verification against the ledger's entries."""

    verifier_key: str
    origin: str | None
    findings: Findings
    counts: dict[str, int] = field(default_factory=lambda: {STORE: 0, WITNESS: 0})
    _notes: list[_CheckpointNote] = field(default_factory=list)

    def add_notes(self, source: str, notes: Iterable[str]) -> None:
        """Take notes in, in the order written; none is believed yet."""
        for number, text in enumerate(notes, 1):
            self.counts[source] += 1
            try:
                point = Checkpoint.from_body(parse_note(text).body)
            except ProofError as error:
                self._refuse(source, number, str(error))
                continue
            self._notes.append(_CheckpointNote(source, number, text, point))

    def sizes(self) -> set[int]:
        """Return the sizes at which a root is wanted."""
        return {head.point.size for head in self._notes}

    def check(
        self,
        roots: Mapping[int, bytes],
        size: int,
        rotations: list[tuple[int, dict[str, Any]]],
        restores: list[tuple[int, dict[str, Any]]],
        archived: ArchivedPrefix,
    ) -> CheckpointResult:
        """Hold every checkpoint against the roots recomputed at its size, and each other."""
        chain = self._chain(roots, rotations, archived)
        self._verify(chain)
        restored = self._mark_lost(roots, restores)
        for head in self._notes:
            if not head.is_signed and not head.is_lost:
                self._refuse(head.source, head.number, head.error)
        standing = {
            source: [
                h.point for h in self._notes if h.source == source and h.is_signed and not h.is_lost
            ]
            for source in (STORE, WITNESS)
        }
        agreed = _compare(standing, roots, size, self.findings)
        reach = max((point.size for points in standing.values() for point in points), default=0)
        lost = sum(head.is_lost for head in self._notes)
        return CheckpointResult(agreed, reach, restored, lost, chain.length)

    def _refuse(self, source: str, number: int, why: str) -> None:
        what = f"checkpoint {number} of the {source} does not hold: {why}"
        self.findings.add(Code.BAD_NOTE, None, what)

    # --- keys -------------------------------------------------------------------------------

    def _chain(
        self,
        roots: Mapping[int, bytes],
        rotations: list[tuple[int, dict[str, Any]]],
        archived: ArchivedPrefix,
    ) -> KeyChain:
        chain = KeyChain(self.verifier_key)
        name, _ = parse_verifier_key(self.verifier_key)
        try:
            archived.extend_chain(chain)
        except ProofError as error:
            what = f"the keys of the archived entries cannot be followed: {error}"
            self.findings.add(Code.BAD_ARCHIVE, None, what)
        for seq, entry in rotations:
            try:
                key = read_next_key(entry, name)
                chain.link(self._handover(seq, roots, chain.last), key)
            except ProofError as error:
                what = f"the rotation in entry {seq} does not stand: {error}"
                self.findings.add(Code.BAD_ROTATION, seq, what)
        return chain

    def _handover(self, seq: int, roots: Mapping[int, bytes], key: str) -> int:
        """Return the size of the first checkpoint over an entry that the old key signed."""
        covering = [h for h in self._notes if h.point.size >= seq]
        for head in sorted(covering, key=lambda h: h.point.size):
            if roots.get(head.point.size) != head.point.root:
                continue
            try:
                verify_note(head.text, key)
            except ProofError:
                continue
            return head.point.size
        raise ProofError("no checkpoint over it is signed by the key that hands over")

    def _verify(self, chain: KeyChain) -> None:
        # The witness holds copies of the store's notes: each text is verified once.
        known: dict[str, str] = {}
        for head in self._notes:
            if head.text not in known:
                known[head.text] = self._find_error(head, chain)
            head.error = known[head.text]
            head.is_signed = not head.error

    def _find_error(self, head: _CheckpointNote, chain: KeyChain) -> str:
        origin = self.origin or parse_verifier_key(self.verifier_key)[0]
        try:
            verify_note(head.text, chain.key_at(head.point.size))
        except ProofError as error:
            return str(error)
        if head.point.origin != origin:
            return f"it is of {format_value(head.point.origin)}, not of {origin}"
        return ""

    # --- restores ---------------------------------------------------------------------------

    def _mark_lost(
        self, roots: Mapping[int, bytes], restores: list[tuple[int, dict[str, Any]]]
    ) -> tuple[RecordedLoss, ...]:
        """Mark the witness's checkpoints of history that a restore has lost.

        The witness goes on over a restore: its file holds the heads of the lost history, then
        those of the restored one. A *branch* is a stretch of it in which the ledger only grew: it
        ends before a smaller head, behind one that is named, and where a worker that had ended in
        the lost history came back to a restored one that was longer by then. A
        branch accounts as lost if the entry names its last head, or a larger one (then the
        witness is an old copy), and if nothing in it agrees with what came after the restore:
        who forks the restored history cannot hide behind the restore.
        """
        witness = [h for h in self._notes if h.source == WITNESS]
        signed = max(
            (h.point.size for h in self._notes if h.is_signed and _agrees(h, roots)), default=0
        )
        losses: dict[int, _NamedLoss] = {}
        for by, entry in restores:
            one = _read_loss(entry, by)
            if one is not None and by <= signed:  # or nobody vouches for the entry
                losses.setdefault(one.seq, one)
        ends = {(size, root) for one in losses.values() for size, root in one.heads.items()}
        for branch in _branches(witness, ends, roots):
            own = max(
                (h.point.size for h in branch if h.is_signed and _agrees(h, roots)), default=0
            )
            last = branch[-1].point
            for one in losses.values():
                named = one.heads.get(last.size) == last.root or last.size < one.last
                if own >= one.start or not named:
                    continue
                for head in branch:
                    if head.point.size >= one.start and not (
                        head.is_signed and _agrees(head, roots)
                    ):
                        head.is_lost = True
        return tuple(RecordedLoss(one.seq, one.last, one.start) for one in losses.values())


def _agrees(head: _CheckpointNote, roots: Mapping[int, bytes]) -> bool:
    return roots.get(head.point.size) == head.point.root


class _NamedLoss(Struct):
    """What is told of a loss: its entry, the first entry lost, and the named heads beyond."""

    seq: int
    start: int
    heads: dict[int, bytes]

    @property
    def last(self) -> int:
        return max(self.heads, default=0)


def _read_loss(entry: Mapping[str, Any], by: int) -> _NamedLoss | None:
    """Read what entry `by` tells of a loss; a head that is malformed is not named."""
    seq, size = entry.get("seq"), entry.get("size")
    if type(seq) is not int or not 0 < seq <= by:
        return None
    start = size + 1 if type(size) is int and 0 <= size < seq else seq
    found: dict[int, bytes] = {}
    named = entry.get("heads")
    for one in named if isinstance(named, list) else []:
        try:
            at, root = one
            if type(at) is int and at >= start:
                found[at] = bytes.fromhex(root)
        except (ValueError, TypeError):
            continue
    return _NamedLoss(seq, start, found)


def _branches(
    heads: list[_CheckpointNote], ends: set[tuple[int, bytes]], roots: Mapping[int, bytes]
) -> Iterator[list[_CheckpointNote]]:
    branch: list[_CheckpointNote] = []
    ours = False  # the branch left the entries that are here, and did not begin elsewhere
    for head in heads:
        if branch:
            last = branch[-1].point
            left = ours and roots.get(last.size, last.root) != last.root
            if (
                head.point.size < last.size
                or ((last.size, last.root) in ends and head.point != last)
                or (left and _agrees(head, roots))
            ):
                yield branch
                branch, ours = [], False
        ours = ours or _agrees(head, roots)
        branch.append(head)
    if branch:
        yield branch


# --- roots ----------------------------------------------------------------------------------


def _compare(
    signed: Mapping[str, list[Checkpoint]],
    roots: Mapping[int, bytes],
    size: int,
    findings: Findings,
) -> dict[str, int]:
    """Report where signed checkpoints differ from the entries or from each other.

    Returns the largest size of each source that agrees with the entries.
    """
    agreed = {
        source: max((p.size for p in points if roots.get(p.size) == p.root), default=0)
        for source, points in signed.items()
    }
    for source, points in signed.items():
        longest = max((point.size for point in points), default=0)
        if longest > size:
            what = f"the ledger ends at entry {size}, but the {source} has signed entry {longest}"
            findings.add(Code.TAIL_CUT, longest, what)
        for before, after in pairwise(points):
            if after.size < before.size:
                what = f"the {source} signed {after.size} entries after {before.size}: it shrank"
                findings.add(Code.NOT_CONSISTENT, after.size, what)
        _compare_roots(source, points, roots, findings)
    reported = set()
    for code, at, what in _contradictions(signed, roots, agreed):
        if (code, at) not in reported:
            reported.add((code, at))
            findings.add(code, at, what)
    return agreed


def _compare_roots(
    source: str, points: list[Checkpoint], roots: Mapping[int, bytes], findings: Findings
) -> None:
    below = 0
    for size, root in sorted({(point.size, point.root) for point in points}):
        if roots.get(size, root) != root:
            what = f"checkpoint {size} of the {source} has another root than entries 1 to {size}"
            findings.add(Code.ROOT_MISMATCH, size, f"{what} (the last that agreed: {below})")
        elif size in roots:  # else it is beyond the end, reported as a cut, or archived
            below = size


def _contradictions(
    signed: Mapping[str, list[Checkpoint]], roots: Mapping[int, bytes], agreed: Mapping[str, int]
) -> Iterator[tuple[Code, int, str]]:
    """Yield where two signed trees cannot be one tree growing: both were signed by our key.

    Two roots of one size, or a checkpoint that differs from the entries below one that agrees
    with them (the later tree does not extend the earlier). Within one source the history was
    written anew; between store and witness it forked.
    """
    heads: dict[int, tuple[str, bytes]] = {}
    for source, points in signed.items():
        for point in points:
            other, root = heads.setdefault(point.size, (source, point.root))
            if root != point.root:
                code = Code.NOT_CONSISTENT if other == source else Code.FORK
                what = f"{other} and {source}" if other != source else f"the {source}"
                yield code, point.size, f"two signed roots of size {point.size} in {what}"
            if roots.get(point.size, point.root) == point.root:
                continue
            for other, reach in agreed.items():
                if point.size < reach:
                    code = Code.NOT_CONSISTENT if other == source else Code.FORK
                    what = f"checkpoint {point.size} of the {source} is no beginning of"
                    yield code, point.size, f"{what} signed checkpoint {reach} of the {other}"
