"""Notes come back as they were, or are refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vedette.domain.base.errors import BadNotes
from vedette.domain.notes import MAX_NOTES, decode_notes, encode_notes

SAFE = 2**53 - 1
json_values: Any = st.recursive(
    st.none() | st.booleans() | st.integers(-SAFE, SAFE) | st.text()
    | st.floats(-1e9, 1e9).filter(lambda number: not number.is_integer()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@given(json_values)
def test_what_is_json_comes_back_equal_and_to_the_same_text(value: Any) -> None:
    text = encode_notes(value)
    assert decode_notes(text) == value
    assert encode_notes(decode_notes(text)) == text


def test_tuples_are_lists_and_whole_fractions_are_integers() -> None:
    assert encode_notes({"b": (1.0, -0.0), "a": None}) == '{"a":null,"b":[1,0]}'


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), SAFE + 1, {1, 2}, b"a", object(), "\ud800", {"\ud800": 1}],
)
def test_what_is_no_json_is_refused(value: object) -> None:
    with pytest.raises(BadNotes, match="no JSON"):
        encode_notes([value])


def test_what_has_no_end_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(BadNotes, match="no JSON"):
        encode_notes(value)


def test_the_bound_is_that_of_the_bytes() -> None:
    assert len(encode_notes("ü" * (MAX_NOTES // 2 - 1)).encode()) == MAX_NOTES
    with pytest.raises(BadNotes, match=rf"{MAX_NOTES + 1} bytes of JSON, at most {MAX_NOTES}"):
        encode_notes("ü" * (MAX_NOTES // 2 - 1) + "x")
