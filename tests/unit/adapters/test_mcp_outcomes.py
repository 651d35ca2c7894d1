"""What an MCP server's answer means for an effect, and what pins a tool."""

from __future__ import annotations

from typing import Any

import pytest

from vedette.adapters.mcp import outcomes
from vedette.adapters.mcp.listing import PINNED, tool_digest
from vedette.adapters.mcp.outcomes import MAX_ANSWER_BYTES
from vedette.domain.base.canonical import canonical_json
from vedette.domain.effect import Outcome

TOOL: dict[str, Any] = {
    "name": "read", "title": "Read", "description": "Reads.", "inputSchema": {"type": "object"},
    "outputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True},
}  # fmt: skip


def outcome_of(result: dict[str, Any], if_error: Any = "unknown") -> Outcome:
    return outcomes.outcome_of(result, if_error=if_error, if_unreadable="unknown")


@pytest.mark.parametrize("key", PINNED)
def test_whatever_a_server_changes_of_a_tool_changes_its_digest(key: str) -> None:
    changed = {**TOOL, key: "other" if isinstance(TOOL[key], str) else {**TOOL[key], "x": 1}}
    without = {name: value for name, value in TOOL.items() if name != key}
    assert len({tool_digest(TOOL), tool_digest(changed), tool_digest(without)}) == 3


def test_order_and_what_is_null_are_no_change() -> None:
    other = dict(reversed(TOOL.items()))
    assert tool_digest({**other, "icons": None, "_meta": {"at": 1}}) == tool_digest(TOOL)
    bare = {"name": "read"}
    assert tool_digest({**bare, "description": None}) == tool_digest(bare)


def test_numbers_that_json_has_not_pin_nothing() -> None:
    with pytest.raises(ValueError, match="JSON"):
        tool_digest({**TOOL, "annotations": {"weight": float("nan")}})


@pytest.mark.parametrize("if_error", ["unknown", "failed"])
@pytest.mark.parametrize(
    ("result", "told"),
    [
        ({"resultType": "input_required", "inputRequests": {"a": {}}}, "gets none"),
        ({"content": [{"type": "text", "text": "no"}], "isError": True}, "the tool says: no"),
    ],
)
def test_an_error_comes_to_what_a_person_said(
    result: dict[str, Any], told: str, if_error: str
) -> None:
    found = outcome_of(result, if_error)
    assert found.state == if_error
    assert told in found.error


@pytest.mark.parametrize("is_error", ["true", 1, None, []])
def test_an_error_that_is_neither_true_nor_false_says_nothing(is_error: Any) -> None:
    found = outcome_of({"content": [], "isError": is_error}, "failed")
    assert found.state == "unknown"


def test_an_answer_is_kept_up_to_a_size_and_says_that_it_was_cut() -> None:
    whole = outcome_of({"content": [{"type": "text", "text": "é" * 1000}]})
    assert whole.data == {"content": [{"type": "text", "text": "é" * 1000}]}
    cut = outcome_of({"content": [{"type": "text", "text": "é" * MAX_ANSWER_BYTES}] * 9})
    assert cut.state == "done"
    assert cut.data["cut"] is True
    assert len(canonical_json(cut.data)) <= MAX_ANSWER_BYTES


@pytest.mark.parametrize(
    "structured",
    [{"naïve": 1}, {"deep": [[[[]]]] * 3}, {"number": 1e400}, {"half": "\ud800"}],
    ids=["key", "deep", "infinite", "half"],
)
def test_what_has_no_canonical_form_does_not_break_the_record(structured: Any) -> None:
    found = outcome_of({"content": [{"type": "text", "text": "a\0b\ud800"}],
                        "structuredContent": structured})  # fmt: skip
    assert found.state == "done"
    assert found.data["content"][0]["text"] == "a�b?"
    canonical_json(found.data)


@pytest.mark.parametrize("result", [{}, {"content": "text"}, {"content": None}])
def test_an_answer_without_content_says_nothing(result: dict[str, Any]) -> None:
    assert outcome_of(result).state == "unknown"


def test_blocks_that_are_no_blocks_are_named() -> None:
    blocks = ["x", 3, {"type": "image", "data": "not base64"}, {"type": "audio", "data": "aGk="},
              {"type": "resource", "resource": {"uri": "file:///a", "text": "inside"}}]  # fmt: skip
    found = outcome_of({"content": blocks}).data["content"]
    assert found[0] == found[1] == {"type": "unknown"}
    assert found[2] == {"type": "image", "unreadable": True}
    assert found[3]["bytes"] == 2
    assert found[4] == {"type": "resource", "uri": "file:///a", "text": "inside"}
