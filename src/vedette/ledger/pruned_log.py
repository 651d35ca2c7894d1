"""The beginning of a ledger whose entries were archived: what of it stays beside the rest.

The peaks let the tree go on and be proved; they are believed only where a signed checkpoint of
that size has the same root. The handovers lead from the first key to the one in force.
"""

from __future__ import annotations

from typing import Any

import orjson
from msgspec import Struct, field

from vedette.ledger.key_history import Handover, KeyChain
from vedette.ledger.merkle import Frontier, ProofError
from vedette.ledger.pruned_tree import frontier_of

SCHEMA = "vedette.archived/1"


class ArchivedPrefix(Struct, frozen=True):
    """The beginning of a pruned ledger: entries 1 to `size` were archived. Size 0: none were."""

    size: int = 0
    peaks: tuple[bytes, ...] = ()
    handovers: tuple[Handover, ...] = field(default=())

    def frontier(self) -> Frontier:
        """Return the tree of the archived entries. Raises ProofError if the peaks are not its."""
        return frontier_of(self.size, self.peaks)

    def extend_chain(self, chain: KeyChain) -> None:
        """Add the archived part's keys to a chain. Raises ProofError."""
        for handover in self.handovers:
            size, key = handover.follow(chain.last)
            if size > self.size:
                raise ProofError("an archived handover reaches beyond the archived entries")
            chain.link(size, key)

    def to_bytes(self) -> bytes:
        """Return the canonical JSON of this."""
        return orjson.dumps(
            {
                "schema": SCHEMA,
                "size": self.size,
                "peaks": [peak.hex() for peak in self.peaks],
                "handovers": [handover.to_json() for handover in self.handovers],
            },
            option=orjson.OPT_SORT_KEYS,
        )

    @classmethod
    def from_bytes(cls, raw: bytes | None) -> ArchivedPrefix:
        """Read what `to_bytes` wrote; None and empty stand for nothing. Raises ProofError."""
        if not raw:
            return EMPTY_PREFIX
        try:
            value: Any = orjson.loads(raw)
            if value["schema"] != SCHEMA or type(value["size"]) is not int:
                raise ValueError("another schema")
            peaks = tuple(bytes.fromhex(peak) for peak in value["peaks"])
            handovers = tuple(Handover.from_json(one) for one in value["handovers"])
        except (ValueError, KeyError, TypeError) as error:
            raise ProofError(f"not a {SCHEMA}: {error}") from error
        found = cls(value["size"], peaks, handovers)
        found.frontier()
        return found


EMPTY_PREFIX = ArchivedPrefix()
