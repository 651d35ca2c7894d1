"""What is not exactly a decision is a deny, and what is not exactly a question is named."""

from __future__ import annotations

import copy
from typing import Any

import orjson
import pytest

from vedette.domain.base.canonical import canonical_json
from vedette.domain.decision import (
    OBLIGATIONS,
    Decision,
    build_denial,
    check_request,
    evaluate_request,
    parse_decision,
    parse_decision_text,
)

GOOD: dict[str, Any] = {
    "schema": "vedette.decision/1",
    "outcome": "permit",
    "rule": "permit.tool",
    "reasons": ["permit.tool:mail.file"],
    "wait": None,
    "until": 0,
    "would": None,
    "obligations": [],
}


def test_exact_decision_is_read_and_written_back() -> None:
    read = parse_decision(GOOD)
    assert read == Decision("permit", "permit.tool", ("permit.tool:mail.file",))
    assert read.to_json() == GOOD


def test_hold_for_time_is_read() -> None:
    read = parse_decision({**GOOD, "outcome": "hold", "wait": "time", "until": 5})
    assert (read.outcome, read.wait, read.until_us) == ("hold", "time", 5)


def test_reasons_and_obligations_are_put_in_order() -> None:
    duties = [{"type": "notify", "reason": "x"}, {"type": "label_output", "label": "untrusted"}]
    read = parse_decision({**GOOD, "reasons": ["b", "a"], "obligations": duties})
    assert read.reasons == ("a", "b")
    assert [duty["type"] for duty in read.obligations] == ["label_output", "notify"]
    assert {duty["type"] for duty in read.obligations} <= OBLIGATIONS


@pytest.mark.parametrize(
    "raw", [None, "permit", [], 1, True, {}, {"outcome": "permit"}, orjson.dumps(GOOD)]
)
def test_anything_else_is_a_deny(raw: object) -> None:
    assert parse_decision(raw).outcome == "deny"


@pytest.mark.parametrize(
    "answer", [GOOD, None, "permit", [], 7, {**GOOD, "until": -1}, {**GOOD, "rule": "ё"}]
)
def test_an_answer_as_json_is_the_decision_that_it_is_as_data(answer: object) -> None:
    raw = orjson.dumps(answer)
    for _ in range(2):
        decision = parse_decision_text(raw)
        assert decision == parse_decision(orjson.loads(raw))
        assert decision.encoded == canonical_json(decision.to_json())


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff", orjson.dumps(GOOD)[:-1]])
def test_an_answer_that_is_no_json_is_a_deny(raw: bytes) -> None:
    assert parse_decision_text(raw) == parse_decision(None) == parse_decision(raw)


def test_an_engine_that_has_its_answers_as_json_is_asked_for_that() -> None:
    class Engine:
        def decide(self, request: bytes) -> object:
            raise AssertionError(request)

        def decide_json(self, request: bytes) -> bytes | None:
            return orjson.dumps(GOOD) if request == b'{"a":1}' else None

    assert evaluate_request(Engine(), b'{"a":1}') == parse_decision(GOOD)
    assert evaluate_request(Engine(), b"{}").rule == "engine.undefined"


@pytest.mark.parametrize(
    "change",
    [
        {"schema": "vedette.decision/2"},
        {"outcome": "allow"},
        {"outcome": None},
        {"outcome": ["permit"]},
        {"rule": ""},
        {"rule": None},
        {"reasons": "because"},
        {"reasons": [1]},
        {"wait": "approval"},
        {"outcome": "hold"},
        {"outcome": "hold", "wait": "forever"},
        {"outcome": "hold", "wait": "time", "until": 0},
        {"until": -1},
        {"until": True},
        {"until": 1.5},
        {"until": "0"},
        {"would": "allow"},
        {"obligations": {}},
        {"obligations": ["notify"]},
        {"obligations": [{"type": "notify", "to": 1}]},
        {"obligations": [{"type": "encrypt"}]},
        {"obligations": [{}]},
        {"extra": 1},
    ],
    ids=repr,
)
def test_every_other_shape_is_a_deny(change: dict[str, Any]) -> None:
    read = parse_decision({**GOOD, **change})
    assert read.outcome == "deny"
    assert read.rule.startswith("engine.")


@pytest.mark.parametrize("field", sorted(GOOD))
def test_missing_field_is_a_deny(field: str) -> None:
    assert parse_decision({k: v for k, v in GOOD.items() if k != field}).outcome == "deny"


def test_denied_has_a_reason() -> None:
    assert build_denial("engine.failed").reasons == ("engine.failed",)
    assert build_denial("engine.failed", "why").reasons == ("why",)


QUESTION: dict[str, Any] = {
    "schema": "vedette.question/2",
    "now": 1_795_257_600_000_000,
    "subject": {
        "id": "spiffe://harbour/agent/inbox_triage",
        "agent": "inbox_triage",
        "release": "r",
        "owner": "desk@harbourlights.example",
        "requested_mode": "act",
    },
    "action": {
        "tool": "mail.file",
        "verb": "move",
        "digest": "d",
        "declared": "e",
        "settles": "idempotent",
        "high_impact": False,
        "args": {"message": "m"},
        "origins": {"/message": "trusted"},
        "sources": {"/message": "/event/subject"},
        "sinks": ["/message"],
        "links": [{"at": "/text", "link": "a.example", "host": "a.example", "origin": "derived"}],
        "readers": {"/text": ["@harbour.example"]},
    },
    "resource": {"type": "mailbox", "id": "m"},
    "context": {
        "event": {"type": "t", "source": "s", "hops": 0, "lineage": [], "vouched": []},
        "confidence": 900,
        "memories": [],
        "counters": {"minute": 0, "hour": 0, "day": 0, "run": 0},
        "budget": {"hour": 0, "day": 0, "run": 0},
        "approvals": [{"action_digest": "d", "by": "person:ada", "until": 1}],
        "stopped": False,
        "trigger": "letters",
        "turn": 1,
    },
}


def changed(path: str, value: object) -> dict[str, Any]:
    found = copy.deepcopy(QUESTION)
    *inner, last = path.split("/")
    at = found
    for step in inner:
        at = at[step]
    at[last] = value
    return found


def test_exact_question_is_right() -> None:
    assert check_request(QUESTION) is None


def test_question_of_the_schema_before_stays_known() -> None:
    """Records of it are decided again for ever; nothing of the new schema belongs into one."""
    before = copy.deepcopy(QUESTION)
    before["schema"] = "vedette.question/1"
    assert "/action" in str(check_request(before))
    for name in ("links", "readers", "sources"):
        del before["action"][name]
    del before["context"]["trigger"]
    assert check_request(before) is None
    assert check_request({**before, "schema": "vedette.question/2"}) is not None


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        ("schema", "vedette.question/3", "vedette.question/2"),
        ("schema", ["vedette.question/2"], "vedette.question/2"),
        ("now", "1", "/now"),
        ("now", True, "/now"),
        ("subject", [], "/subject"),
        ("subject/agent", None, "/subject/agent"),
        ("action/args", [], "/action/args"),
        ("action/high_impact", 0, "/action/high_impact"),
        ("action/origins", {"/message": "mine"}, "/action/origins/message"),
        ("context/confidence", True, "/context/confidence"),
        ("context/confidence", 0.9, "/context/confidence"),
        ("context/event", {}, "/context/event"),
        ("context/event/hops", "0", "/context/event/hops"),
        ("context/counters/day", None, "/context/counters/day"),
        ("context/budget/run", 1.0, "/context/budget/run"),
        ("context/approvals", [{}], "/context/approvals"),
        ("context/extra", 1, "/context has not exactly"),
        ("extra", 1, "vedette.question/2"),
        ("context/trigger", None, "/context/trigger"),
        ("action/links", {}, "/action/links"),
        ("action/links", ["a.example"], "/action/links"),
        ("action/links", [{"at": "/text", "link": "a", "host": "a"}], "/action/links"),
        (
            "action/links",
            [{"at": "/text", "link": "a", "host": "a", "origin": "mine"}],
            "/action/links",
        ),
        ("action/sources", [], "/action/sources"),
        ("action/sources", {"/message": 1}, "/action/sources/message"),
        ("action/readers", [], "/action/readers"),
        ("action/readers", {"/text": "@harbour.example"}, "/action/readers/text"),
        ("action/readers", {"/text": [1]}, "/action/readers/text"),
        ("action/readers", {"/text": None}, "/action/readers/text"),
    ],
)
def test_wrong_question_is_named(path: str, value: object, named: str) -> None:
    wrong = check_request(changed(path, value))
    assert wrong is not None
    assert named in wrong


@pytest.mark.parametrize(
    "path",
    [
        f"{part}/{field}"
        for part in ("subject", "action", "resource", "context")
        for field in QUESTION[part]
    ],
)
def test_missing_field_is_named(path: str) -> None:
    found = copy.deepcopy(QUESTION)
    part, field = path.split("/")
    del found[part][field]
    wrong = check_request(found)
    assert wrong is not None
    assert f"/{part}" in wrong
