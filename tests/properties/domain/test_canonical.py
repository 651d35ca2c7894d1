"""Our canonical JSON is RFC 8785: the `rfc8785` package says so for every allowed value."""

from __future__ import annotations

import json
from typing import Any

import pytest
import rfc8785
from hypothesis import given, settings
from hypothesis import strategies as st

from vedette.domain.base.canonical import (
    MAX_SAFE_INTEGER,
    canonical_json,
    canonicalize,
    canonicalize_numbers,
    normalize_json,
    normalize_numbers,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
KEYS = st.text(st.characters(max_codepoint=127))
LEAVES = st.none() | st.booleans() | st.integers(-MAX_SAFE_INTEGER, MAX_SAFE_INTEGER) | TEXT
ALLOWED = st.recursive(
    LEAVES, lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner), max_leaves=25
)
JSON = st.recursive(
    LEAVES | st.integers() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner),
    max_leaves=25,
)


@settings(max_examples=50, deadline=None)
@given(ALLOWED)
def test_canonical_is_rfc_8785(value: Any) -> None:
    assert canonical_json(value) == rfc8785.dumps(value)
    assert canonicalize(value) == canonical_json(value)


@settings(max_examples=50, deadline=None)
@given(ALLOWED)
def test_it_reads_back_as_the_same_value(value: Any) -> None:
    assert json.loads(canonical_json(value)) == value
    assert canonical_json(json.loads(canonical_json(value))) == canonical_json(value)


@settings(max_examples=50, deadline=None)
@given(JSON)
def test_whatever_was_tamed_is_allowed(value: Any) -> None:
    tamed = normalize_json(value)
    assert canonicalize(tamed) == rfc8785.dumps(tamed)
    assert normalize_json(tamed) == tamed


EXACT = st.recursive(
    LEAVES | st.floats(-MAX_SAFE_INTEGER, MAX_SAFE_INTEGER) | st.floats(1e-7, 1e-4),
    lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner),
    max_leaves=25,
)


@settings(max_examples=200, deadline=None)
@given(EXACT)
def test_numbers_are_written_as_rfc_8785_has_them(value: Any) -> None:
    kept = normalize_numbers(value)
    assert canonicalize_numbers(kept) == rfc8785.dumps(value)
    assert normalize_numbers(json.loads(canonicalize_numbers(kept))) == kept


@settings(max_examples=50, deadline=None)
@given(
    st.floats(min_value=2.0**53) | st.floats(max_value=-(2.0**53))
    | st.integers(min_value=2**53) | st.integers(max_value=-(2**53)) | st.just(float("nan"))
)  # fmt: skip
def test_a_number_that_is_not_exact_has_no_form(value: float) -> None:
    with pytest.raises(ValueError, match=r"not exact|not JSON"):
        normalize_numbers({"n": [value]})
