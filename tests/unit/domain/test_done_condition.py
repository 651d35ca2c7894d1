"""Done conditions: what is written of them, and what facts say."""

from __future__ import annotations

import re
from typing import Any

import pytest

from vedette.domain.done_condition import (
    ArtefactFact,
    ConditionState,
    PersonApproves,
    TaskFacts,
    asks_person,
    evaluate,
    find_unreachable,
    read_conditions,
    write_condition,
)

NOTHING = TaskFacts({}, {}, ())


def items(*states: str) -> TaskFacts:
    return TaskFacts({str(at): {"state": state} for at, state in enumerate(states)}, {}, ())


def held(written: dict[str, Any], facts: TaskFacts) -> bool:
    conditions, faults = read_conditions([{"name": "it", **written}])
    assert faults == []
    (state,) = evaluate(conditions, facts)
    return state.held


@pytest.mark.parametrize(
    ("at_least", "states", "holds"),
    [
        (0, (), True),
        (1, (), False),
        (2, ("done", "failed"), True),
        (2, ("done", "open"), False),
        (1, ("done", "open"), False),
        (3, ("done", "set_aside"), False),
    ],
)
def test_items_are_closed(at_least: int, states: tuple[str, ...], holds: bool) -> None:
    assert held({"items": "closed", "at_least": at_least}, items(*states)) is holds


@pytest.mark.parametrize(
    ("written", "row", "holds"),
    [
        ({"rows": "/a/1", "equals": "x"}, {"a": [0, "x"]}, True),
        ({"rows": "/a/2", "equals": "x"}, {"a": [0, "x"]}, False),
        ({"rows": "/a~1b", "at_least": 3}, {"a/b": 3}, True),
        ({"rows": "/a~1b", "at_least": 3}, {"a/b": 2}, False),
        ({"rows": "/n", "at_least": 1}, {"n": True}, False),
        ({"rows": "/n", "equals": 1}, {"n": True}, False),
        ({"rows": "/n", "equals": True}, {"n": True}, True),
        ({"rows": "/n", "equals": 1}, {}, False),
        ({"rows": "/n", "equals": 0.5}, {"n": "0.5"}, True),
    ],
)
def test_a_row_has_a_value(written: dict[str, Any], row: dict[str, Any], holds: bool) -> None:
    assert held(written, TaskFacts({}, row, ())) is holds


def test_an_action_was_done_so_many_times_with_such_an_answer() -> None:
    facts = TaskFacts({}, {}, (("send", {"ok": True}), ("send", {"ok": False}), ("call", {})))
    assert held({"action": "send", "at_least": 2}, facts)
    assert not held({"action": "send", "at_least": 3}, facts)
    assert held({"action": "send", "answer": "/ok", "equals": True}, facts)
    assert not held({"action": "call", "answer": "/ok", "equals": True}, facts)
    assert not held({"action": "send"}, NOTHING)


def test_no_item_is_no_closed_list() -> None:
    assert not held({"items": "closed"}, NOTHING)


def test_a_person_is_asked_and_never_holds_by_itself() -> None:
    conditions, _ = read_conditions([{"name": "read", "person": "reads it"}])
    assert conditions == (PersonApproves("read", "reads it"),)
    assert asks_person(conditions)
    assert [state.held for state in evaluate(conditions, NOTHING)] == [False]


def test_why_has_no_content() -> None:
    conditions, _ = read_conditions([{"name": "it", "rows": "/secret", "equals": "x"}])
    (state,) = evaluate(conditions, TaskFacts({}, {"secret": "hunter2"}, ()))
    assert state == ConditionState("it", False, "/secret is not as wanted")


@pytest.mark.parametrize(
    ("value", "path", "what"),
    [
        ({}, (), "is not a list"),
        ([], (), "is not a list"),
        (["x"], (0,), "is not a condition"),
        ([{"items": "closed"}], (0, "name"), "has a name"),
        ([{"name": "a b", "items": "closed"}], (0, "name"), "has a name"),
        ([{"name": "a"}], (0,), "says nothing"),
        ([{"name": "a", "items": "closed", "person": "x"}], (0,), "has items and person"),
        ([{"name": "a", "items": "open"}], (0, "items"), "no state"),
        ([{"name": "a", "items": "closed", "at_least": -1}], (0, "at_least"), "no whole number"),
        ([{"name": "a", "items": "closed", "at_least": True}], (0, "at_least"), "no whole number"),
        ([{"name": "a", "action": "t", "at_least": 0}], (0, "at_least"), "no whole number"),
        ([{"name": "a", "items": "closed", "equals": 1}], (0, "equals"), "is nothing that items"),
        ([{"name": "a", "rows": "x", "equals": 1}], (0, "rows"), "no JSON Pointer|not a JSON"),
        ([{"name": "a", "rows": "/x"}], (0,), "says not what"),
        ([{"name": "a", "rows": "/x", "equals": 1, "at_least": 1}], (0,), "says not what"),
        ([{"name": "a", "action": "t", "answer": "/x"}], (0,), "compared"),
        ([{"name": "a", "action": " "}], (0, "action"), "no text"),
        ([{"name": "a", "person": 7}], (0, "person"), "no text"),
        ([{"name": "a", "items": "closed"}] * 2, (1, "name"), "two conditions"),
        ([{"name": "a", "items": "closed"}] * 51, (), "has 51"),
        ([{"name": "a", "artefacts": "t", "max_size": 499}], (0, "max_size"), "fewer than 500"),
        ([{"name": "a", "artefacts": "t", "schema": {"allOf": [{}] * 200}}], (), "has 201 JSON"),
    ],
)
def test_what_is_wrong_is_said_at_its_place(value: Any, path: tuple[Any, ...], what: str) -> None:
    conditions, faults = read_conditions(value)
    assert any(re.search(what, said) and place == path for place, said, _ in faults), faults
    assert conditions == ()


def test_what_is_written_of_a_condition_is_read_as_it() -> None:
    written = [
        {"name": "a", "items": "closed", "at_least": 0},
        {"name": "b", "items": "done", "at_least": 2},
        {"name": "c", "rows": "/total", "equals": 0},
        {"name": "d", "rows": "/total", "at_least": 3},
        {"name": "e", "action": "wire.send", "at_least": 1},
        {"name": "f", "action": "wire.send", "at_least": 2, "answer": "/ok", "equals": False},
        {"name": "g", "person": "reads it"},
        {"name": "h", "rows": "/total", "equals": None},
    ]
    found, faults = read_conditions(written)
    assert faults == []
    assert read_conditions([write_condition(one) for one in found]) == (found, [])


def test_the_engines_own_condition_is_nobodys_name() -> None:
    _, ((path, _, _),) = read_conditions([{"name": "actions_over", "items": "done"}])
    assert path == (0, "name")


def made(*sizes: int, **more: Any) -> TaskFacts:
    facts = [ArtefactFact("report.write", "text/plain", size, **more) for size in sizes]
    return TaskFacts({}, {}, (), facts)


@pytest.mark.parametrize(
    ("written", "facts", "holds"),
    [
        ({"artefacts": "report.write"}, made(1), True),
        ({"artefacts": "report.write"}, NOTHING, False),
        ({"artefacts": "text/plain"}, made(1), True),
        ({"artefacts": "application/json"}, made(1), False),
        ({"artefacts": "report.read"}, made(1), False),
        ({"artefacts": "report.write", "at_least": 2}, made(1), False),
        ({"artefacts": "report.write", "at_least": 2}, made(1, 1), True),
        ({"artefacts": "report.write", "min_size": 5000}, made(4000), False),
        ({"artefacts": "report.write", "min_size": 5000, "max_size": 5000}, made(5000), True),
        ({"artefacts": "report.write", "max_size": 5000}, made(6000), False),
        ({"artefacts": "report.write"}, made(1, is_erased=True), False),
        ({"artefacts": "report.write"}, made(1, misfits=frozenset({"it"})), False),
        ({"artefacts": "report.write"}, made(1, misfits=frozenset({"other"})), True),
    ],
)
def test_artefacts_of_a_kind_are_counted(
    written: dict[str, Any], facts: TaskFacts, holds: bool
) -> None:
    assert held(written, facts) is holds


def test_what_of_artefacts_does_not_count_is_said() -> None:
    facts = TaskFacts({}, {}, (), (*made(9, 1).artefacts, *made(9, is_erased=True).artefacts))
    conditions, _ = read_conditions([{"name": "it", "artefacts": "report.write", "min_size": 5}])
    (state,) = evaluate(conditions, facts)
    assert state.why == (
        "1 of 1 artefacts of report.write are there; 1 of another size not counted; "
        "1 erased not counted"
    )


@pytest.mark.parametrize(
    ("written", "where", "what"),
    [
        ({"artefacts": ""}, ("artefacts",), "is no text"),
        ({"artefacts": "x", "min_size": 0}, ("min_size",), "no number of characters"),
        ({"artefacts": "x", "min_size": 5, "max_size": 4}, ("max_size",), "is below min_size"),
        ({"artefacts": "x", "schema": []}, ("schema",), "is no JSON Schema"),
        ({"artefacts": "x", "schema": {"typ": "object"}}, ("schema", "typ"), "no keyword"),
        ({"artefacts": "x", "schema": {"minimum": 0.5}}, ("schema",), "with a fraction"),
        ({"artefacts": "x", "schema": {"$ref": "http://a/b"}}, ("schema", "$ref"), "own $defs"),
        ({"artefacts": "x", "equals": 1}, ("equals",), "is nothing that artefacts: has"),
    ],
)
def test_what_is_wrong_with_a_condition_over_artefacts(
    written: dict[str, Any], where: tuple[str, ...], what: str
) -> None:
    found, faults = read_conditions([{"name": "it", **written}])
    assert found == ()
    assert faults[0][0] == (0, *where)
    assert what in faults[0][1]


def test_a_condition_over_artefacts_is_written_as_it_is_read() -> None:
    schema = {"type": "array", "items": {"type": "string"}, "minItems": 2}
    given = [
        {"name": "a", "artefacts": "text/plain", "at_least": 1},
        {"name": "b", "artefacts": "x.y", "at_least": 3, "schema": schema, "min_size": 5,
         "max_size": 9000},
    ]  # fmt: skip
    conditions, faults = read_conditions(given)
    assert faults == []
    assert [write_condition(one) for one in conditions] == given


@pytest.mark.parametrize(
    ("written", "what"),
    [
        ({"action": "no.such"}, "is not a tool"),
        ({"rows": "/x", "equals": 1}, "keeps no rows"),
        ({"artefacts": "report.write"}, "has no artefacts"),
        ({"artefacts": "no.such"}, "has no artefacts"),
        ({"items": "done"}, ""),
    ],
)
def test_a_condition_that_no_agent_can_meet_is_found(written: dict[str, Any], what: str) -> None:
    (condition,), _ = read_conditions([{"name": "it", **written}])
    tools = {"report.write"}
    fault = find_unreachable(condition, tools, has_rows=False, has_artefacts=False)
    assert (what in fault[1]) if fault else not what
    if what == "has no artefacts":
        again = find_unreachable(condition, tools, has_rows=False, has_artefacts=True)
        assert (again is None) == (written["artefacts"] == "report.write")
