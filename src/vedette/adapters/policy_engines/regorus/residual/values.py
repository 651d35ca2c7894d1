"""Rego's values and functions as a residual computes them, in Python.

JSON's values are those that its reader made: None, bool, int, str, list, dict. A set is a
`RegoSet`; an array whose order is that of a set or an object that was gone through is a `Bag`, as
engines differ in that order. Three things are kept apart: a value, UNDEFINED, and what is not sure
(GiveWay), where the full engine must be asked. Whatever engines were seen to differ in, or that
nobody tried, is not sure: fractions, integers beyond 2**53 - 1, the order of values that are no
scalars, the length of a text, a text as an index of an array.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from vedette.domain.base.canonical import MAX_SAFE_INTEGER

# What a residual looks at: the steps of the full engine are bounded, and what it may not end must
# not be permitted here. These bounds, and what the evaluator counts by them, keep what a residual
# answers far below, which is reckoned and tried, not proved (code_writer.MAX_WORK).
# The elements of a collection outside of loops; the rounds of a loop, and of one within it; the
# elements that a membership in a loop looks at (within two as many as rounds).
MAX_ELEMENTS, MAX_ROUNDS, MAX_INNER, MAX_LOOP_ELEMENTS = 64, 32, 8, 16
# The length of a text that a function takes or makes, and of one in a loop.
# And of an element or an index in a loop.
MAX_TEXT, MAX_LOOP_TEXT, MAX_KEY = 1_024, 64, 256
# Of a text that is looked for in another the engine tries each place: both lengths multiplied.
_SEARCH = 4


class GiveWay(Exception):
    """The residual is not sure of its answer."""


class _Undefined:
    def __repr__(self) -> str:
        return "UNDEFINED"


UNDEFINED = _Undefined()
_RANKS = {type(None): 0, bool: 1, int: 2, str: 3, list: 4, dict: 5}
TYPE_NAMES = ("null", "boolean", "number", "string", "array", "object", "set")


class RegoSet(dict[Any, Any]):
    """A Rego set: what makes an element the same (`identity`), and the element."""

    __slots__ = ()

    @classmethod
    def of(cls, values: Iterable[Any]) -> RegoSet:
        """Return the set of some values."""
        return cls((identity(value), value) for value in values)

    def add(self, value: Any) -> None:
        """Add an element."""
        self[identity(value)] = value


class Bag:
    """An array whose order is not known."""

    __slots__ = ("elements",)

    def __init__(self, elements: list[Any]) -> None:
        self.elements = elements

    def __len__(self) -> int:
        return len(self.elements)


def identity(value: Any) -> Any:
    """Return something hashable that is equal for equal Rego values only; True is not 1."""
    kind = type(value)
    if kind is str:
        return value
    if kind is bool:
        return (1, value)
    if kind is int:
        return (2, value)
    if value is None:
        return (0,)
    if kind is list:
        return (4, tuple(map(identity, value)))
    if kind is dict:
        return (5, tuple(sorted((name, identity(each)) for name, each in value.items())))
    if kind is RegoSet:
        return (6, frozenset(value))
    raise GiveWay


def equal(one: Any, other: Any) -> bool:
    """Say whether two Rego values are equal."""
    if type(one) is str and type(other) is str:
        return bool(one == other)
    return bool(identity(one) == identity(other))


def rank(value: Any) -> int:
    """Return the place of a Rego value's type in the order of types."""
    if type(value) is RegoSet:
        return 6
    if type(value) is Bag:
        return 4
    found = _RANKS.get(type(value))
    if found is None:
        raise GiveWay
    return found


def compare(one: Any, other: Any) -> int:
    """Return a number below, at or above 0 as one scalar is below, at or above another."""
    first, second = rank(one), rank(other)
    if first > 3 or second > 3:
        raise GiveWay
    if first != second:
        return first - second
    return 0 if one is None else (one > other) - (one < other)


def get(value: Any, step: Any) -> Any:
    """Return what lies in a Rego value under an index, UNDEFINED if nothing does."""
    kind = type(value)
    if kind is dict:
        return value.get(step, UNDEFINED) if type(step) is str else UNDEFINED
    if kind is list:
        if type(step) is not int or step < 0:
            raise GiveWay  # OPA takes l["1"] for l[1]
        return value[step] if step < len(value) else UNDEFINED
    if kind is RegoSet or kind is Bag or kind is float:
        raise GiveWay
    return UNDEFINED


def values_of(value: Any, most: int = MAX_ELEMENTS) -> Iterable[Any]:
    """Return the elements of a Rego collection, none of what is no collection."""
    kind = type(value)
    if kind is list or kind is Bag:
        found = value if kind is list else value.elements
    elif kind is dict or kind is RegoSet:
        found = value.values()
    elif kind in _RANKS:
        return ()
    else:
        raise GiveWay
    if len(found) > most:
        raise GiveWay
    return found  # type: ignore[no-any-return]


def pairs_of(value: Any, most: int = MAX_ELEMENTS) -> Iterable[tuple[Any, Any]]:
    """Return the keys of a Rego array or object, each with its value."""
    kind = type(value)
    if (kind is list or kind is dict) and len(value) <= most:
        return value.items() if kind is dict else enumerate(value)
    if kind in _RANKS and kind is not list and kind is not dict:
        return ()
    raise GiveWay


def is_member(value: Any, collection: Any) -> bool:
    """Say whether a Rego value is among the elements of a collection."""
    if type(value) is str and type(collection) is list and len(collection) <= MAX_ELEMENTS:
        return value in collection
    if type(collection) is RegoSet:
        return identity(value) in collection
    return any(equal(value, each) for each in values_of(collection))


def is_near_member(value: Any, collection: Any, most: int) -> bool:
    """Say what `is_member` says, in a loop: of a short scalar and few elements alone."""
    if type(collection) is not RegoSet:
        values_of(collection, most)
    _bound_texts(MAX_LOOP_TEXT, value)
    if rank(value) > 3:
        raise GiveWay
    return is_member(value, collection)


def near(function: Callable[..., Any], *args: Any) -> Any:
    """Compute a function in a loop: of short texts alone, and to one."""
    _bound_texts(MAX_LOOP_TEXT, *args)
    if function is BUILTINS["contains"] or function is split or function is replace:
        _bound_search(MAX_LOOP_TEXT, *args)
    found = function(*args)
    _bound_texts(MAX_LOOP_TEXT, found)
    return found


def near_key(value: Any) -> Any:
    """Return an element or an index in a loop: no long text."""
    _bound_texts(MAX_KEY, value)
    return value


def _bound_texts(most: int, *values: Any) -> None:
    if any(type(value) is str and len(value) > most for value in values):
        raise GiveWay


def _bound_search(most: int, text: Any, part: Any, *_: Any) -> None:
    if type(text) is str and type(part) is str and len(text) * len(part) > _SEARCH * most:
        raise GiveWay


def put(made: dict[str, Any], name: Any, value: Any) -> None:
    """Put a value into an object under a name that JSON can hold too."""
    if type(name) is not str:
        raise GiveWay
    made[name] = value


def to_json(value: Any) -> Any:
    """Return a Rego value as JSON has it, where a set is an array of no certain order."""
    kind = type(value)
    if kind is RegoSet:
        return [to_json(each) for each in value.values()]
    if kind is Bag:
        return [to_json(each) for each in value.elements]
    if kind is list:
        return [to_json(each) for each in value]
    if kind is dict:
        return {name: to_json(each) for name, each in value.items()}
    return value


def _bound(*collections: Any) -> None:
    """Give way for what is long: the full engine goes through all of it."""
    if any(len(each) > MAX_ELEMENTS for each in collections):
        raise GiveWay


# --- operators ----------------------------------------------------------------------------------


def _are_numbers(*values: Any) -> bool:
    if any(type(value) in (float, RegoSet, Bag) for value in values):
        raise GiveWay
    return all(type(value) is int for value in values)


def _safe(number: int) -> int:
    if abs(number) > MAX_SAFE_INTEGER:
        raise GiveWay
    return number


def add(one: Any, other: Any) -> Any:
    """Return a sum; UNDEFINED of what are no numbers."""
    return _safe(one + other) if _are_numbers(one, other) else UNDEFINED


def subtract(one: Any, other: Any) -> Any:
    """Return a difference of numbers or of sets."""
    if type(one) is RegoSet and type(other) is RegoSet:
        if not one or not other:
            return one
        _bound(one, other)
        return RegoSet((name, each) for name, each in one.items() if name not in other)
    return _safe(one - other) if _are_numbers(one, other) else UNDEFINED


def multiply(one: Any, other: Any) -> Any:
    """Return a product; UNDEFINED of what are no numbers."""
    return _safe(one * other) if _are_numbers(one, other) else UNDEFINED


def modulo(one: Any, other: Any) -> Any:
    """Return what is left of a division of numbers that are not negative."""
    if not _are_numbers(one, other) or other == 0:
        return UNDEFINED
    if one < 0 or other < 0:
        raise GiveWay
    return one % other


def unite(one: Any, other: Any) -> Any:
    """Return the union of two sets."""
    if type(one) is not RegoSet or type(other) is not RegoSet:
        raise GiveWay
    _bound(one, other)
    return RegoSet({**one, **other})


def intersect(one: Any, other: Any) -> Any:
    """Return the intersection of two sets."""
    if type(one) is not RegoSet or type(other) is not RegoSet:
        raise GiveWay
    _bound(one, other)
    return RegoSet((name, each) for name, each in one.items() if name in other)


OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "Add": add, "Sub": subtract, "Mul": multiply, "Mod": modulo,
    "Union": unite, "Intersection": intersect,
}  # fmt: skip


# --- built-in functions: UNDEFINED for an argument of another type, as in OPA -------------------


def _are_texts(*values: Any) -> bool:
    for value in values:  # noqa: SIM110 - half the time of all()
        if type(value) is not str:
            return False
    return True


def _contains(text: str, part: str) -> bool:
    _bound_search(MAX_TEXT, text, part)
    return part in text


def _are_short_texts(*values: Any) -> bool:
    if not _are_texts(*values):
        return False
    for value in values:
        if len(value) > MAX_TEXT:
            raise GiveWay
    return True


def count(value: Any) -> Any:
    """Return how many elements a collection has; a text's length is not sure."""
    kind = type(value)
    if kind in (list, dict, RegoSet, Bag):
        return len(value)
    if kind is str:
        raise GiveWay
    return UNDEFINED


def _extreme(choose: Callable[..., Any]) -> Callable[[Any], Any]:
    def find(value: Any) -> Any:
        if type(value) not in (list, RegoSet, Bag):
            raise GiveWay
        found = list(values_of(value))
        if not found:
            return UNDEFINED
        if type(found[0]) not in (str, int) or len({*map(type, found)}) > 1:
            raise GiveWay
        return choose(found)

    return find


def concat(between: Any, parts: Any) -> Any:
    """Return texts of an array joined."""
    if type(parts) in (RegoSet, Bag):
        parts = list(values_of(parts))
        if len(parts) > 1:
            raise GiveWay
    if type(parts) is list:
        _bound(parts)
    if not _are_texts(between) or type(parts) is not list or not _are_texts(*parts):
        return UNDEFINED
    if sum(map(len, parts)) + len(between) * len(parts) > MAX_TEXT:
        raise GiveWay
    return between.join(parts)


def split(text: Any, mark: Any) -> Any:
    """Return the parts of a text between marks."""
    if not _are_short_texts(text, mark):
        return UNDEFINED
    _bound_search(MAX_TEXT, text, mark)
    if not mark or text.count(mark) >= MAX_ELEMENTS:
        raise GiveWay
    return text.split(mark)


def replace(text: Any, old: Any, new: Any) -> Any:
    """Return a text with one part in place of another."""
    if not _are_short_texts(text, old, new):
        return UNDEFINED
    _bound_search(MAX_TEXT, text, old)
    if not old or len(text) + text.count(old) * (len(new) - len(old)) > MAX_TEXT:
        raise GiveWay
    return text.replace(old, new)


def _text_function(call: Callable[[str, str], Any]) -> Callable[[Any, Any], Any]:
    return lambda one, other: call(one, other) if _are_short_texts(one, other) else UNDEFINED


def array_concat(one: Any, other: Any) -> Any:
    """Return two arrays as one."""
    if type(one) is not list or type(other) is not list:
        raise GiveWay
    _bound(one, other)
    return one + other


def object_get(value: Any, name: Any, default: Any) -> Any:
    """Return a field of an object, or the default where it has none."""
    if type(value) is not dict or type(name) is not str:
        raise GiveWay
    return value.get(name, default)


def object_keys(value: Any) -> Any:
    """Return the names of an object's fields, as a set."""
    if type(value) is float:
        raise GiveWay
    if type(value) is not dict:
        return UNDEFINED
    _bound(value)
    return RegoSet.of(value)


def _object_part(kept: bool) -> Callable[[Any, Any], Any]:
    def part(value: Any, names: Any) -> Any:
        if type(value) is not dict or type(names) is not RegoSet:
            raise GiveWay
        _bound(value, names)
        return {name: each for name, each in value.items() if (name in names) is kept}

    return part


def absolute(value: Any) -> Any:
    """Return a number without its sign."""
    return abs(value) if _are_numbers(value) else UNDEFINED


def type_name(value: Any) -> Any:
    """Return the name of a value's type."""
    return TYPE_NAMES[rank(value)]


def _type_test(place: int) -> Callable[[Any], bool]:
    return lambda value: rank(value) == place


BUILTINS: dict[str, Callable[..., Any]] = {
    "abs": absolute,
    "array.concat": array_concat,
    "concat": concat,
    "contains": _text_function(_contains),
    "count": count,
    "endswith": _text_function(str.endswith),
    "max": _extreme(max),
    "min": _extreme(min),
    "object.filter": _object_part(True),
    "object.get": object_get,
    "object.keys": object_keys,
    "object.remove": _object_part(False),
    "replace": replace,
    "split": split,
    "startswith": _text_function(str.startswith),
    "trim_prefix": _text_function(str.removeprefix),
    "trim_suffix": _text_function(str.removesuffix),
    "type_name": type_name,
}
# Each type test with the kind that it asks for.
TYPE_TESTS = {
    "is_null": "null", "is_boolean": "boolean", "is_number": "number", "is_string": "string",
    "is_array": "array", "is_object": "object",
}  # fmt: skip
for _name, _kind in TYPE_TESTS.items():
    BUILTINS[_name] = _type_test(TYPE_NAMES.index(_kind))
# What the function is known to return where it returns something.
RESULT_KINDS = {
    "abs": "number", "array.concat": "array", "concat": "string", "contains": "boolean",
    "count": "number", "endswith": "boolean", "object.filter": "object", "object.keys": "set",
    "object.remove": "object", "replace": "string", "split": "array", "startswith": "boolean",
    "trim_prefix": "string", "trim_suffix": "string", "type_name": "string",
    **dict.fromkeys(TYPE_TESTS, "boolean"),
}  # fmt: skip
