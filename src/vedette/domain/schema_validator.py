"""Validation of values by jsonschema; what of it is slow, inexact or lenient is done otherwise.

Nothing is fetched: whoever compiles a schema has seen that it refers to itself alone. Patterns are
RE2's, whose time is linear in the text; `multipleOf` divides decimals; formats are asserted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any

from vedette.domain.argument_format import FORMATS
from vedette.domain.base.canonical import canonical_json

_MAX_PATTERN = 1_000
_MAX_LISTED = 200  # characters of a list of values in an error


def build_validator(document: Mapping[str, Any]) -> Any:
    """Return jsonschema's validator of a schema; it is read as of draft 2020-12."""
    own = {key: value for key, value in document.items() if key != "$schema"}
    return _validator_class()(own, format_checker=_format_checker())


def find_metaschema_faults(document: Any) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield (place in it, what) where a document is no schema by the draft's own schema."""
    from jsonschema import Draft202012Validator

    metaschema = Draft202012Validator(Draft202012Validator.META_SCHEMA)
    # It may say of one place that it is neither this nor that.
    found = {
        tuple(error.absolute_path): error.message for error in metaschema.iter_errors(document)
    }
    for path, message in found.items():
        yield path, message[:_MAX_LISTED]


@lru_cache(1)
def _validator_class() -> Any:
    """Return the class of validators; jsonschema is imported with the first schema, not before."""
    from jsonschema import Draft202012Validator
    from jsonschema.validators import extend

    changed = {"pattern": _pattern, "multipleOf": _multiple_of, "uniqueItems": _unique_items}
    return extend(Draft202012Validator, changed)


@lru_cache(1)
def _format_checker() -> Any:
    from jsonschema import FormatChecker

    checker = FormatChecker(formats=())
    for name, fits in FORMATS.items():
        checker.checkers[name] = (_text_check(fits), ())
    return checker


def _text_check(fits: Callable[[str], bool]) -> Callable[[object], bool]:
    return lambda value: not isinstance(value, str) or fits(value)


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[Exception]:
    from jsonschema.exceptions import ValidationError

    if isinstance(instance, str) and not _compile_pattern(pattern).search(instance):
        yield ValidationError("pattern")


def _multiple_of(validator: Any, step: Any, instance: Any, schema: Any) -> Iterator[Exception]:
    """Divide as decimals, as people write them: 0.07 is a multiple of 0.01."""
    from jsonschema.exceptions import ValidationError

    if validator.is_type(instance, "number") and Fraction(repr(instance)) % Fraction(repr(step)):
        yield ValidationError("multipleOf")


def _unique_items(validator: Any, wanted: bool, instance: Any, schema: Any) -> Iterator[Exception]:
    """Compare by canonical bytes: jsonschema compares each with each where it cannot sort."""
    from jsonschema.exceptions import ValidationError

    if not wanted or not isinstance(instance, list):
        return
    if len({canonical_json(item) for item in instance}) < len(instance):
        yield ValidationError("uniqueItems")


@lru_cache(256)
def _compile_pattern(pattern: str) -> Any:
    import re2

    options = re2.Options()
    options.log_errors = False
    return re2.compile(pattern, options)


def find_pattern_fault(pattern: str) -> str | None:
    """Return why a pattern is not taken; None if it is."""
    import re2

    if len(pattern) > _MAX_PATTERN:
        return f"is longer than {_MAX_PATTERN} characters"
    try:
        _compile_pattern(pattern)
    except re2.error as error:
        said = error.args[0]
        text = said.decode(errors="replace") if isinstance(said, bytes) else str(said)
        return f"is no pattern that takes linear time: {text}"
    return None


# --- what a person or a model is told ------------------------------------------------------------

_BOUNDS = {
    "minimum": "must be at least {}", "maximum": "must be at most {}",
    "exclusiveMinimum": "must be more than {}", "exclusiveMaximum": "must be less than {}",
    "multipleOf": "must be a multiple of {}", "minLength": "must have at least {} characters",
    "maxLength": "must have at most {} characters", "pattern": "must match the pattern {}",
    "minItems": "must have at least {} items", "maxItems": "must have at most {} items",
    "minProperties": "must have at least {} members",
    "maxProperties": "must have at most {} members",
    "minContains": "must have at least {} items that fit `contains`",
    "maxContains": "must have at most {} items that fit `contains`",
    "contains": "must have an item that fits `contains`",
    "uniqueItems": "must have no item twice", "format": "must be of the format {}",
    "const": "must be {}", "additionalProperties": "has a member that is not declared",
    "anyOf": "fits none of the forms that it may have",
    "oneOf": "must fit exactly one of the forms that it may have",
    "not": "has a form that it may not have",
    "dependentRequired": "lacks a member that another one needs",
}  # fmt: skip
_ARTICLES = {
    "string": "a string", "number": "a number", "integer": "an integer", "boolean": "a boolean",
    "array": "an array", "object": "an object", "null": "null",
}  # fmt: skip


def describe_misfit(error: Any) -> str:
    """Return what a schema asks where jsonschema's error stands: the schema's words alone."""
    keyword, asked = error.validator, error.validator_value
    if keyword == "type":
        names = [asked] if isinstance(asked, str) else asked
        return "must be " + " or ".join(_ARTICLES[name] for name in names)
    if keyword == "required":
        missing = next(name for name in asked if name not in error.instance)
        return f"needs the member {missing!r}"
    if keyword == "enum":
        listed = ", ".join(canonical_json(each).decode() for each in asked)
        return f"must be one of {listed[:_MAX_LISTED]}"
    text = _BOUNDS.get(keyword, "is not what the schema allows")
    shown = asked if isinstance(asked, str) else canonical_json(asked).decode()
    return text.format(shown[:_MAX_LISTED])
