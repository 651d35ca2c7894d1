"""A value is held to several schemas: measured once, each with its own bound."""

from __future__ import annotations

from typing import Any

import pytest

from vedette.domain import schema_validator
from vedette.domain.base.canonical import canonicalize_numbers
from vedette.domain.schema_validator import MAX_STEPS, list_fits


def test_each_schema_has_the_whole_bound_and_the_value_is_measured_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measured = []

    def measure(value: object) -> bytes:
        measured.append(value)
        return canonicalize_numbers(value)

    monkeypatch.setattr(schema_validator, "canonicalize_numbers", measure)
    value = ["x"] * (MAX_STEPS * 2 // 3)
    schemas: list[dict[str, Any]] = [
        {"type": "array"},
        {"maxItems": 1},
        {"type": "array"},
        {"type": "string"},
    ]
    assert list_fits(schemas, value) == [True, False, True, False]
    assert len(measured) == 1
    assert list_fits([{"items": {"type": "string", "minLength": 1}}], value) == [False]
