"""Kinds of values in Rego, as far as the rules show: what the allow list of forms reasons in.

Everything of the question and of the data is `json`: any value, but never a set. A `bag` is an
array whose order is that of a set or an object that was gone through, which is not the same to
every engine. The fields that every question has (`check_request` refuses others before any engine
is asked) have their kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple


class Kind(NamedTuple):
    """A kind of values in Rego rules, by which the allow list of forms goes.

    `element_kind` is that of the elements, `fields` those of a literal object, `options` the kinds
    of which a value is one.
    """

    name: str
    element: Kind | None = None
    fields: tuple[tuple[str, Kind], ...] | None = None
    options: tuple[Kind, ...] = ()


JSON = Kind("json")
STRING = Kind("string")
NUMBER = Kind("number")
BOOLEAN = Kind("boolean")
NULL = Kind("null")
# What cannot be told: a mixture with sets or bags in it. Nothing may be done with it.
ANY = Kind("any")
# No value at all: the element of an empty collection.
NONE = Kind("none")

SCALARS = frozenset({"string", "number", "boolean", "null"})
COLLECTIONS = frozenset({"array", "bag", "set", "object"})


def array(element: Kind) -> Kind:
    """Return the kind of Rego arrays by the kind of their elements."""
    return Kind("array", element)


def bag(element: Kind) -> Kind:
    """Return the kind of Rego arrays whose order engines do not share."""
    return Kind("bag", element)


def set_of(element: Kind) -> Kind:
    """Return the kind of Rego sets by the kind of their elements."""
    return Kind("set", element)


def object_of(element: Kind) -> Kind:
    """Return the kind of Rego objects by the kind of their values."""
    return Kind("object", element)


def record(fields: Iterable[tuple[str, Kind]]) -> Kind:
    """Return the kind of a Rego object that is written out."""
    listed = tuple(sorted(fields))
    return Kind("object", join(kind for _, kind in listed), listed)


def kind_of_value(sample: object) -> Kind:
    """Return the kind of Rego values that look like a sample; what is empty in it is open."""
    if isinstance(sample, Mapping):
        return (
            record((name, kind_of_value(each)) for name, each in sample.items()) if sample else JSON
        )
    scalars = {str: STRING, bool: BOOLEAN, int: NUMBER, list: array(JSON)}
    return scalars.get(type(sample), JSON)


def join(kinds: Iterable[Kind]) -> Kind:
    """Return the narrowest kind that has all Rego values of some kinds."""
    found = NONE
    for kind in kinds:
        found = _join(found, kind)
    return found


def _join(one: Kind, other: Kind) -> Kind:
    if one == other or other == NONE:
        return one
    if one == NONE:
        return other
    if JSON in (one, other) or ANY in (one, other):
        return JSON if is_plain(one) and is_plain(other) else ANY
    if one.name == other.name and one.element and other.element:
        element = _join(one.element, other.element)
        names = [name for name, _ in one.fields or ()]
        if names and names == [name for name, _ in other.fields or ()]:
            return record(
                (name, _join(mine, its))
                for (name, mine), (_, its) in zip(one.fields or (), other.fields or (), strict=True)
            )
        return Kind(one.name, element)
    found = set(one.options or (one,))
    for option in other.options or (other,):
        same = next((each for each in found if each.name == option.name), None)
        found -= {same}
        found.add(option if same is None else _join(same, option))
    return Kind("mixture", options=tuple(sorted(found, key=lambda each: each.name)))


def is_plain(kind: Kind) -> bool:
    """Say whether no Rego value of a kind is, or holds, a set or an array of no order."""
    if kind.name in ("any", "set", "bag"):
        return False
    return all(map(is_plain, kind.options)) and (kind.element is None or is_plain(kind.element))


def is_ordered(kind: Kind) -> bool:
    """Say whether Rego values of a kind may be compared: they hold no bag, and nothing unknown."""
    if kind.name in ("any", "bag"):
        return False
    return all(map(is_ordered, kind.options)) and (kind.element is None or is_ordered(kind.element))


def is_scalar(kind: Kind) -> bool:
    """Say whether values of a kind have an order that all Rego engines share: sets have none."""
    return all(each.name in SCALARS | {"json", "none"} for each in kind.options or (kind,))


def is_disjoint(one: Kind, other: Kind) -> bool:
    """Say whether no value is of both kinds. OPA refuses to compile such a comparison."""
    if NONE in (one, other) or ANY in (one, other):
        return False
    if one.options or other.options:
        return all(
            is_disjoint(mine, its)
            for mine in one.options or (one,)
            for its in other.options or (other,)
        )
    if JSON in (one, other):
        return "set" in (one.name, other.name)
    if {one.name, other.name} <= {"array", "bag"}:
        return is_disjoint(one.element or NONE, other.element or NONE)
    if one.name != other.name:
        return True
    if one.fields is not None and other.fields is not None:
        mine, its = dict(one.fields), dict(other.fields)
        return mine.keys() != its.keys() or any(is_disjoint(mine[name], its[name]) for name in mine)
    return bool(one.element and other.element and is_disjoint(one.element, other.element))


def element_kind(kind: Kind) -> Kind | None:
    """Return the kind of the elements of a Rego collection's kind, None if it is no collection."""
    if kind.options:
        return join(filter(None, map(element_kind, kind.options))) if is_plain(kind) else ANY
    if kind == JSON:
        return JSON
    return (kind.element or NONE) if kind.name in COLLECTIONS else None


class Builtin(NamedTuple):
    """A built-in function of Rego: what each parameter takes, and what it returns.

    A parameter is a text of kinds, `array` meaning one of plain values; besides: `text` a literal
    that is not empty, `texts` an array of strings, `plain` anything that is
    no set, `keys` a set of strings. A result `element_kind` is an element of the first argument.
    """

    params: tuple[str, ...]
    result: Kind | str


_TEST = Builtin(("plain",), BOOLEAN)
_TEXT_TEST = Builtin(("string", "string"), BOOLEAN)
_TEXT_TRIM = Builtin(("string", "string"), STRING)

# Not here because engines differ on them: base64.*, to_number, indexof, upper, lower, sprintf (Wasm
# leaves it to its host, and each has its own verbs), strings.any_*, object.subset, bits.*, regex.*,
# glob.*, net.*, sort, product and sum (beyond 64 bits), count of a text (emoji), format_int
# (the Wasm traps on a large number). Not here because
# nobody needed them and nobody tried: the rest.
BUILTINS: dict[str, Builtin] = {
    "is_array": _TEST,
    "is_boolean": _TEST,
    "is_null": _TEST,
    "is_number": _TEST,
    "is_object": _TEST,
    "is_string": _TEST,
    "type_name": Builtin(("plain",), STRING),
    "count": Builtin(("array bag set object",), NUMBER),
    "min": Builtin(("array bag set",), "element"),
    "max": Builtin(("array bag set",), "element"),
    "concat": Builtin(("string", "texts"), STRING),
    "split": Builtin(("string", "text"), array(STRING)),
    "replace": Builtin(("string", "text", "string"), STRING),
    "startswith": _TEXT_TEST,
    "endswith": _TEXT_TEST,
    "contains": _TEXT_TEST,
    "trim_prefix": _TEXT_TRIM,
    "trim_suffix": _TEXT_TRIM,
    "array.concat": Builtin(("array", "array"), array(JSON)),
    "object.get": Builtin(("object", "string", "plain"), JSON),
    "object.keys": Builtin(("object",), set_of(STRING)),
    "object.remove": Builtin(("object", "keys"), object_of(JSON)),
    "object.filter": Builtin(("object", "keys"), object_of(JSON)),
    "abs": Builtin(("number",), NUMBER),
}

# What a type test says of what it was asked about.
TESTED_KINDS = {
    "is_array": array(JSON),
    "is_boolean": BOOLEAN,
    "is_null": NULL,
    "is_number": NUMBER,
    "is_object": object_of(JSON),
    "is_string": STRING,
}
