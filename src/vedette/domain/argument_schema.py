"""Argument schemas: a tool's arguments as JSON Schema (draft 2020-12), as MCP's `inputSchema` is.

A schema says which arguments there are, of which kinds, where a sink may be, and what fits. What of
JSON Schema is taken: `schema_check`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from typing import Any

from vedette.domain.base.canonical import normalize_numbers
from vedette.domain.base.errors import BadProposal
from vedette.domain.origin import escape_pointer, split_pointer
from vedette.domain.schema_validator import build_validator, describe_misfit

# The values that the arguments of one call may come to.
MAX_VALUES = 10_000

# Keywords that hold schemas: one, a list of them, one by each name.
ONE_SCHEMA = (
    "items", "contains", "additionalProperties", "propertyNames", "not", "if", "then", "else",
)  # fmt: skip
SCHEMA_LISTS = ("prefixItems", "allOf", "anyOf", "oneOf")
SCHEMA_MAPS = ("properties", "$defs", "definitions", "dependentSchemas")

_TYPES = frozenset({"null", "boolean", "object", "array", "number", "integer", "string"})
_PYTHON_TYPES: Mapping[type, str] = {
    str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object",
    type(None): "null",
}  # fmt: skip
_KINDS = {"array": "list"}

Path = tuple[str | int, ...]


class ArgumentSchema:
    """The JSON Schema of a tool's arguments, which `find_schema_problems` found nothing against.

    The arguments are the members that its `properties` name, whatever else the schema says.
    """

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document

    def kinds(self) -> dict[str, str]:
        """Return the arguments by name, each with a word for its type; '?' where it is optional."""
        required = self._document.get("required", ())
        found = {}
        for name, schema in self._document.get("properties", {}).items():
            types = self._types(schema) - {"null"}
            if "number" in types:
                types -= {"integer"}
            word = next(iter(types)) if len(types) == 1 else "any"
            found[name] = _KINDS.get(word, word) + ("" if name in required else "?")
        return found

    def has_place(self, pointer: str) -> bool:
        """Say whether the schema declares a place for a sink; `*` is each element of what holds it.

        A member that only is not forbidden is not declared.
        """
        name, *steps = split_pointer(pointer)
        place = self._document.get("properties", {}).get(name, False)
        for step in steps:
            place = self._below(place, step)
        return place is not False

    def check(self, tool: str, args: Mapping[str, Any]) -> None:
        """Raise BadProposal if arguments do not fit, which says where and what is asked.

        Not what was given: it may be anybody's words.
        """
        values = _count_values(args)
        if values > MAX_VALUES:
            raise BadProposal(f"tool {tool}: its arguments have more than {MAX_VALUES:,} values")
        error = next(self._validator.iter_errors(args), None)
        if error is None:
            return
        if error.validator == "required" and not error.absolute_path:
            missing = next(name for name in error.validator_value if name not in args)
            raise BadProposal(f"tool {tool} needs the argument {missing!r}")
        place = self._name_place(error.absolute_path)
        raise BadProposal(f"tool {tool}: {place} {describe_misfit(error)}")

    def read_numbers(self, args: Mapping[str, Any], drawn: Collection[str]) -> dict[str, Any]:
        """Return arguments with the numbers that references drew.

        The record of an event or an outcome keeps a fraction as its decimal text. Where a text was
        drawn (at or below one of the pointers `drawn`), is written as that is, and a number but no
        text may stand, the number stands.
        """
        properties = self._document.get("properties", {})
        return {
            name: self._read_number(
                value, properties.get(name, False), f"/{escape_pointer(name)}", drawn
            )
            for name, value in args.items()
        }

    def _read_number(
        self, value: Any, schema: Any, pointer: str, drawn: Collection[str], within: bool = False
    ) -> Any:
        within = within or pointer in drawn
        if isinstance(value, str):
            if within and (number := _drawn_number(value)) is not None:
                types = self._types(schema)
                if "string" not in types and types & {"number", "integer"}:
                    return number
            return value
        if isinstance(value, dict):
            return {
                name: self._read_number(
                    item, self._below(schema, name), f"{pointer}/{escape_pointer(name)}", drawn,
                    within,
                )
                for name, item in value.items()
            }  # fmt: skip
        if isinstance(value, list):
            return [
                self._read_number(
                    item, self._below(schema, str(at)), f"{pointer}/{at}", drawn, within
                )
                for at, item in enumerate(value)
            ]
        return value

    # --- what a schema says of a place ---------------------------------------------------------

    def resolve(self, ref: str) -> Any:
        """Return the schema that a `$ref` names."""
        group, name = split_pointer(ref.removeprefix("#"))
        return self._document[group][name]

    def _types(self, schema: Any) -> frozenset[str]:
        """Return the types that a value may be of; what may be a number may be an integer."""
        if isinstance(schema, bool):
            return _TYPES if schema else frozenset()
        types = _TYPES
        if "type" in schema:
            named = schema["type"]
            types = frozenset([named] if isinstance(named, str) else named)
            if "number" in types:
                types |= {"integer"}
        for key, values in (("enum", schema.get("enum")), ("const", [schema.get("const")])):
            if key in schema:
                types &= {_PYTHON_TYPES[type(normalize_numbers(value))] for value in values}
        for part in self._conjuncts(schema):
            types &= frozenset().union(*(self._types(each) for each in part))
        return types

    def _conjuncts(self, schema: Mapping[str, Any]) -> Iterator[list[Any]]:
        """Yield lists of schemas: of each, one must hold beside what the schema itself says."""
        if "$ref" in schema:
            yield [self.resolve(schema["$ref"])]
        for each in schema.get("allOf", ()):
            yield [each]
        for key in ("anyOf", "oneOf"):
            if key in schema:
                yield schema[key]

    def _below(self, schema: Any, step: str) -> Any:
        """Return the schema of an element by its name, its index, or `*` for each."""
        if isinstance(schema, bool):
            return schema
        parts = [self._own_below(schema, step)]
        for conjunct in self._conjuncts(schema):
            offered = [
                found for each in conjunct if (found := self._below(each, step)) is not False
            ]
            parts.append(
                offered[0] if len(offered) == 1 else {"anyOf": offered} if offered else False
            )
        if False in parts:
            return False
        parts = [part for part in parts if part is not True]
        return True if not parts else parts[0] if len(parts) == 1 else {"allOf": parts}

    def _own_below(self, schema: Mapping[str, Any], step: str) -> Any:
        types = self._types({"type": schema["type"]} if "type" in schema else True)
        offered = []
        if "object" in types:
            named = schema.get("properties")
            if named is not None and step in named:
                offered.append(named[step])
            elif "additionalProperties" in schema:
                offered.append(schema["additionalProperties"])
                if step == "*":
                    offered += (named or {}).values()
            elif named is None:
                offered.append(True)
            elif step == "*":
                offered += named.values()
        if "array" in types and (step == "*" or (step.isascii() and step.isdecimal())):
            first, rest = schema.get("prefixItems", []), schema.get("items", True)
            if step == "*":
                offered += [*first, rest]
            else:
                offered.append(first[int(step)] if int(step) < len(first) else rest)
        offered = [each for each in offered if each is not False]
        if True in offered:
            return True
        return offered[0] if len(offered) == 1 else {"anyOf": offered} if offered else False

    # --- the check of values -------------------------------------------------------------------

    @cached_property
    def _validator(self) -> Any:
        return build_validator(self._document)

    @cached_property
    def _declared_names(self) -> frozenset[str]:
        return frozenset(
            name
            for _, schema in walk_schemas(self._document, ())
            if isinstance(schema, Mapping)
            for name in schema.get("properties", ())
        )

    def _name_place(self, path: Collection[str | int]) -> str:
        """Return where a value does not fit; members that no schema names are somebody's words."""
        steps = [
            str(step) if isinstance(step, int) or step in self._declared_names else "*"
            for step in path
        ]
        return "/" + "/".join(map(escape_pointer, steps)) if steps else "the arguments"


def inner_schemas(schema: Mapping[str, Any]) -> Iterator[tuple[Path, Any]]:
    for key in ONE_SCHEMA:
        if key in schema:
            yield (key,), schema[key]
    for key in SCHEMA_LISTS:
        for at, each in enumerate(schema.get(key, ())):
            yield (key, at), each
    for key in SCHEMA_MAPS:
        for name, each in schema.get(key, {}).items():
            yield (key, name), each


def walk_schemas(schema: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    yield path, schema
    if isinstance(schema, Mapping):
        for inside, each in inner_schemas(schema):
            yield from walk_schemas(each, (*path, *inside))


def _count_values(value: Any) -> int:
    if isinstance(value, Mapping):
        return 1 + sum(map(_count_values, value.values()))
    if isinstance(value, list):
        return 1 + sum(map(_count_values, value))
    return 1


def _drawn_number(text: str) -> int | float | None:
    """Return the number that `normalize_json` wrote as this text; None if it did not."""
    try:
        number = float(text) if len(text) < 32 else None
        if number is None or repr(number) != text:
            return None
        found = normalize_numbers(number)
    except ValueError:
        return None
    assert isinstance(found, int | float)
    return found
