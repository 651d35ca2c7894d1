"""Columns of values as PostgreSQL's binary arrays, so that many rows go in one statement.

The vendor's adapter takes an array's type from the values that happen to be in it, and so prepares
a statement anew; here it is the column's. The form is that of the server's `array_send`: number of
dimensions, whether there are NULLs, the element's oid, length, lower bound, then each element with
its length before it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

_NULL = struct.pack(">i", -1)
_LENGTH = struct.Struct(">i").pack
_NUMBER = struct.Struct(">iq").pack


def _number(value: int) -> bytes:
    return _NUMBER(8, value)


def _text(value: str) -> bytes:
    if not isinstance(value, str):
        raise TypeError(f"a {type(value).__name__} is no text")
    data = value.encode()
    return _LENGTH(len(data)) + data


def _data(value: bytes) -> bytes:
    if not isinstance(value, bytes):
        raise TypeError(f"a {type(value).__name__} is no bytes")
    return _LENGTH(len(value)) + value


class Array(bytes):
    """An array as the server reads it."""


class BigintArray(Array):
    """An array of bigint."""


class TextArray(Array):
    """An array of text."""


class ByteaArray(Array):
    """An array of bytea."""


# By the type of the column: its class, the oids of an element and of the array (pg_type), and how
# a value is written.
_TYPES: dict[str, tuple[type[Array], int, int, Callable[[Any], bytes]]] = {
    "bigint": (BigintArray, 20, 1016, _number),
    "text": (TextArray, 25, 1009, _text),
    "bytea": (ByteaArray, 17, 1001, _data),
}
# The types of columns of which there are arrays.
ARRAYS = frozenset(_TYPES)


def encode_array(type: str, values: Sequence[Any]) -> Array:
    """Return a column of values, or NULLs, of a type of ARRAYS.

    Raises ValueError, TypeError or struct.error for a value that the column cannot hold.
    """
    made, element, _, write = _TYPES[type]
    head = struct.pack(">iiiii", 1, None in values, element, len(values), 1)
    return made(head + b"".join([_NULL if one is None else write(one) for one in values]))


def register_arrays(adapters: Any) -> None:
    """Let a connection send them."""
    from psycopg.adapt import Dumper
    from psycopg.pq import Format

    class ArrayDumper(Dumper):
        format = Format.BINARY

        def dump(self, obj: Any) -> Any:
            return obj

    for made, _, oid, _ in _TYPES.values():
        adapters.register_dumper(made, type("Dumper", (ArrayDumper,), {"oid": oid}))
