"""Our canonical JSON is RFC 8785: the `rfc8785` package says so for every allowed value."""

from __future__ import annotations

import json
from typing import Any

import rfc8785
from hypothesis import given, settings
from hypothesis import strategies as st

from vedette.domain.base.canonical import SAFE_INTEGER, canonical, checked, tame

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
KEYS = st.text(st.characters(max_codepoint=127))
LEAVES = st.none() | st.booleans() | st.integers(-SAFE_INTEGER, SAFE_INTEGER) | TEXT
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
    assert canonical(value) == rfc8785.dumps(value)
    assert checked(value) == canonical(value)


@settings(max_examples=50, deadline=None)
@given(ALLOWED)
def test_it_reads_back_as_the_same_value(value: Any) -> None:
    assert json.loads(canonical(value)) == value
    assert canonical(json.loads(canonical(value))) == canonical(value)


@settings(max_examples=50, deadline=None)
@given(JSON)
def test_whatever_was_tamed_is_allowed(value: Any) -> None:
    tamed = tame(value)
    assert checked(tamed) == rfc8785.dumps(tamed)
    assert tame(tamed) == tamed
