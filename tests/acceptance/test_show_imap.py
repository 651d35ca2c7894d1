"""A new agent at a real IMAP mailbox does nothing, then asks, then acts where policy says."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.acceptance.show_imap import NEW, ONE, show
from tests.imap import Kept


def count_moves(before: dict[str, set[Kept]], after: dict[str, set[Kept]]) -> dict[str, int]:
    return {
        name: len(after[name]) - len(before.get(name, ()))
        for name in after
        if len(after[name]) != len(before.get(name, ()))
    }


def test_in_observe_nothing_happens_and_then_only_what_policy_says(tmp_path: Path) -> None:
    shown = show(tmp_path, 60, 12, each=9)
    # Observe: no effect, no flag, not one mail read; the report says what the ledger says.
    assert shown.effects["observe"] == 0
    assert shown.observed == shown.before
    assert set(shown.decided["observe"]) == {"deny"}
    outcomes: Counter[str] = Counter()
    for counts in shown.would["tools"].values():
        outcomes.update(counts)
    assert (
        sum(outcomes.values()) == shown.would["actions"] == shown.decided["observe"]["deny"] >= 60
    )
    assert shown.would["agent"] == NEW
    assert outcomes["permit"] > 0
    # Ask: every action waits; the one that a person approved was done, and no other.
    assert shown.effects["ask"] == 0
    assert shown.decided["ask"]["hold"] > 0
    assert not shown.decided["ask"]["permit"]
    assert shown.approved == 1
    moves = count_moves(shown.observed, shown.asked)
    assert moves.pop("INBOX") == 12 - 1
    assert list(moves.values()) == [1]
    # Act: filed into the one folder, and all else waits.
    assert set(shown.filed) == {ONE}
    assert shown.rules["hold grant.only"] > 0
    assert count_moves(shown.asked, shown.acted) == {
        ONE: shown.filed[ONE],
        "INBOX": 12 - shown.filed[ONE],
    }
