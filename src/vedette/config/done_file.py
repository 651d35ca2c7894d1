"""done.yaml of an agent's folder: the done conditions of its tasks."""

from __future__ import annotations

from pathlib import Path

from vedette.config.agent_file import AgentFile
from vedette.config.problem import Problem, did_you_mean
from vedette.config.yaml import Document, read_yaml
from vedette.domain.done_condition import (
    ActionDone,
    DoneCondition,
    RowValue,
    read_conditions,
)
from vedette.domain.work_tools import ASK_TOOLS, WORK_TOOLS


def done_conditions(
    folder: Path, relative_path: str, shape: AgentFile
) -> tuple[tuple[DoneCondition, ...], list[Problem]]:
    """Return the conditions of done.yaml, none if it is not there, and what is wrong with them."""
    path = folder / "done.yaml"
    if not path.is_file():
        return (), []
    document, problems = read_yaml(path, f"{relative_path}/done.yaml")
    if problems:
        return (), problems
    if shape.work is None:
        what, mend = "is of an agent that takes no tasks", "add work: {} to agent.yaml"
        return (), [document.problem((), what, mend)]
    value = document.value
    if not isinstance(value, dict) or value.keys() != {"version", "conditions"}:
        what = "has not exactly the keys version and conditions"
        return (), [document.problem((), what, "write version: 1 and conditions:")]
    if value["version"] != 1:
        return (), [document.problem(("version",), "is not known here", "write version: 1")]
    found, faults = read_conditions(value["conditions"])
    problems = [
        document.problem(("conditions", *inside), what, mend) for inside, what, mend in faults
    ]
    if not problems:
        problems = _reach_problems(found, shape, document)
    return found, problems


def _reach_problems(
    conditions: tuple[DoneCondition, ...], shape: AgentFile, document: Document
) -> list[Problem]:
    """Say which conditions this agent can never meet."""
    problems = []
    names = [tool.name for tool in shape.tools]
    known = {*names, *WORK_TOOLS, *ASK_TOOLS}
    for at, condition in enumerate(conditions):
        if isinstance(condition, ActionDone) and condition.tool not in known:
            what = f"{condition.tool!r} is not a tool of this agent"
            mend = did_you_mean(condition.tool, names)
            problems.append(document.problem(("conditions", at, "action"), what, mend))
        if isinstance(condition, RowValue) and shape.collection is None:
            what = "the agent keeps no rows"
            mend = "add collection: to agent.yaml"
            problems.append(document.problem(("conditions", at, "rows"), what, mend))
    return problems
