"""Plain data, exactly: what a worker answers, as bytes that the engine may read without trust.

What is JSON already goes as JSON (the first byte says so). All else goes in a spelled-out form,
in which every value that JSON does not know is a list with a tag before it. Neither form can name
a class or a function, and a reference is never mistaken for a value that looks like one. The
one thing that changes is a tuple inside JSON, which comes back as a list, as it would from the
ledger.
"""

from __future__ import annotations

import math
from typing import Any

import orjson

from vedette.adapters.reasoners.workers.frames import BadFrame
from vedette.domain.origin import Ref

_JSON, _TAGGED = b"j", b"s"
_OPTIONS = (
    orjson.OPT_PASSTHROUGH_DATACLASS
    | orjson.OPT_PASSTHROUGH_DATETIME
    | orjson.OPT_PASSTHROUGH_SUBCLASS
)


def pack_plain(value: Any) -> bytes:
    """Return a worker's answer as bytes of plain data. Raises TypeError for what is not data."""
    try:
        data = orjson.dumps(value, option=_OPTIONS)
    except TypeError:
        return _TAGGED + orjson.dumps(to_tagged(value))
    # orjson writes NaN and the infinities as null.
    if b"null" in data and _has_nonfinite(value):
        return _TAGGED + orjson.dumps(to_tagged(value))
    return _JSON + data


def read_plain(data: bytes) -> Any:
    """Return the plain data of a worker that `pack_plain` wrote. Raises BadFrame."""
    form, text = data[:1], memoryview(data)[1:]
    try:
        if form == _JSON:
            return orjson.loads(text)
        if form == _TAGGED:
            return from_tagged(orjson.loads(text))
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise BadFrame(f"no plain data: {error}") from error
    raise BadFrame("no plain data")


def _has_nonfinite(value: Any) -> bool:
    """Say whether a value holds a float that JSON cannot write."""
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, dict):
        return any(map(_has_nonfinite, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_has_nonfinite, value))
    return False


def to_tagged(value: Any) -> Any:
    """Return plain data of a worker in the tagged form. Raises TypeError for what is not data."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return ["i", str(int(value))]
    if isinstance(value, float):
        return ["f", float(value).hex()]
    if isinstance(value, str):
        return ["s", str.encode(value, "utf-8", "surrogatepass").hex()]
    if isinstance(value, bytes | bytearray):
        return ["b", bytes(value).hex()]
    if isinstance(value, tuple):
        return ["t", *map(to_tagged, value)]
    if isinstance(value, list):
        return ["l", *map(to_tagged, value)]
    if isinstance(value, Ref):
        return ["r", to_tagged(value.pointer)]
    if hasattr(value, "items"):
        return ["d", *([to_tagged(name), to_tagged(item)] for name, item in value.items())]
    raise TypeError(f"{type(value).__name__} is no plain data")


def from_tagged(value: Any) -> Any:
    """Return the plain data of a worker that `to_tagged` wrote. Raises ValueError."""
    if value is None or isinstance(value, bool):
        return value
    if not isinstance(value, list) or not value:
        raise ValueError("a value without a tag")
    tag, *rest = value
    if tag in ("t", "l"):
        items = [from_tagged(item) for item in rest]
        return tuple(items) if tag == "t" else items
    if tag == "d":
        return _dict(rest)
    if len(rest) != 1:
        raise ValueError("a tag without its value")
    (one,) = rest
    if tag == "r":
        pointer = from_tagged(one)
        if not isinstance(pointer, str):
            raise ValueError("a reference that is no text")
        return Ref(pointer)
    if not isinstance(one, str):
        raise ValueError("a value that is no text")
    if tag == "i":
        return int(one)
    if tag == "f":
        return float.fromhex(one)
    if tag == "s":
        return bytes.fromhex(one).decode("utf-8", "surrogatepass")
    if tag == "b":
        return bytes.fromhex(one)
    raise ValueError("an unknown tag")


def _dict(pairs: list[Any]) -> dict[Any, Any]:
    found = {}
    for pair in pairs:
        if not isinstance(pair, list) or len(pair) != 2:
            raise ValueError("a mapping of something else than pairs")
        name = from_tagged(pair[0])
        if isinstance(name, list | dict):
            raise ValueError("a name that is no scalar")
        found[name] = from_tagged(pair[1])
    return found
