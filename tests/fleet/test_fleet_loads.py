"""The shipped content passes every check, and every judge of it can be made."""

from __future__ import annotations

from pathlib import Path

import pytest

from vedette.config.agent_loader import build_judge
from vedette.config.fleet import LoadedFleet, check_fleet, load_fleet
from vedette.config.settings import load_settings
from vedette.operations.eval_cases import read_evals

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def loaded() -> LoadedFleet:
    return load_fleet(ROOT, load_settings(ROOT / "vedette.toml"))


def test_nothing_is_wrong_with_the_shipped_fleet() -> None:
    problems = check_fleet(ROOT, load_settings(ROOT / "vedette.toml"), read_evals)
    assert [str(problem) for problem in problems] == []


def test_the_agents_are_there_with_identities_of_their_own(loaded: LoadedFleet) -> None:
    identities = {agent.identity.spiffe_id for agent in loaded.fleet.agents.values()}
    assert identities == {
        "spiffe://harbour/agent/anomaly_detection",
        "spiffe://harbour/agent/content_moderation",
        "spiffe://harbour/agent/inbox_triage",
        "spiffe://harbour/agent/memory_curator",
        "spiffe://harbour/agent/weekly_review",
    }


def test_every_scope_an_agent_asks_for_holds_memories(loaded: LoadedFleet) -> None:
    held = {(plan.name, memory.scope) for plan in loaded.banks for memory in plan.memories}
    for agent in loaded.fleet.agents.values():
        for scope in agent.scopes:
            assert (scope.bank, scope.scope) in held


def test_every_judge_is_made_and_leaves_content_as_it_was(loaded: LoadedFleet) -> None:
    def files() -> list[Path]:
        return sorted((ROOT / "agents").rglob("*"))

    before = files()
    for agent in loaded.fleet.agents.values():
        wanted = {(scope.bank, scope.scope) for scope in agent.scopes}
        lessons = [
            memory
            for plan in loaded.banks
            for memory in plan.memories
            if (plan.name, memory.scope) in wanted
        ]
        assert build_judge(agent, lessons).charter == agent.charter
    assert files() == before
