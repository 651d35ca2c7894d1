"""What people are told of an agent whose grant is not live yet."""

from __future__ import annotations

from typing import Any

from vedette.interfaces.cli.agent import FOLDER_DIFFERS_NOTE, _tool_lines
from vedette.interfaces.cli.dry_run import _lines


def _tried(**changed: Any) -> dict[str, Any]:
    event = {"type": "mail.received", "subject": "m1"}
    found = dict.fromkeys(("score", "threshold"))
    lists: dict[str, Any] = {"memories": [], "actions": [], "refused": [], "candidates": []}
    fields = {"agent": "post", "event": event, "revision": 1, "state": "-", "wakes": True}
    judged = {
        "label": "other",
        "confidence": 0.0,
        "detail": {},
        "deferred": False,
        "folder_differs": False,
    }
    return {**found, **lists, **fields, **judged, **changed}


def test_try_says_that_the_folder_says_more_than_is_live() -> None:
    assert FOLDER_DIFFERS_NOTE in _lines(_tried(folder_differs=True))
    assert FOLDER_DIFFERS_NOTE not in _lines(_tried())


def test_a_tool_without_a_grant_has_no_impact() -> None:
    tool: dict[str, Any] = {
        "tool": "mail.file", "verb": "move", "resource": "mailbox", "inverse": None,
        "bar_milli": None, "only": {}, "sinks": {},
        "in_act": {"outcome": "deny", "rule": "identity.agent"},
    }  # fmt: skip
    assert "(move mailbox, no grant)" in _tool_lines({**tool, "impact": None})[0]
    assert "(move mailbox, impact low)" in _tool_lines({**tool, "impact": "low"})[0]
