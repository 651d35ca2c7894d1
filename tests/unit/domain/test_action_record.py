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
