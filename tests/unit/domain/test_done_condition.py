"""Done conditions: what is written of them, and what facts say."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest

from vedette.domain.done_condition import (
    ConditionState,
    PersonApproves,
    TaskFacts,
    asks_person,
    count_actions,
    evaluate,
    read_conditions,
    write_condition,
)

NOTHING = TaskFacts({}, {}, (0,))


def items(*states: str) -> TaskFacts:
    return TaskFacts(Counter(states), {}, (0,))


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
    assert held(written, TaskFacts({}, row, (0,))) is holds


def test_an_action_was_done_so_many_times_with_such_an_answer() -> None:
    done: list[tuple[str, dict[str, Any]]]
    done = [("send", {"ok": True}), ("send", {"ok": False}), ("call", {})]
    for written, count, holds in (
        ({"action": "send", "at_least": 2}, 2, True),
        ({"action": "send", "at_least": 3}, 2, False),
        ({"action": "send", "answer": "/ok", "equals": True}, 1, True),
        ({"action": "call", "answer": "/ok", "equals": True}, 0, False),
        ({"items": "closed", "at_least": 0}, 0, True),
    ):
        conditions, _ = read_conditions([{"name": "it", **written}])
        assert count_actions(conditions, done) == [count]
        assert held(written, TaskFacts({}, {}, (count,))) is holds


def test_no_item_is_no_closed_list() -> None:
    assert not held({"items": "closed"}, NOTHING)


def test_a_person_is_asked_and_never_holds_by_itself() -> None:
    conditions, _ = read_conditions([{"name": "read", "person": "reads it"}])
    assert conditions == (PersonApproves("read", "reads it"),)
    assert asks_person(conditions)
    assert [state.held for state in evaluate(conditions, NOTHING)] == [False]


def test_why_has_no_content() -> None:
    conditions, _ = read_conditions([{"name": "it", "rows": "/secret", "equals": "x"}])
    (state,) = evaluate(conditions, TaskFacts({}, {"secret": "hunter2"}, (0,)))
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
