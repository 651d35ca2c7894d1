"""A proposal becomes an exact action, or is refused with what is wrong with it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from vedette.domain.action import (
    Action,
    Proposal,
    action_digest,
    action_id,
    bind_proposal,
    encode_argument,
)
from vedette.domain.base.errors import BadProposal
from vedette.domain.origin import Ref, Roots
from vedette.domain.readers import Labels, meet_labels
from vedette.domain.tool import Tool

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
    charter={"desk": "desk@example.org", "account": 4_711_001, "most": 50}, registry=NONE,
    memory=NONE, trusted_memories=frozenset(), outcome=NONE, trusted_outcomes=frozenset(), row=NONE,
)  # fmt: skip


def bound(args: dict[str, Any], *, tool: Tool = TOOL, confidence: float | None = 1.0) -> Action:
    proposal = Proposal("mail.send", args, confidence=confidence)
    return bind_proposal(
        proposal, {proposal.tool: tool}, ROOTS, run="run_1", turn=1, ordinal=0, confidence=1.0
    )


def test_values_are_resolved_and_labelled() -> None:
    action = bound({"to": Ref("/event/data/from"), "copies": 2, "cc": ("desk@example.org",)})
    assert action.args == {"to": "x@evil.example", "copies": 2, "cc": ["desk@example.org"]}
    assert action.origins == {
        "/to": "untrusted", "/copies": "derived", "/cc": "registered", "/cc/0": "registered",
    }  # fmt: skip
    assert action.sources == {"/to": "/event/data/from"}
    assert bound({"to": "desk@example.org"}).origins == {"/to": "registered"}


@pytest.mark.parametrize(
    "args",
    [
        {}, {"to": None}, {"to": 1}, {"to": ["a"]}, {"to": "a", "more": 1},
        {"to": "a", "copies": "2"},
        {"to": "a", "copies": True}, {"to": "a", "copies": 1.0}, {"to": "a", "urgent": 1},
        {"to": "a", "cc": "a"}, {"to": "a", "cc": [Ref("/charter/no")]}, {"to": "a", "cc": [1]},
        {"to": Ref("/event/data/n")}, {"to": Ref("/event/data/list")},
        {"to": Ref("/event/data/no")},
        {"to": "a", "extra": {"deep": Ref("/charter/no")}},
        {"to": "a", "extra": {1: "a", "1": "b"}}, {"to": "a", "cc": [Ref("/event/data/n")]},
        {"to": "a", "extra": {"é": 1}},
        {"to": "a", "extra": {"n": float("nan")}}, {"to": "a", "extra": {"b": b"x"}},
        {"to": "\ud800"}, {"to": "a", "extra": []},
    ],
)  # fmt: skip
def test_what_does_not_fit_the_declaration_is_refused(args: dict[str, Any]) -> None:
    with pytest.raises(BadProposal):
        bound(args)


@pytest.mark.parametrize(
    "args",
    [
        {"cc": [Ref("/event/data/many")] * 500},
        {"extra": {"a": [Ref("/event/data/many")] * 500}},
        {"extra": {str(n): Ref("/event/data/long") for n in range(500)}},
        {"cc": [Ref("/event/data/long")] * 300, "extra": {"a": [Ref("/event/data/long")] * 300}},
    ],
)
def test_references_multiply_nothing_without_a_bound(args: dict[str, Any]) -> None:
    data = {"many": ["x"] * 2000, "long": "x" * 10_000}
    roots = replace(ROOTS, event={"data": data})
    proposal = Proposal("mail.send", {"to": "a", **args}, confidence=1.0)
    with pytest.raises(BadProposal, match="more than"):
        bind_proposal(
            proposal, {TOOL.name: TOOL}, roots, run="run_1", turn=1, ordinal=0, confidence=1.0
        )


@pytest.mark.parametrize("place", ["\u00b2", "\u0661", "9" * 5000, "-1"])
def test_a_place_in_a_list_is_a_plain_number(place: str) -> None:
    for args in ({"to": Ref(f"/event/data/list/{place}")},
                 {"to": "a", "cc": [Ref(f"/event/data/list/{place}")]}):  # fmt: skip
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


def origins(args: dict[str, Any]) -> dict[str, str]:
    return dict(bound({"to": "a", **args}).origins)


def test_every_element_has_an_origin_and_the_whole_the_worst_of_them() -> None:
    known, unknown = Ref("/charter/desk"), Ref("/event/data/from")
    assert origins({"cc": [known, "desk@example.org", known]}) == {
        "/to": "derived", "/cc": "registered",
        "/cc/0": "trusted", "/cc/1": "registered", "/cc/2": "trusted",
    }  # fmt: skip
    assert origins({"cc": [known, known]})["/cc"] == "trusted"
    assert origins({"cc": [known, "x@evil.example"]})["/cc"] == "derived"
    found = origins({"cc": [known, "x@evil.example", unknown]})
    assert (found["/cc"], found["/cc/0"], found["/cc/2"]) == ("untrusted", "trusted", "untrusted")
    assert origins({"cc": []})["/cc"] == "derived"


def test_an_object_is_no_better_than_its_keys() -> None:
    found = origins({"extra": {"who": {"a/b": Ref("/charter/desk")}, "n": 50}})
    assert found == {
        "/to": "derived", "/extra": "derived", "/extra/who": "derived",
        "/extra/who/a~1b": "trusted", "/extra/n": "derived",
    }  # fmt: skip
    assert origins({"extra": {"desk@example.org": Ref("/charter/desk")}})["/extra"] == "registered"


def test_references_are_resolved_at_any_depth_and_named() -> None:
    given = {"a": [{"b": Ref("/charter/desk")}, Ref("/event/data/list")]}
    action = bound({"to": "a", "extra": given})
    assert action.args["extra"] == {"a": [{"b": "desk@example.org"}, ["a"]]}
    assert action.sources == {"/extra/a/0/b": "/charter/desk", "/extra/a/1": "/event/data/list"}
    assert action.origins["/extra/a/1/0"] == "untrusted"


def test_in_a_list_of_texts_a_reference_to_a_list_stands_for_its_items() -> None:
    action = bound({"to": "a", "cc": [Ref("/event/data/list"), Ref("/charter/desk")]})
    assert action.args["cc"] == ["a", "desk@example.org"]
    assert action.sources == {"/cc/0": "/event/data/list/0", "/cc/1": "/charter/desk"}


@pytest.mark.parametrize(
    ("number", "origin"),
    [(4_711_001, "registered"), (50, "derived"), (4_711_002, "derived"), (1, "derived")],
)
def test_a_bare_number_is_known_if_it_is_long_enough_to_be_no_chance(
    number: int, origin: str
) -> None:
    assert origins({"copies": number})["/copies"] == origin
    assert origins({"copies": Ref("/charter/most")})["/copies"] == "trusted"
    assert origins({"urgent": True})["/urgent"] == "derived"


def test_what_is_too_large_to_be_looked_at_is_labelled_as_a_whole() -> None:
    desk = "desk@example.org"
    assert origins({"cc": [desk] * 256})["/cc"] == "registered"
    assert origins({"cc": [desk] * 257}) == {"/to": "derived", "/cc": "derived"}
    assert origins({"cc": [Ref("/charter/desk")] * 257})["/cc"] == "derived"
    assert origins({"cc": [Ref("/event/data/from"), *[desk] * 256]})["/cc"] == "untrusted"
    deep: Any = Ref("/charter/desk")
    for _ in range(9):
        deep = {desk: deep}
    assert origins({"extra": deep}) == {"/to": "derived", "/extra": "derived"}
    endless: Any = []
    for _ in range(500):
        endless = [endless]
    with pytest.raises(BadProposal, match="deeper"):
        bound({"to": "a", "extra": {"x": endless}})


def test_what_a_proposal_gave_is_kept_with_its_references() -> None:
    ref = Ref("/charter/desk")
    assert encode_argument("a") == {"value": "a"}
    assert encode_argument(ref) == {"ref": "/charter/desk"}
    assert encode_argument(["a", {"b": 1}]) == {"value": ["a", {"b": 1}]}
    assert encode_argument({"b": ["a", ref]}) == {
        "object": {"b": {"list": [{"value": "a"}, {"ref": "/charter/desk"}]}}
    }


SECRET = frozenset({"@example.org", "b@x.example"})


def labelled(args: dict[str, Any], **places: Any) -> dict[str, Any]:
    labels = Labels(meet_labels(*places.values()), places)
    roots = replace(ROOTS, labels=labels)
    proposal = Proposal("mail.send", {"to": Ref("/charter/desk"), **args})
    action = bind_proposal(
        proposal, {TOOL.name: TOOL}, roots, confidence=1.0, run="run_1", turn=1, ordinal=0
    )
    return dict(action.readers)


def test_a_reference_carries_the_label_of_its_root_and_a_bare_value_that_of_all_read() -> None:
    own = frozenset({"b@x.example", "c@x.example"})
    assert labelled({}, event=SECRET) == {}
    assert labelled({"extra": {}}, event=SECRET) == {"/extra": SECRET}
    event, desk = Ref("/event/data/from"), Ref("/charter/desk")
    assert labelled({"cc": [event]}, event=SECRET, row=own) == {"/cc": SECRET & own}
    found = bind_proposal(
        Proposal("mail.send", {"to": event}), {TOOL.name: TOOL},
        replace(ROOTS, labels=Labels(SECRET & own, {"event": SECRET, "row": own})),
        confidence=1.0, run="run_1", turn=1, ordinal=0,
    )  # fmt: skip
    assert found.readers == {"/to": SECRET}
    assert labelled({"cc": [desk]}, event=frozenset()) == {"/cc": frozenset()}
