"""A shipped agent on one event, with the shipped memories and the shipped policy.

Every proposal is bound and put to the real gateway under the real Rego, so that what the judge
makes of an event is seen with what becomes of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from vedette.adapters.policy_engines.regorus.engine import RegorusEngine
from vedette.adapters.policy_engines.regorus.stage import read_bundle
from vedette.config.agent import FleetContext, read_agent
from vedette.config.bank import read_bank
from vedette.domain.action import Action, bind_proposal
from vedette.domain.agent import Agent
from vedette.domain.budget import ACTIONS
from vedette.domain.decision import Decision, DecisionContext
from vedette.domain.event import Event
from vedette.domain.memory import Briefing, Memory
from vedette.judging import Judge, Judgement
from vedette.operations.evaluation import first_roots
from vedette.policy.gateway import Gateway

ROOT = Path(__file__).resolve().parents[2]
POLICIES = ROOT / "policies"
NOW_US = 1_780_000_000_000_000


def yaml(path: Path) -> Any:
    return YAML(typ="safe").load(path.read_text(encoding="utf-8"))


REGISTRY = yaml(POLICIES / "registry/data.yaml")


@cache
def shipped(name: str, bank: str, *targets: str) -> tuple[Agent, tuple[Memory, ...]]:
    """Return an agent of ours, and the memories of its bank."""
    plan, problems = read_bank(ROOT / "memory" / bank, f"memory/{bank}", 0, {})
    assert plan is not None, [str(problem) for problem in problems]
    around = FleetContext("test", {bank: plan}, dict.fromkeys(targets, ""))
    found, problems = read_agent(ROOT / "agents" / name, f"agents/{name}", around)
    assert found is not None, [str(problem) for problem in problems]
    return found, plan.memories


@cache
def engine() -> RegorusEngine:
    return RegorusEngine(read_bundle(POLICIES))


@dataclass(frozen=True)
class Outcome:
    """A judgement, and for each proposal (tool, verdict, what the test asks of it)."""

    judgement: Judgement
    verdicts: tuple[tuple[str, str, str], ...]

    def tools(self, verdict: str) -> list[str]:
        return [tool for tool, found, _ in self.verdicts if found == verdict]


def decided(
    plan: Agent,
    judge: Judge,
    event: Event,
    asks: Callable[[Action, Decision], str],
    memories: tuple[Memory, ...] = (),
) -> Outcome:
    seen = Event.from_body(json.loads(event.to_body()))
    briefing = Briefing("run", plan.name, event.id, 1, 0, 1, seen, plan.charter, REGISTRY, memories)
    judgement = judge.judge(None, briefing)
    roots = first_roots(plan, briefing)
    cited = [(memory.cite(), memory.trust) for memory in memories]
    # A gateway of its own for each event: what one permits is no other's rate limit.
    gateway = Gateway(engine(), 1)
    verdicts = []
    for ordinal, proposal in enumerate(judgement.proposals):
        action = bind_proposal(
            proposal, plan.tools, roots, run="run", turn=1, ordinal=ordinal,
            confidence=judgement.confidence,
        )  # fmt: skip
        question = DecisionContext(plan, seen, 1, NOW_US, cited, actions_in_run=ordinal)
        decision = gateway.decide(action, question).decision
        if decision.outcome == "permit":
            gateway.counts.add(plan.name, ACTIONS, NOW_US)
        verdicts.append((proposal.tool, decision.outcome, asks(action, decision)))
    return Outcome(judgement, tuple(verdicts))
