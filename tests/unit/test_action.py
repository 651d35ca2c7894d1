"""A proposal becomes an exact action, or is refused with what is wrong with it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from vedette.action import Action, Proposal, action_digest, action_id, bind
from vedette.errors import BadProposal
from vedette.origin import Ref, Roots
from vedette.tool import Tool

TOOL = Tool(
    name="mail.send", verb="send", resource="outbox",
    args={
        "to": "string", "copies": "integer?", "cc": "strings?", "urgent": "boolean?",
        "extra": "object?",
    },
    sinks=("/to",), settles="idempotent", function="send",
)  # fmt: skip
NONE: dict[str, Any] = {}
ROOTS = Roots(
    event={"data": {"from": "x@evil.example", "n": 3, "list": ["a"]}}, vouched=frozenset(),
    charter={"desk": "desk@example.org"}, registry=NONE, memory=NONE,
    trusted_memories=frozenset(), outcome=NONE, trusted_outcomes=frozenset(), row=NONE,
)  # fmt: skip


def bound(args: dict[str, Any], *, tool: Tool = TOOL, confidence: float | None = 1.0) -> Action:
    proposal = Proposal("mail.send", args, confidence=confidence)
    return bind(proposal, tool, ROOTS, run="run_1", turn=1, ordinal=0, confidence=1.0)


def test_values_are_resolved_and_labelled() -> None:
    action = bound({"to": Ref("/event/data/from"), "copies": 2, "cc": ("desk@example.org",)})
    assert action.args == {"to": "x@evil.example", "copies": 2, "cc": ["desk@example.org"]}
    assert action.origins == {"/to": "untrusted", "/copies": "derived", "/cc": "derived"}
    assert action.sources == {"/to": "/event/data/from"}
    assert bound({"to": "desk@example.org"}).origins == {"/to": "registered"}


@pytest.mark.parametrize(
    "args",
    [
        {}, {"to": None}, {"to": 1}, {"to": ["a"]}, {"to": "a", "more": 1},
        {"to": "a", "copies": "2"},
        {"to": "a", "copies": True}, {"to": "a", "copies": 1.0}, {"to": "a", "urgent": 1},
        {"to": "a", "cc": "a"}, {"to": "a", "cc": [Ref("/charter/desk")]}, {"to": "a", "cc": [1]},
        {"to": Ref("/event/data/n")}, {"to": Ref("/event/data/list")},
        {"to": Ref("/event/data/no")},
        {"to": "a", "extra": {"deep": Ref("/charter/desk")}}, {"to": "a", "extra": {"é": 1}},
        {"to": "a", "extra": {"n": float("nan")}}, {"to": "a", "extra": {"b": b"x"}},
        {"to": "\ud800"}, {"to": "a", "extra": []},
    ],
)  # fmt: skip
def test_what_does_not_fit_the_declaration_is_refused(args: dict[str, Any]) -> None:
    with pytest.raises(BadProposal):
        bound(args)


def test_fractions_inside_an_object_are_decimal_texts() -> None:
    assert bound({"to": "a", "extra": {"x": 0.5, "y": 2**60}}).args["extra"] == {
        "x": "0.5", "y": str(2**60),
    }  # fmt: skip


def test_the_id_is_that_of_the_place_and_not_of_the_words() -> None:
    one, two = bound({"to": "a"}), bound({"to": "b"})
    assert one.id == two.id == action_id("run_1", 1, 0)
    assert one.id == f"act_{one.key}"
    places = {action_id(run, turn, at) for run in ("a", "b") for turn in (1, 11) for at in (1, 11)}
    assert len(places) == 8


def test_the_digest_binds_tool_declaration_and_arguments() -> None:
    digest = bound({"to": "a"}).digest
    assert digest == action_digest(TOOL, {"to": "a"})
    others = [
        bound({"to": "b"}), bound({"to": "a", "copies": 1}),
        *(bound({"to": "a"}, tool=replace(TOOL, **change)) for change in (
            {"name": "mail.forward"}, {"verb": "post"}, {"sinks": ()}, {"high_impact": True},
            {"settles": "none"},
        )),
    ]  # fmt: skip
    assert digest not in {other.digest for other in others}
    assert len({other.digest for other in others}) == len(others)


@pytest.mark.parametrize(
    ("confidence", "milli"), [(1.0, 1000), (0.0, 0), (0.8999, 899), (1, 1000), (None, 1000)]
)
def test_confidence_is_thousandths_and_never_rounded_up(
    confidence: float | None, milli: int
) -> None:
    assert bound({"to": "a"}, confidence=confidence).confidence_milli == milli
