"""Canonical JSON and the digests made of it.

The canonical form is RFC 8785 for the values we allow: objects with ASCII keys, strings without
lone surrogates, integers within +-(2**53 - 1), booleans and null. There are no floats: a fraction
is a decimal string or an integer of a smaller unit. Within these limits orjson with sorted keys
writes the same bytes as RFC 8785 (tests/properties/test_digest.py holds the two together).
"""

from __future__ import annotations

import hashlib
from typing import Any

import orjson

SAFE_INTEGER = 2**53 - 1
SALT_BYTES = 16

_CANONICAL = orjson.OPT_SORT_KEYS


def canonical(value: Any) -> bytes:
    """Return the canonical bytes of a value the caller knows to be within the limits above."""
    return orjson.dumps(value, option=_CANONICAL)


def checked(value: Any) -> bytes:
    """Return the canonical bytes of `value`, or raise ValueError naming what is outside."""
    _check(value, "")
    return orjson.dumps(value, option=_CANONICAL)


def _check(value: Any, at: str) -> None:
    if value is None or isinstance(value, bool):
        return
    if isinstance(value, str):
        if not value.isascii():
            value.encode("utf-8")  # a lone surrogate raises UnicodeEncodeError, a ValueError
        return
    if isinstance(value, int):
        if -SAFE_INTEGER <= value <= SAFE_INTEGER:
            return
        raise ValueError(f"{at or '/'}: {value} is beyond the safe integers")
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str) or not key.isascii():
                raise ValueError(f"{at or '/'}: key {key!r} is not an ASCII string")
            _check(item, f"{at}/{key}")
        return
    if isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _check(item, f"{at}/{index}")
        return
    raise ValueError(f"{at or '/'}: {type(value).__name__} has no canonical form")


def tame(value: Any) -> Any:
    """Return `value` with floats written as decimal strings, so that it has a canonical form.

    Payloads of events may hold any JSON; what the ledger and the policy see may not. `repr` of
    a float is the shortest text that reads back as the same float, so nothing is lost.
    Raises ValueError for what is not JSON.
    """
    if isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            raise ValueError(f"{value} is not JSON")
        return repr(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value if -SAFE_INTEGER <= value <= SAFE_INTEGER else str(value)
    if isinstance(value, dict):
        return {str(key): tame(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [tame(item) for item in value]
    if value is None or isinstance(value, bool | str):
        return value
    raise ValueError(f"{type(value).__name__} is not JSON")


def sha256_hex(data: bytes) -> str:
    """Return the SHA-256 of `data` in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def salted(salt: bytes, data: bytes) -> str:
    """Return the salted digest of a body: SHA-256(salt || data), hexadecimal."""
    return hashlib.sha256(salt + data).hexdigest()


def short_id(prefix: str, *parts: str | int) -> str:
    """Return a URL-safe id that is a function of `parts` alone: 128 bits behind a prefix.

    The parts are length-prefixed before hashing, so no two lists of parts share an id.
    """
    hasher = hashlib.sha256()
    for part in parts:
        raw = str(part).encode("utf-8", "surrogatepass")
        hasher.update(len(raw).to_bytes(4, "big"))
        hasher.update(raw)
    return f"{prefix}_{hasher.hexdigest()[:32]}"
