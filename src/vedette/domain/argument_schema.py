"""Argument schemas: a tool's arguments as JSON Schema (draft 2020-12), as MCP's `inputSchema` is.

A schema says which arguments there are, of which kinds, where a sink may be, and what fits. What of
JSON Schema is taken: `schema_check`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from msgspec import Struct

from vedette.domain.base.canonical import canonicalize_numbers, normalize_numbers
from vedette.domain.base.errors import BadProposal
from vedette.domain.origin import REF, escape_pointer, split_pointer
from vedette.domain.schema_validator import (
    TooManySteps,
    build_validator,
    count_steps,
    describe_misfit,
    limit_steps,
)

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

# One step into a value, and which values it leads into.
_Step = tuple[str, tuple[str, ...]]
_OBJECT, _ARRAY, _EITHER = ("object",), ("array",), ("object", "array")

# What schemas say of a place: one declares it, one names others and not it, none says anything.
_DECLARED, _UNDECLARED, _OPEN = "declared", "undeclared", "open"


class _Place(Struct, frozen=True):
    """What is said of a place where something may be: the schema of that, and how it is known."""

    schema: Any
    status: str


def _declared(schema: Any) -> _Place | None:
    return None if schema is False else _Place(schema, _DECLARED)


def _join_all(places: Sequence[_Place | None]) -> _Place | None:
    """Return what schemas that hold together say: what one forbids is forbidden, and what one
    declares is declared, though the others do not name it.
    """
    said = [place for place in places if place is not None]
    if len(said) < len(places):
        return None
    known = {place.status for place in said}
    status = next(each for each in (_DECLARED, _UNDECLARED, _OPEN) if each in known)
    schemas = [place.schema for place in said if place.schema is not True]
    whole = {"allOf": schemas} if len(schemas) > 1 else schemas[0] if schemas else True
    return _Place(whole, status)


def _join_any(places: Sequence[_Place | None]) -> _Place | None:
    """Return what schemas say of which one holds: those that declare it, if some do."""
    said = [place for place in places if place is not None]
    if not said:
        return None
    known = {place.status for place in said}
    status = next(each for each in (_DECLARED, _OPEN, _UNDECLARED) if each in known)
    schemas = [place.schema for place in said if place.status == status]
    whole = True if True in schemas else {"anyOf": schemas} if len(schemas) > 1 else schemas[0]
    return _Place(whole, status)


def _is_index(name: str) -> bool:
    return name.isascii() and name.isdecimal() and len(name) < 10


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

    def nullable(self) -> frozenset[str]:
        """Return the arguments that may be null."""
        properties = self._document.get("properties", {})
        return frozenset(name for name, each in properties.items() if "null" in self._types(each))

    def has_place(self, pointer: str) -> bool:
        """Say whether the schema declares a place for a sink; `*` is each element of what holds it.

        A member that only is not forbidden is not declared, where others are.
        """
        name, *steps = split_pointer(pointer)
        place = self._at(name, [(step, _EITHER) for step in steps])
        return place is not None and place.status != _UNDECLARED

    def check(self, tool: str, args: Mapping[str, Any]) -> None:
        """Raise BadProposal if arguments do not fit, which says where and what is asked.

        Not what was given: it may be anybody's words.
        """
        error = self._find_misfit(tool, args)
        if error is None:
            return
        if error.validator == "required" and not error.absolute_path:
            missing = next(name for name in error.validator_value if name not in args)
            raise BadProposal(f"tool {tool} needs the argument {missing!r}")
        place = self._name_place(error.absolute_path)
        raise BadProposal(f"tool {tool}: {place} {describe_misfit(error)}")

    def _find_misfit(self, tool: str, args: Mapping[str, Any]) -> Any:
        """Return jsonschema's first error; whatever else becomes of a check is a BadProposal."""
        try:
            canonicalize_numbers(args)
            with limit_steps(args):
                return next(self._validator.iter_errors(args), None)
        except TooManySteps as error:
            raise _too_much(tool) from error
        except Exception as error:
            what = f"tool {tool}: its arguments cannot be checked: {type(error).__name__}"
            raise BadProposal(what) from error

    def read_numbers(
        self, tool: str, args: Mapping[str, Any], drawn: Collection[str]
    ) -> dict[str, Any]:
        """Return arguments with the numbers that references drew. Raises BadProposal.

        The record of an event or an outcome keeps a fraction as its decimal text. Where a text was
        drawn (at or below one of the pointers `drawn`), is written as that is, and a number but no
        text may stand, the number stands.
        """
        try:
            with limit_steps(args):
                return {
                    name: self._read_number(value, (name, ()), f"/{escape_pointer(name)}", drawn)
                    for name, value in args.items()
                }
        except TooManySteps as error:
            raise _too_much(tool) from error

    def _read_number(
        self, value: Any, place: tuple[str, tuple[_Step, ...]], pointer: str,
        drawn: Collection[str], within: bool = False,
    ) -> Any:  # fmt: skip
        within = within or pointer in drawn
        name, steps = place
        if isinstance(value, str):
            number = read_number_text(value) if within else None
            if number is not None:
                found = self._at(name, steps)
                types = self._types(found.schema) if found is not None else frozenset()
                if "string" not in types and types & {"number", "integer"}:
                    return number
            return value
        if isinstance(value, dict):
            return {
                member: self._read_number(
                    item, (name, (*steps, (member, _OBJECT))),
                    f"{pointer}/{escape_pointer(member)}", drawn, within,
                )
                for member, item in value.items()
            }  # fmt: skip
        if isinstance(value, list):
            return [
                self._read_number(
                    item, (name, (*steps, (str(at), _ARRAY))), f"{pointer}/{at}", drawn, within
                )
                for at, item in enumerate(value)
            ]
        return value

    # --- what a schema says of a place ---------------------------------------------------------

    def resolve(self, ref: str) -> Any:
        """Return the schema that a `$ref` names."""
        _, group, name = ref.split("/")
        return self._document[group][name]

    def _at(self, name: str, steps: Sequence[_Step]) -> _Place | None:
        """Return what is said of a place; None if nothing may be there, or of no argument."""
        properties = self._document.get("properties", {})
        place = _declared(properties[name]) if name in properties else None
        for step in steps:
            place = self._below(place.schema, step) if place is not None else None
        return place

    def _types(self, schema: Any) -> frozenset[str]:
        """Return the types that a value may be of; what may be a number may be an integer."""
        count_steps(1)
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
        if "if" in schema:
            yield [schema.get("then", True), schema.get("else", True)]
        for each in schema.get("dependentSchemas", {}).values():
            yield [each, True]

    def _below(self, schema: Any, step: _Step) -> _Place | None:
        """Return what a schema says of an element by its name, its index, or `*` for each."""
        count_steps(1)
        if isinstance(schema, bool):
            return _Place(True, _OPEN) if schema else None
        found = [self._own_below(schema, step)]
        for conjunct in self._conjuncts(schema):
            found.append(_join_any([self._below(each, step) for each in conjunct]))
        return _join_all(found)

    def _own_below(self, schema: Mapping[str, Any], step: _Step) -> _Place | None:
        """Return what a schema says of an element by itself, without what is beside it."""
        name, holders = step
        types = self._types({"type": schema["type"]} if "type" in schema else True)
        offered: list[_Place | None] = []
        if "object" in types and "object" in holders:
            named, rest = schema.get("properties"), schema.get("additionalProperties")
            found = [named[name]] if named and name in named else []
            if name == "*":
                found = list((named or {}).values())
            offered += map(_declared, found)
            if rest is not None and (name == "*" or not found):
                offered.append(_declared(rest))
            elif not found:
                offered.append(_Place(True, _OPEN if named is None else _UNDECLARED))
        if "array" in types and "array" in holders and (name == "*" or _is_index(name)):
            first, rest = schema.get("prefixItems", []), schema.get("items")
            found = first if name == "*" else first[int(name) : int(name) + 1]
            offered += map(_declared, found)
            if name == "*" or not found:
                offered.append(_Place(True, _OPEN) if rest is None else _declared(rest))
        return _join_any(offered)

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
    """Yield the schemas within one and where they are; of one that is none, those that can be."""
    for key in ONE_SCHEMA:
        if key in schema:
            yield (key,), schema[key]
    for key in SCHEMA_LISTS:
        if isinstance(listed := schema.get(key), list | tuple):
            for at, each in enumerate(listed):
                yield (key, at), each
    for key in SCHEMA_MAPS:
        if isinstance(named := schema.get(key), Mapping):
            for name, each in named.items():
                yield (key, name), each


def walk_schemas(schema: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    yield path, schema
    if isinstance(schema, Mapping):
        for inside, each in inner_schemas(schema):
            yield from walk_schemas(each, (*path, *inside))


def _too_much(tool: str) -> BadProposal:
    what = f"tool {tool}: its arguments are too much to check against its schema"
    return BadProposal(what, mend="give fewer values, in several calls")


def read_number_text(text: str) -> int | float | None:
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


# --- as it is shown to who calls the tool -------------------------------------------------------

# Whoever holds a model to a schema lets it write nothing else, so a reference has to be in it.
_REFERENCE = {"type": "string", "pattern": f"^{REF}"}
# What leaves it open which text a text is.
_OPEN_KEYS = frozenset(
    {"type", "title", "description", "default", "examples", "deprecated", "$comment"}
)


def offer_references(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a tool's arguments as a model is shown it: where a value may be, a
    reference may be. Not in what is compared (`if`, `not`, `contains`), and one of `oneOf` is any
    of them, for a reference fits several.
    """
    offered = dict(schema)
    for key in ("items", "additionalProperties"):
        if key in schema:
            offered[key] = _offer_reference(schema[key])
    if "prefixItems" in schema:
        offered["prefixItems"] = [_offer_reference(each) for each in schema["prefixItems"]]
    if "properties" in schema:
        named = schema["properties"].items()
        offered["properties"] = {name: _offer_reference(each) for name, each in named}
    for key in ("$defs", "definitions"):
        if key in schema:
            offered[key] = {name: _offer_within(each) for name, each in schema[key].items()}
    for key in ("allOf", "anyOf", "oneOf"):
        if key in schema:
            offered[key] = [_offer_within(each) for each in schema[key]]
    for key in ("then", "else"):
        if key in schema:
            offered[key] = _offer_within(schema[key])
    if "oneOf" in offered:
        either = {"anyOf": offered.pop("oneOf")}
        offered |= either if "anyOf" not in offered else {
            "allOf": [*offered.get("allOf", []), either]
        }  # fmt: skip
    return offered


def _offer_within(schema: Any) -> Any:
    return offer_references(schema) if isinstance(schema, Mapping) else schema


def _offer_reference(schema: Any) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    if schema.keys() <= _OPEN_KEYS and "string" in schema.get("type", "string"):
        return schema
    return {"anyOf": [offer_references(schema), _REFERENCE]}
