"""The gateway: the one place where an action is decided. It decides and does nothing else.

A decision is a pure function of (bundle, question). The question is built here, from what the
engine itself knows of the run; an agent contributes its arguments and nothing more. Whatever
goes wrong on the way to a decision is a deny, and so is a permit on which a second engine differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from vedette.domain.action import Action
from vedette.domain.base.dataclass import dataclass
from vedette.domain.budget import ACTIONS, DAY_US, HOUR_US, MINUTE_US, Counts
from vedette.domain.decision import QUESTION
from vedette.domain.decision_request import Decided, Situation, ask
from vedette.domain.ports import PolicyEngine
from vedette.policy.second_opinion import SecondOpinion


@dataclass(slots=True)
class Gateway:
    """Decides under the live revision. `swap` is the only thing that changes what is live.

    `second` is what another engine says of the same bundle; None where there is no other.
    """

    engine: PolicyEngine
    policy_rev: int
    counts: Counts = field(default_factory=Counts)
    second: SecondOpinion | None = None

    def swap(
        self, engine: PolicyEngine, policy_rev: int, second: SecondOpinion | None = None
    ) -> None:
        """Make another bundle live, between two decisions and never within one."""
        self.engine, self.policy_rev, self.second = engine, policy_rev, second

    def decide(self, action: Action, situation: Situation) -> Decided:
        """Decide one action. Counts a permit at once, so that no two runs share a last place."""
        question = self._question(
            situation,
            action={
                "tool": action.tool.name,
                "verb": action.tool.verb,
                "digest": action.digest,
                "declared": action.tool.digest,
                "settles": action.tool.settles,
                "high_impact": action.tool.high_impact,
                "args": dict(action.args),
                "origins": dict(action.origins),
                "sources": dict(action.sources),
                "sinks": list(action.tool.sinks),
                "links": [link.to_json() for link in action.links],
                "readers": {at: sorted(who) for at, who in action.readers.items()},
            },
            resource={
                "type": action.tool.resource,
                "id": action.tool.target or situation.agent.collection or action.tool.resource,
            },
            confidence=action.confidence_milli,
        )
        decided = self._ask(question)
        if self.second is not None:
            decided = self.second.review(decided, outward=self.second.outward(question))
        if decided.decision.outcome == "permit":
            self.counts.add(situation.agent.name, ACTIONS, situation.now_us)
        return decided

    def give_back(self, agent: str, counted_at_us: int) -> None:
        """Take back the count of a permit whose step was refused."""
        self.counts.give_back(agent, ACTIONS, counted_at_us)

    def may_read(self, situation: Situation, bank: str, scope: str) -> Decided:
        """Decide whether an agent may read a memory scope."""
        name = f"{bank}/{scope}"
        question = self._question(
            situation,
            action={
                "tool": "memory.read",
                "verb": "read",
                "digest": "",
                "declared": "",
                "settles": "none",
                "high_impact": False,
                "args": {"bank": bank, "scope": scope},
                "origins": {},
                "sources": {},
                "sinks": [],
                "links": [],
                "readers": {},
            },
            resource={"type": "memory", "id": name},
            confidence=1000,
        )
        decided = self._ask(question)
        if self.second is not None:
            decided = self.second.review(decided, outward=False)
        return decided

    def _question(
        self,
        situation: Situation,
        *,
        action: Mapping[str, Any],
        resource: Mapping[str, Any],
        confidence: int,
    ) -> dict[str, Any]:
        agent, event, now = situation.agent, situation.event, situation.now_us
        count = self.counts.total
        trigger = situation.trigger
        if trigger is None:
            trigger = agent.trigger_of(event)
        approvals = []
        if situation.approval is not None:
            given = situation.approval
            approvals.append(
                {"action_digest": given.action_digest, "by": given.by, "until": given.until_us}
            )
        return {
            "schema": QUESTION,
            "now": now,
            "subject": {
                "id": agent.identity.spiffe_id,
                "agent": agent.name,
                "release": agent.release,
                "owner": agent.owner,
                "requested_mode": agent.requested_mode,
            },
            "action": action,
            "resource": resource,
            "context": {
                "event": {
                    "type": event.type,
                    "source": event.source,
                    "hops": event.hops,
                    "lineage": list(event.lineage),
                    "vouched": sorted(event.vouched),
                },
                "confidence": confidence,
                "memories": [{"id": cite, "trust": trust} for cite, trust in situation.memories],
                "counters": {
                    "minute": count(agent.name, ACTIONS, now, MINUTE_US),
                    "hour": count(agent.name, ACTIONS, now, HOUR_US),
                    "day": count(agent.name, ACTIONS, now, DAY_US),
                    "run": situation.actions_in_run,
                },
                "budget": {
                    "hour": agent.budget.actions_per_hour or 0,
                    "day": agent.budget.actions_per_day or 0,
                    "run": agent.budget.actions_per_run,
                },
                "approvals": approvals,
                "stopped": situation.stopped,
                "trigger": trigger,
                "turn": situation.turn,
            },
        }

    def _ask(self, question: dict[str, Any]) -> Decided:
        engine, revision = self.engine, self.policy_rev
        decision, raw = ask(engine, question)
        return Decided(decision, raw, revision, engine.digest, engine.name)
