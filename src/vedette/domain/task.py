"""A Task: a run with a goal, its inputs and its done conditions, as an event or a trigger gives it.

An order of a person, or of another agent, is an event of the engine's own, from `task_source`. The
goal is told word for word in every turn. What the done conditions are is of the event or of the
agent's release, of the first turn, or of a person's revision: see `vedette.domain.done_condition`.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
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
    Fault,
    find_unreachable,
    is_evidence,
    load_conditions,
    write_condition,
)
from vedette.domain.event import DATA, ENVELOPE, PRINCIPAL, REASON, TASK_TYPE, Event
from vedette.domain.run import ActionRow, event_run_id
from vedette.domain.task_words import Revision
from vedette.domain.work_tools import PROPOSE_TOOL

MAX_GOAL = 20_000  # characters


class Task(Struct, frozen=True):
    """A goal, inputs, done conditions, and how long it may take before a person is asked.

    Conditions are `given` by the event or a person, `own` to the agent's release, or `proposed` by
    its first turn. `revision` counts the goals that people gave it.
    One that an agent gave has its `delegation`.
    """

    goal: str
    inputs: Mapping[str, Any]
    given: tuple[DoneCondition, ...]
    own: tuple[DoneCondition, ...]
    deadline_us: int
    delegation: Delegation | None = None
    revision: int = 1
    proposed: tuple[DoneCondition, ...] = ()

    @property
    def stated(self) -> tuple[DoneCondition, ...]:
        """Return the conditions that somebody wrote."""
        return (*self.given, *self.proposed, *self.own)

    @property
    def conditions(self) -> tuple[DoneCondition, ...]:
        """Return all that must hold.

        Where nobody gave any a person is asked, unless what the first turn proposed is on evidence:
        its agent closes items itself.
        """
        known = self.given or self.own or any(map(is_evidence, self.proposed))
        return self.stated if known else (*self.stated, *NO_CONDITIONS)

    def revise(self, proposed: Sequence[DoneCondition], revision: Revision | None) -> Task:
        """Return the task with what its first turn proposed, as a person revised it last.

        Conditions that they gave take the place of those that the event gave. What was proposed was
        for the goal of before, and holds for no other.
        """
        if revision is None:
            return replace(self, proposed=tuple(proposed))
        given = self.given if revision.conditions is None else revision.conditions
        return replace(self, goal=revision.goal, given=given, revision=revision.number)


def read_task(agent: Agent, event: Event) -> Task | None:
    """Return the task that an event gives an agent; None if its run is none.

    What a person gives is one even if the agent takes no tasks by now: then it waits for a person.
    What the engine vouches for was checked before it was accepted. Raises Permanent if its
    conditions cannot be read.
    """
    plan = agent.work
    own, deadline_us = ((), 0) if plan is None else (plan.conditions, plan.deadline_us)
    if event.type != TASK_TYPE:
        goal = "" if plan is None else agent.goal_of(event)
        return Task(goal, {}, (), own, deadline_us) if goal else None
    if not event.is_task:
        return None
    data = event.data
    given = load_conditions(data["conditions"]) if "conditions" in data else ()
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
    it is one, with which goal and conditions, whatever the agent's release says by now. Raises
    Permanent if these cannot be read.
    """
    task = read_task(agent, event)
    if first_turn is None:
        return task
    recorded = first_turn.get("task")
    if recorded is None:
        return None
    conditions = load_conditions(recorded["done"])
    names = recorded.get("own")
    if names is None:  # of before it was recorded: what the event did not give was the release's
        given_names = {one["name"] for one in _event_conditions(event)}
        names = [one.name for one in conditions if one.name not in given_names]
    inputs, deadline_us = ({}, 0) if task is None else (task.inputs, task.deadline_us)
    if task is None and agent.work is not None:
        deadline_us = agent.work.deadline_us
    given = tuple(one for one in conditions if one.name not in names)
    own = tuple(one for one in conditions if one.name in names)
    return Task(recorded["goal"], inputs, given, own, deadline_us, find_delegation(event))


def _event_conditions(event: Event) -> Sequence[Mapping[str, Any]]:
    found: Sequence[Mapping[str, Any]] = event.data.get("conditions", ()) if event.is_task else ()
    return found


def record_task(task: Task) -> dict[str, Any]:
    """Return what a run's first turn records of its task, as `find_task` reads it."""
    done = [write_condition(one) for one in (*task.given, *task.own)]
    return {"goal": task.goal, "done": done, "own": [one.name for one in task.own]}


def list_proposed(actions: Iterable[ActionRow]) -> tuple[DoneCondition, ...]:
    """Return the conditions that a run's actions proposed, as they were taken.

    Raises Permanent if one cannot be read.
    """
    found: list[DoneCondition] = []
    for row in actions:
        if row.tool == PROPOSE_TOOL and row.effect == "done":
            taken = {} if row.answer is None else orjson.loads(row.answer)["data"]
            found += load_conditions(taken.get("conditions"))
    return tuple(found)


def list_unreachable(
    agent: Agent, conditions: Sequence[DoneCondition], tools: Container[str]
) -> list[Fault]:
    """Return why an agent, with these tools of its own, can never meet some conditions."""
    has_rows, has_artefacts = agent.collection is not None, agent.artefacts
    found = (
        find_unreachable(one, tools, has_rows=has_rows, has_artefacts=has_artefacts)
        for one in conditions
    )
    return [((at, *fault[0]), *fault[1:]) for at, fault in enumerate(found) if fault is not None]


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
