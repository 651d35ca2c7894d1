"""Reads the record of an action's row: what an action is made again of after a restart.

Nobody signs a row, so what stands there may have any shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson


class BadRecord(ValueError):
    """The record of an action's row is none; says what of it is not so."""


def parse_record(raw: bytes) -> dict[str, Any]:
    """Return what `vedette.engine.held_actions.new_row` wrote: args, origins, sources, readers,
    confidence, why.

    Only `readers` and `inverse` may be missing. Raises BadRecord for any other shape; what the
    values say is looked at by `vedette.domain.row_proof`.
    """
    try:
        record = orjson.loads(raw)
    except ValueError as error:
        raise BadRecord("it is no JSON") from error
    if not isinstance(record, dict):
        raise BadRecord("it is no object")
    _expect(isinstance(record.get("args"), dict), "args")
    _expect(_is_texts(record.get("origins")), "origins")
    _expect(_is_texts(record.get("sources")), "sources")
    _expect(_is_readers(record.get("readers", {})), "readers")
    _expect(type(record.get("confidence")) is int, "confidence")
    _expect(isinstance(record.get("why"), str), "why")
    _expect(isinstance(record.get("inverse", ""), str), "inverse")
    return record


def _expect(fits: bool, name: str) -> None:
    if not fits:
        raise BadRecord(f"its {name!r} is missing, or of another shape")


def _is_texts(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(each, str) for each in value.values())


def _is_readers(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(names, list) and all(isinstance(name, str) for name in names)
        for names in value.values()
    )
