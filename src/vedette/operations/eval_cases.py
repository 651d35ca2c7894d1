"""Eval cases: reads an agent's evals/*.yaml, on which it is tried."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from vedette.config.field import Field, Shape
from vedette.config.problem import Problem, did_you_mean
from vedette.config.shape import check_document
from vedette.config.yaml import Document, read_yaml
from vedette.domain.agent import Agent
from vedette.domain.base.canonical import normalize_json, short_id
from vedette.domain.base.clock import MICROS, from_iso, iso
from vedette.domain.done_condition import read_conditions
from vedette.domain.effect import Outcome
from vedette.domain.event import DATA, ENVELOPE, TASK_TYPE, TICK_TYPE, Event
from vedette.domain.identity import Principal
from vedette.domain.task import task_event
from vedette.judging.series import generate
from vedette.operations.evaluation import OUTCOMES, EvalCase

# The clock of cases that name no time: a Monday.
_START = "2026-01-05T09:00:00.000000Z"


class EventFile(Shape):
    """One event of a case in evals/*.yaml."""

    type: str = Field(description="the event's type, for example mail.received", min_length=1)
    source: str = Field(description="the event's source, for example maildir:eval", min_length=1)
    id: str = Field(description="the event's id", min_length=1)
    subject: str | None = None
    time: str | None = _START
    data: Any = None


class SeriesFile(Shape):
    """A metric series of a case in evals/*.yaml, as events, one a minute."""

    generate: dict[str, Any] = Field(description="what vedette.judging.series.generate takes")
    subject: str = "pump"
    source: str = "csv:eval"


class OutcomeFile(Shape):
    """What came of a call of a tool, in a case in evals/*.yaml."""

    state: Literal["done", "failed"] = "done"
    data: dict[str, Any] = Field(default_factory=dict, description="what the tool answers")


class ExpectFile(Shape):
    """What a case in evals/*.yaml expects. The lists are compared without regard to order."""

    label: str | None = Field(default=None, description="of the last event")
    permitted: list[str] | None = None
    held: list[str] | None = None
    denied: list[str] | None = None
    conditions: list[str] | None = Field(
        default=None, description="of a task: the done conditions that are met at its end"
    )
    credit_milli: int | None = Field(
        default=None, ge=0, le=1000,
        description="of a task: items done and conditions met, in thousandths of all, at least",
    )  # fmt: skip
    turns: int | None = Field(default=None, ge=1, description="of a task: turns it took, at most")


class TaskFile(Shape):
    """A task of a case in evals/*.yaml, as a person's `vedette work start` gives one."""

    goal: str = Field(description="what is to be reached, word for word", min_length=1)
    inputs: dict[str, Any] = Field(default_factory=dict, description="what it is given")
    conditions: list[Any] = Field(
        default_factory=list, description="what must hold beside done.yaml, in the form of that"
    )


class CaseFile(Shape):
    """One case that an agent is tried on: exactly one of `event`, `events`, `series`, `task`."""

    name: str = Field(description="one line that says what is shown", min_length=1)
    event: EventFile | None = None
    events: list[EventFile] | None = Field(default=None, min_length=1)
    series: SeriesFile | None = None
    task: TaskFile | None = None
    vouched: list[str] | None = Field(
        default=None, description="attributes the source vouches for; all if left out"
    )
    outcomes: dict[str, OutcomeFile] | None = Field(
        default=None,
        description="of an agent with several turns: what it is told came of its calls, by tool; "
        "of a held one, once a person has approved. Without it a run ends at its first such call",
    )
    confidence: float | None = Field(
        default=None, ge=0, le=1,
        description="of a model's agent: how sure its model is taken to be, as if people had "
        "agreed with it so often. Without it nobody has, and it is sure of nothing",
    )  # fmt: skip
    expect: ExpectFile = Field(
        description="label, permitted, held, denied; of a task conditions, credit_milli, turns"
    )


def read_evals(agent: Agent, relative_path: str) -> tuple[list[EvalCase], list[Problem]]:
    """Return the eval cases of an agent, file by file, and everything that is wrong with them.

    `relative_path` is how problems name the agent's folder.
    """
    cases: list[EvalCase] = []
    problems: list[Problem] = []
    for path in sorted(Path(agent.folder, "evals").glob("*.yaml")):
        file = f"{relative_path}/evals/{path.name}"
        document, found = read_yaml(path, file)
        if not found and not isinstance(document.value, list):
            found = [Problem(file, 1, "", "is not a list of cases", "begin each case with a dash")]
        problems += found
        if found:
            continue
        for index in range(len(document.value)):
            case, found = _case(_part(document, index), agent)
            problems += found
            if case is not None:
                cases.append(case)
    return cases, problems


def _part(document: Document, index: int) -> Document:
    """Return one item of a list as a document of its own."""
    lines = {path[1:]: line for path, line in document.lines.items() if path[:1] == (index,)}
    return Document(document.file, document.value[index], lines)


def _case(document: Document, agent: Agent) -> tuple[EvalCase | None, list[Problem]]:
    shape, problems = check_document(CaseFile, document)
    if shape is None:
        return None, problems
    given = (shape.event, shape.events, shape.series, shape.task)
    if sum(item is not None for item in given) != 1:
        mend = "give exactly one of event, events, series and task"
        return None, [document.problem((), "says not what happens", mend)]
    problems += _task_problems(document, shape, agent)
    for name in shape.vouched or ():
        if name not in ENVELOPE:
            mend = did_you_mean(name, sorted(ENVELOPE))
            problems.append(document.problem(("vouched",), f"no attribute {name!r}", mend))
    for name in OUTCOMES.values():
        for tool in getattr(shape.expect, name) or ():
            if tool not in agent.tools:
                what, mend = f"the agent has no tool {tool!r}", did_you_mean(tool, [*agent.tools])
                problems.append(document.problem(("expect", name), what, mend))
    for tool in shape.outcomes or ():
        if tool not in agent.tools:
            what, mend = f"the agent has no tool {tool!r}", did_you_mean(tool, [*agent.tools])
            problems.append(document.problem(("outcomes", tool), what, mend))
        elif not agent.asks_model and agent.max_turns == 1 and agent.work is None:
            what = "a judge that has one turn is not told what came of its calls"
            mend = "remove it, or write max_turns: in agent.yaml"
            problems.append(document.problem(("outcomes", tool), what, mend))
        elif agent.tools[tool].settles == "transactional":
            what = "its rows are written as in a fleet, and the agent is told those"
            problems.append(document.problem(("outcomes", tool), what, "remove it"))
    if shape.confidence is not None and not agent.asks_model:
        what = "a judge says itself how sure it is"
        problems.append(document.problem(("confidence",), what, "remove it"))
    try:
        events = _events(shape) if shape.task is None else [_task_event(shape, agent)]
    except (ValueError, TypeError) as error:
        mend = "see vedette.judging.series.generate"
        return None, [*problems, document.problem(("series", "generate"), str(error), mend)]
    if problems:
        return None, problems
    expect = shape.expect.model_dump(exclude_none=True)
    where = f"{document.file}:{document.line(())}"
    outcomes = {
        tool: Outcome(one.state, normalize_json(one.data))
        for tool, one in (shape.outcomes or {}).items()
    }
    return EvalCase(shape.name, where, tuple(events), expect, outcomes, shape.confidence), []


def _task_problems(document: Document, shape: CaseFile, agent: Agent) -> list[Problem]:
    """Return what is wrong with what a case says of a task."""
    if agent.work is None:
        mend = "add work: {} to agent.yaml, or remove it"
        said: list[tuple[str, ...]] = [("task",)] if shape.task is not None else []
        names = ("conditions", "credit_milli", "turns")
        said += [("expect", name) for name in names if getattr(shape.expect, name) is not None]
        return [document.problem(place, "the agent takes no tasks", mend) for place in said]
    if shape.task is None:
        return []
    _, faults = read_conditions(shape.task.conditions)
    return [
        document.problem(("task", "conditions", *place), what, mend) for place, what, mend in faults
    ]


def _task_event(shape: CaseFile, agent: Agent) -> Event:
    """Return the event of a case's task: it is a person's, as `vedette work start` makes one."""
    task = shape.task
    assert task is not None
    data = {name: one for name, one in task.model_dump().items() if one}
    return task_event(
        agent.identity.fleet, agent.name, normalize_json(data), id=short_id("task", shape.name),
        who=str(Principal.owner("eval")), reason=shape.name, now_us=from_iso(_START),
    )  # fmt: skip


def _events(shape: CaseFile) -> list[Event]:
    vouched = ENVELOPE if shape.vouched is None else frozenset(shape.vouched)
    if shape.series is None:
        given = [shape.event] if shape.event is not None else shape.events or []
        # A tick and a task are the engine's own events: it vouches for all of them.
        return [
            Event(
                **event.model_dump(),
                vouched=vouched | {DATA} if event.type in (TICK_TYPE, TASK_TYPE) else vouched,
            )
            for event in given
        ]
    start = from_iso(_START)
    return [
        Event(
            source=shape.series.source,
            id=str(row),
            type="metric.point",
            subject=shape.series.subject,
            time=iso(start + row * 60 * MICROS),
            data={"value": value},
            vouched=vouched,
        )
        for row, value in enumerate(generate(shape.series.generate))
    ]
