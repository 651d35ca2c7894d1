"""Plans: which trigger is due, what one makes of the items that there are, what is told of it."""

from __future__ import annotations

from typing import Any

import pytest

from vedette.domain.plan import (
    MAX_STEPS,
    Plan,
    PlanFacts,
    find_step_fault,
    find_trigger,
    set_plan,
)
from vedette.domain.task_item import sort_items
from vedette.domain.task_words import ADDED, REVISED, STEERED

PLAN = Plan(1, "first", "so", ({"id": "x", "title": "X"}, {"id": "y", "title": "Y"}), 40, 1)


def item(id: str, number: int, state: str = "open", **more: Any) -> dict[str, Any]:
    return {
        "id": id,
        "title": id,
        "number": number,
        "state": state,
        "attempts": 0,
        "why": "",
        **more,
    }


@pytest.mark.parametrize(
    ("facts", "trigger"),
    [
        (PlanFacts((STEERED,)), None),  # the plan was made with it
        (PlanFacts((STEERED, STEERED)), "person"),
        (PlanFacts((STEERED, STEERED, ADDED)), "input"),
        (PlanFacts((STEERED, ADDED, REVISED, STEERED)), "goal"),
        (PlanFacts((REVISED,)), None),
        (PlanFacts(denials=2), None),
        (PlanFacts(denials=3), "unmet"),
        (PlanFacts(unknown=1, denials=9), "unknown"),
        (PlanFacts(spent=49), None),
        (PlanFacts(spent=50), "spend_50"),
        (PlanFacts(spent=79), "spend_50"),
        (PlanFacts(spent=80), "spend_80"),
        (PlanFacts(spent=300), "spend_80"),
    ],
)
def test_which_trigger_is_due(facts: PlanFacts, trigger: str | None) -> None:
    found = find_trigger(PLAN, facts)
    assert (None if found is None else found[0]) == trigger
    assert find_trigger(None, facts) == ("first", "there is none")


def test_a_plan_for_denied_finishes_needs_an_effect_before_the_next() -> None:
    made = Plan(2, "unmet", "so", PLAN.phases)
    assert find_trigger(made, PlanFacts(denials=99)) is None
    found = find_trigger(made, PlanFacts(denials=3, effects=1))
    assert found == ("unmet", "the finish was denied 3 times")


def test_a_mark_that_a_plan_was_made_beyond_is_none_of_its_triggers() -> None:
    made = Plan(2, "spend_50", "so", PLAN.phases, 60)
    assert find_trigger(made, PlanFacts(spent=79)) is None
    assert find_trigger(made, PlanFacts(spent=80)) == (
        "spend_80",
        "80 % of a limit of the run is spent",
    )


def test_what_a_plan_makes_of_items() -> None:
    items = {
        one["id"]: one
        for one in (
            item("done", 1, "done", phase="x"),
            item("kept", 2, phase="x"),
            item("moved", 3, phase="x"),
            item("left", 4, phase="x"),
            item("free", 5),
            item("asked", 6, by="person:ada", phase="x"),
        )
    }
    steps = {
        "x": [{"id": "kept", "title": "again"}, {"id": "done", "title": "again"}],
        "y": [{"id": "moved", "title": "m"}, {"id": "new", "title": "n"}],
    }
    changed = set_plan(PLAN, steps, items)
    assert isinstance(changed, list)
    assert {one["id"]: (one["state"], one["phase"]) for one in changed} == {
        "moved": ("open", "y"), "new": ("open", "y"), "left": ("set_aside", "x"),
    }  # fmt: skip
    assert next(one for one in changed if one["id"] == "new")["number"] == 7
    assert "two steps" in set_plan(PLAN, {**steps, "x": steps["y"]}, items)


def test_what_keeps_an_item_from_a_phase() -> None:
    of_phase = [item(str(at), at, "done", phase="x") for at in range(MAX_STEPS)]
    assert find_step_fault(PLAN, "x", "t", of_phase[1:]) == ""
    assert "50 steps" in find_step_fault(PLAN, "x", "t", of_phase)
    assert find_step_fault(PLAN, "y", "t" * 200, of_phase) == ""
    assert "200 characters" in find_step_fault(PLAN, "y", "t" * 201, of_phase)
    assert "no phase 'z'" in find_step_fault(PLAN, "z", "t", ())
    assert "no phase 'x'" in find_step_fault(None, "x", "t", ())


def test_of_a_long_phase_the_next_open_steps_are_told_cut() -> None:
    items = [item(str(at), at, "done" if at < 9 else "open", phase="x") for at in range(50)]
    told = PLAN.tell([{**one, "title": "t" * 2000} for one in items], None)
    assert [one["id"] for one in told["current"]["steps"]] == [str(at) for at in range(9, 29)]
    assert {len(one["title"]) for one in told["current"]["steps"]} == {200}
    assert (told["phases"][0]["closed"], told["phases"][0]["of"]) == (9, 50)


def test_items_of_one_number_have_one_order() -> None:
    twins = [item("b", 1), item("a", 1, by="person:ada"), item("c", 1)]
    for given in (twins, twins[::-1]):
        assert [one["id"] for one in sort_items(given)] == ["b", "c", "a"]


def test_of_a_plan_the_next_steps_of_the_current_phase_are_told() -> None:
    items = [item("a", 1, "failed", phase="x"), item("b", 2, phase="y"), item("c", 3)]
    told = PLAN.tell(items, ("goal", "why"))
    assert told == {
        "revision": 1,
        "phases": [
            {"id": "x", "title": "X", "state": "closed", "closed": 1, "of": 1},
            {"id": "y", "title": "Y", "state": "open", "closed": 0, "of": 1},
        ],
        "current": {"id": "y", "steps": [{"id": "b", "title": "b"}]},
        "replan": {"trigger": "goal", "why": "why"},
    }
    assert PLAN.place(items[2]) == 2
    assert Plan.from_json(PLAN.to_json()) == PLAN
