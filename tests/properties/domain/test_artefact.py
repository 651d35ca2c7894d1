"""Whatever a tool answers: references and the content that they name are the outcome again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from vedette.domain.artefact import (
    HEAD_CHARS,
    JSON,
    MAX_OUTCOME_BYTES,
    MAX_RANGE_CHARS,
    MIN_TEXT_CHARS,
    REFERENCE,
    Artefact,
    artefact_id,
    extract_artefacts,
)
from vedette.domain.base.canonical import normalize_json, normalized_json, salted_digest
from vedette.domain.effect import Outcome
from vedette.domain.entry import Body

EVENT = "evt_" + "0123456789abcdef" * 2

chars = st.characters(blacklist_categories=["Cs"])
short = st.text(chars, max_size=12)
# Long ones by repetition: hypothesis draws no megabytes.
long = st.builds(lambda text, times: text * times, st.text(chars, min_size=1, max_size=20),
                 st.integers(1, 3000))  # fmt: skip
keys = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=8)
spoofed = st.fixed_dictionaries({REFERENCE: short, "head": long})
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | short | long | spoofed,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=8,
)  # fmt: skip
items = st.dictionaries(keys, short, max_size=3)
many = st.builds(lambda item, times: {"items": [item] * times}, items, st.integers(0, 4000))
data = st.dictionaries(keys, values, max_size=4) | many


def taken(answered: Mapping[str, Any]) -> tuple[Outcome, dict[str, tuple[Artefact, Body]]]:
    """Return the outcome with references, and artefacts by id."""
    outcome, found = extract_artefacts(
        Outcome("done", answered), EVENT, "pump",
        lambda number: number.to_bytes(16, "big"), label="untrusted", readers=None,
    )  # fmt: skip
    by_id = {
        artefact_id(EVENT, salted_digest(body.salt or b"", body.data)): (artefact, body)
        for artefact, body in found
    }
    assert len(by_id) == len(found)
    return outcome, by_id


def put_back(value: Any, by_id: Mapping[str, tuple[Artefact, Body]]) -> Any:
    """Return a value with the content in the place of each reference to it."""
    if isinstance(value, dict):
        named = value.get(REFERENCE)
        known = by_id.get(named) if isinstance(named, str) else None
        if known is not None:
            text = read_all(known[0])
            return orjson.loads(text) if value["type"] == JSON else text
        return {name: put_back(item, by_id) for name, item in value.items()}
    return [put_back(item, by_id) for item in value] if isinstance(value, list) else value


def read_all(artefact: Artefact) -> str:
    """Return the content of an artefact, read in ranges."""
    text: str = ""
    at: int = 0
    while True:
        part = artefact.read_range("art_", at, MAX_RANGE_CHARS)
        text += part["text"]
        if "next" not in part:
            return text
        assert part["next"] == at + MAX_RANGE_CHARS
        at = part["next"]


@settings(max_examples=300, deadline=None)
@given(data)
def test_reference_and_content_are_the_outcome(answered: dict[str, Any]) -> None:
    outcome, by_id = taken(answered)
    assert normalized_json(put_back(outcome.data, by_id)) == normalized_json(answered)


@settings(max_examples=300, deadline=None)
@given(data)
def test_what_is_left_is_within_the_bound(answered: dict[str, Any]) -> None:
    outcome, by_id = taken(answered)
    size = len(normalized_json(answered))
    assert len(normalized_json(outcome.data)) <= MAX_OUTCOME_BYTES
    assert bool(by_id) == (size > MAX_OUTCOME_BYTES)
    if size <= MAX_OUTCOME_BYTES:
        assert outcome.data is answered


scalars = st.dictionaries(keys, short | st.integers() | st.booleans(), max_size=8)


@settings(max_examples=100, deadline=None)
@given(scalars, items, st.integers(3000, 4000))
def test_small_members_stay_beside_a_large_one(
    small: dict[str, Any], item: dict[str, Any], times: int
) -> None:
    """Whatever is not in the way of the bound is told as it was."""
    large = [{"number": 1, **item}] * times
    outcome, by_id = taken({**small, "large, by itself": large})
    (id,) = by_id
    assert outcome.data["large, by itself"] == by_id[id][0].refer(id)
    assert {name: outcome.data[name] for name in small} == normalize_json(small)


def test_the_largest_members_go_first_and_no_more_than_need_to() -> None:
    sizes = {"c": 3_000, "a": 1_500, "b": 900}
    answered = {name: ["four"] * (size // 2) for name, size in sizes.items()}
    outcome, by_id = taken({**answered, "total": 7})
    assert all(outcome.data[name] == answered[name] for name in ("a", "b"))
    assert (outcome.data["c"]["type"], outcome.data["total"], len(by_id)) == (JSON, 7, 1)


@settings(max_examples=200, deadline=None)
@given(data)
def test_a_reference_tells_what_it_stands_for(answered: dict[str, Any]) -> None:
    _, by_id = taken(answered)
    for id, (artefact, body) in by_id.items():
        told = artefact.refer(id)
        assert told["size"] == len(artefact.text)
        assert artefact.text.startswith(told["head"])
        assert len(told["head"]) <= HEAD_CHARS
        assert artefact.type == JSON or len(artefact.text) > MIN_TEXT_CHARS
        assert Artefact.from_body(orjson.loads(body.data)) == artefact
        assert body.subject == "pump"


@settings(max_examples=100, deadline=None)
@given(long.filter(lambda text: len(text) > MIN_TEXT_CHARS))
def test_the_same_text_has_another_id_each_time(text: str) -> None:
    _, by_id = taken({"a": text * 10, "b": text * 10})
    assert len(by_id) in (0, 1, 2)
    if len(by_id) == 2:
        (first, _), (second, _) = by_id.values()
        assert first == second


@given(long, st.integers(0, 70_000), st.integers(1, MAX_RANGE_CHARS))
def test_a_range_is_what_lies_there(text: str, offset: int, length: int) -> None:
    part = Artefact(text, "text/plain", "untrusted").read_range("art_", offset, length)
    assert part["text"] == text[offset : offset + length]
    assert ("next" in part) == (offset + length < len(text))


def test_who_may_read_it_goes_with_it_everywhere() -> None:
    secret = Artefact("x" * 3000, "text/plain", "untrusted", frozenset({"hr@example.org"}))
    body = orjson.loads(secret.to_body(b"s" * 16, None).data)
    assert body["readers"] == secret.refer("art_")["readers"] == ["hr@example.org"]
    assert secret.read_range("art_", 0, 10)["readers"] == ["hr@example.org"]
    assert Artefact.from_body(body) == secret
