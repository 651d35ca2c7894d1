"""Metrics of tasks: what their steps ended, and how many are open. Labels are agents and words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from vedette.domain.entry import Draft
from vedette.domain.ports.reasoner import Metrics
from vedette.domain.run import Step
from vedette.domain.task_words import PAUSED, RESUMED, STALLED, STEERED, TASK_KINDS
from vedette.domain.work_tools import CLOSE_ITEM_TOOL
from vedette.engine.services import Services

_MICROS = 1_000_000
# Why a model's turn began a context (`vedette.domain.model_turn`), as its record has it.
_OPENS = b'"opens":"hand-off"'


def count_step(metrics: Metrics, agent: str, step: Step) -> None:
    """Count, as metrics, what a committed step of a task ended: items, contexts, the task."""
    for draft in step.drafts:
        kind = draft.kind
        if kind == "effect.done" and draft.fields.get("tool") == CLOSE_ITEM_TOOL:
            state = str(_content(draft)["data"]["item"]["state"])
            metrics.count("items_closed", agent=agent, state=state)
        elif kind == "turn.reasoned" and draft.body is not None and _OPENS in draft.body.data:
            told = _content(draft).get("briefed", {}).get("hand_off", {})
            metrics.count("hand_offs", agent=agent, by=str(told.get("by", "engine")))
        elif kind == "task.drift":
            metrics.count("drifts", agent=agent, rule=str(draft.fields["rule"]))
        elif kind == "run.closed":
            state = "cancelled" if draft.fields.get("what") == "cancelled" else "done"
            metrics.count("tasks_ended", agent=agent, state=state)
            metrics.observe("task_turns", step.turn, agent=agent)


def find_wait(services: Services, run: str) -> int:
    """Return since when a task has waited for a person's word (microseconds); 0 if it does not."""
    since = 0
    for _, raw, _ in services.store.ledger.run_entries(run, TASK_KINDS):
        entry: Mapping[str, Any] = orjson.loads(raw)
        if entry["kind"] in (STALLED, PAUSED):
            since = since or int(entry["at"])
        elif entry["kind"] in (RESUMED, STEERED):
            since = 0
    return since


def observe_wait(services: Services, agent: str, since_us: int) -> None:
    """Count, as a metric, how long a task has waited, which a person's word ended just now."""
    seconds = max(0, services.clock.now_us() - since_us) / _MICROS
    services.metrics.observe("task_wait_seconds", seconds, agent=agent)


def gauge_open_tasks(services: Services) -> None:
    """Tell, as metrics, how many runs of agents that take tasks are open, and wait for a person.

    Nothing is read for a fleet without such an agent. Raises StoreFailed.
    """
    agents = [name for name, agent in services.fleet.agents.items() if agent.work is not None]
    if not agents:
        return
    view = services.store.tables
    counts = view.counts()
    for agent in agents:
        for state in ("ready", "waiting"):
            number = counts.get(agent, {}).get(f"run.{state}", 0)
            services.metrics.gauge("tasks_open", number, agent=agent, state=state)
    services.metrics.gauge("tasks_stalled", view.wait_counts().get("person", 0))


def _content(draft: Draft) -> Mapping[str, Any]:
    found: Mapping[str, Any] = {} if draft.body is None else orjson.loads(draft.body.data)
    return found
