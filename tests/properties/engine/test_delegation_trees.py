"""A few of the random trees of `tests.delegation_trees`; `make delegation-trees` runs 10,000."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
from tests.delegation_fleet import order
from tests.delegation_trees import (
    AGENTS,
    TOOLS,
    Difference,
    answer_all,
    check_decisions,
    compare,
    draw_land,
    draw_plan,
    expect,
    is_certain,
    land_fleet,
    run_batch,
)


async def test_trees_are_what_the_model_says(tmp_path: Path) -> None:
    counts = await run_batch(3, tmp_path, 3)
    assert counts["compared"] >= 1
    assert counts["children"] >= 1


@pytest.mark.parametrize("seed", [1, 2])
def test_decisions_are_what_the_model_says(seed: int) -> None:
    counts = check_decisions(seed, 40)
    assert counts["decided below an agent"] > 20
    assert min(counts["act"], counts["ask"], counts["none"]) > 0


async def test_a_model_that_says_something_else_is_found(tmp_path: Path) -> None:
    chance = random.Random(3)
    land = draw_land(chance)
    plans = [draw_plan(chance, f"t{at}", 1) for at in range(8)]
    plan = next(
        one for one in plans if is_certain(land, expect(land, one)) and expect(land, one).children
    )
    fleet, planned, _ = land_fleet(tmp_path, land)
    async with fleet:
        planned.add(plan)
        given = {"agent": plan.agent, "goal": plan.id, "inputs": {"who": "p@example.org"}}
        run = (await order(fleet, "start", **given))["run"]
        await answer_all(fleet)
        expected = expect(land, plan)
        child = next(iter(expected.children.values()))
        child.used += 1
        with pytest.raises(Difference):
            compare(fleet, expected, run, Counter())


def test_trees_are_drawn_of_all_that_there_is() -> None:
    chance = random.Random(7)
    grants = [draw_land(chance).grants[agent] for _ in range(20) for agent in AGENTS]
    found = {key for tools in grants for grant in tools.values() for key in grant}
    assert found == {"verb", "resource", "impact", "only", "triggers", "onyl"}
    assert set(TOOLS) < {tool for tools in grants for tool in tools}
