"""What of JSON Schema is taken, and how each thing that is not is said."""

from __future__ import annotations

import time
from typing import Any

import pytest

from vedette.domain.schema_check import MAX_BYTES, MAX_SCHEMAS, find_schema_problems


def of(argument: Any, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"x": argument}, **more}


def said(document: Any) -> tuple[str, str, str]:
    (problem,) = find_schema_problems(document)
    return "/".join(map(str, problem.path)), problem.what, problem.mend


AS_THEY_COME = [
    # server-filesystem's read_file (zod 3), mcp-server-git's git_diff (pydantic), zod 4.
    {"type": "object", "properties": {"path": {"type": "string"}, "tail": {"type": "number",
     "description": "If provided, returns only the last N lines of the file"}},
     "required": ["path"], "additionalProperties": False,
     "$schema": "http://json-schema.org/draft-07/schema#"},
    {"type": "object", "title": "GitDiff", "properties": {
        "repo_path": {"title": "Repo Path", "type": "string"},
        "context_lines": {"default": 3, "title": "Context Lines", "type": "integer"},
        "since": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}},
     "required": ["repo_path"]},
    {"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object", "properties": {
        "count": {"type": "integer", "minimum": -9007199254740991, "maximum": 9007199254740991},
        "when": {"type": "string", "format": "date-time"},
        "meta": {"type": "object", "propertyNames": {"type": "string"},
                 "additionalProperties": {}}},
     "additionalProperties": False},
    {"type": "object"},
    {"type": "object", "properties": {"m": {"$ref": "#/definitions/Mode"}},
     "definitions": {"Mode": {"enum": ["a", "b"], "x-names": ["A", "B"]}}},
]  # fmt: skip


@pytest.mark.parametrize("document", AS_THEY_COME)
def test_schemas_of_servers_are_taken_as_they_come(document: dict[str, Any]) -> None:
    assert find_schema_problems(document) == []


@pytest.mark.parametrize(
    ("document", "path", "what", "mend"),
    [
        ({"type": "array"}, "type", "are an object", "type: object"),
        ({"properties": {}}, "type", "are an object", "type: object"),
        (of({"maximun": 5}), "properties/x/maximun", "no keyword", "'maximum'"),
        (of({"type": "numbr"}), "properties/x/type", "not valid under any", "JSON Schema"),
        (of({"minimum": "a"}), "properties/x/minimum", "not of type 'number'", "JSON Schema"),
        (of({"items": [{}]}), "properties/x/items", "not of type", "JSON Schema"),
        (of({"format": "colour"}), "properties/x/format", "no format 'colour'", "email"),
        (of({"pattern": "(?=a)b"}), "properties/x/pattern", "linear time", "RE2"),
        (of({"pattern": r"(a)\1"}), "properties/x/pattern", "linear time", "RE2"),
        (of({"pattern": "a" * 1001}), "properties/x/pattern", "longer than 1000", "RE2"),
        (of({"patternProperties": {"^a": {}}}), "properties/x/patternProperties", "not read",
         "properties"),
        (of({"unevaluatedProperties": False}), "properties/x/unevaluatedProperties", "not read",
         "additionalProperties"),
        (of({"$id": "http://x.example/"}), "properties/x/$id", "not read", "leave it out"),
        (of({"$dynamicRef": "#x"}), "properties/x/$dynamicRef", "not read", "$defs"),
        (of({"dependencies": {}}), "properties/x/dependencies", "no keyword", ""),
        (of({"$ref": "http://x.example/s.json"}), "properties/x/$ref", "own $defs", "$defs/NAME"),
        (of({"$ref": "#/properties/x"}), "properties/x/$ref", "own $defs", "$defs/NAME"),
        (of({"$ref": "#"}), "properties/x/$ref", "own $defs", "$defs/NAME"),
        # The validator would decode it, and ask another schema than was looked at here.
        (of({"$ref": "#/$defs/a%20b"}, **{"$defs": {"a%20b": {}, "a b": {}}}), "properties/x/$ref",
         "plain name", "letters"),
        (of({"$ref": "#/$defs/a~1b"}, **{"$defs": {"a/b": {}}}), "properties/x/$ref", "plain name",
         "letters"),
        (of({"$ref": "#/$defs/"}, **{"$defs": {"": {}}}), "properties/x/$ref", "plain name", ""),
        (of({"$ref": "#/$defs/no"}), "properties/x/$ref", "leads nowhere", "$defs/NAME"),
        (of({"$defs": {}}), "properties/x/$defs", "top only", "move"),
        (of({}, **{"$schema": "http://json-schema.org/draft-04/schema#"}), "$schema", "not read",
         "2020-12"),
        (of({}, required=["y"]), "required", "'y'", "properties"),
        (of({}, anyOf=[{}]), "anyOf", "all arguments together", "leave it"),
        (of({"properties": {"é": {}}}), "properties/x/properties/é", "cannot name", "ASCII"),
        (of({"properties": {"*": {}}}), "properties/x/properties/*", "cannot name", "without *"),
        ({"type": "object", "properties": {1: {}}}, "properties/1", "no text", "quotes"),
        (of({"enum": [{1: 2}]}), "properties/x/enum/0/1", "no text", "quotes"),
        (of({"maximum": 1e300}), "properties/x/maximum", "not exact", "leave"),
        (of({"items": {"maximum": 2**64 - 1}}), "properties/x/items/maximum", "not exact", "leave"),
        (of({"maximum": float("inf")}), "", "not JSON", "numbers"),
        (of({"description": "a" * MAX_BYTES}), "", "bytes long", "declare less"),
    ],
)  # fmt: skip
def test_what_is_not_taken_is_said_where_it_stands(
    document: dict[str, Any], path: str, what: str, mend: str
) -> None:
    found = said(document)
    assert found[0] == path
    assert what in found[1]
    assert mend in found[2]


def test_a_schema_that_contains_itself_is_refused() -> None:
    one = of({"$ref": "#/$defs/a"}, **{"$defs": {"a": {"items": {"$ref": "#/$defs/a"}}}})
    two = of({}, **{"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"not": {"$ref": "#/$defs/a"}}}})
    assert "contains itself" in said(one)[1]
    assert "contains itself" in said(two)[1]


def test_a_schema_that_grows_when_it_is_read_is_refused() -> None:
    def doubling(levels: int) -> dict[str, Any]:
        defs: dict[str, Any] = {"d0": {"type": "string"}}
        for level in range(1, levels):
            defs[f"d{level}"] = {"allOf": [{"$ref": f"#/$defs/d{level - 1}"}] * 2}
        return of({"$ref": f"#/$defs/d{levels - 1}"}, **{"$defs": defs})

    assert find_schema_problems(doubling(5)) == []
    began = time.process_time()
    assert f"at most {MAX_SCHEMAS:,}" in said(doubling(14))[1]
    found = find_schema_problems(doubling(400))
    assert any("schemas" in problem.what or "deeper" in problem.what for problem in found)
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    "wide",
    [{"anyOf": [{}] * 16_000}, {"allOf": [True] * 12_000},
     {"properties": {f"{n:x}": {} for n in range(5_000)}}],
)  # fmt: skip
def test_a_wide_schema_is_refused_before_it_is_looked_at_closely(wide: dict[str, Any]) -> None:
    began = time.process_time()
    assert f"at most {MAX_SCHEMAS:,}" in said(of(wide))[1]
    assert time.process_time() - began < 1


def test_a_deep_schema_is_refused_with_and_without_references() -> None:
    deep: dict[str, Any] = {}
    for _ in range(40):
        deep = {"items": deep}
    assert "deeper than 32" in said(of(deep))[1]
    defs = {f"d{n}": {"not": {"$ref": f"#/$defs/d{n + 1}"}} for n in range(20)} | {"d20": {}}
    assert any("refers to" in p.what for p in find_schema_problems(of({}, **{"$defs": defs})))
