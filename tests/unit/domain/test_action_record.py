"""The record of an action's row, which nobody signs: any shape is read, or refused by name."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from vedette.domain.row_proof import BadRecord, compare_record, parse_record

RECORD: dict[str, Any] = {
    "args": {"text": "five"},
    "origins": {"/text": "derived"},
    "sources": {"/text": "/event/data/text"},
    "readers": {"/text": ["person:ada"]},
    "confidence": 900,
    "why": "",
    "inverse": "wire.take-back",
}
QUESTION: dict[str, Any] = {
    "action": {name: RECORD[name] for name in ("args", "origins", "sources", "readers")},
    "context": {"confidence": 900},
}
ODD = [
    ("args", []), ("origins", "trusted"), ("origins", {"/text": 1}), ("sources", ["x"]),
    ("sources", {"/text": None}), ("readers", []), ("readers", {"/text": "anybody"}),
    ("readers", {"/text": [1]}), ("confidence", None), ("confidence", True), ("why", 3),
    ("inverse", {}),
]  # fmt: skip


def test_a_record_is_read_as_it_was_written() -> None:
    assert parse_record(orjson.dumps(RECORD)) == RECORD
    assert list(compare_record(orjson.dumps(RECORD), QUESTION)) == []
    bare = {name: RECORD[name] for name in RECORD if name not in ("readers", "inverse")}
    assert parse_record(orjson.dumps(bare)) == bare


@pytest.mark.parametrize(("name", "value"), ODD, ids=str)
def test_another_shape_is_refused_by_the_name_of_what_has_it(name: str, value: Any) -> None:
    raw = orjson.dumps({**RECORD, name: value})
    with pytest.raises(BadRecord, match=f"'{name}'"):
        parse_record(raw)
    ((column, says, _),) = compare_record(raw, QUESTION)
    assert column == "record"
    assert name in says


@pytest.mark.parametrize("raw", [b"", b"[1", b"[]", b"null", b"{}", b"\xff"])
def test_what_is_no_record_at_all_is_refused(raw: bytes) -> None:
    with pytest.raises(BadRecord):
        parse_record(raw)
    assert [column for column, _, _ in compare_record(raw, QUESTION)] == ["record"]


@pytest.mark.parametrize(
    "question",
    [{}, {"action": 3}, {"action": {}, "context": []}, {"action": {"origins": [1]}, "context": {}}],
    ids=str,
)
def test_a_question_of_another_shape_is_a_difference_and_no_traceback(question: Any) -> None:
    assert [column for column, _, _ in compare_record(orjson.dumps(RECORD), question)] == ["record"]


INNER_ARGS = {"to": [{"address": "a"}, {"address": "b"}], "who": {"*": "a", "x": "b"}}
INNER_SAYS = {
    "/to": "derived", "/to/0": "trusted", "/to/0/address": "trusted", "/to/1": "derived",
    "/to/1/address": "derived", "/who": "registered", "/who/*": "trusted", "/who/x": "registered",
}  # fmt: skip


def told(**more: str | None) -> dict[str, Any]:
    """The question of an action with sinks within its arguments, as the engine asks it."""
    origins = {at: origin for at, origin in INNER_SAYS.items() if at != "/who/*"}
    told = {**origins, "/to/*/address": "derived", "/who/*": "registered", **more}
    return {
        "action": {
            "args": INNER_ARGS, "sources": {}, "sinks": ["/to/*/address", "/who/*", "/no/x"],
            "origins": {at: origin for at, origin in told.items() if origin is not None},
        },
        "context": {"confidence": 900},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("more", "fits"),
    [
        ({}, True),
        # What policy is said to have been told of a sink is made of what was told of its places.
        ({"/to/*/address": "trusted"}, False), ({"/to/*/address": "untrusted"}, False),
        ({"/to/*/address": None}, False), ({"/who/*": "trusted"}, False),
        ({"/no/x": "trusted"}, False), ({"/more": "trusted"}, False),
        ({"/to/1/address": "trusted"}, False), ({"/to/1": None}, False),
        # A value that the registry knows is told anew, and its sink with it.
        ({"/who/x": "derived", "/who": "derived", "/who/*": "derived"}, True),
        ({"/who/x": "derived", "/who": "derived", "/who/*": "registered"}, False),
    ],
)  # fmt: skip
def test_the_label_of_a_sink_within_an_argument_is_compared(
    more: dict[str, Any], fits: bool
) -> None:
    record = {
        "args": INNER_ARGS, "origins": INNER_SAYS, "sources": {}, "confidence": 900, "why": "",
    }  # fmt: skip
    found = list(compare_record(orjson.dumps(record), told(**more)))
    assert [column for column, _, _ in found] == ([] if fits else ["record"])


def test_sinks_and_origins_of_any_shape_are_no_error() -> None:
    record = orjson.dumps(
        {"args": INNER_ARGS, "origins": INNER_SAYS, "sources": {}, "confidence": 900, "why": ""}
    )
    for sinks in (["to/x/y"], [7], {"/to/x": 1}, "text"):
        question = told()
        question["action"]["sinks"] = sinks
        assert [column for column, _, _ in compare_record(record, question)] == ["record"]
    odd = orjson.loads(record)
    odd["origins"]["/to/1/address"] = "of old"
    found = list(compare_record(orjson.dumps(odd), told()))
    assert [column for column, _, _ in found] == ["record"]
