"""An ask that was answered with what its child did has a child."""

from __future__ import annotations

from typing import Any

import pytest

from vedette.domain.base.canonical import canonical_json
from vedette.ledger.verify.entry_check import EntryChecker
from vedette.ledger.verify.finding import Code, Findings

DIGEST = "a" * 64


@pytest.mark.parametrize(
    ("kind", "told", "is_broken"),
    [
        ("effect.done", {"run": "run_1", "state": "done"}, True),
        ("effect.failed", {"run": "run_1", "state": "cancelled"}, True),
        # It never began.
        ("effect.failed", {"state": "refused", "spent": {}}, False),
        ("effect.failed", {}, False),
        # Its body is erased.
        ("effect.failed", None, False),
    ],
)
def test_an_ask_that_is_answered_without_a_child_is_found(
    kind: str, told: dict[str, Any] | None, is_broken: bool
) -> None:
    bodies = {} if told is None else {DIGEST: (b"s" * 32, canonical_json({"data": told}))}
    found = Findings(10)
    checker = EntryChecker(found, bodies)
    ask = {"tool": "agent.ask", "action": "act_1"}
    checker.read(1, canonical_json({**ask, "kind": "effect.started", "seq": 1}))
    checker.read(2, canonical_json({**ask, "kind": kind, "seq": 2, "body": DIGEST}))
    checker.close()
    assert (found.counts[Code.ASK_BROKEN] == 1) is is_broken
