"""`work`: people give agents tasks, add to them, change their goal, note something, pause and end.

A task begins with an event of the engine's own (`vedette.domain.task`); every later word is one
entry of its run, which a worker that has it finds, or whoever takes it up next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from vedette.domain.agent import Agent
from vedette.domain.base.canonical import canonicalize, normalize_json, short_id
from vedette.domain.base.clock import duration_us
from vedette.domain.base.errors import AlreadyDone, BadCommand, Forbidden, NotFound
from vedette.domain.done_condition import (
    NO_CONDITIONS,
    DoneCondition,
    PersonApproves,
    asks_person,
    read_conditions,
)
from vedette.domain.entry import Draft
from vedette.domain.event import Event
from vedette.domain.ports.sources import Receipt
from vedette.domain.roles import may_use_verb
from vedette.domain.run import Run
from vedette.domain.task import (
    MAX_GOAL,
    Task,
    find_task,
    list_proposed,
    list_unreachable,
    task_event,
)
from vedette.domain.task_item import Item, find_item_fault, list_items
from vedette.domain.task_words import (
    ADDED,
    CANCELLED,
    JOINED,
    MAX_NOTE,
    MOVED,
    PAUSED,
    RESUMED,
    REVISED,
    STEERED,
    Revision,
    TaskWords,
)
from vedette.engine.delegation import find_child, open_asks
from vedette.engine.services import Services
from vedette.engine.task_telemetry import find_wait, observe_wait
from vedette.ledger.history.tasks import find_task_release
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
    "work_move": {"run": str},
    "work_add": {"run": str, "item": str, "title": str, "inputs": dict},
    "work_goal": {"run": str, "goal": str, "conditions": list},
}  # fmt: skip
NEEDED = {
    "work_start": "agent",
    "work_steer": "run",
    "work_pause": "run",
    "work_resume": "run",
    "work_cancel": "run",
    "work_move": "run",
    "work_add": "run",
    "work_goal": "run",
}
_KINDS = {
    "work_steer": STEERED, "work_pause": PAUSED, "work_resume": RESUMED, "work_cancel": CANCELLED,
    "work_move": MOVED, "work_add": ADDED, "work_goal": REVISED,
}  # fmt: skip
# What is said of a task that others do parts of is said of those, too.
_GO_DOWN = frozenset({"work_pause", "work_resume", "work_cancel"})
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
    data = _task_data(agent, args)
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


def _task_data(agent: Agent, args: Mapping[str, Any]) -> dict[str, Any]:
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
    own = () if agent.work is None else agent.work.conditions
    data |= _conditions_data(agent, own, args)[0]
    if (deadline := args.get("deadline")) is not None:
        try:
            data["deadline_us"] = duration_us(deadline)
        except ValueError as error:
            raise BadCommand(f"{deadline!r} is no duration", mend="for example 3d") from error
        if data["deadline_us"] <= 0:
            raise BadCommand("a deadline is some time ahead", mend="for example 3d")
    return data


def _conditions_data(
    agent: Agent, own: Sequence[DoneCondition], args: Mapping[str, Any]
) -> tuple[dict[str, Any], tuple[DoneCondition, ...] | None]:
    """Return the conditions that a person gives, as data and as they are read; None for none.

    `own` are those of the release, which hold too. Raises BadCommand for what is none, for one that
    the agent can never meet, and for a name that is given already.
    """
    conditions = args.get("conditions")
    if conditions is None:
        return {}, None
    found, faults = read_conditions(conditions, own)
    if faults:
        path, what, mend = faults[0]
        where = "conditions" + "".join(f"[{one!r}]" for one in path)
        raise BadCommand(what, where=where, mend=mend)
    _refuse_unreachable(agent, own, found)
    return {"conditions": conditions}, found


def _refuse_unreachable(
    agent: Agent, own: Sequence[DoneCondition], conditions: Sequence[DoneCondition]
) -> None:
    live = () if agent.work is None else agent.work.conditions
    names = {one.name for one in (*own, *live)}
    for condition in conditions:
        if condition.name in names:
            what = f"{agent.name}'s done.yaml has a condition {condition.name!r}, which holds too"
            raise BadCommand(what, mend="give this one another name")
    for (at, *_), what, mend in list_unreachable(agent, conditions, agent.tools):
        raise BadCommand(f"{conditions[int(at)].name}: {what}", where=agent.name, mend=mend)


async def _say(
    commands: Commands, verb: str, order: Order, args: Mapping[str, Any]
) -> dict[str, Any]:
    services = commands.services
    run, task, agent = _find_task(services, args["run"])
    more = _WORDS[verb](services, run, task, agent, order, args) if verb in _WORDS else {}
    fields: dict[str, Any] = {"agent": run.agent, "actor": str(order.principal)}
    if verb == "work_move":
        fields |= _find_move(services, run)
    draft = Draft(_KINDS[verb], fields, body=order.body(**more))
    since_us = find_wait(services, run.id)
    run = await services.store.commands.move_task(run.id, draft, command=order.command_id)
    if verb in _GO_DOWN:
        await _say_below(services, run, draft)
    observe_wait(services, run, since_us)
    said: dict[str, Any] = {
        "run": run.id, "agent": run.agent, "turn": run.turn, "said": _KINDS[verb],
    }  # fmt: skip
    if verb == "work_cancel" and (untold := _count_untold(services, run)):
        said["untold"] = untold
    if verb == "work_goal":
        said["dropped"] = more.get("dropped", [])
    return said


def _count_untold(services: Services, run: Run) -> int:
    """Return how many events joined a run that no turn of it was told of."""
    joined = len(services.store.ledger.run_entries(run.id, (JOINED,)))
    last = next(iter(services.store.runs.turns_back(run.id)), None) if joined else None
    return joined - (0 if last is None else last.get("task", {}).get("joined", 0))


def _note(
    services: Services, run: Run, task: Task, agent: Agent, order: Order, args: Mapping[str, Any]
) -> dict[str, Any]:
    note = args.get("note", "")
    if not 0 < len(note.strip()) <= len(note) <= MAX_NOTE:
        raise BadCommand(f"a note has 1 to {MAX_NOTE} characters", mend="give --note TEXT")
    return {"note": note}


def _add(
    services: Services, run: Run, task: Task, agent: Agent, order: Order, args: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the item that a person adds. Raises BadCommand."""
    id, title, inputs = args.get("item", ""), args.get("title", ""), args.get("inputs") or {}
    known = {item["id"]: item for item in _items(services, run)}
    try:
        inputs = normalize_json(inputs)
        fault = find_item_fault(id, title, inputs, known)
    except ValueError as error:
        raise BadCommand(f"the inputs have no JSON form: {error}") from error
    if fault:
        raise BadCommand(fault, mend="see `vedette work show`")
    item = {
        "id": id,
        "title": title,
        "number": len(known) + 1,
        **({"inputs": inputs} if inputs else {}),
        "by": str(order.principal),
        "state": "open",
        "attempts": 0,
        "why": "",
    }
    return {"item": item}


def _revise(
    services: Services, run: Run, task: Task, agent: Agent, order: Order, args: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a person's revision of a task. Raises BadCommand."""
    goal = args.get("goal", "")
    if not 0 < len(goal.strip()) <= len(goal) <= MAX_GOAL:
        raise BadCommand(f"a goal has 1 to {MAX_GOAL} characters", mend="give --goal TEXT")
    data, given = _conditions_data(agent, task.own, args)
    was = _revised(services, run, task)
    now = task.revise((), Revision(was.revision + 1, goal, given or was.given))
    _require_approver(order, was, now)
    kept = {one.name for one in now.stated}
    dropped = [one.name for one in was.stated if one.name not in kept]
    return {"goal": goal, **data, **({"dropped": dropped} if dropped else {})}


def _revised(services: Services, run: Run, task: Task) -> Task:
    """Return a task as its first turn and people left it."""
    runs = services.store.runs
    proposed = list_proposed(runs.actions(run.id))
    return task.revise(proposed, TaskWords.of(runs.task_entries(run.id)).revision)


def _require_approver(order: Order, was: Task, now: Task) -> None:
    """Return if a revision keeps every approval of a person, or is of one who may give them.

    Where nobody said who is asked any person will do. Raises Forbidden.
    """
    persons = [one for one in was.conditions if isinstance(one, PersonApproves)]
    lost = [one.name for one in persons if one not in now.conditions]
    if lost and tuple(persons) == NO_CONDITIONS and asks_person(now.conditions):
        lost = []
    if lost and not may_use_verb(order.principal.roles, "approve"):
        what = f"this goal drops the approval {lost[0]!r} of a person, which needs approver"
        mend = "keep it among the conditions, or ask somebody who has that role"
        raise Forbidden(f"{order.principal}: {what}", mend=mend)


_WORDS = {"work_steer": _note, "work_add": _add, "work_goal": _revise}


def _items(services: Services, run: Run) -> list[Item]:
    words = TaskWords.of(services.store.runs.task_entries(run.id))
    return list_items(services.store.runs.actions(run.id), words.items)


async def _say_below(services: Services, run: Run, draft: Draft) -> None:
    """Say the same to the tasks that this one waits for, and to those below them.

    Of a cancel that a crash keeps from one it learns by itself: before each turn it looks whether
    it is still asked. A pause or a resume is to be given to its own run then.
    """
    for ask in open_asks(services.store.runs.actions(run.id)):
        child = find_child(services, ask)
        if child is None or child.state in ("done", "dead"):
            continue
        said = Draft(draft.kind, {**draft.fields, "agent": child.agent}, body=draft.body)
        with suppress(BadCommand):  # it has ended meanwhile
            await services.store.commands.move_task(child.id, said)
        await _say_below(services, child, draft)


def _find_move(services: Services, run: Run) -> dict[str, str]:
    """Return the fields of a task's move to the fleet's release. Raises BadCommand."""
    fleet, releases = services.fleet, services.task_releases
    to = fleet.release_of(run.agent, run.key, run.position).release
    if releases is not None and to == fleet.agent(run.agent).release:
        releases.read_record()
        to = releases.live_release(run.agent)
    if not run.turn:
        raise BadCommand(f"{run.id} has taken no turn: it begins under the release of that moment")
    was = find_task_release(services.store, run)
    if was in ("", to):
        raise BadCommand(f"{run.id} runs on the release {to[:12]} already")
    return {"release": to, "what": was, "rule": "person"}


def _find_task(services: Services, name: str) -> tuple[Run, Task, Agent]:
    """Return the run of a task, the task and its agent. Raises NotFound, BadCommand."""
    run = services.store.runs.run(name)
    if run is None:
        raise NotFound(f"there is no run {name!r}", mend="see `vedette work list`")
    agent = services.fleet.release_of(run.agent, run.key, run.position)
    event = services.store.runs.event(run.event)
    turns = services.store.runs.turns(run.id) if run.turn else []
    task = None if event is None else find_task(agent, event, turns[0] if turns else None)
    if task is None:
        raise BadCommand(f"{name} is no task", mend="see `vedette work list`")
    return run, task, agent
