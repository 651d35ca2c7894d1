"""Metrics of tasks: what their steps ended, and how many are open. Labels are agents and words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from vedette.domain.entry import Draft
from vedette.domain.event import Event
from vedette.domain.model_turn import HAND_OFF
from vedette.domain.ports.reasoner import Metrics
from vedette.domain.run import Run, Step
from vedette.domain.task import read_task
from vedette.domain.task_words import CANCELLED, PAUSED, RESUMED, STALLED, STEERED, TASK_KINDS
from vedette.domain.work_tools import CLOSE_ITEM_TOOL
from vedette.engine.services import Services

_MICROS = 1_000_000
_GAUGED_EVERY_US = 60 * _MICROS
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
            content = _content(draft)
            if content.get("model", {}).get("opens") == HAND_OFF:  # and no argument says so
                told = content.get("briefed", {}).get("hand_off", {})
                metrics.count("hand_offs", agent=agent, by=str(told.get("by", "engine")))
        elif kind == "task.drift":
            of = "memory" if "memory" in draft.fields else "hand_off"
            metrics.count("drifts", agent=agent, rule=str(draft.fields["rule"]), of=of)
        elif kind == "run.closed":
            state = "cancelled" if draft.fields.get("what") == "cancelled" else "done"
            metrics.count("tasks_ended", agent=agent, state=state)
            metrics.observe("task_turns", step.turn, agent=agent)


def count_dead_task(services: Services, run: Run, event: Event | None) -> None:
    """Count, as a metric, a run that was given up, if it is a task."""
    if event is None or run.agent not in services.fleet.agents:
        return
    agent = services.fleet.release_of(run.agent, run.key, run.position)
    if read_task(agent, event) is not None:
        services.metrics.count("tasks_ended", agent=run.agent, state="dead")


def find_wait(services: Services, run: str) -> int:
    """Return since when a task has waited for a person's word (microseconds); 0 if it does not."""
    since = 0
    for _, raw, _ in services.store.ledger.run_entries(run, TASK_KINDS):
        entry: Mapping[str, Any] = orjson.loads(raw)
        if entry["kind"] in (STALLED, PAUSED):
            since = since or int(entry["at"])
        elif entry["kind"] in (RESUMED, STEERED, CANCELLED):
            since = 0
    return since


def observe_wait(services: Services, run: Run, since_us: int) -> None:
    """Count, as a metric, how long a task has waited, if what a person said ended that: what is
    said again, or has it wait on, does not.
    """
    if not since_us or find_wait(services, run.id):
        return
    seconds = max(0, services.clock.now_us() - since_us) / _MICROS
    services.metrics.observe("task_wait_seconds", seconds, agent=run.agent)


class TaskGauges:
    """Tells, as metrics, how many runs of agents that take tasks are open, and wait for a person.

    The store is asked once a minute, and never for a fleet without such an agent.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        self._next_us = 0
        self._told: set[str] = set()

    def update(self) -> None:
        """Tell it anew, if it is time to. Raises StoreFailed."""
        services, now = self._services, self._services.clock.monotonic_us()
        agents = {name for name, agent in services.fleet.agents.items() if agent.work is not None}
        if now < self._next_us or not agents | self._told:
            return
        self._next_us = now + _GAUGED_EVERY_US
        found = services.store.tables.open_counts()
        stalled = 0
        for agent in agents | self._told:
            own = found.get(agent, {}) if agent in agents else {}
            ready = own.get("ready", 0)
            stalled += own.get("person", 0)
            waiting = sum(own.values()) - ready
            for state, number in (("ready", ready), ("waiting", waiting)):
                services.metrics.gauge("tasks_open", number, agent=agent, state=state)
        services.metrics.gauge("tasks_stalled", stalled)
        self._told = agents


def _content(draft: Draft) -> Mapping[str, Any]:
    found: Mapping[str, Any] = {} if draft.body is None else orjson.loads(draft.body.data)
    return found
