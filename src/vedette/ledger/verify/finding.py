"""Findings of a verification, and what can be wrong with a ledger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct, field
from msgspec.structs import asdict


class Code(StrEnum):
    """Everything that can be wrong with a ledger; stable, may be matched on."""

    NOT_CANONICAL = "not-canonical"
    SEQ_GAP = "seq-gap"
    SEQ_MISMATCH = "seq-mismatch"
    RUN_GAP = "run-gap"
    CAUSE_NOT_EARLIER = "cause-not-earlier"
    ASK_BROKEN = "ask-broken"
    BAD_NOTE = "bad-note"
    BAD_ROTATION = "bad-rotation"
    BAD_ARCHIVE = "bad-archive"
    ROOT_MISMATCH = "root-mismatch"
    TAIL_CUT = "tail-cut"
    UNSIGNED_TAIL = "unsigned-tail"
    FORK = "fork"
    NOT_CONSISTENT = "not-consistent"
    BODY_MISMATCH = "body-mismatch"
    BODY_MISSING = "body-missing"
    COLUMN_MISMATCH = "column-mismatch"
    APPROVAL_MISSING = "approval-missing"
    UNPERMITTED = "unpermitted"
    POLICY_MISMATCH = "policy-mismatch"
    ROW_MISMATCH = "row-mismatch"
    CHECKPOINTS_GONE = "checkpoints-gone"
    WITNESS_SHORT = "witness-short"
    DAMAGED_SEGMENT = "damaged-segment"


class Finding(Struct, frozen=True):
    """One thing that is wrong: what kind, at which entry (None: at none), in one sentence.

    For a finding about a checkpoint `seq` is the size of that checkpoint, its last entry.
    """

    code: Code
    seq: int | None
    sentence: str


class RecordedLoss(Struct, frozen=True):
    """A loss that the ledger itself records in entry `seq`: the store took a longer one's place.

    `last` is the last entry that a witness is known to have seen of the history that was lost,
    0 if of none it is known; the entries `first` to `last` of that history are lost.
    """

    seq: int
    last: int
    first: int


class Report(Struct, frozen=True):
    """The report of a ledger's verification: what was verified and what was found.

    `size` and `root` are the head as recomputed; `signed` and `witnessed` the largest sizes up
    to which a checkpoint of the store's list, or of the witness's, agrees with the entries.
    `bodies` counts the references that were followed and found right (None: bodies were not
    asked for), `erased` the distinct bodies whose erasure the ledger records. `archived` entries
    from the first were not at hand; a signed checkpoint vouches for their place. `keys` counts
    the signing keys that took over one from another. `lost` counts the checkpoints of lost
    history that the recorded `restored` account for. `counts` counts every finding; `findings`
    keeps the first of each code.
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
    archived: int = 0
    keys: int = 1
    restored: tuple[RecordedLoss, ...] = ()
    lost: int = 0

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
            "restored": [asdict(one) for one in self.restored],
            "counts": {code.value: count for code, count in self.counts.items()},
            "findings": [{**asdict(one), "code": one.code.value} for one in self.findings],
        }


class Findings(Struct):
    """The findings of a verification: all counted, but of each code only the first `limit` kept, as
    deleting one early entry can make every later one wrong.
    """

    limit: int
    counts: Counter[Code] = field(default_factory=Counter)
    items: list[Finding] = field(default_factory=list)

    def add(self, code: Code, seq: int | None, sentence: str) -> None:
        """Add one."""
        self.counts[code] += 1
        if self.counts[code] <= self.limit:
            self.items.append(Finding(code, seq, sentence))


def format_value(value: Any) -> str:
    """Show a value out of an entry, which a forger may have chosen: short, no terminal controls."""
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
