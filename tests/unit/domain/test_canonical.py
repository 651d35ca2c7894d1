"""Digests: what has a canonical form, and what is made to have one."""

from __future__ import annotations

from typing import Any

import pytest

from vedette.domain.base.canonical import (
    MAX_SAFE_INTEGER,
    canonical_json,
    canonicalize,
    normalize_json,
    salted_digest,
    sha256_hex,
    short_id,
)


@pytest.mark.parametrize(
    "value",
    [
        1.0, float("nan"), MAX_SAFE_INTEGER + 1, -MAX_SAFE_INTEGER - 1, {1: 2}, {"é": 1},
        {"a": {"\u0100": 1}}, b"x", {1}, "\ud800", {"a": "\udfff"}, [object()],
        {"deep": [{"x": 0.5}]},
    ],
)  # fmt: skip
def test_what_has_no_canonical_form_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        canonicalize(value)


def test_limits_of_integers_are_inclusive() -> None:
    assert (
        canonicalize([MAX_SAFE_INTEGER, -MAX_SAFE_INTEGER])
        == b"[9007199254740991,-9007199254740991]"
    )


@pytest.mark.parametrize("number", [0.1, -0.0, 1e300, 5e-324, 19.761251903, 1e16, 100.0])
def test_a_tamed_fraction_reads_back_as_the_same(number: float) -> None:
    value = normalize_json({"x": [number]})["x"][0]
    assert isinstance(value, str)
    assert repr(float(value)) == repr(number)


def test_tame_leaves_the_rest_as_it_is() -> None:
    value = {"a": [1, True, None, "é", {"b": -3}]}
    assert normalize_json(value) == value
    assert normalize_json((1, 2)) == [1, 2]
    assert normalize_json(2**60) == str(2**60)
    for wrong in (float("inf"), b"", {1, 2}, object()):
        with pytest.raises(ValueError, match=r"."):
            normalize_json(wrong)


def test_known_answers() -> None:
    assert canonical_json({"b": 1, "a": "é\n"}) == '{"a":"é\\n","b":1}'.encode()
    assert sha256_hex(b"abc").startswith("ba7816bf8f01cfea")
    assert salted_digest(b"ab", b"c") == sha256_hex(b"abc")


def test_no_two_lists_of_parts_share_an_id() -> None:
    lists = [("a", "bc"), ("ab", "c"), ("abc",), ("a", "b", "c"), ("", "abc"), (1, "1"), ("11",)]
    assert len({short_id("x", *parts) for parts in lists}) == len(lists)
    assert len(short_id("x", "a")) == len("x_") + 32
