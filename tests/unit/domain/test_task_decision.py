"""A task's end is the engine's own rule, whatever a bundle decides."""

from __future__ import annotations

from typing import Any

import pytest

from vedette.domain.base.canonical import canonical_json
from vedette.domain.decision import Decision, evaluate_request

MET = {"name": "sent", "held": True, "why": "it was"}
UNMET = {"name": "list", "held": False, "why": "it was not"}


class Permits:
    """A policy engine that permits all."""

    def decide(self, request: bytes) -> Any:
        return Decision("permit", "permit.tool", ()).to_json()


def decide(*conditions: dict[str, Any], person: bool = False, approved: bool = False) -> Decision:
    approval = {"action_digest": "d", "by": "person:a", "until": 2}
    context = {
        "task": {"conditions": list(conditions), "person": person},
        "approvals": [approval] if approved else [],
    }
    return evaluate_request(
        Permits(), canonical_json({"action": {"digest": "d"}, "context": context, "now": 1})
    )


@pytest.mark.parametrize(
    ("conditions", "person", "approved", "outcome", "rule"),
    [
        ([MET], False, False, "permit", "permit.tool"),
        ([MET, UNMET], False, False, "deny", "task.unmet"),
        ([MET, UNMET], True, True, "deny", "task.unmet"),
        ([], False, False, "deny", "task.unknown"),
        ([MET], True, False, "hold", "task.person"),
        ([], True, False, "hold", "task.person"),
        ([], True, True, "permit", "permit.tool"),
    ],
)
def test_a_finish_needs_every_condition(
    conditions: list[dict[str, Any]], person: bool, approved: bool, outcome: str, rule: str
) -> None:
    found = decide(*conditions, person=person, approved=approved)
    assert (found.outcome, found.rule) == (outcome, rule)
