"""What fits a schema is what jsonschema says; what was bound is recorded, labelled and digested."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import orjson
import rfc8785
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from vedette.domain.action import Action, Proposal, action_digest, bind_proposal
from vedette.domain.base.canonical import MAX_SAFE_INTEGER, normalize_json
from vedette.domain.base.errors import BadProposal
from vedette.domain.origin import Ref, Roots, escape_pointer
from vedette.domain.row_proof import parse_record
from vedette.domain.schema_check import find_schema_problems
from vedette.domain.tool import Tool
from vedette.engine.turn import action_row

NAMES = st.sampled_from(["a", "b", "to", "a/b", "~", "0", "x y"])
TEXTS = st.text("ab1.é", max_size=4)
NUMBERS = (
    st.integers(-3, 3)
    | st.sampled_from([0.5, 1.0, -0.0, 2.5, 1e-6, 1.5e-6, 0.1, MAX_SAFE_INTEGER, -2.0])
    | st.floats(-1e9, 1e9)
)
LEAVES = st.none() | st.booleans() | NUMBERS | TEXTS
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
PATTERNS = st.sampled_from(["^a", "b", "[ab]+1?$", "^(a|b)*$", r"\.", r"^\d?$"])


def limits(many: st.SearchStrategy[Any], *names: str) -> dict[str, st.SearchStrategy[Any]]:
    return dict.fromkeys(names, many)


SMALL = st.integers(0, 3)


def schemas(depth: int) -> st.SearchStrategy[Any]:
    """Schemas of what is taken, but for formats and fractions that `multipleOf` divides by."""
    numbers = st.fixed_dictionaries(
        {"type": st.sampled_from(["number", "integer"])},
        optional={
            **limits(NUMBERS, "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
            "multipleOf": st.integers(1, 3),
        },
    )
    texts = st.fixed_dictionaries(
        {"type": st.just("string")},
        optional={**limits(SMALL, "minLength", "maxLength"), "pattern": PATTERNS},
    )
    plain = st.sampled_from([True, {}, {"type": "boolean"}, {"type": ["null", "string"]}])
    values = st.fixed_dictionaries({"enum": st.lists(VALUES, min_size=1, max_size=3)})
    one = st.fixed_dictionaries({"const": VALUES})
    leaves = numbers | texts | plain | values | one
    if not depth:
        return leaves
    inner = schemas(depth - 1)
    lists = st.fixed_dictionaries(
        {"type": st.just("array")},
        optional={
            "items": inner, "prefixItems": st.lists(inner, min_size=1, max_size=2),
            "contains": inner, "uniqueItems": st.booleans(),
            **limits(SMALL, "minItems", "maxItems"),
        },
    )  # fmt: skip
    parts = st.lists(inner, min_size=1, max_size=2)
    combined = st.fixed_dictionaries({}, optional={
        "allOf": parts, "anyOf": parts, "oneOf": parts, "not": inner, "if": inner, "then": inner,
        "else": inner,
    })  # fmt: skip
    return leaves | lists | objects(inner) | combined | st.just({"$ref": "#/$defs/one"})


def objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {"type": st.just("object")},
        optional={
            "properties": st.dictionaries(NAMES, inner, max_size=3),
            "required": st.lists(NAMES, unique=True, max_size=2),
            "additionalProperties": inner | st.booleans(),
            "propertyNames": st.fixed_dictionaries({"maxLength": SMALL}),
            **limits(SMALL, "minProperties", "maxProperties"),
        },
    )


@st.composite
def tools(draw: st.DrawFn) -> Tool:
    properties = draw(st.dictionaries(NAMES, schemas(2), min_size=1, max_size=3))
    schema = {
        "type": "object",
        "properties": properties,
        "required": draw(st.lists(st.sampled_from(sorted(properties)), unique=True)),
        "$defs": {"one": draw(schemas(0))},
    }
    assert find_schema_problems(schema) == []
    return tool(schema)


def tool(schema: Mapping[str, Any]) -> Tool:
    return Tool(
        name="pay.send", verb="send", resource="bank", args={}, sinks=(), settles="none",
        function="send", schema=schema,
    )  # fmt: skip


def bind(declared: Tool, args: Mapping[str, Any], data: Any = None) -> Action | None:
    none: dict[str, Any] = {}
    roots = Roots(
        event={"data": data}, vouched=frozenset(), charter=none, registry=none, memory=none,
        trusted_memories=frozenset(), outcome=none, trusted_outcomes=frozenset(), row=none,
    )  # fmt: skip
    try:
        return bind_proposal(
            Proposal("pay.send", args), {"pay.send": declared}, roots,
            run="run_0123456789abcdef", turn=1, ordinal=0, confidence=1.0,
        )  # fmt: skip
    except BadProposal:
        return None


def fitting(draw: Callable[[st.SearchStrategy[Any]], Any], declared: Tool) -> dict[str, Any]:
    """Arguments that have a chance: of the names that there are, all that are needed."""
    assert declared.schema is not None
    args = {}
    for name, schema in declared.schema["properties"].items():
        if name in declared.schema["required"] or draw(st.booleans()):
            near = schema if isinstance(schema, dict) else {}
            values = [st.sampled_from(near["enum"])] if "enum" in near else [VALUES]
            kinds = {"number": NUMBERS, "integer": NUMBERS, "string": TEXTS}
            if isinstance(near.get("type"), str) and near["type"] in kinds:
                values.append(kinds[near["type"]])
            args[name] = draw(st.one_of(*values))
    return args


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_bound_is_what_jsonschema_takes(data: st.DataObject) -> None:
    declared = data.draw(tools())
    args = fitting(data.draw, declared)
    assert declared.schema is not None
    oracle = Draft202012Validator({**declared.schema, "additionalProperties": False})
    assert (bind(declared, args) is not None) == oracle.is_valid(args)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(NAMES, VALUES, max_size=3), st.dictionaries(NAMES, VALUES, max_size=3))
def test_what_is_bound_is_labelled_recorded_and_digested(
    args: dict[str, Any], other: dict[str, Any]
) -> None:
    declared = tool({"type": "object", "properties": {name: {} for name in {*args, *other}}})
    action = bind(declared, args)
    assert action is not None
    assert action.origins.keys() == set(pointers(action.args, ""))
    row = action_row(action, "desk")
    recorded = parse_record(row.record)["args"]
    assert rfc8785.dumps(recorded) == rfc8785.dumps(args) == rfc8785.dumps(dict(action.args))
    assert types(recorded) == types(action.args)
    assert action_digest(declared, recorded) == action.digest
    second = bind(declared, other)
    assert second is not None
    same = rfc8785.dumps(args) == rfc8785.dumps(other)
    assert (second.digest == action.digest) is same


@settings(max_examples=100, deadline=None)
@given(st.lists(NUMBERS, max_size=4), st.booleans())
def test_a_number_by_reference_is_the_number(numbers: list[float], recorded: bool) -> None:
    """Read of the event as it came, and of its record, which keeps fractions as texts."""
    data = orjson.loads(orjson.dumps(normalize_json(numbers))) if recorded else numbers
    declared = tool({"type": "object", "properties": {
        "all": {"type": "array", "items": {"type": "number"}},
        "first": {"type": ["number", "null"]},
    }})  # fmt: skip
    args = {"all": Ref("/event/data/n")}
    if numbers:
        args["first"] = Ref("/event/data/n/0")
    action = bind(declared, args, {"n": data})
    assert action is not None
    assert action.args["all"] == numbers
    assert action.args.get("first", 0) == (numbers or [0])[0]
    assert not any(isinstance(value, str) for value in action.args["all"])
    assert action.origins.get("/first", "untrusted") == "untrusted"


def pointers(value: Any, at: str) -> Iterator[str]:
    named = value.items() if isinstance(value, Mapping) else enumerate(value)
    for name, item in named:
        below = f"{at}/{escape_pointer(str(name))}"
        yield below
        if isinstance(item, Mapping | list):
            yield from pointers(item, below)


def types(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: types(item) for name, item in value.items()}
    return [types(item) for item in value] if isinstance(value, list) else type(value)
