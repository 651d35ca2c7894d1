"""A sample of permitted actions for a person to check, drawn at random and repeatably.

Each action has a number: the digest of the seed and its id. Those with the lowest numbers are
drawn, so the draw depends on nothing but the seed and the actions themselves, and one pass that
keeps a few finds them.
"""

from __future__ import annotations

import heapq
from typing import Any

from vedette.domain.base.canonical import sha256_hex
from vedette.ledger.history.entry_view import Decision, EntryView, Withdrawal


class Sample:
    """Draws `most` of the permitted actions that it is shown."""

    def __init__(self, seed: str, most: int) -> None:
        self.seed, self.most = seed, most
        # By the negative number: the heap's first is the one to go.
        self._kept: list[tuple[int, str]] = []
        self._told: dict[str, Decision] = {}
        self._last: Decision | None = None

    def take(self, entry: EntryView) -> None:
        """Take the next entry of the ledger."""
        last, self._last = self._last, None
        if last is not None and not (
            # What policy permits the budget may refuse, in the entry behind it.
            isinstance(entry, Withdrawal)
            and entry.outcome == "hold"
            and entry.action == last.action
        ):
            self._offer(last)
        if isinstance(entry, Decision) and entry.outcome == "permit":
            self._last = entry

    def _offer(self, entry: Decision) -> None:
        action = str(entry.action)
        if action in self._told:
            self._told[action] = entry
            return
        number = int(sha256_hex(f"{self.seed} {action}".encode())[:16], 16)
        if len(self._kept) == self.most and -number <= self._kept[0][0]:
            return
        heapq.heappush(self._kept, (-number, action))
        self._told[action] = entry
        if len(self._kept) > self.most:
            _, gone = heapq.heappop(self._kept)
            del self._told[gone]

    def drawn(self) -> list[dict[str, Any]]:
        """Return what was drawn, in the order of the ledger, with what was asked and why yes."""
        if self._last is not None:
            self._offer(self._last)
            self._last = None
        return [_item(e) for e in sorted(self._told.values(), key=lambda e: e.seq)]


def _item(entry: Decision) -> dict[str, Any]:
    names = ("agent", "run", "action", "tool", "rule", "release")
    return {
        "seq": entry.seq,
        "at": entry.at,
        **{name: entry.get(name) for name in names},
        "revision": entry.revision,
        "args": entry.asked.get("args"),
        "origins": entry.asked.get("origins"),
        "approved_by": [given.get("by") for given in entry.approvals or ()],
        "erased": entry.erased,
    }
