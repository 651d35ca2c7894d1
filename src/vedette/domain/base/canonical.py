"""Canonical JSON and the digests made of it.

The canonical form is RFC 8785 for the values we allow: objects with ASCII keys, strings without
lone surrogates, integers within +-(2**53 - 1), booleans and null. Entries and payloads hold no
floats: a fraction there is a decimal string or an integer of a smaller unit. Within these limits
orjson with sorted keys writes the same bytes as RFC 8785 (tests/properties/domain/test_canonical.py
holds the two together). Arguments that a tool declares by a schema hold fractions as numbers
(`normalize_numbers`, `canonicalize_numbers`).
"""

from __future__ import annotations

import hashlib
import re
from decimal import Decimal
from typing import Any

import orjson

MAX_SAFE_INTEGER = 2**53 - 1
SALT_BYTES = 16
# How a person names what they were shown: the beginning of its digest.
DIGEST_PREFIX = re.compile(r"[0-9a-f]{8,64}")

_CANONICAL = orjson.OPT_SORT_KEYS


def canonical_json(value: Any) -> bytes:
    """Return the canonical bytes of a value the caller knows to be within the limits above."""
    return orjson.dumps(value, option=_CANONICAL)


def canonicalize(value: Any) -> bytes:
    """Return the canonical bytes of `value`, or raise ValueError naming what is outside."""
    _check(value)
    return orjson.dumps(value, option=_CANONICAL)


def canonicalize_normalized(value: Any) -> bytes:
    """Return the canonical bytes of a value that `normalize_json` or `normalize_numbers` made, or
    that is made of such values.

    What those let through is looked at here without walking through it: keys beyond ASCII, text
    that is not Unicode and integers that are not safe raise ValueError.
    """
    try:
        raw = orjson.dumps(value, option=_CANONICAL | orjson.OPT_STRICT_INTEGER)
    except orjson.JSONEncodeError as error:
        raise ValueError(str(error)) from error
    if not raw.isascii():
        _check(value, fractions=True)
    return raw


def canonicalize_numbers(value: Any) -> bytes:
    """Return the bytes of RFC 8785 of a value that `normalize_numbers` made, or that is made of
    such values. Raises ValueError as `canonicalize_normalized` does.
    """
    raw = canonicalize_normalized(value)
    if _SMALL_EXPONENT in raw:
        raw = orjson.dumps(_spell_small(value), option=_CANONICAL)
    return raw


# From 1e-6 on RFC 8785 writes a fraction without an exponent, orjson from 1e-5 on.
_SMALL_EXPONENT = b"e-6"


def _spell_small(value: Any) -> Any:
    if isinstance(value, float) and 1e-6 <= abs(value) < 1e-5:
        return orjson.Fragment(format(Decimal(repr(value)), "f").encode())
    if isinstance(value, dict):
        return {key: _spell_small(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_spell_small(item) for item in value]
    return value


class _NotCanonical(ValueError):
    """What has no canonical form; `at` is where, made up on the way out."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why, self.at = why, ""

    def __str__(self) -> str:
        return f"{self.at or '/'}: {self.why}"


def _check(value: Any, fractions: bool = False) -> None:
    if isinstance(value, str):
        if not value.isascii():
            value.encode("utf-8")  # a lone surrogate raises UnicodeEncodeError, a ValueError
    elif value is None or isinstance(value, bool):
        return
    elif isinstance(value, int):
        if not -MAX_SAFE_INTEGER <= value <= MAX_SAFE_INTEGER:
            raise _NotCanonical(f"{value} is beyond the safe integers")
    elif isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str) or not key.isascii():
                raise _NotCanonical(f"key {key!r} is not an ASCII string")
            if type(item) is str and item.isascii():
                continue
            _check_item(key, item, fractions)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _check_item(index, item, fractions)
    elif not (fractions and isinstance(value, float)):
        raise _NotCanonical(f"{type(value).__name__} has no canonical form")


def _check_item(name: str | int, item: Any, fractions: bool) -> None:
    try:
        _check(item, fractions)
    except _NotCanonical as error:
        error.at = f"/{name}{error.at}"
        raise


_PLAIN_TYPES = frozenset({str, bool, type(None)})


def normalize_json(value: Any) -> Any:
    """Return `value` with floats written as decimal strings, so that it has a canonical form.

    Payloads of events may hold any JSON; what the ledger and the policy see may not. `repr` of
    a float is the shortest text that reads back as the same float, so nothing is lost.
    Raises ValueError for what is not JSON.
    """
    kind = type(value)
    if kind in _PLAIN_TYPES:
        return value
    if kind is dict:
        return {
            key if type(key) is str else str(key): item
            if type(item) in _PLAIN_TYPES
            else normalize_json(item)
            for key, item in value.items()
        }
    if isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            raise ValueError(f"{value} is not JSON")
        return repr(value)
    if isinstance(value, int):
        return value if -MAX_SAFE_INTEGER <= value <= MAX_SAFE_INTEGER else str(value)
    if isinstance(value, dict):
        return {str(key): normalize_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [item if type(item) in _PLAIN_TYPES else normalize_json(item) for item in value]
    if isinstance(value, str):
        return value
    raise ValueError(f"{type(value).__name__} is not JSON")


def normalize_numbers(value: Any) -> Any:
    """Return `value` with its numbers as RFC 8785 knows them: 1.0 is 1, -0.0 is 0, 1.5 stays.

    Raises ValueError for what is not JSON, and for a number beyond +-(2**53 - 1): there a float
    stands for more than one integer.
    """
    kind = type(value)
    if kind in _PLAIN_TYPES:
        return value
    if isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            raise ValueError(f"{value} is not JSON")
        if not value.is_integer():
            return float(value)
        value = int(value)
    if isinstance(value, int):
        if -MAX_SAFE_INTEGER <= value <= MAX_SAFE_INTEGER:
            return int(value)
        raise ValueError("a number beyond 2**53 - 1 is not exact: declare and give it as text")
    if isinstance(value, dict):
        return {str(key): normalize_numbers(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [normalize_numbers(item) for item in value]
    if isinstance(value, str):
        return value
    raise ValueError(f"{kind.__name__} is not JSON")


def normalized_json(value: Any) -> bytes:
    """Return the canonical bytes of what `normalize_json` makes of a value, and raise as it."""
    return canonical_json(normalize_json(value))


def sha256_hex(data: bytes) -> str:
    """Return the SHA-256 of `data` in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def salted_digest(salt: bytes, data: bytes) -> str:
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
