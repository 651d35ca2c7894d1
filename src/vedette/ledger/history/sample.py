"""A sample of permitted actions for a person to check, drawn at random and repeatably.

Each action has a number: the digest of the seed and its id. Those with the lowest numbers are
drawn, so the draw depends on nothing but the seed and the actions themselves, and one pass that
keeps a few finds them.
"""

from __future__ import annotations

import heapq
from typing import Any

from vedette.domain.base.canonical import sha256_hex
from vedette.ledger.history.entry_view import DecisionEntry, EntryView, WithdrawalEntry


class Sample:
    """Draws `most` of the permitted actions that entries tell of, for the report."""

    def __init__(self, seed: str, most: int) -> None:
        self.seed, self.most = seed, most
        # By the negative number: the heap's first is the one to go.
        self._heap: list[tuple[int, str]] = []
        self._decisions: dict[str, DecisionEntry] = {}
        self._last: DecisionEntry | None = None

    def add_entry(self, entry: EntryView) -> None:
        """Take the next entry of the ledger."""
        last, self._last = self._last, None
        if last is not None and not (
            # What policy permits the budget may refuse, in the entry behind it.
            isinstance(entry, WithdrawalEntry)
            and entry.outcome == "hold"
            and entry.action == last.action
        ):
            self._offer(last)
        if isinstance(entry, DecisionEntry) and entry.outcome == "permit":
            self._last = entry

    def _offer(self, entry: DecisionEntry) -> None:
        action = str(entry.action)
        if action in self._decisions:
            self._decisions[action] = entry
            return
        number = int(sha256_hex(f"{self.seed} {action}".encode())[:16], 16)
        if len(self._heap) == self.most and -number <= self._heap[0][0]:
            return
        heapq.heappush(self._heap, (-number, action))
        self._decisions[action] = entry
        if len(self._heap) > self.most:
            _, dropped = heapq.heappop(self._heap)
            del self._decisions[dropped]

    def to_json(self) -> list[dict[str, Any]]:
        """Return what was drawn, in the order of the ledger, with what was asked and why yes."""
        if self._last is not None:
            self._offer(self._last)
            self._last = None
        return [_item(e) for e in sorted(self._decisions.values(), key=lambda e: e.seq)]


def _item(entry: DecisionEntry) -> dict[str, Any]:
    names = ("agent", "run", "action", "tool", "rule", "release")
    return {
        "seq": entry.seq,
        "at": entry.at,
        **{name: entry.get(name) for name in names},
        "revision": entry.revision,
        "args": entry.requested_action.get("args"),
        "origins": entry.requested_action.get("origins"),
        "approved_by": [given.get("by") for given in entry.approvals or ()],
        "erased": entry.erased,
    }
