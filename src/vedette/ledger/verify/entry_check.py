"""The checks of entries, one after another, each against what came before it."""

from __future__ import annotations

from typing import Any, Protocol

import orjson

from vedette.domain.base.canonical import SALT_BYTES, canonicalize, salted_digest
from vedette.domain.work_tools import ASK_TOOL
from vedette.ledger.key_history import ROTATED
from vedette.ledger.verify.finding import Code, Findings, format_value

ERASURE = "body.erased"
RESTORE = "store.restored"
ARCHIVING = "ledger.archived"

_HEX = frozenset("0123456789abcdef")
_FLAT = frozenset({str, int, bool, type(None)})
_STRICT = orjson.OPT_SORT_KEYS | orjson.OPT_STRICT_INTEGER


class BodyLookup(Protocol):
    """Where a verification looks bodies up, by hex digest: a dict, or a store with such a `get`."""

    def get(self, digest: str, /) -> tuple[bytes, bytes] | None: ...


class EntryChecker:
    """Verifies entry after entry; keeps what later ones, and the checkpoints, are compared with.

    `prefix_size` is the size of an archived beginning: a run or a cause may reach back into it.
    """

    def __init__(self, findings: Findings, bodies: BodyLookup | None, prefix_size: int = 0) -> None:
        self._findings = findings
        self._bodies = bodies
        self._prefix_size = prefix_size
        self._last = prefix_size
        self._missing: dict[str, int] = {}
        self.runs: dict[str, int] = {}
        self.erased_digests: set[str] = set()
        self.verified_bodies = 0
        self.rotations: list[tuple[int, dict[str, Any]]] = []
        # Which entry tells, and what of: a restore's own, or its `seq`, `size` and `heads` again.
        self.restores: list[tuple[int, dict[str, Any]]] = []
        # Asks that were begun, by their entry; those that began a run; those that were answered.
        self._asks: dict[int, Any] = {}
        self._asked: set[Any] = set()
        self._answered: dict[Any, int] = {}

    def read(self, seq: int, raw: bytes) -> None:
        """Check one entry."""
        if seq != self._last + 1:
            what = f"entry {seq} stands where entry {self._last + 1} should"
            self._findings.add(Code.SEQ_GAP, seq, what)
        self._last = seq
        entry = canonical_object(raw)
        if entry is None:  # its fields could be read in more than one way
            what = f"the bytes of entry {seq} are not a JSON object in canonical form"
            self._findings.add(Code.NOT_CANONICAL, seq, what)
            return
        if not _is_whole(entry.get("seq")) or entry["seq"] != seq:
            what = f"the bytes of entry {seq} say seq {format_value(entry.get('seq'))}"
            self._findings.add(Code.SEQ_MISMATCH, seq, what)
        cause = entry.get("cause")
        if cause is not None and not (_is_whole(cause) and 1 <= cause < seq):
            what = f"entry {seq} names cause {format_value(cause)}, which is no earlier entry"
            self._findings.add(Code.CAUSE_NOT_EARLIER, seq, what)
        if entry.get("run") is not None:
            self._read_run(seq, entry["run"], entry.get("n"))
        kind = entry.get("kind")
        if kind == "event.accepted" and entry.get("hops") and _is_whole(cause):
            self._read_child(seq, cause)
        elif entry.get("tool") == ASK_TOOL:
            self._read_ask(seq, entry)
        if kind == ROTATED:
            self.rotations.append((seq, entry))
        elif kind == RESTORE:
            self.restores.append((seq, entry))
        elif kind == ARCHIVING:
            # What the archived entries told of restores is told again by who lets them go.
            listed = entry.get("restores")
            restores = listed if isinstance(listed, list) else []
            self.restores += [(seq, one) for one in restores if isinstance(one, dict)]
        if self._bodies is not None:
            if kind == ERASURE:
                self._read_erasure(entry.get("erased"))
            if entry.get("body") is not None:
                self._read_body(seq, entry["body"], self._bodies)

    def _read_run(self, seq: int, run: Any, n: Any) -> None:
        if not isinstance(run, str) or not _is_whole(n):
            what = f"entry {seq} has run {format_value(run)} with number {format_value(n)}"
            self._findings.add(Code.RUN_GAP, seq, what)
            return
        before = self.runs.get(run)
        # Of a run that began in the archived part the first number at hand may be any.
        expected = (n if self._prefix_size and n > 0 else 1) if before is None else before + 1
        if n != expected:
            what = (
                f"entry {seq} is number {n} of run {format_value(run)}, where {expected} should be"
            )
            self._findings.add(Code.RUN_GAP, seq, what)
        self.runs[run] = n

    def _read_ask(self, seq: int, entry: dict[str, Any]) -> None:
        if entry.get("kind") == "effect.started":
            self._asks[seq] = entry.get("action")
        elif entry.get("kind") == "effect.done" or self._tells_of_child(entry):
            self._answered[entry.get("action")] = seq

    def _tells_of_child(self, entry: dict[str, Any]) -> bool:
        """Say whether an ask failed with a child that had begun: what is told of it names a run.

        Where the body is erased, or none is looked at, nobody can say.
        """
        if entry.get("kind") != "effect.failed" or self._bodies is None:
            return False
        stored = self._bodies.get(str(entry.get("body")))
        told = None if stored is None else canonical_object(stored[1])
        data = None if told is None else told.get("data")
        return isinstance(data, dict) and "run" in data

    def _read_child(self, seq: int, cause: Any) -> None:
        """Check that the event of a task that an agent gave names the ask that gave it."""
        if cause in self._asks:
            self._asked.add(self._asks[cause])
        elif cause > self._prefix_size:
            what = f"entry {seq} is of a task that an agent gave, and entry {cause} is no ask"
            self._findings.add(Code.ASK_BROKEN, seq, what)

    def _read_erasure(self, named: Any) -> None:
        for digest in named if isinstance(named, list) else [named]:
            # Only what an earlier entry holds can be erased: nothing is excused in advance.
            if isinstance(digest, str) and self._missing.pop(digest, None) is not None:
                self.erased_digests.add(digest)

    def _read_body(self, seq: int, digest: Any, bodies: BodyLookup) -> None:
        if not isinstance(digest, str) or len(digest) != 64 or not _HEX.issuperset(digest):
            what = f"entry {seq} names body {format_value(digest)}, which is no digest"
            self._findings.add(Code.BODY_MISMATCH, seq, what)
            return
        stored = bodies.get(digest)
        if stored is None:
            if digest not in self.erased_digests:
                self._missing.setdefault(digest, seq)
            return
        salt, body = stored
        # With a salt of any length, bytes could move from the body into the salt unnoticed.
        if len(salt) == SALT_BYTES and salted_digest(salt, body) == digest:
            self.verified_bodies += 1
            return
        what = f"the body of entry {seq} is not the one whose digest the entry holds"
        self._findings.add(Code.BODY_MISMATCH, seq, what)

    def close(self) -> None:
        """Report what is missing for good."""
        begun = set(self._asks.values()) - self._asked
        for action in begun & self._answered.keys():
            what = f"the ask {format_value(action)} was answered, and no event is of its task"
            self._findings.add(Code.ASK_BROKEN, self._answered[action], what)
        for digest, seq in self._missing.items():
            what = f"body {digest} of entry {seq} is missing, and no later entry says it was erased"
            self._findings.add(Code.BODY_MISSING, seq, what)


def canonical_object(raw: bytes) -> dict[str, Any] | None:
    """Return the JSON object of an entry whose canonical bytes `raw` is; None if it is of none."""
    try:
        value = orjson.loads(raw)
        if not isinstance(value, dict):
            return None
        if raw.isascii() and _FLAT.issuperset(map(type, value.values())):
            right = orjson.dumps(value, option=_STRICT) == raw  # the common case, no walk
        else:
            right = canonicalize(value) == raw
    except (ValueError, TypeError, RecursionError):
        return None
    return value if right else None


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
