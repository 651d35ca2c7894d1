"""Validation of values by jsonschema; what of it is slow, inexact or lenient is done otherwise.

Nothing is fetched: whoever compiles a schema has seen that it refers to itself alone. Patterns are
RE2's, whose time is linear in the text; `multipleOf` divides decimals; formats are asserted; `enum`
and `const` compare canonical bytes. A check that would take more than `MAX_STEPS` is given up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from fractions import Fraction
from functools import lru_cache
from typing import Any

from msgspec import Struct

from vedette.domain.argument_format import FORMATS
from vedette.domain.base.canonical import canonical_json, canonicalize_numbers, normalize_numbers

_MAX_PATTERN = 1_000
_MAX_LISTED = 200  # characters of a list of values in an error
# What the check of one call may come to: keywords asked of values, with the members, items and
# schemas that each looks at. Both sides count: few schemas of many values, many of few.
MAX_STEPS = 10_000


class TooManySteps(Exception):
    """The check of some values against a schema would take more steps than it may."""


class _Steps(Struct):
    left: int
    sizes: dict[int, int]


_STEPS: ContextVar[_Steps | None] = ContextVar("steps", default=None)
# What a value counts beside its text, in characters. So many are a step: of a text, of a list or an
# object that jsonschema writes into an error.
_VALUE_SIZE = 16
_TEXT_STEP = 4096
_CONTAINER_STEP = 1024


def limit_steps(args: Any) -> AbstractContextManager[None]:
    """Within, raise TooManySteps once a check of these arguments takes more than MAX_STEPS."""
    sizes: dict[int, int] = {}
    _measure(args, sizes)
    return _count_in(sizes)


@contextmanager
def _count_in(sizes: dict[int, int]) -> Iterator[None]:
    token = _STEPS.set(_Steps(MAX_STEPS, sizes))
    try:
        yield
    finally:
        _STEPS.reset(token)


def _measure(value: Any, sizes: dict[int, int]) -> int:
    """Return about how many characters a value has, and note it of each list and object."""
    if isinstance(value, str):
        return len(value) + _VALUE_SIZE
    if isinstance(value, Mapping):
        size = sum(len(name) + _measure(item, sizes) for name, item in value.items())
    elif isinstance(value, list):
        size = sum(_measure(item, sizes) for item in value)
    else:
        return _VALUE_SIZE
    sizes[id(value)] = size = size + _VALUE_SIZE
    return size


def count_steps(steps: int) -> None:
    """Count steps that a check takes. Raises TooManySteps."""
    counted = _STEPS.get()
    if counted is not None:
        counted.left -= steps
        if counted.left < 0:
            raise TooManySteps


def build_validator(document: Mapping[str, Any]) -> Any:
    """Return jsonschema's validator of a schema; it is read as of draft 2020-12."""
    own = {key: value for key, value in document.items() if key != "$schema"}
    return _validator_class()(_list_forms(own), format_checker=_format_checker())


def list_fits(documents: Iterable[Mapping[str, Any]], value: Any) -> list[bool]:
    """Say of each schema whether a JSON value fits it; one that is too much to check does not."""
    sizes: dict[int, int] = {}
    try:
        canonicalize_numbers(value)
        _measure(value, sizes)
    except (ValueError, RecursionError):
        return [False for _ in documents]
    return [_fits(document, value, sizes) for document in documents]


def _fits(document: Mapping[str, Any], value: Any, sizes: dict[int, int]) -> bool:
    try:
        with _count_in(sizes):
            return next(build_validator(document).iter_errors(value), None) is None
    except (TooManySteps, ValueError, RecursionError):
        return False


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

    changed = {
        "pattern": _pattern, "multipleOf": _multiple_of, "uniqueItems": _unique_items,
        "enum": _enum, "const": _const,
    }  # fmt: skip
    known = {**Draft202012Validator.VALIDATORS, **changed}
    return extend(Draft202012Validator, {name: _counted(name, run) for name, run in known.items()})


def _counted(name: str, run: Callable[..., Any]) -> Callable[..., Any]:
    """Return what checks a keyword, and counts its steps first."""
    # Some make a validator or an error for each schema or item that they look at.
    weight = _WEIGHTS.get(name, 1)

    def check(validator: Any, asked: Any, instance: Any, schema: Any) -> Any:
        many = 1
        if isinstance(asked, list | dict) and name != "enum":
            many += len(asked)
        if isinstance(instance, str):
            many += len(instance) // _TEXT_STEP
        elif isinstance(instance, list | dict):
            many += len(instance) + _size(instance) // _CONTAINER_STEP
        count_steps(weight * many)
        return run(validator, asked, instance, schema)

    return check


def _size(container: Any) -> int:
    counted = _STEPS.get()
    return counted.sizes.get(id(container), 0) if counted is not None else 0


_WEIGHTS = {"$ref": 4, "anyOf": 4, "contains": 4, "oneOf": 4, "not": 4, "if": 4}


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
    if len(set(map(_form, instance))) < len(instance):
        yield ValidationError("uniqueItems")


class _Listed(list[Any]):
    """The values of an `enum`, with the canonical bytes of each."""

    def __init__(self, values: list[Any]) -> None:
        super().__init__(values)
        self.forms = frozenset(map(_form, values))


def _list_forms(value: Any) -> Any:
    """Return a schema whose lists at `enum` are such; in a value that has such a member, too."""
    if isinstance(value, Mapping):
        return {
            key: _Listed(item) if key == "enum" and isinstance(item, list) else _list_forms(item)
            for key, item in value.items()
        }
    return [_list_forms(item) for item in value] if isinstance(value, list) else value


def _enum(validator: Any, listed: _Listed, instance: Any, schema: Any) -> Iterator[Exception]:
    """Look it up by canonical bytes: jsonschema compares with one after the other."""
    from jsonschema.exceptions import ValidationError

    if _form(instance) not in listed.forms:
        yield ValidationError("enum")


def _const(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[Exception]:
    from jsonschema.exceptions import ValidationError

    if _form(instance) != _form(wanted):
        yield ValidationError("const")


def _form(value: Any) -> bytes:
    return canonicalize_numbers(normalize_numbers(value))


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
