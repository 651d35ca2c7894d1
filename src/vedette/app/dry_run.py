"""Trying: one event put to one agent, as in the line, without effect and without trace.

Judge, briefing and gateway are the real ones under the live policy; what is left out is all that
would write or call. The judge's state and the agent's row are taken as they were before the event
where that is on record, so a recorded event is judged as it was judged then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Protocol

import orjson

from vedette.adapters.reasoners.in_process import LocalJudges
from vedette.domain.action import Action, bind_declared
from vedette.domain.agent import Agent, Fleet
from vedette.domain.base.dataclass import dataclass
from vedette.domain.base.errors import BadCommand, BadProposal
from vedette.domain.confidence import check_confidence
from vedette.domain.decision_request import Situation
from vedette.domain.event import Event
from vedette.domain.labels import read_row
from vedette.domain.memory import Briefing, Memory
from vedette.domain.ports import History, Thought
from vedette.domain.readers import Readers, Rule, of_event
from vedette.domain.run import ActionRow, Run
from vedette.judging import Judge
from vedette.memory.retrieval import Recall
from vedette.operations.evaluation import as_stored, first_briefing, first_roots
from vedette.policy.gateway import Gateway

TRY = "vedette.try/1"
# How far back a key's runs are looked through for the last row that one of them wrote.
_BACK = 400
_AFTER_ALL = 2**62


class Past(Protocol):
    """What is asked of a store: it is only read."""

    def previous(self, agent: str, key: str, before: int) -> int: ...

    def history(self, agent: str, key: str, before: int) -> History: ...

    def runs_at(self, positions: Sequence[int]) -> Sequence[Run]: ...

    def actions(self, run: str) -> list[ActionRow]: ...

    def row(self, collection: str, key: str) -> Mapping[str, Any] | None: ...


@dataclass(frozen=True, slots=True)
class Before:
    """What an agent knew of a key when an event came: its judge's state, and its row."""

    checkpoint: bytes | None = None
    at: int = 0
    since: tuple[tuple[int, Event], ...] = ()
    row: Mapping[str, Any] = field(default_factory=dict)
    says: str = "nothing is on record of this key"


@dataclass(frozen=True, slots=True)
class Trial:
    """An agent to try something on, and what is live around it. `stopped` names its tools."""

    agent: Agent
    fleet: Fleet
    judge: Callable[[], Judge]
    gateway: Gateway
    recall: Recall
    registry: Mapping[str, Any]
    targets: Mapping[str, Mapping[str, Any]]
    now_us: int
    stopped: frozenset[str] = frozenset()
    secrecy: Sequence[Rule] = ()

    def run(self, raw: Event, before: Before) -> dict[str, Any]:
        """Put an event through; return what came of it as one JSON object.

        Raises BadEvent, what the judge raises, and BadConfidence if it does not say how sure it is.
        """
        readers = of_event(self.secrecy, raw.source, raw.type, raw.readers)
        event, agent = as_stored(replace(raw, readers=readers)), self.agent
        memories, _ = self.recall.brief(agent, event, self.now_us)
        briefing = self._briefing(event, before, memories)
        judges = LocalJudges(lambda name: self.judge())
        if before.checkpoint is not None or before.since:
            judges.restore(
                agent.name, briefing.key, before.checkpoint, before.at, list(before.since)
            )
        thought = judges.think(briefing)
        if thought.needs_state:
            raise BadCommand(f"the judge of {agent.name} cannot take up its state")
        sure = check_confidence(thought.confidence, f"the judgement of {agent.name}")
        row_readers = read_row(before.row)[1]
        actions, refused = self._decide(thought, briefing, sure, row_readers)
        woken = next(match for match in self.fleet.match(event) if match.agent == agent.name)
        return {
            "schema": TRY,
            "agent": agent.name,
            "event": {"type": event.type, "source": event.source, "id": event.id,
                      "subject": event.subject, "time": event.time, "key": event.key},
            "wakes": woken.wakes,
            "why_wakes": woken.why,
            "revision": self.gateway.policy_rev or None,
            "state": before.says,
            "label": thought.label,
            "confidence": thought.confidence,
            "score": thought.score,
            "threshold": thought.threshold,
            "detail": dict(thought.detail),
            "memories": [_memory(memory) for memory in memories],
            "actions": actions,
            "refused": refused,
            "candidates": [
                {"bank": one.bank, "scope": one.scope, "text": one.text}
                for one in thought.candidates
            ],
        }  # fmt: skip

    def _briefing(self, event: Event, before: Before, memories: tuple[Memory, ...]) -> Briefing:
        last = before.since[-1][0] if before.since else before.at
        return first_briefing(
            self.agent, event, self.registry, memories, read_row(before.row)[0],
            position=last + 1, previous=last,
        )  # fmt: skip

    def _decide(
        self, thought: Thought, briefing: Briefing, sure: float, row_readers: Readers
    ) -> tuple[list[dict[str, Any]], list[str]]:
        agent, event = self.agent, briefing.event
        roots = first_roots(agent, briefing, row_readers)
        cited = [(memory.cite(), memory.trust) for memory in briefing.memories]
        actions: list[dict[str, Any]] = []
        refused: list[str] = []
        for ordinal, proposal in enumerate(thought.proposals):
            try:
                action = bind_declared(
                    proposal, agent.tools, roots, run=briefing.run, turn=1, ordinal=ordinal,
                    confidence=sure,
                )  # fmt: skip
            except BadProposal as error:
                refused.append(f"{proposal.tool}: {error}")
                continue
            tool = action.tool
            permits = sum(one["outcome"] == "permit" for one in actions)
            situation = Situation(
                agent, event, 1, self.now_us, cited, permits, stopped=tool.name in self.stopped
            )
            decision = self.gateway.decide(action, situation).decision
            actions.append(
                {
                    "tool": tool.name,
                    "args": dict(action.args),
                    "origins": dict(action.origins),
                    "sources": dict(action.sources),
                    "why": proposal.why,
                    "confidence_milli": action.confidence_milli,
                    "outcome": decision.outcome,
                    "rule": decision.rule,
                    "reasons": list(decision.reasons),
                    "wait": decision.wait,
                    "would": decision.would,
                    "touches": self._touches(action),
                    "inverse": tool.inverse,
                }
            )
        return actions, refused

    def _touches(self, action: Action) -> str:
        tool = action.tool
        if tool.settles == "transactional":
            return f"a row of the fleet's own collection {self.agent.collection}"
        target = self.targets.get(tool.target or "", {})
        # Addresses only: a table may name where a secret is, and never more than that.
        places = (target.get(name) for name in ("path", "url", "host", "project", "smtp"))
        place = next((str(found) for found in places if isinstance(found, str) and found), "")
        return f"{tool.target or tool.resource} ({target.get('kind', '?')} {place})".replace(
            " )", ")"
        )


def _memory(memory: Memory) -> dict[str, Any]:
    return {"cite": memory.cite(), "kind": memory.kind, "label": memory.label, "text": memory.text}


def before(past: Past, agent: Agent, key: str, position: int | None) -> Before:
    """Return what an agent knew of a key before the event at a position; None: now."""
    end = _AFTER_ALL if position is None else position
    checkpoint, at, since, _ = past.history(agent.name, key, end)
    row, exactly = _row(past, agent, key, position, end)
    if checkpoint is None and not since and not row:
        return Before()
    says = "as it is now" if position is None else "as it was before the event"
    if not exactly:
        says += "; the row as it is now"
    return Before(checkpoint, at, tuple(since), row, says)


def _row(
    past: Past, agent: Agent, key: str, position: int | None, end: int
) -> tuple[Mapping[str, Any], bool]:
    """Return the agent's row of a key, and whether it is as it was at that time."""
    if agent.collection is None:
        return {}, True
    if position is None:
        return past.row(agent.collection, key) or {}, True
    at = past.previous(agent.name, key, end)
    for _ in range(_BACK):
        if at == 0:
            return {}, True
        run = next((r for r in past.runs_at([at]) if r.agent == agent.name), None)
        for action in reversed(past.actions(run.id) if run is not None else []):
            told = orjson.loads(action.answer) if action.answer else {}
            rows = (told.get("data") or {}).get("rows") if isinstance(told, dict) else None
            if rows:
                return dict(rows[-1]), True
        at = past.previous(agent.name, key, at)
    return past.row(agent.collection, key) or {}, False
