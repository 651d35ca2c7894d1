"""A person takes over from a model that is away, with what the judge of a cascade deferred."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from vedette.domain.cascade import propose_to_person
from vedette.domain.ports.reasoner import ReasonerJudgement
from vedette.engine.run_context import RunContext
from vedette.engine.services import Services


def is_left_alone(services: Services, context: RunContext) -> bool:
    """Say whether a run's model, and each fallback, failed lately and is not tried again yet.

    Not while one is being tried: so whoever comes back after a while waits for what comes of that.
    """
    now = services.clock.now_us()
    routes = services.models.routes(context.agent)
    return all(calls.breaker.state == "open" and calls.is_away(now) for calls in routes)


def find_due_opinion(services: Services, context: RunContext) -> ReasonerJudgement | None:
    """Return what a run's judge deferred, for a person to decide, once its model was away for so
    long that one takes over; None before.

    To be asked when the model is left alone, or gave no answer just now.
    """
    now = services.clock.now_us()
    if not 0 < person_due_us(services, context, now) <= now:
        return None
    turn = _find_opinion(services, context)
    assert turn is not None  # or no person were due
    why = "the model is away, and agent.yaml says that a person takes over"
    return propose_to_person(turn, why, context.agent.tools)


def is_away(services: Services, context: RunContext) -> bool:
    """Say whether a run's model, and each fallback, is left alone, or gave it no answer lately."""
    models, now = services.models, services.clock.now_us()
    if models.failures.get(context.run.id, 0):
        return True
    return all(calls.is_away(now) for calls in models.routes(context.agent))


def person_due_us(services: Services, context: RunContext, now: int) -> int:
    """Return when a person takes over from a run's model, which is away; 0: never.

    It counts from when that was recorded of the run, or else from now; anew whenever the model
    answered anybody. Never once the model has taken a turn (what its judge would do may be done by
    then), nor where there is nothing to show: then the run goes on waiting.
    """
    cascade = context.agent.cascade
    if cascade is None or not cascade.person_after_us or _find_opinion(services, context) is None:
        return 0
    since_us = 0
    for _, raw, _ in services.store.ledger.entries("run", context.run.id):
        entry = orjson.loads(raw)
        if entry["kind"] == "turn.reasoned":
            since_us = 0
        elif entry["kind"] == "model.away":
            since_us = since_us or int(entry["at"])
    answered_us = max(calls.answered_us for calls in services.models.routes(context.agent))
    return max(since_us or now, answered_us) + cascade.person_after_us


def _find_opinion(services: Services, context: RunContext) -> Mapping[str, Any] | None:
    """Return the turn that a run's judge deferred, with proposals, if it is the run's last."""
    turns = services.store.runs.turns(context.run.id) if context.run.turn else []
    last = turns[-1] if turns else {}
    return last if last.get("deferred") and last["proposals"] else None
