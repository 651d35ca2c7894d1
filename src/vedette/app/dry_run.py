"""The dry run: one event put to one agent, as in the line, without effect and without trace.

Judge, briefing and gateway are the real ones under the live policy; what is left out is all that
would write or call. The judge's state and the agent's row are taken as they were before the event
where that is on record, so a recorded event is judged as it was judged then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import orjson
from msgspec import Struct, field
from msgspec.structs import replace

from vedette.adapters.reasoners.in_process import InProcessReasoner
from vedette.domain.action import Action, bind_proposal, check_confidence
from vedette.domain.agent import Agent, Fleet
from vedette.domain.artefact import ARTEFACT_PERFORMER
from vedette.domain.base.errors import BadCommand, BadProposal
from vedette.domain.budget import ACTIONS
from vedette.domain.decision import Decision, DecisionContext
from vedette.domain.event import Event
from vedette.domain.memory import Briefing, Memory
from vedette.domain.ports.reasoner import ReasonerJudgement
from vedette.domain.ports.store import StoreReader
from vedette.domain.readers import ReaderRule, Readers, unpack_row
from vedette.domain.run import Run
from vedette.domain.tool import Tool
from vedette.judging import Judge
from vedette.memory.retrieval import Recall
from vedette.operations.evaluation import (
    check_only_turn,
    first_briefing,
    first_roots,
    to_stored_event,
)
from vedette.policy.gateway import Gateway

SCHEMA = "vedette.try/1"
# How far back a key's runs are looked through for the last row that was written.
_MAX_RUNS = 400
_LAST_POSITION = 2**62


class PriorState(Struct, frozen=True):
    """What a dry run takes for known of a key before its event: the judge's state, and the row."""

    checkpoint: bytes | None = None
    position: int = 0
    since: tuple[tuple[int, Event], ...] = ()
    row: Mapping[str, Any] = field(default_factory=dict)
    description: str = "nothing is on record of this key"

    @property
    def last(self) -> int:
        """Return the position of the key's event before this one; 0: there is none."""
        return self.since[-1][0] if self.since else self.position


class DryRun(Struct, frozen=True):
    """One agent for dry runs, with what is live around it. `stopped` names its tools."""

    agent: Agent
    fleet: Fleet
    judge: Callable[[], Judge]
    gateway: Gateway
    recall: Recall
    registry: Mapping[str, Any]
    targets: Mapping[str, Mapping[str, Any]]
    now_us: int
    secrecy: Sequence[ReaderRule]
    stopped: frozenset[str] = frozenset()

    def run(self, raw: Event, prior: PriorState) -> dict[str, Any]:
        """Put an event through; return what came of it as one JSON object.

        Raises BadEvent, what the judge raises, BadConfidence if it does not say how sure it is, and
        TurnLimit if it asks for another turn.
        """
        event, agent = to_stored_event(raw, self.secrecy), self.agent
        memories, _ = self.recall.find_memories(agent, event, self.now_us)
        briefing = self._briefing(event, prior, memories)
        judges = InProcessReasoner(lambda name: self.judge())
        if prior.checkpoint is not None or prior.since:
            judges.restore_state(
                agent.name, briefing.key, prior.checkpoint, prior.position, list(prior.since)
            )
        judgement = judges.reason_sync(briefing)
        if judgement.needs_state:
            raise BadCommand(f"the judge of {agent.name} cannot take up its state")
        confidence = check_confidence(judgement.confidence, f"the judgement of {agent.name}")
        check_only_turn(agent, judgement.final)
        row_readers = unpack_row(prior.row)[1]
        # In a cascade its model would be asked, which costs: what it proposes is not known here.
        deferred = agent.cascade is not None and not agent.cascade.settles(confidence)
        decided = replace(judgement, proposals=(), candidates=()) if deferred else judgement
        actions, refused = self._decide(decided, briefing, confidence, row_readers)
        return {
            "schema": SCHEMA,
            **describe_trial(self.fleet, agent, event, self.gateway.policy_rev),
            "state": prior.description,
            "label": judgement.label,
            "confidence": judgement.confidence,
            "score": judgement.score,
            "threshold": judgement.threshold,
            "detail": dict(judgement.detail),
            "deferred": deferred,
            "memories": [describe_memory(memory) for memory in memories],
            "actions": actions,
            "refused": refused,
            "candidates": [
                {"bank": one.bank, "scope": one.scope, "text": one.text}
                for one in decided.candidates
            ],
        }  # fmt: skip

    def _briefing(self, event: Event, prior: PriorState, memories: tuple[Memory, ...]) -> Briefing:
        return first_briefing(
            self.agent, event, self.registry, memories, unpack_row(prior.row)[0],
            position=prior.last + 1, previous=prior.last,
        )  # fmt: skip

    def _decide(
        self,
        judgement: ReasonerJudgement,
        briefing: Briefing,
        confidence: float,
        row_readers: Readers,
    ) -> tuple[list[dict[str, Any]], list[str]]:
        agent, event = self.agent, briefing.event
        roots = first_roots(agent, briefing, row_readers)
        cited = [(memory.cite(), memory.trust) for memory in briefing.memories]
        actions: list[dict[str, Any]] = []
        refused: list[str] = []
        for ordinal, proposal in enumerate(judgement.proposals):
            try:
                action = bind_proposal(
                    proposal, agent.tools, roots, run=briefing.run, turn=1, ordinal=ordinal,
                    confidence=confidence,
                )  # fmt: skip
            except BadProposal as error:
                refused.append(f"{proposal.tool}: {error}")
                continue
            tool = action.tool
            permits = sum(one["outcome"] == "permit" for one in actions)
            decision_context = DecisionContext(
                agent, event, 1, self.now_us, cited, permits, stopped=tool.name in self.stopped
            )
            decision = self.gateway.decide(action, decision_context).decision
            if decision.outcome == "permit":
                self.gateway.counts.add(agent.name, ACTIONS, self.now_us)
            actions.append(describe_action(agent, action, decision, self.targets))
        return actions, refused


def describe_action(
    agent: Agent, action: Action, decision: Decision, targets: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Return a tried action and what was decided of it, as `--json` prints it."""
    return {
        "tool": action.tool.name,
        "args": dict(action.args),
        "origins": dict(action.origins),
        "sources": dict(action.sources),
        "why": action.why,
        "confidence_milli": action.confidence_milli,
        "outcome": decision.outcome,
        "rule": decision.rule,
        "reasons": list(decision.reasons),
        "wait": decision.wait,
        "would": decision.would,
        "touches": _describe_target(agent, action.tool, targets),
        "inverse": action.tool.inverse,
    }


def describe_trial(fleet: Fleet, agent: Agent, event: Event, revision: int) -> dict[str, Any]:
    """Return what `--json` says first of a tried event: of whom, what, under which revision."""
    woken = next(match for match in fleet.match(event) if match.agent == agent.name)
    return {
        "agent": agent.name,
        "event": {"type": event.type, "source": event.source, "id": event.id,
                  "subject": event.subject, "time": event.time, "key": event.key},
        "wakes": woken.wakes,
        "why_wakes": woken.why,
        "revision": revision or None,
    }  # fmt: skip


def _describe_target(agent: Agent, tool: Tool, targets: Mapping[str, Mapping[str, Any]]) -> str:
    """Return what an agent's tool would touch, in words."""
    if tool.performer == ARTEFACT_PERFORMER:
        return "an artefact of its run"
    if tool.settles == "transactional":
        return f"a row of the fleet's own collection {agent.collection}"
    target = targets.get(tool.target or "", {})
    # Addresses only: a table may name where a secret is, and never more than that.
    places = (target.get(name) for name in ("path", "url", "host", "project", "smtp"))
    place = next((str(found) for found in places if isinstance(found, str) and found), "")
    return f"{tool.target or tool.resource} ({target.get('kind', '?')} {place})".replace(" )", ")")


def describe_memory(memory: Memory) -> dict[str, Any]:
    """Return a memory that a tried event recalls, as `--json` prints it."""
    return {"cite": memory.cite(), "kind": memory.kind, "label": memory.label, "text": memory.text}


def load_prior_state(
    history: StoreReader, agent: Agent, key: str, position: int | None
) -> PriorState:
    """Return what a dry run starts from: a key's state before the event's position; None: now."""
    end = _LAST_POSITION if position is None else position
    checkpoint, at, since, _ = history.judge_states.history(agent.name, key, end)
    row, is_exact = _row(history, agent, key, position, end)
    if checkpoint is None and not since and not row:
        return PriorState()
    says = "as it is now" if position is None else "as it was before the event"
    if not is_exact:
        says += "; the row as it is now"
    return PriorState(checkpoint, at, tuple(since), row, says)


def _row(
    history: StoreReader, agent: Agent, key: str, position: int | None, end: int
) -> tuple[Mapping[str, Any], bool]:
    """Return the agent's row of a key, and whether it is as it was when its event was judged:
    the last one that was written before its first turn.
    """
    if agent.collection is None:
        return {}, True
    if position is None:
        return history.runs.row(agent.collection, key) or {}, True
    now = history.runs.row(agent.collection, key) or {}
    judged = _judged_at(history, agent, position)
    last, row = 0, None if judged else now
    at = history.judge_states.previous_position(agent.name, key, end)
    for _ in range(_MAX_RUNS if judged else 0):
        if at == 0:
            break
        run = next((r for r in history.runs.runs_at([at]) if r.agent == agent.name), None)
        # An earlier event's run may have written it later than a later one's: it had to wait.
        if run is not None and run.last > last:
            for seq, written in _writes(history, run):
                if last < seq < judged:
                    last, row = seq, written
        at = history.judge_states.previous_position(agent.name, key, at)
    else:
        return (now, not judged)
    if last and row is None:
        return now, False  # what was written was erased
    return row or {}, True


def _judged_at(history: StoreReader, agent: Agent, position: int) -> int:
    """Return the entry of an agent's first turn of an event; 0 if it took none yet."""
    run = next((one for one in history.runs.runs_at([position]) if one.agent == agent.name), None)
    kinds = ("turn.reasoned", "run.closed")
    return next((seq for seq, _, _ in history.ledger.run_entries(run.id, kinds)), 0) if run else 0


def _writes(history: StoreReader, run: Run) -> Iterator[tuple[int, Mapping[str, Any] | None]]:
    """Yield (seq, row) of each write of its key's row by a run; None for one that was erased."""
    for seq, raw, body in history.ledger.run_entries(run.id, ("effect.done",)):
        value = orjson.loads(body).get("data") if body is not None else None
        if body is None and "body" in orjson.loads(raw):
            yield seq, None
        elif isinstance(value, dict) and value.get("rows"):
            yield seq, value["rows"][-1]
