"""Events, steps and actions made by hand, for tests of a Store and of what is read from one."""

from __future__ import annotations

from typing import Any

import orjson

from vedette.domain.action import action_id
from vedette.domain.base.canonical import canonical_json, sha256_hex
from vedette.domain.decision import Decision
from vedette.domain.entry import Body, Draft
from vedette.domain.event import ENVELOPE, Event
from vedette.domain.ports.run_store import Arrival
from vedette.domain.ports.store import Store, StoreReader
from vedette.domain.run import ActionRow, Run, Step


def event(number: int, *, source: str = "test", subject: str | None = "pump") -> Event:
    """Return the sample event of a number; another number is another event."""
    return Event(
        source, f"e{number}", "metric.point", subject, None, {"value": number}, vouched=ENVELOPE
    )


def arrival(source_event: Event, *agents: str, key: str | None = None) -> Arrival:
    """Return a sample event on its way in that wakes these agents."""
    place = key if key is not None else source_event.subject or ""
    return Arrival(
        source_event,
        source_event.to_body(),
        tuple((agent, place) for agent in agents),
        source_event.subject,
    )


async def accept_events(store: Store, *events: Event, agent: str = "watcher") -> list[Run]:
    """Accept sample events that wake one agent; return the new runs."""
    answers = await store.steps.accept([arrival(one, agent) for one in events], None)
    return [run for answer in answers for run in answer.runs]


def agents_of(store: StoreReader) -> set[str]:
    """Return a test's agents that have observed anything, as if none of them kept a state."""
    return {agent for agent, _, _, _ in store.judge_states.observed_positions()}


def entry(run: Run, kind: str, *, text: str | None = None, back: int = 0, **fields: Any) -> Draft:
    """Return a sample draft of one of a run's entries; `text` gives it a body."""
    body = None if text is None else Body(canonical_json({"text": text}), "pump")
    base = {"event": run.event, "agent": run.agent}
    return Draft(kind, {**base, **fields}, None if back else run.last, back, body)


def step(store: Store, run: Run, *drafts: Draft, **fields: Any) -> Step:
    """Return a sample step that follows a run as it stands; `fields` change any part of it."""
    values: dict[str, Any] = {
        "run": run.id,
        "agent": run.agent,
        "expected_steps": run.steps,
        "entries_before": run.entries,
        "epoch": store.cluster.lease_epoch(run),
        "policy_rev": store.cluster.policy_rev,
        "stop_epoch": store.cluster.stop_epoch,
        "wait_stop_epoch": store.cluster.stop_epoch,
        "turn": run.turn,
        "attempts": run.attempts,
        "observed": run.observed,
        "position": run.position,
    }
    return Step(drafts=list(drafts), **{**values, **fields})


def closing_step(store: Store, run: Run, **fields: Any) -> Step:
    """Return the one step of an uneventful sample run."""
    quiet = entry(run, "run.closed", label="quiet", confidence_milli=990)
    made = step(store, run, quiet, **{"state": "done", "turn": 1, "observed": True, **fields})
    if made.observed and made.order is None:
        made.order = (run.key, -1, run.position)
    return made


def action(run: Run, ordinal: int = 0, *, tool: str = "valve.close", **fields: Any) -> ActionRow:
    """Return the sample row of an action of the run's first turn."""
    record = {
        "args": {"valve": "v1", "note": "too hot"},
        "confidence": 900,
        "origins": {"/valve": "trusted", "/note": "derived"},
        "sources": {"/valve": "/event/subject"},
        "why": "the value is high",
    }
    values: dict[str, Any] = {
        "id": action_id(run.id, 1, ordinal),
        "run": run.id,
        "turn": 1,
        "ordinal": ordinal,
        "agent": run.agent,
        "tool": tool,
        "digest": sha256_hex(canonical_json([tool, record["args"]])),
        "record": canonical_json(record),
    }
    return ActionRow(**{**values, **fields})


def held_action(run: Run, ordinal: int = 0, *, until_us: int = 2**50, **fields: Any) -> ActionRow:
    """Return the sample row of an action that waits for a person."""
    waiting = {"decided": "hold", "rule": "impact.high", "hold": "open", "waits": "approval"}
    return action(run, ordinal, **{**waiting, "until_us": until_us, **fields})


def decision_entry(
    run: Run, row: ActionRow, decision: Decision, *, revision: int = 1, back: int = 0
) -> Draft:
    """Return the sample entry of a decision about an action, with a question that asks about it."""
    record = canonical_json(
        {"decision": decision.to_json(), "question": decision_request(run, row)}
    )
    return Draft(
        "action.decided",
        {
            "event": run.event,
            "agent": run.agent,
            "action": row.id,
            "action_digest": row.digest,
            "tool": row.tool,
            "outcome": decision.outcome,
            "rule": decision.rule,
            "policy_rev": revision,
            "bundle": "b" * 64,
            "engine": "by hand",
            "wait": decision.wait,
            "until": decision.until_us or None,
            "would": decision.would,
        },
        None if back else run.last,
        back,
        Body(record, "pump"),
    )


def decision_request(run: Run, row: ActionRow, *, now_us: int = 1) -> dict[str, Any]:
    """Return a sample `vedette.decision_request/1` about an action."""
    record = orjson.loads(row.record)
    return {
        "schema": "vedette.question/1",
        "now": now_us,
        "subject": {
            "id": f"spiffe://harbour/agent/{run.agent}",
            "agent": run.agent,
            "release": "r" * 64,
            "owner": "desk@harbourlights.example",
            "requested_mode": "act",
        },
        "action": {
            "tool": row.tool,
            "verb": "close",
            "digest": row.digest,
            "declared": "d" * 64,
            "settles": "idempotent",
            "high_impact": False,
            "args": record["args"],
            "origins": record["origins"],
            "sinks": ["/valve"],
        },
        "resource": {"type": "valve", "id": "valve"},
        "context": {
            "event": {
                "type": "metric.point",
                "source": "test",
                "hops": 0,
                "lineage": [],
                "vouched": sorted(ENVELOPE),
            },
            "confidence": 900,
            "memories": [],
            "counters": {"minute": 0, "hour": 0, "day": 0, "run": 0},
            "budget": {"hour": 0, "day": 0, "run": 16},
            "approvals": [],
            "stopped": False,
            "turn": row.turn,
        },
    }
