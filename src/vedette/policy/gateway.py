"""The gateway: the one place where an action is decided. It decides and does nothing else.

A decision is a pure function of (bundle, question). The question is built here, from what the
engine itself knows of the run; an agent contributes its arguments and nothing more. Whatever
goes wrong on the way to a decision is a deny, and so is a permit on which a second engine differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from vedette.domain.action import Action
from vedette.domain.artefact import ARTEFACT_PERFORMER
from vedette.domain.budget import ACTIONS
from vedette.domain.decision import (
    REQUEST_SCHEMA,
    DecisionContext,
    DecisionRecord,
    check_decision_request,
    evaluate_request,
)
from vedette.domain.ports.policy_engine import PolicyEngine
from vedette.domain.spend import SpendCounters
from vedette.domain.work_tools import ENGINE_TOOLS
from vedette.policy.second_opinion import SecondOpinion

if TYPE_CHECKING:
    from vedette.policy.residuals import ResidualSet


class Gateway(Struct):
    """Decides actions under the live policy. `swap` is the only thing that changes what is live.

    `second_opinion` is what another engine says of the same bundle; None where there is no other.
    `residuals` are what may permit in the engine's place; None where there are none.
    """

    engine: PolicyEngine
    policy_rev: int
    counts: SpendCounters = field(default_factory=SpendCounters)
    second_opinion: SecondOpinion | None = None
    residuals: ResidualSet | None = None

    def swap(
        self,
        engine: PolicyEngine,
        policy_rev: int,
        second_opinion: SecondOpinion | None = None,
        residuals: ResidualSet | None = None,
    ) -> None:
        """Make another bundle live, between two decisions and never within one."""
        self.engine, self.policy_rev, self.second_opinion = engine, policy_rev, second_opinion
        self.residuals = residuals

    def decide(self, action: Action, decision_context: DecisionContext) -> DecisionRecord:
        """Decide one action. A permit counts once its caller says so (`counts`)."""
        reads_artefact = action.tool.performer == ARTEFACT_PERFORMER
        request = self._build_request(
            decision_context,
            action={
                "tool": action.tool.name,
                "verb": action.tool.verb,
                "digest": action.digest,
                "declared": action.tool.digest,
                "settles": action.tool.settles,
                "high_impact": action.tool.high_impact,
                "args": dict(action.args),
                "origins": dict(action.judged_origins),
                "sources": dict(action.sources),
                "sinks": list(action.tool.sinks),
                "links": [link.to_json() for link in action.links],
                "readers": {at: sorted(who) for at, who in action.readers.items()},
            },
            resource={
                "type": action.tool.resource,
                "id": action.tool.target
                or decision_context.agent.collection
                or action.tool.resource,
            },
            confidence=action.confidence_milli,
            asks=action.asks,
            # Whoever does not say whose it is has it denied.
            artefact=(decision_context.artefact or "other") if reads_artefact else "",
        )
        # A residual says what a bundle permits, and knows nothing of the engine's own rules, nor of
        # what a question says of a task, or of who asked for it.
        says_more = (
            decision_context.task is not None
            or decision_context.delegation is not None
            or decision_context.refuses
        )
        whole = action.asks or reads_artefact or says_more
        residuals = None if whole else self.residuals
        second = self.second_opinion
        if second is None:
            return self._evaluate(request, residuals)
        outward = second.is_outward(request)
        # What is outward is a whole engine's to decide; where another must agree, both are whole
        # ones that share no code.
        due = outward or second.is_due(outward=outward)
        residuals = None if due else residuals
        return second.review(self._evaluate(request, residuals), outward=outward)

    def may_read(self, decision_context: DecisionContext, bank: str, scope: str) -> DecisionRecord:
        """Decide whether an agent may read a memory scope."""
        name = f"{bank}/{scope}"
        request = self._build_request(
            decision_context,
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
        decision_record = self._evaluate(request)
        if self.second_opinion is not None:
            decision_record = self.second_opinion.review(decision_record, outward=False)
        return decision_record

    def _build_request(
        self,
        decision_context: DecisionContext,
        *,
        action: Mapping[str, Any],
        resource: Mapping[str, Any],
        confidence: int,
        asks: str = "",
        artefact: str = "",
    ) -> dict[str, Any]:
        agent, event, now = decision_context.agent, decision_context.event, decision_context.now_us
        trigger = decision_context.trigger
        if trigger is None:
            trigger = agent.trigger_of(event)
        approvals = []
        if decision_context.approval is not None:
            approval = decision_context.approval
            approvals.append(
                {
                    "action_digest": approval.action_digest,
                    "by": approval.by,
                    "until": approval.until_us,
                }
            )
        return {
            "schema": REQUEST_SCHEMA,
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
                "memories": [
                    {"id": cite, "trust": trust} for cite, trust in decision_context.memories
                ],
                "counters": {
                    **{
                        span: total + decision_context.escrow
                        for span, total in self.counts.totals(agent.name, ACTIONS, now).items()
                    },
                    "run": decision_context.actions_in_run,
                },
                "budget": {
                    "hour": agent.budget.actions_per_hour or 0,
                    "day": agent.budget.actions_per_day or 0,
                    # What keeps a task's items and ends it is no use of its room for actions.
                    "run": 0 if action["tool"] in ENGINE_TOOLS else agent.budget.actions_per_run,
                },
                "approvals": approvals,
                "stopped": decision_context.stopped,
                "trigger": trigger,
                "turn": decision_context.turn,
                **({"asks": asks} if asks else {}),
                **({"artefact": artefact} if artefact else {}),
                **_task_facts(decision_context),
            },
        }

    def _evaluate(
        self, request: dict[str, Any], residuals: ResidualSet | None = None
    ) -> DecisionRecord:
        engine, revision = self.engine, self.policy_rev
        denial, raw = check_decision_request(request)
        if denial is not None:
            return DecisionRecord(denial, raw, revision, engine.digest, engine.name)
        if residuals is not None:
            permit = residuals.permit(request, raw)
            if permit is not None:
                return DecisionRecord(permit, raw, revision, engine.digest, residuals.name)
        decision = evaluate_request(engine, raw)
        if residuals is not None:
            residuals.note(request, raw, decision)
        return DecisionRecord(decision, raw, revision, engine.digest, engine.name)


def _task_facts(decision_context: DecisionContext) -> dict[str, Any]:
    """Return what a question says of a task whose finish is decided, or one of whose actions the
    engine refuses, and of the agents above one that was asked; nothing in all others.
    """
    task, delegation = decision_context.task, decision_context.delegation
    refuses = decision_context.refuses
    return {
        **({"refuses": refuses} if refuses else {}),
        **({} if task is None else {"task": task.to_json()}),
        **({} if delegation is None else {"delegation": delegation.to_json()}),
    }
