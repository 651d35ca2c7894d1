"""Plans are plain data of one seed, and are made smaller while they still fail."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from tests.simulation.plan import FAULTS, LONG, ORDERS, Plan, from_json, make_plan
from tests.simulation.planted import Bug, planted
from tests.simulation.shrink import minimize, shrink


def test_a_plan_is_of_its_seed_and_survives_a_file() -> None:
    for seed in range(50):
        plan = make_plan(seed)
        assert plan == make_plan(seed)
        assert from_json(plan.to_json()) == plan
    assert make_plan(1) != make_plan(2)


def test_plans_have_every_kind_of_order_and_fault() -> None:
    plans = [make_plan(seed, LONG) for seed in range(200)]
    seen = Counter(one.do for plan in plans for one in plan.operations)
    assert {*FAULTS, *ORDERS, "resume", "backup", "deliver"} <= seen.keys()
    assert {plan.store for plan in plans} == {"sqlite", "postgresql"}
    assert all(len(plan.deliveries) == LONG.events for plan in plans)
    assert all(len({e.name for e in plan.deliveries}) == LONG.events for plan in plans)


def test_nothing_can_be_left_out_of_what_is_left() -> None:
    tries = 0

    def fails(parts: object) -> bool:
        nonlocal tries
        tries += 1
        return isinstance(parts, list | range) and {3, 77, 78} <= set(parts)

    assert minimize(range(100), fails) == [3, 77, 78]
    assert tries < 200


def test_a_failing_plan_becomes_small() -> None:
    """Of 200 events and all orders and faults a stop, a kill after it and one event are left."""
    plan = next(
        plan
        for plan in (make_plan(seed, LONG) for seed in range(500))
        if _stop_then_kill(plan) and plan.deliveries
    )

    def fails(candidate: Plan) -> bool:
        has_ring = any("bell.ring" in event.tools for event in candidate.deliveries)
        return has_ring and _stop_then_kill(candidate)

    small = shrink(plan, fails, tries=2000)
    assert fails(small)
    assert [one.do for one in small.operations if one.do != "deliver"] == ["stop", "kill"]
    assert [event.tools for event in small.deliveries] == [("bell.ring",)]
    assert small.workers == 1


def test_a_plan_that_does_not_fail_is_left_alone() -> None:
    plan = make_plan(1)
    assert shrink(plan, lambda _: False) is plan


def _stop_then_kill(plan: Plan) -> bool:
    rows = [one.do for one in plan.operations if one.do in ("stop", "kill")]
    return "stop" in rows and "kill" in rows[rows.index("stop") :]


@pytest.mark.parametrize("bug", planted(), ids=lambda bug: bug.mutant.name)
def test_a_planted_bug_fits_the_code_as_it_is_and_changes_it(bug: Bug) -> None:
    root = Path(__file__).parents[2]
    files = bug.files(root)
    assert all((root / name).read_text(encoding="utf-8") != text for name, text in files.items())
