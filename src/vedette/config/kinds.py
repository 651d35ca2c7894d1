"""Kinds of values that a field of a file may hold: each checks a value and describes itself.

An error is a mapping: `type` (what is wrong), `loc` (where, as the file's keys), `input` (what was
found), `ctx` and `msg`. `vedette.config.shape` turns it into the words that a person reads.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

Loc = tuple[str | int, ...]
Errors = list[dict[str, Any]]

_TRUE = frozenset({"true", "1", "yes", "on", "t", "y"})
_FALSE = frozenset({"false", "0", "no", "off", "f", "n"})
_WHOLE = re.compile(r"[+-]?[0-9]{1,19}\Z")


def build_error(
    kind: str, loc: Loc, value: Any, context: Mapping[str, Any] | None = None, message: str = ""
) -> dict[str, Any]:
    """Return one error that a kind says of a field's value."""
    return {"type": kind, "loc": loc, "input": value, "ctx": context or {}, "msg": message}


class Kind:
    """Base of all kinds of a field's value; takes anything."""

    def check(self, value: Any, loc: Loc, errors: Errors) -> Any:
        """Return the value as the model holds it; what does not fit is added to `errors`."""
        return value

    def schema(self, defs: dict[str, Any]) -> dict[str, Any]:
        """Return the kind as JSON Schema; models within it are added to `defs`."""
        return {}


class Text(Kind):
    """The kind of a field that holds text."""

    def check(self, value: Any, loc: Loc, errors: Errors) -> Any:
        """Take text only: a number would lose how it was written."""
        if not isinstance(value, str):
            errors.append(build_error("string_type", loc, value))
        return value

    def schema(self, defs: dict[str, Any]) -> dict[str, Any]:
        """Describe text."""
        return {"type": "string"}


class Whole(Kind):
    """The kind of a field that holds a whole number."""

    def __init__(self, strict: bool) -> None:
        self.strict = strict

    def check(self, value: Any, loc: Loc, errors: Errors) -> Any:
        """Take whole numbers; where not strict, also as text or with nothing after the point."""
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        if not self.strict:
            if isinstance(value, float) and value.is_integer():
                return int(value)
            if isinstance(value, str) and _WHOLE.match(value.strip()):
                return int(value)
        errors.append(build_error("int_type", loc, value))
        return value

    def schema(self, defs: dict[str, Any]) -> dict[str, Any]:
        """Describe a whole number."""
        return {"type": "integer"}


class Number(Kind):
    """The kind of a field that holds a finite number."""

    def __init__(self, strict: bool) -> None:
        self.strict = strict

    def check(self, value: Any, loc: Loc, errors: Errors) -> Any:
        """Take finite numbers; where not strict, also as text."""
        found: Any = value
        if isinstance(value, str) and not self.strict:
            try:
                found = float(value)
            except ValueError:
                found = None
        number = isinstance(found, int | float) and not isinstance(found, bool)
        if not number or not math.isfinite(found):
            errors.append(build_error("float_type", loc, value))
            return value
        return float(found)

    def schema(self, defs: dict[str, Any]) -> dict[str, Any]:
        """Describe a number."""
        return {"type": "number"}


class Flag(Kind):
    """The kind of a field that holds true or false."""

    def __init__(self, strict: bool) -> None:
        self.strict = strict

    def check(self, value: Any, loc: Loc, errors: Errors) -> Any:
        """Take flags; where not strict, also the words and digits that stand for them."""
        if isinstance(value, bool):
            return value
        if not self.strict and isinstance(value, str | int):
            word = str(value).strip().lower()
            if word in _TRUE or word in _FALSE:
                return word in _TRUE
        errors.append(build_error("bool_type", loc, value))
        return value

    def schema(self, defs: dict[str, Any]) -> dict[str, Any]:
        """Describe a flag."""
        return {"type": "boolean"}


class OneOf(Kind):
    """The kind of a field that holds one of a few values."""

    def __init__(self, values: Sequence[Any]) -> None:
        self._values = tuple(values)

    @property
    def values(self) -> tuple[Any, ...]:
        """Return the values."""
        return self._values

    def check(self, value: Any, loc: Loc, errors: Errors) -> Any:
        """Take the values themselves; True is no 1."""
        for known in self.values:
            if type(value) is type(known) and value == known:
                return value
        expected = " or ".join(repr(known) for known in self.values[-1:])
        if len(self.values) > 1:
            expected = ", ".join(repr(known) for known in self.values[:-1]) + f" or {expected}"
        errors.append(build_error("literal_error", loc, value, {"expected": expected}))
        return value

    def schema(self, defs: dict[str, Any]) -> dict[str, Any]:
        """List the values."""
        named = {str: "string", int: "integer", bool: "boolean"}
        kinds = {named[type(known)] for known in self.values}
        schema: dict[str, Any] = {"type": kinds.pop()} if len(kinds) == 1 else {}
        only = len(self.values) == 1
        return schema | ({"const": self.values[0]} if only else {"enum": list(self.values)})


class ListOf(Kind):
    """The kind of a field that holds a list."""

    def __init__(self, item: Kind) -> None:
        self.item = item

    def check(self, value: Any, loc: Loc, errors: Errors) -> Any:
        """Take lists whose every item fits."""
        if not isinstance(value, list):
            errors.append(build_error("list_type", loc, value))
            return value
        return [self.item.check(item, (*loc, at), errors) for at, item in enumerate(value)]

    def schema(self, defs: dict[str, Any]) -> dict[str, Any]:
        """Describe a list."""
        return {"type": "array", "items": self.item.schema(defs)}


class MapOf(Kind):
    """The kind of a field that holds a mapping with text for keys."""

    def __init__(self, item: Kind) -> None:
        self.item = item

    def check(self, value: Any, loc: Loc, errors: Errors) -> Any:
        """Take mappings whose every value fits."""
        if not isinstance(value, dict):
            errors.append(build_error("dict_type", loc, value))
            return value
        for key in value:
            if not isinstance(key, str):
                errors.append(build_error("string_type", (*loc, key), key))
        return {key: self.item.check(item, (*loc, key), errors) for key, item in value.items()}

    def schema(self, defs: dict[str, Any]) -> dict[str, Any]:
        """Describe a mapping."""
        inner = self.item.schema(defs)
        return {"type": "object", "additionalProperties": inner or True}


class Either(Kind):
    """One of several kinds of a field, and perhaps nothing. Of two kinds one is a list."""

    def __init__(self, kinds: Sequence[Kind], nothing: bool) -> None:
        self.kinds, self.nothing = kinds, nothing

    def check(self, value: Any, loc: Loc, errors: Errors) -> Any:
        """Check the value as the first kind that takes it, or say what the nearest misses."""
        if value is None and self.nothing:
            return None
        first: Errors = []
        for kind in self.kinds:
            found: Errors = []
            checked = kind.check(value, loc, found)
            if not found:
                return checked
            # Of a list it matters what is wrong within it, not that it is no text.
            if not first or (isinstance(value, list) and found[0]["type"] != "list_type"):
                first = found
        errors += first
        return value

    def schema(self, defs: dict[str, Any]) -> dict[str, Any]:
        """Offer the kinds."""
        offered = [kind.schema(defs) for kind in self.kinds]
        if self.nothing:
            offered.append({"type": "null"})
        return offered[0] if len(offered) == 1 else {"anyOf": offered}


class Checked(Kind):
    """A field's kind with limits, and with functions that look at the value before and after it."""

    def __init__(
        self,
        kind: Kind,
        *,
        before: Sequence[Callable[[Any], Any]] = (),
        after: Sequence[Callable[[Any], Any]] = (),
        limits: Mapping[str, Any] | None = None,
    ) -> None:
        self.kind, self.before, self.after = kind, before, after
        self.limits = dict(limits or {})

    def check(self, value: Any, loc: Loc, errors: Errors) -> Any:
        """Check one thing after the other, up to the first that does not fit."""
        known = len(errors)
        try:
            for run in self.before:
                value = run(value)
            checked = self.kind.check(value, loc, errors)
            if len(errors) > known or checked is None:
                return checked
            for found in _limit_errors(checked, loc, self.limits):
                errors.append(found)
                return checked
            for run in self.after:
                checked = run(checked)
        except ValueError as said:
            errors.append(build_error("value_error", loc, value, {"error": said}))
            return value
        return checked

    def schema(self, defs: dict[str, Any]) -> dict[str, Any]:
        """Describe the kind and its limits, which are those of what is not null."""
        schema = self.kind.schema(defs)
        offered = schema.get("anyOf", [schema])
        limited = [
            one
            if one.get("type") == "null"
            else {
                **one,
                **{_limit_keywords(one)[name]: limit for name, limit in self.limits.items()},
            }
            for one in offered
        ]
        return {"anyOf": limited} if "anyOf" in schema else limited[0]


def _limit_keywords(schema: Mapping[str, Any]) -> dict[str, str]:
    """Return how JSON Schema names each limit."""
    many = "Items" if schema.get("type") == "array" else "Length"
    return {
        "ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "pattern": "pattern",
        "min_length": f"min{many}", "max_length": f"max{many}",
    }  # fmt: skip


def _anchor_end(pattern: str) -> str:
    """Return a pattern whose `$` is the end as JSON Schema has it, not also before a newline."""
    return pattern.removesuffix("$") + r"\Z" if pattern.endswith("$") else pattern


def _limit_errors(value: Any, loc: Loc, limits: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield what is wrong with a value of the right kind."""
    for name, limit in limits.items():
        if name == "ge" and value < limit:
            yield build_error("greater_than_equal", loc, value, {"bound": limit})
        elif name == "gt" and value <= limit:
            yield build_error("greater_than", loc, value, {"bound": limit})
        elif name == "le" and value > limit:
            yield build_error("less_than_equal", loc, value, {"bound": limit})
        elif name == "pattern" and re.search(_anchor_end(limit), value) is None:
            message = f"must match the pattern {limit}"
            yield build_error("string_pattern_mismatch", loc, value, message=message)
        elif name == "min_length" and len(value) < limit:
            yield build_error("too_short", loc, value)
        elif name == "max_length" and len(value) > limit:
            yield build_error("too_long", loc, value, message=f"is longer than {limit}")
