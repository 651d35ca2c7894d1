"""Verify a ledger offline: entries, checkpoints, a public key and the witness's copy, no store.

One forward pass over the entries. Memory grows with the checkpoints, the runs and the missing
bodies, never with the entries. Nothing is believed but the verifier key: every checkpoint is
verified as a signed note before it counts, and every root is computed again.

What this cannot find, because nothing outside the store knows of it: a cut after the last
witnessed checkpoint. `Report.witnessed` says how far the witness reaches. Nor can it tell that
the holder of the signing key wrote another history before any checkpoint reached a witness.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Any, Protocol

import orjson

from vedette.digest import SALT_BYTES, checked, salted
from vedette.proof import (
    Checkpoint,
    Frontier,
    ProofError,
    leaf_hash,
    parse_verifier_key,
    verify_note,
)

STORE = "store"
WITNESS = "witness"
ERASURE = "body.erased"

_HEX = frozenset("0123456789abcdef")
_FLAT = frozenset({str, int, bool, type(None)})
_STRICT = orjson.OPT_SORT_KEYS | orjson.OPT_STRICT_INTEGER


class Code(StrEnum):
    """Everything that can be wrong with a ledger; stable, may be matched on."""

    NOT_CANONICAL = "not-canonical"
    SEQ_GAP = "seq-gap"
    SEQ_MISMATCH = "seq-mismatch"
    RUN_GAP = "run-gap"
    CAUSE_NOT_EARLIER = "cause-not-earlier"
    BAD_NOTE = "bad-note"
    ROOT_MISMATCH = "root-mismatch"
    TAIL_CUT = "tail-cut"
    UNSIGNED_TAIL = "unsigned-tail"
    FORK = "fork"
    NOT_CONSISTENT = "not-consistent"
    BODY_MISMATCH = "body-mismatch"
    BODY_MISSING = "body-missing"
    COLUMN_MISMATCH = "column-mismatch"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong: what kind, at which entry (None: at none), in one sentence.

    For a finding about a checkpoint `seq` is the size of that checkpoint, its last entry.
    """

    code: Code
    seq: int | None
    sentence: str


class BodyLookup(Protocol):
    """Where bodies are looked up, by hex digest: a dict, or a store behind the same `get`."""

    def get(self, digest: str, /) -> tuple[bytes, bytes] | None: ...


@dataclass(frozen=True, slots=True)
class Report:
    """What was verified and what was found.

    `size` and `root` are the head as recomputed; `signed` and `witnessed` the largest sizes up
    to which a checkpoint of the store's list, or of the witness's, agrees with the entries.
    `bodies` counts the references that were followed and found right (None: bodies were not
    asked for), `erased` the distinct bodies whose erasure the ledger records. `counts` counts
    every finding; `findings` keeps the first of each code.
    """

    size: int
    root: bytes
    runs: int
    checkpoints: int
    witness_checkpoints: int
    signed: int
    witnessed: int
    bodies: int | None
    erased: int
    counts: Mapping[Code, int]
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """True if nothing was found."""
        return not self.counts

    def to_json(self) -> dict[str, Any]:
        """Return the report as the object that `--json` prints."""
        return {
            "ok": self.ok,
            **asdict(self),
            "root": self.root.hex(),
            "counts": {code.value: count for code, count in self.counts.items()},
            "findings": [{**asdict(one), "code": one.code.value} for one in self.findings],
        }


@dataclass(slots=True)
class _Findings:
    """The findings so far: all counted, but only the first `limit` of each code kept, because
    deleting one early entry can make every later one wrong.
    """

    limit: int
    counts: Counter[Code] = field(default_factory=Counter)
    kept: list[Finding] = field(default_factory=list)

    def add(self, code: Code, seq: int | None, sentence: str) -> None:
        self.counts[code] += 1
        if self.counts[code] <= self.limit:
            self.kept.append(Finding(code, seq, sentence))


def verify_ledger(
    entries: Iterable[tuple[int, bytes]],
    checkpoints: Iterable[str],
    verifier_key: str,
    witness: Iterable[str] = (),
    bodies: BodyLookup | None = None,
    *,
    origin: str | None = None,
    limit: int = 100,
) -> Report:
    """Verify a whole ledger and report everything that is wrong with it.

    `entries` are (seq, canonical bytes) in storage order from seq 1. `checkpoints` and
    `witness` are signed notes, each in the order written: those kept in the store, and those
    copied out of its reach. `bodies` None leaves the bodies unchecked, as the proof over the
    entries does not need them. `origin` is the origin every checkpoint must name, the key's
    name if None. `limit` is how many findings of each code are kept.

    Raises ProofError only for a malformed `verifier_key`: what is wrong with the ledger is
    reported, never raised.
    """
    found = _Findings(limit)
    name, _ = parse_verifier_key(verifier_key)
    notes = _Notes(verifier_key, origin if origin is not None else name, found)
    signed = {STORE: notes.read(STORE, checkpoints), WITNESS: notes.read(WITNESS, witness)}
    wanted = {point.size for points in signed.values() for point in points}

    tree = Frontier()
    roots = {0: tree.root()}
    reader = _Entries(found, bodies)
    for seq, raw in entries:
        reader.read(seq, raw)
        tree.append(leaf_hash(raw))
        if tree.size in wanted:
            roots[tree.size] = tree.root()
    reader.close()

    agreed = _compare(signed, roots, tree.size, found)
    reach = max((point.size for points in signed.values() for point in points), default=0)
    if reach < tree.size:
        # Without this, whoever drops the last checkpoints could rewrite what they covered.
        found.add(
            Code.UNSIGNED_TAIL,
            reach + 1,
            f"entries {reach + 1} to {tree.size} are covered by no signed checkpoint",
        )
    return Report(
        size=tree.size,
        root=tree.root(),
        runs=len(reader.runs),
        checkpoints=notes.seen[STORE],
        witness_checkpoints=notes.seen[WITNESS],
        signed=agreed[STORE],
        witnessed=agreed[WITNESS],
        bodies=reader.right if bodies is not None else None,
        erased=len(reader.erased),
        counts=dict(found.counts),
        findings=tuple(found.kept),
    )


# --- entries --------------------------------------------------------------------------------


class _Entries:
    """The checks of one entry after another; keeps what later entries are compared with."""

    def __init__(self, found: _Findings, bodies: BodyLookup | None) -> None:
        self._found = found
        self._bodies = bodies
        self._last = 0
        self._missing: dict[str, int] = {}
        self.runs: dict[str, int] = {}
        self.erased: set[str] = set()
        self.right = 0

    def read(self, seq: int, raw: bytes) -> None:
        if seq != self._last + 1:
            what = f"entry {seq} stands where entry {self._last + 1} should"
            self._found.add(Code.SEQ_GAP, seq, what)
        self._last = seq
        entry = _canonical_object(raw)
        if entry is None:  # its fields could be read in more than one way
            what = f"the bytes of entry {seq} are not a JSON object in canonical form"
            self._found.add(Code.NOT_CANONICAL, seq, what)
            return
        if not _whole(entry.get("seq")) or entry["seq"] != seq:
            what = f"the bytes of entry {seq} say seq {_shown(entry.get('seq'))}"
            self._found.add(Code.SEQ_MISMATCH, seq, what)
        cause = entry.get("cause")
        if cause is not None and not (_whole(cause) and 1 <= cause < seq):
            what = f"entry {seq} names cause {_shown(cause)}, which is no earlier entry"
            self._found.add(Code.CAUSE_NOT_EARLIER, seq, what)
        if entry.get("run") is not None:
            self._read_run(seq, entry["run"], entry.get("n"))
        if self._bodies is not None:
            if entry.get("kind") == ERASURE:
                self._read_erasure(entry.get("erased"))
            if entry.get("body") is not None:
                self._read_body(seq, entry["body"], self._bodies)

    def _read_run(self, seq: int, run: Any, n: Any) -> None:
        if not isinstance(run, str) or not _whole(n):
            what = f"entry {seq} has run {_shown(run)} with number {_shown(n)}"
            self._found.add(Code.RUN_GAP, seq, what)
            return
        expected = self.runs.get(run, 0) + 1
        if n != expected:
            what = f"entry {seq} is number {n} of run {_shown(run)}, where {expected} should be"
            self._found.add(Code.RUN_GAP, seq, what)
        self.runs[run] = n

    def _read_erasure(self, named: Any) -> None:
        for digest in named if isinstance(named, list) else [named]:
            # Only what an earlier entry holds can be erased: nothing is excused in advance.
            if isinstance(digest, str) and self._missing.pop(digest, None) is not None:
                self.erased.add(digest)

    def _read_body(self, seq: int, digest: Any, bodies: BodyLookup) -> None:
        if not isinstance(digest, str) or len(digest) != 64 or not _HEX.issuperset(digest):
            what = f"entry {seq} names body {_shown(digest)}, which is no digest"
            self._found.add(Code.BODY_MISMATCH, seq, what)
            return
        stored = bodies.get(digest)
        if stored is None:
            if digest not in self.erased:
                self._missing.setdefault(digest, seq)
            return
        salt, body = stored
        # With a salt of any length, bytes could move from the body into the salt unnoticed.
        if len(salt) == SALT_BYTES and salted(salt, body) == digest:
            self.right += 1
            return
        what = f"the body of entry {seq} is not the one whose digest the entry holds"
        self._found.add(Code.BODY_MISMATCH, seq, what)

    def close(self) -> None:
        for digest, seq in self._missing.items():
            what = f"body {digest} of entry {seq} is missing, and no later entry says it was erased"
            self._found.add(Code.BODY_MISSING, seq, what)


def _canonical_object(raw: bytes) -> dict[str, Any] | None:
    """Return the JSON object whose canonical bytes `raw` is; None if it is of none."""
    try:
        value = orjson.loads(raw)
        if not isinstance(value, dict):
            return None
        if raw.isascii() and _FLAT.issuperset(map(type, value.values())):
            right = orjson.dumps(value, option=_STRICT) == raw  # the common case, no walk
        else:
            right = checked(value) == raw
    except (ValueError, TypeError, RecursionError):
        return None
    return value if right else None


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _shown(value: Any) -> str:
    """Show a value that a forger may have chosen: short, and without terminal controls."""
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


# --- checkpoints ----------------------------------------------------------------------------


class _Notes:
    """Reads notes into checkpoints; those that do not verify become findings."""

    def __init__(self, key: str, origin: str, found: _Findings) -> None:
        self._key = key
        self._origin = origin
        self._found = found
        # The witness holds copies of the store's notes: each text is verified once.
        self._verified: dict[str, Checkpoint] = {}
        self.seen = {STORE: 0, WITNESS: 0}

    def read(self, source: str, notes: Iterable[str]) -> list[Checkpoint]:
        points = []
        for number, text in enumerate(notes, 1):
            self.seen[source] += 1
            try:
                points.append(self._verify(text))
            except ProofError as error:
                what = f"checkpoint {number} of the {source} does not hold: {error}"
                self._found.add(Code.BAD_NOTE, None, what)
        return points

    def _verify(self, text: str) -> Checkpoint:
        point = self._verified.get(text)
        if point is None:
            point = Checkpoint.from_body(verify_note(text, self._key))
            if point.origin != self._origin:
                raise ProofError(f"it is of {_shown(point.origin)}, not of {self._origin}")
            self._verified[text] = point
        return point


def _compare(
    signed: Mapping[str, list[Checkpoint]], roots: Mapping[int, bytes], size: int, found: _Findings
) -> dict[str, int]:
    """Hold signed checkpoints against the roots recomputed at their sizes, and each other.

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
            found.add(Code.TAIL_CUT, longest, what)
        for before, after in pairwise(points):
            if after.size < before.size:
                what = f"the {source} signed {after.size} entries after {before.size}: it shrank"
                found.add(Code.NOT_CONSISTENT, after.size, what)
        _compare_roots(source, points, roots, found)
    told = set()
    for code, at, what in _contradictions(signed, roots, agreed):
        if (code, at) not in told:
            told.add((code, at))
            found.add(code, at, what)
    return agreed


def _compare_roots(
    source: str, points: list[Checkpoint], roots: Mapping[int, bytes], found: _Findings
) -> None:
    below = 0
    for size, root in sorted({(point.size, point.root) for point in points}):
        if roots.get(size, root) != root:
            what = f"checkpoint {size} of the {source} has another root than entries 1 to {size}"
            found.add(Code.ROOT_MISMATCH, size, f"{what} (the last that agreed: {below})")
        elif size in roots:  # else it is beyond the end, reported as a cut
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
