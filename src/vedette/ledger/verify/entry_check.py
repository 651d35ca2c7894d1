"""The checks of entries, one after another, each against what came before it."""

from __future__ import annotations

from typing import Any, Protocol

import orjson

from vedette.domain.base.canonical import SALT_BYTES, checked, salted
from vedette.ledger.key_history import ROTATED
from vedette.ledger.verify.finding import Code, Findings, shown

ERASURE = "body.erased"
RESTORE = "store.restored"
ARCHIVING = "ledger.archived"

_HEX = frozenset("0123456789abcdef")
_FLAT = frozenset({str, int, bool, type(None)})
_STRICT = orjson.OPT_SORT_KEYS | orjson.OPT_STRICT_INTEGER


class BodyLookup(Protocol):
    """Where bodies are looked up, by hex digest: a dict, or a store behind the same `get`."""

    def get(self, digest: str, /) -> tuple[bytes, bytes] | None: ...


class Entries:
    """Reads entry after entry; keeps what later entries, and the checkpoints, are compared with.

    `after` is the size of an archived beginning: a run or a cause may reach back into it.
    """

    def __init__(self, found: Findings, bodies: BodyLookup | None, after: int = 0) -> None:
        self._found = found
        self._bodies = bodies
        self._after = after
        self._last = after
        self._missing: dict[str, int] = {}
        self.runs: dict[str, int] = {}
        self.erased: set[str] = set()
        self.right = 0
        self.rotations: list[tuple[int, dict[str, Any]]] = []
        # Which entry tells, and what of: a restore's own, or its `seq`, `size` and `heads` again.
        self.restores: list[tuple[int, dict[str, Any]]] = []

    def read(self, seq: int, raw: bytes) -> None:
        """Check one entry."""
        if seq != self._last + 1:
            what = f"entry {seq} stands where entry {self._last + 1} should"
            self._found.add(Code.SEQ_GAP, seq, what)
        self._last = seq
        entry = canonical_object(raw)
        if entry is None:  # its fields could be read in more than one way
            what = f"the bytes of entry {seq} are not a JSON object in canonical form"
            self._found.add(Code.NOT_CANONICAL, seq, what)
            return
        if not _whole(entry.get("seq")) or entry["seq"] != seq:
            what = f"the bytes of entry {seq} say seq {shown(entry.get('seq'))}"
            self._found.add(Code.SEQ_MISMATCH, seq, what)
        cause = entry.get("cause")
        if cause is not None and not (_whole(cause) and 1 <= cause < seq):
            what = f"entry {seq} names cause {shown(cause)}, which is no earlier entry"
            self._found.add(Code.CAUSE_NOT_EARLIER, seq, what)
        if entry.get("run") is not None:
            self._read_run(seq, entry["run"], entry.get("n"))
        kind = entry.get("kind")
        if kind == ROTATED:
            self.rotations.append((seq, entry))
        elif kind == RESTORE:
            self.restores.append((seq, entry))
        elif kind == ARCHIVING:
            # What the archived entries told of restores is told again by who lets them go.
            again = entry.get("restores")
            told = again if isinstance(again, list) else []
            self.restores += [(seq, one) for one in told if isinstance(one, dict)]
        if self._bodies is not None:
            if kind == ERASURE:
                self._read_erasure(entry.get("erased"))
            if entry.get("body") is not None:
                self._read_body(seq, entry["body"], self._bodies)

    def _read_run(self, seq: int, run: Any, n: Any) -> None:
        if not isinstance(run, str) or not _whole(n):
            what = f"entry {seq} has run {shown(run)} with number {shown(n)}"
            self._found.add(Code.RUN_GAP, seq, what)
            return
        before = self.runs.get(run)
        # Of a run that began in the archived part the first number at hand may be any.
        expected = (n if self._after and n > 0 else 1) if before is None else before + 1
        if n != expected:
            what = f"entry {seq} is number {n} of run {shown(run)}, where {expected} should be"
            self._found.add(Code.RUN_GAP, seq, what)
        self.runs[run] = n

    def _read_erasure(self, named: Any) -> None:
        for digest in named if isinstance(named, list) else [named]:
            # Only what an earlier entry holds can be erased: nothing is excused in advance.
            if isinstance(digest, str) and self._missing.pop(digest, None) is not None:
                self.erased.add(digest)

    def _read_body(self, seq: int, digest: Any, bodies: BodyLookup) -> None:
        if not isinstance(digest, str) or len(digest) != 64 or not _HEX.issuperset(digest):
            what = f"entry {seq} names body {shown(digest)}, which is no digest"
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
        """Report what is missing for good."""
        for digest, seq in self._missing.items():
            what = f"body {digest} of entry {seq} is missing, and no later entry says it was erased"
            self._found.add(Code.BODY_MISSING, seq, what)


def canonical_object(raw: bytes) -> dict[str, Any] | None:
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
