"""What of JSON Schema is taken for a tool's arguments; the rest is refused when it is declared.

Taken is a part of draft 2020-12 in which nothing is fetched, nothing recurs and no text can make a
check slow. A keyword that is not known is refused, not skipped: the draft would skip a misspelt
limit. docs/decisions/0064 says why.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from vedette.domain.argument_format import FORMATS
from vedette.domain.argument_schema import (
    ONE_SCHEMA,
    SCHEMA_LISTS,
    SCHEMA_MAPS,
    ArgumentSchema,
    Path,
    inner_schemas,
    walk_schemas,
)
from vedette.domain.base.canonical import MAX_SAFE_INTEGER, canonical_json, normalize_numbers
from vedette.domain.schema_validator import find_metaschema_faults, find_pattern_fault

# What a schema may come to: its canonical bytes, its depth, and its schemas, each as often as it is
# referred to.
MAX_BYTES = 65_536
MAX_DEPTH = 32
MAX_SCHEMAS = 1_000

# There is one reading of such a name. JSON Pointers within URIs have two escapes, and whoever reads
# one otherwise than the validator does speaks of another schema.
_REFERENCE = re.compile(r"#/(\$defs|definitions)/[A-Za-z0-9_.-]+")

DRAFTS = ("https://json-schema.org/draft/2020-12/schema", "http://json-schema.org/draft-07/schema")

_ASSERTIONS = (
    "type", "enum", "const", "multipleOf", "maximum", "exclusiveMaximum", "minimum",
    "exclusiveMinimum", "maxLength", "minLength", "pattern", "format", "maxItems", "minItems",
    "uniqueItems", "maxContains", "minContains", "maxProperties", "minProperties", "required",
    "dependentRequired", "$ref",
)  # fmt: skip
ANNOTATIONS = (
    "title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly",
    "$comment", "$schema", "contentEncoding", "contentMediaType",
)  # fmt: skip
_KEYWORDS = frozenset({*ONE_SCHEMA, *SCHEMA_LISTS, *SCHEMA_MAPS, *_ASSERTIONS, *ANNOTATIONS})
_REFUSED = {
    "patternProperties": "name the members in properties",
    "unevaluatedProperties": "use additionalProperties",
    "unevaluatedItems": "use items",
    "$dynamicRef": "use $ref: '#/$defs/NAME'",
    "$id": "leave it out: a schema stands for itself here",
    "$anchor": "use $ref: '#/$defs/NAME'",
}


class SchemaProblem(Struct, frozen=True):
    """One thing that is wrong with an argument schema: where in it, what, and the mend."""

    path: Path
    what: str
    mend: str


def find_schema_problems(
    document: Mapping[str, Any], *, of_arguments: bool = True
) -> list[SchemaProblem]:
    """Return what is wrong with a schema of arguments; with none it makes an ArgumentSchema.

    One that is not `of_arguments` may be of any value, not of an object alone.
    """
    try:
        if odd := list(_find_odd_keys(document, ())):
            return [SchemaProblem(path, "a key is no text", "put quotes around it") for path in odd]
        if odd := list(_find_odd_numbers(document, ())):
            what = "a number beyond 2**53 - 1 is not exact"
            return [SchemaProblem(path, what, "leave the limit out, or use texts") for path in odd]
        size = len(canonical_json(normalize_numbers(document)))
    except (ValueError, TypeError, RecursionError) as error:
        return [SchemaProblem((), f"has no JSON form: {error}", "use text, numbers and lists")]
    if size > MAX_BYTES:
        what = f"is {size:,} bytes long, at most {MAX_BYTES:,} are taken"
        return [SchemaProblem((), what, "declare less, or more tools")]
    if _depth(document) > MAX_DEPTH:
        what = f"is nested deeper than {MAX_DEPTH}"
        return [SchemaProblem((), what, "use $defs, or flatter arguments")]
    # Counted before it is held to the draft's own schema, which takes a millisecond for each.
    if (many := sum(1 for _ in walk_schemas(document, ()))) > MAX_SCHEMAS:
        return [_too_many(many)]
    problems = [
        SchemaProblem(path, what, "write it as JSON Schema has it")
        for path, what in find_metaschema_faults(document)
    ]
    if problems:
        return problems
    for path, schema in walk_schemas(document, ()):
        problems += _schema_problems(path, schema, document)
    if of_arguments:
        problems += _root_problems(document)
    if not problems:
        problems += _size_problems(document)
    return problems


def _root_problems(document: Mapping[str, Any]) -> Iterator[SchemaProblem]:
    if document.get("type") != "object":
        yield SchemaProblem(("type",), "the arguments are an object", "write type: object")
    draft = document.get("$schema")
    if draft is not None and draft.removesuffix("#") not in DRAFTS:
        yield SchemaProblem(("$schema",), f"{draft!r} is not read", f"write {DRAFTS[0]}")
    for key in ("$ref", *SCHEMA_LISTS, "not", "if", "then", "else"):
        if key in document:
            what = f"{key} of all arguments together is not read"
            yield SchemaProblem((key,), what, "say it of an argument, or leave it to the tool")
    missing = set(document.get("required", ())) - set(document.get("properties", {}))
    if missing:
        what = f"needs {min(missing)!r}, which is not in properties"
        yield SchemaProblem(("required",), what, "add it to properties")


def _schema_problems(
    path: Path, schema: Any, document: Mapping[str, Any]
) -> Iterator[SchemaProblem]:
    """Yield what is not taken of one schema, without those inside it."""
    if isinstance(schema, bool):
        return
    for key, value in schema.items():
        if key in _REFUSED:
            yield SchemaProblem((*path, key), f"{key} is not read here", _REFUSED[key])
        elif key not in _KEYWORDS and not key.startswith("x-"):
            # The draft would skip it, and a misspelt limit with it.
            yield SchemaProblem((*path, key), f"{key!r} is no keyword known here", _nearest(key))
        elif key == "format" and value not in FORMATS:
            mend = f"there are: {', '.join(FORMATS)}"
            yield SchemaProblem((*path, key), f"there is no format {value!r}", mend)
        elif key == "pattern" and (why := find_pattern_fault(value)):
            yield SchemaProblem((*path, key), why, "write it as RE2 takes it")
        elif key == "$ref" and (why := _reference_fault(value, document)):
            yield SchemaProblem(
                (*path, key), why, "write '#/$defs/NAME', of letters, digits, _ . -"
            )
        elif key == "$schema" and path:
            yield SchemaProblem((*path, key), "stands at the top only", "leave it out")
        elif key in ("$defs", "definitions") and path:
            yield SchemaProblem((*path, key), "stand at the top only", "move them there")
        elif key == "properties":
            for name in value:
                if not name or not name.isascii() or "*" in name:
                    what = f"{name!r} cannot name a member"
                    yield SchemaProblem((*path, key, name), what, "use ASCII, without *")


def _nearest(key: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(key, _KEYWORDS, n=1)
    return f"did you mean {near[0]!r}?" if near else "leave it out, or begin it with x-"


def _reference_fault(ref: str, document: Mapping[str, Any]) -> str | None:
    if not _REFERENCE.fullmatch(ref):
        return f"{ref!r} is not one of this schema's own $defs, by a plain name"
    _, group, name = ref.split("/")
    if name not in document.get(group, {}):
        return f"{ref!r} leads nowhere"
    return None


class _Circle(Exception):
    """A schema contains itself."""


def _size_problems(document: Mapping[str, Any]) -> Iterator[SchemaProblem]:
    """Say whether references lead in circles, or make a small schema large or deep."""
    sizes: dict[str, tuple[int, int] | None] = {}

    def measure(schema: Any) -> tuple[int, int]:
        """Return how many schemas one comes to, and how deep they are nested."""
        if isinstance(schema, bool):
            return 1, 1
        found = [measure(each) for _, each in inner_schemas(schema)]
        if (ref := schema.get("$ref")) is not None:
            if ref not in sizes:
                sizes[ref] = None
                sizes[ref] = measure(ArgumentSchema(document).resolve(ref))
            if (referred := sizes[ref]) is None:
                raise _Circle(ref)
            found.append(referred)
        return 1 + sum(many for many, _ in found), 1 + max((deep for _, deep in found), default=0)

    try:
        many, deep = measure(document)
    except _Circle as error:
        what = f"{error} contains itself"
        yield SchemaProblem(("$defs",), what, "say how deep it may be, level by level")
        return
    except RecursionError:
        many, deep = 0, MAX_BYTES
    if many > MAX_SCHEMAS:
        yield _too_many(many)
    if deep > MAX_DEPTH:
        what = f"is nested deeper than {MAX_DEPTH}, with what it refers to"
        yield SchemaProblem((), what, "use flatter arguments")


def _too_many(schemas: int) -> SchemaProblem:
    what = f"comes to {schemas:,} schemas, at most {MAX_SCHEMAS:,} are taken"
    return SchemaProblem((), what, "declare less")


def _find_odd_numbers(value: Any, path: Path) -> Iterator[Path]:
    """Yield the places of numbers that are finite and not exact."""
    if isinstance(value, Mapping | list):
        named = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, item in named:
            yield from _find_odd_numbers(item, (*path, key))
    elif isinstance(value, int | float) and MAX_SAFE_INTEGER < abs(value) != math.inf:
        yield path


def _find_odd_keys(value: Any, path: Path) -> Iterator[Path]:
    """Yield the places of keys that are no texts, as YAML has them and JSON has not."""
    named = value.items() if isinstance(value, Mapping) else enumerate(value)
    for key, item in named:
        if isinstance(value, Mapping) and not isinstance(key, str):
            yield (*path, key)
        elif isinstance(item, Mapping | list):
            yield from _find_odd_keys(item, (*path, key))


def _depth(value: Any) -> int:
    if isinstance(value, Mapping):
        return 1 + max(map(_depth, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(_depth, value), default=0)
    return 0
