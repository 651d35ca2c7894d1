"""What a judge defers: when, what of it a model is told, and what a person is shown instead."""

from __future__ import annotations

from typing import Any

import pytest

from vedette.domain.action import Proposal, decode_arguments, encode_arguments
from vedette.domain.agent import Cascade
from vedette.domain.base.canonical import normalized_json
from vedette.domain.cascade import MAX_OPINION, defer_unsure, describe_opinion, propose_to_person
from vedette.domain.model_confidence import Agreement, Verdict, is_audited, read_verdicts
from vedette.domain.origin import Ref
from vedette.domain.ports.reasoner import ReasonerJudgement
from vedette.domain.tool import Tool


def recorded(*proposals: dict[str, Any], **more: Any) -> dict[str, Any]:
    told = [{"why": "so", "confidence": "0.5", **one} for one in proposals]
    turn = {"turn": 1, "label": "bill", "confidence": "0.5", "detail": {}, "proposals": told}
    return {**turn, **more}


@pytest.mark.parametrize(
    ("confidence", "deferred"), [(0.0, True), (0.8999, True), (0.9, False), (1.0, False)]
)
def test_a_judge_settles_from_its_bar_on(confidence: float, deferred: bool) -> None:
    found = defer_unsure(Cascade(900), ReasonerJudgement("bill", confidence))
    assert found.deferred == deferred
    assert found.final


def test_an_opinion_is_bounded_whatever_a_judge_says() -> None:
    args = {"text": {"value": "x" * 100_000}}
    nearest = [{"label": "y" * 10_000, "id": "z" * 10_000}] * 1_000
    proposals = [{"tool": "t" * 10_000, "args": args}] * 1_000
    turn = recorded(*proposals, label="l" * 10_000, detail={"nearest": nearest})
    told = describe_opinion(turn)
    assert len(normalized_json(told)) <= MAX_OPINION
    assert told["cut"] is True
    assert (len(told["nearest"]), len(told["proposals"])) == (5, 8)
    wide = recorded(*proposals, label="\U0001f600" * 10_000, detail={"nearest": nearest})
    assert len(normalized_json(describe_opinion(wide))) <= MAX_OPINION
    small = describe_opinion(recorded({"tool": "a.b", "args": {"to": {"ref": "/charter/desk"}}}))
    assert small == {
        "label": "bill", "confidence": "0.5", "nearest": [],
        "proposals": [{"tool": "a.b", "args": {"to": {"ref": "/charter/desk"}}}],
    }  # fmt: skip


@pytest.mark.parametrize(
    "detail", [{}, {"nearest": 5}, {"nearest": [1, {}, {"label": None}]}, None]
)
def test_whatever_stands_in_a_judges_detail(detail: Any) -> None:
    assert describe_opinion(recorded(detail=detail))["nearest"] == []


def test_what_a_person_takes_over_is_for_a_person_to_decide() -> None:
    args = {"to": Ref("/charter/desk"), "list": ["a", Ref("/event/subject")], "n": 3, "o": {"a": 1}}
    turn = recorded({"tool": "a.b", "args": encode_arguments(args)}, confidence="0.85")
    found = propose_to_person(turn, "it is away", {})
    assert found.proposals == (Proposal("a.b", args, "so", 0.5),)
    assert found.asks == "cascade.person"  # whatever bar policy sets
    assert (found.label, found.confidence, found.final) == ("bill", 0.85, True)
    assert (found.observed, found.deferred, found.model_calls) == (False, False, 0)


def test_a_fraction_is_a_number_again_where_the_tool_has_one() -> None:
    schema = {"type": "object", "properties": {"x": {"type": "number"}, "t": {"type": "string"}}}
    tool = Tool("a.b", "set", "dial", {}, (), "none", "f", schema=schema)
    turn = recorded(
        {"tool": "a.b", "args": encode_arguments({"x": 0.5, "t": "0.5"}), "confidence": None}
    )
    for tools, x in (({"a.b": tool}, 0.5), ({}, "0.5")):
        (one,) = propose_to_person(turn, "it is away", tools).proposals
        assert (one.args, one.confidence) == ({"x": x, "t": "0.5"}, 0.0), "sure of nothing"


def test_arguments_come_back_as_they_were() -> None:
    nested = {"a": [Ref("/event/data"), {"b": Ref("/row/c"), "d": None}], "e": "ref:/no", "f": {}}
    assert decode_arguments(encode_arguments(nested)) == nested


def test_an_agreement_says_nothing_until_there_are_enough_cases() -> None:
    assert Agreement(99, 99).confidence(100) == 0.0
    assert Agreement(100, 100).confidence(100) == 101 / 102
    assert Agreement(100, 0).confidence(100) == 1 / 102
    assert Agreement(0, 0).confidence(10) == 0.0


def verdicts(*right: bool, release: str = "r1") -> list[Verdict]:
    return [Verdict(one, release) for one in right]


def test_the_newest_answers_must_agree_with_the_measure() -> None:
    """As many wrong ones say more where they come together at the end."""
    good, bad = [True] * 184, [False] * 8
    before = Agreement.of(verdicts(*bad, *good), "r1")
    after = Agreement.of(verdicts(*good, *bad), "r1")
    assert (before.right, after.right, before.cases) == (184, 184, 192)
    assert before.confidence(100) == 185 / 194
    assert after.confidence(100) == 13 / 22
    # What chance brings is no change: two wrong of twenty, of a model right in 19 of 20.
    mixed = ([True] * 19 + [False]) * 8 + ([True] * 9 + [False]) * 2
    assert Agreement.of(verdicts(*mixed), "r1").confidence(100) == 171 / 182
    assert Agreement.of(verdicts(*bad), "r1").confidence(100) == 0.0


def test_newer_answers_never_make_it_surer() -> None:
    found = Agreement.of(verdicts(*[False] * 60, *[True] * 60), "r1")
    assert found.confidence(100) == 61 / 122


def test_another_release_is_audited_more_until_it_is_answered() -> None:
    old = verdicts(*[True] * 150)
    for new, share in ((0, 500), (19, 500), (20, 50), (40, 50)):
        found = Agreement.of([*old, *verdicts(*[True] * new, release="r2")], "r2")
        assert found.audit_share_milli(50) == share
    assert Agreement.of(old, "r1").audit_share_milli(50) == 50
    assert Agreement.of(old, "r2").audit_share_milli(700) == 700


def entry(kind: str, action: str = "", **fields: Any) -> dict[str, Any]:
    about = {"action": action} if action else {}
    return {"kind": kind, **about, **fields}


TURN = entry("turn.reasoned", route="m", release="r1", proposals=1)
HELD = entry("action.decided", "a", tool="t", outcome="hold", rule="confidence.low")
DENIED_BY_POLICY = entry("action.decided", "a", tool="t", outcome="deny", rule="mode.observe")
YES, NO = entry("hold.approved", "a"), entry("hold.denied", "a")
RIGHT, WRONG = (entry("run.corrected", outcome=one) for one in ("right", "wrong"))
TRIED = entry("effect.started", "a")


@pytest.mark.parametrize(
    ("entries", "found"),
    [
        ([TURN, HELD], None),
        ([TURN, HELD, YES], True),
        ([TURN, HELD, NO], False),
        ([TURN, HELD, YES, NO], False),  # taken back
        ([TURN, HELD, NO, RIGHT], False),
        ([TURN, HELD, RIGHT, NO], False),
        ([TURN, HELD, YES, WRONG], False),
        ([TURN, HELD, WRONG, RIGHT], True),  # who corrects may be wrong, too
        ([TURN, HELD, YES, TRIED, NO], True),  # whether it happened
        ([TURN, HELD, TRIED, YES], None),
        ([TURN, HELD, TRIED, NO], None),
        ([TURN, DENIED_BY_POLICY], None),
        ([TURN, DENIED_BY_POLICY, RIGHT], True),
        ([TURN, HELD, entry("hold.expired", "a")], None),
        ([{**TURN, "route": ""}, HELD, YES], None),  # no model's turn
    ],
)
def test_what_a_persons_answers_say(entries: list[dict[str, Any]], found: bool | None) -> None:
    expected = {} if found is None else {("m", "t"): Verdict(found, "r1")}
    assert read_verdicts(entries) == expected


def test_one_verdict_of_each_tool_and_wrong_if_any_is() -> None:
    more = [entry("action.decided", name, tool=tool) for name, tool in (("b", "t"), ("c", "u"))]
    yes = [entry("hold.approved", name) for name in ("a", "b", "c")]
    assert read_verdicts([TURN, HELD, *more, *yes]) == {
        ("m", "t"): Verdict(True, "r1"), ("m", "u"): Verdict(True, "r1"),
    }  # fmt: skip
    assert read_verdicts([TURN, HELD, *more, *yes, entry("hold.denied", "b")]) == {
        ("m", "t"): Verdict(False, "r1"), ("m", "u"): Verdict(True, "r1"),
    }  # fmt: skip


def test_that_nothing_was_to_be_done_can_be_right() -> None:
    opinion = entry("turn.reasoned", what="deferred", release="r1", proposals=2)
    quiet = {**TURN, "proposals": 0}
    assert read_verdicts([opinion, quiet, RIGHT]) == {("m", ""): Verdict(True, "r1")}
    # "Done.", after it acted, is none of it.
    assert read_verdicts([TURN, HELD, quiet, WRONG]) == {("m", "t"): Verdict(False, "r1")}


def test_about_the_audited_share_is_drawn_and_each_draw_stands() -> None:
    runs = [(f"run_{n}", n * 7) for n in range(4_000)]
    drawn = [is_audited(b"salt", run, last, 50) for run, last in runs]
    assert drawn == [is_audited(b"salt", run, last, 50) for run, last in runs]
    assert 140 <= sum(drawn) <= 260
    assert all(is_audited(b"salt", run, last, 1000) for run, last in runs)
    assert not any(is_audited(b"salt", run, last, 0) for run, last in runs)


def test_who_has_not_the_secret_cannot_tell_which() -> None:
    runs = [(f"run_{n}", n * 7) for n in range(400)]
    draws = [[is_audited(bytes([n]), *one, 500) for one in runs] for n in range(2)]
    assert draws[0] != draws[1]
    assert all(is_audited(b"", *one, 20) for one in runs)
    assert not any(is_audited(b"", *one, 0) for one in runs)
