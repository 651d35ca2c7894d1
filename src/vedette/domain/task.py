"""A Task: a run with a goal, its inputs and its done conditions, as an event or a trigger gives it.

An order of a person, or of another agent, is an event of the engine's own, from `task_source`. The
goal is told word for word in every turn. What the done conditions are is of the event or of the
agent's release, of the first turn, or of a person's revision: see `vedette.domain.done_condition`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson
from msgspec import Struct
from msgspec.structs import replace

from vedette.domain.agent import Agent, task_source
from vedette.domain.base.canonical import short_id
from vedette.domain.base.clock import iso
from vedette.domain.delegation import Delegation, find_delegation
from vedette.domain.done_condition import (
    NO_CONDITIONS,
    DoneCondition,
    read_conditions,
    write_condition,
)
from vedette.domain.event import DATA, ENVELOPE, PRINCIPAL, REASON, TASK_TYPE, Event
from vedette.domain.run import ActionRow, event_run_id
from vedette.domain.task_words import Revision
from vedette.domain.work_tools import PROPOSE_TOOL

MAX_GOAL = 20_000  # characters


class Task(Struct, frozen=True):
    """A goal, inputs, done conditions, and how long it may take before a person is asked.

    Conditions are `given` by the event, a person or the first turn, or `own` to the agent's
    release. `revision` counts the goals that people gave it.
    One that an agent gave has its `delegation`.
    """

    goal: str
    inputs: Mapping[str, Any]
    given: tuple[DoneCondition, ...]
    own: tuple[DoneCondition, ...]
    deadline_us: int
    delegation: Delegation | None = None
    revision: int = 1

    @property
    def conditions(self) -> tuple[DoneCondition, ...]:
        """Return all that must hold; where nobody wrote any a person is asked."""
        return (*self.given, *self.own) or NO_CONDITIONS

    def revise(self, proposed: Sequence[DoneCondition], revision: Revision | None) -> Task:
        """Return the task with what its first turn proposed, as a person revised it last.

        Conditions that they gave take the place of those that the event gave or a turn proposed.
        """
        task = replace(self, given=(*self.given, *proposed))
        if revision is None:
            return task
        given = task.given if revision.conditions is None else revision.conditions
        return replace(task, goal=revision.goal, given=given, revision=revision.number)


def read_task(agent: Agent, event: Event) -> Task | None:
    """Return the task that an event gives an agent; None if its run is none.

    What a person gives is one even if the agent takes no tasks by now: then it waits for a person.
    Raises nothing: what the engine vouches for was checked before it was accepted.
    """
    plan = agent.work
    own, deadline_us = ((), 0) if plan is None else (plan.conditions, plan.deadline_us)
    if event.type != TASK_TYPE:
        goal = "" if plan is None else agent.goal_of(event)
        return Task(goal, {}, (), own, deadline_us) if goal else None
    if not event.is_task:
        return None
    data = event.data
    given, _ = read_conditions(data["conditions"]) if "conditions" in data else ((), [])
    return Task(
        data["goal"],
        data.get("inputs", {}),
        given,
        own,
        data.get("deadline_us", deadline_us),
        find_delegation(event),
    )


def find_task(agent: Agent, event: Event, first_turn: Mapping[str, Any] | None) -> Task | None:
    """Return the task that a run is; None if it is none.

    Once a turn is recorded (`first_turn` is the run's first, as its body has it), that says whether
    it is one, with which goal and conditions, whatever the agent's release says by now.
    """
    task = read_task(agent, event)
    if first_turn is None:
        return task
    recorded = first_turn.get("task")
    if recorded is None:
        return None
    conditions, _ = read_conditions(recorded["done"])
    names = recorded.get("own", ())
    inputs, deadline_us = ({}, 0) if task is None else (task.inputs, task.deadline_us)
    if task is None and agent.work is not None:
        deadline_us = agent.work.deadline_us
    given = tuple(one for one in conditions if one.name not in names)
    own = tuple(one for one in conditions if one.name in names)
    return Task(recorded["goal"], inputs, given, own, deadline_us, find_delegation(event))


def record_task(task: Task) -> dict[str, Any]:
    """Return what a run's first turn records of its task, as `find_task` reads it."""
    own = {"own": [one.name for one in task.own]} if task.own else {}
    done = [write_condition(one) for one in (*task.given, *task.own)]
    return {"goal": task.goal, "done": done, **own}


def list_proposed(actions: Iterable[ActionRow]) -> tuple[DoneCondition, ...]:
    """Return the conditions that a run's actions proposed, as they were taken."""
    found: list[DoneCondition] = []
    for row in actions:
        if row.tool == PROPOSE_TOOL and row.effect == "done" and row.answer is not None:
            found += read_conditions(orjson.loads(row.answer)["data"]["conditions"])[0]
    return tuple(found)


def child_event_id(action: str) -> str:
    """Return the id of the event by which an action gives another agent a task."""
    return short_id("task", action)


def child_event_key(fleet: str, agent: str, action: str) -> str:
    """Return the key of the event by which an action gives an agent a task."""
    return short_id("evt", task_source(fleet, agent), child_event_id(action))


def child_run(fleet: str, agent: str, action: str) -> str:
    """Return the id of the run that an action gives an agent: a repeat finds the same."""
    return event_run_id(child_event_key(fleet, agent, action), agent)


def task_event(
    fleet: str, agent: str, data: Mapping[str, Any], *, id: str, who: str, reason: str, now_us: int
) -> Event:
    """Return the event of a person's order: `data` is goal, and inputs, conditions, deadline_us.

    The person's word is trusted as a whole: nobody else could put anything into it.
    """
    return Event(
        source=task_source(fleet, agent),
        id=id,
        type=TASK_TYPE,
        subject=id,
        time=iso(now_us),
        data=dict(data),
        vouched=ENVELOPE | {DATA, PRINCIPAL, REASON},
        extensions={PRINCIPAL: who, REASON: reason},
    )
