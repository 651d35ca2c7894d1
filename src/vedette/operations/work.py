"""`work`: people give agents tasks, look at them, note something, pause, resume and cancel them.

A task begins with an event of the engine's own (`vedette.domain.task`); every later word is one
entry of its run, which a worker that has it finds, or whoever takes it up next. None of it changes
goal or conditions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from vedette.domain.base.canonical import canonicalize, normalize_json, short_id
from vedette.domain.base.clock import duration_us
from vedette.domain.base.errors import AlreadyDone, BadCommand, NotFound
from vedette.domain.done_condition import ActionDone, RowValue, read_conditions
from vedette.domain.entry import Draft
from vedette.domain.event import Event
from vedette.domain.ports.sources import Receipt
from vedette.domain.run import Run
from vedette.domain.task import MAX_GOAL, find_task, task_event
from vedette.domain.task_words import CANCELLED, MAX_NOTE, PAUSED, RESUMED, STEERED
from vedette.engine.services import Services
from vedette.engine.task_telemetry import find_wait, observe_wait
from vedette.operations.approvals import authorize
from vedette.operations.commands import Commands, Order

VERBS: Mapping[str, Mapping[str, type]] = {
    "work_start": {
        "agent": str, "goal": str, "inputs": dict, "conditions": list, "deadline": str,
    },
    "work_steer": {"run": str, "note": str},
    "work_pause": {"run": str},
    "work_resume": {"run": str},
    "work_cancel": {"run": str},
}  # fmt: skip
NEEDED = {
    "work_start": "agent",
    "work_steer": "run",
    "work_pause": "run",
    "work_resume": "run",
    "work_cancel": "run",
}
_KINDS = {
    "work_steer": STEERED, "work_pause": PAUSED, "work_resume": RESUMED, "work_cancel": CANCELLED,
}  # fmt: skip
_MAX_INPUTS = 100_000  # bytes


class TaskAcceptor(Protocol):
    """What a new task asks of the intake (`vedette.engine.ingest.EventIntake`)."""

    async def accept_own(self, event: Event) -> Receipt: ...


async def dispatch(
    commands: Commands, verb: str, order: Order, args: Mapping[str, Any]
) -> dict[str, Any]:
    """Carry out one order about a task. Raises BadCommand, NotFound."""
    authorize(order, verb)
    if verb == "work_start":
        return await _start(commands, order, args)
    return await _say(commands, verb, order, args)


async def _start(commands: Commands, order: Order, args: Mapping[str, Any]) -> dict[str, Any]:
    services = commands.services
    name = args["agent"]
    agent = services.fleet.agents.get(name)
    if agent is None:
        known = ", ".join(services.fleet.agents)
        raise NotFound(f"there is no agent {name!r}", mend=f"one of: {known}")
    if agent.work is None:
        raise BadCommand(
            f"{name} takes no tasks", where=f"{name}/agent.yaml", mend="add work: {} to it"
        )
    data = _task_data(args)
    _refuse_unreachable(services, name, data)
    now = services.clock.now_us()
    id = short_id("task", name, order.command_id or now)
    event = task_event(
        services.fleet.name, name, data,
        id=id, who=str(order.principal), reason=order.reason, now_us=now,
    )  # fmt: skip
    intake: Any = commands.intake
    acceptor: TaskAcceptor = intake
    receipt = await acceptor.accept_own(event)
    if receipt.status == "refused":
        raise BadCommand(f"the task was not accepted: {receipt.error}")
    if receipt.status == "duplicate":
        raise AlreadyDone(f"command {order.command_id} was carried out before")
    return {"agent": name, "event": receipt.event, "run": receipt.runs[0]}


def _task_data(args: Mapping[str, Any]) -> dict[str, Any]:
    """Return a task's event data. Raises BadCommand for what is none."""
    goal = args.get("goal", "")
    if not 0 < len(goal.strip()) <= len(goal) <= MAX_GOAL:
        raise BadCommand(f"a goal has 1 to {MAX_GOAL} characters", mend="give --goal TEXT")
    data: dict[str, Any] = {"goal": goal}
    try:
        if inputs := args.get("inputs"):
            if len(canonicalize(normalize_json(inputs))) > _MAX_INPUTS:
                raise BadCommand("the inputs are too large", mend="give a reference instead")
            data["inputs"] = inputs
    except ValueError as error:
        raise BadCommand(f"the inputs have no JSON form: {error}") from error
    if (conditions := args.get("conditions")) is not None:
        _, faults = read_conditions(conditions)
        if faults:
            path, what, mend = faults[0]
            where = "conditions" + "".join(f"[{one!r}]" for one in path)
            raise BadCommand(what, where=where, mend=mend)
        data["conditions"] = conditions
    if (deadline := args.get("deadline")) is not None:
        try:
            data["deadline_us"] = duration_us(deadline)
        except ValueError as error:
            raise BadCommand(f"{deadline!r} is no duration", mend="for example 3d") from error
        if data["deadline_us"] <= 0:
            raise BadCommand("a deadline is some time ahead", mend="for example 3d")
    return data


def _refuse_unreachable(services: Services, name: str, data: Mapping[str, Any]) -> None:
    """Raise BadCommand for a condition that this agent can never meet, or that has one already."""
    agent = services.fleet.agents[name]
    own = [] if agent.work is None else [one.name for one in agent.work.conditions]
    for condition in read_conditions(data.get("conditions", []))[0]:
        if condition.name in own:
            what = f"{name}'s done.yaml has a condition {condition.name!r}, which holds as well"
            raise BadCommand(what, mend="give this one another name")
        if isinstance(condition, ActionDone) and condition.tool not in agent.tools:
            raise BadCommand(f"{name} has no tool {condition.tool!r}", mend="name one of its own")
        if isinstance(condition, RowValue) and agent.collection is None:
            raise BadCommand(f"{name} keeps no rows", mend="leave the condition out")


async def _say(
    commands: Commands, verb: str, order: Order, args: Mapping[str, Any]
) -> dict[str, Any]:
    services = commands.services
    run = _find_task(services, args["run"])
    note = args.get("note", "")
    more: dict[str, Any] = {}
    if verb == "work_steer":
        if not 0 < len(note.strip()) <= len(note) <= MAX_NOTE:
            raise BadCommand(f"a note has 1 to {MAX_NOTE} characters", mend="give --note TEXT")
        more["note"] = note
    fields = {"agent": run.agent, "actor": str(order.principal)}
    draft = Draft(_KINDS[verb], fields, body=order.body(**more))
    since_us = find_wait(services, run.id)
    run = await services.store.commands.move_task(run.id, draft, command=order.command_id)
    observe_wait(services, run, since_us)
    return {"run": run.id, "agent": run.agent, "turn": run.turn, "said": _KINDS[verb]}


def _find_task(services: Services, name: str) -> Run:
    """Return the run of a task. Raises NotFound, BadCommand for one that is none."""
    run = services.store.runs.run(name)
    if run is None:
        raise NotFound(f"there is no run {name!r}", mend="see `vedette work list`")
    agent = services.fleet.release_of(run.agent, run.key, run.position)
    event = services.store.runs.event(run.event)
    turns = services.store.runs.turns(run.id) if run.turn else []
    if event is None or find_task(agent, event, turns[0] if turns else None) is None:
        raise BadCommand(f"{name} is no task", mend="see `vedette work list`")
    return run
