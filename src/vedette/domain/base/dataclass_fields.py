"""Fields that the standard `dataclasses` module asks of a Struct, for what agents' code is handed.

These were dataclasses once, and code that is kept (an agent's folder, its releases in the state
folder) calls `replace`, `asdict` or `fields` with them. To these a Struct with this attribute is a
dataclass; nothing of it is made before one of them asks.
"""

from __future__ import annotations

from typing import Any


class _DataclassParams:
    """How the standard decorator would have made it; `pprint` and a derived dataclass ask."""

    init = eq = frozen = True
    repr = order = unsafe_hash = False


class DataclassFields:
    """The class attribute `__dataclass_fields__` of a Struct: its fields, made when asked for."""

    def __init__(self) -> None:
        self._fields_by_class: dict[type, dict[str, Any]] = {}

    def __set_name__(self, owner: Any, name: str) -> None:
        owner.__dataclass_params__ = _DataclassParams

    def __get__(self, instance: object, owner: Any) -> dict[str, Any]:
        if owner not in self._fields_by_class:
            import dataclasses

            made: Any = dataclasses.make_dataclass(owner.__name__, owner.__struct_fields__)
            self._fields_by_class[owner] = made.__dataclass_fields__
        return self._fields_by_class[owner]
