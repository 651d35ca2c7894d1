"""Release comparison: what a release of an agent asks for beyond another, as it declares.

Only what agent.yaml declares is compared; what the code does with it is for the file diff to show.
An agent requests and policy grants, so nothing here is permitted by being asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec.structs import asdict

from vedette.domain.agent import Agent, WorkPlan
from vedette.domain.tool import Tool

_MODES = ("observe", "ask", "act")
# What a tool's declaration may change without asking for more.
_HARMLESS = frozenset({"description", "digest", "function", "sinks", "args", "schema", "output",
                       "high_impact", "attempts", "timeout_us", "readers"})  # fmt: skip


def find_wider_requests(old: Agent, new: Agent) -> list[str]:
    """Return what `new` declares that may let it do more than `old`, a line each; empty if nothing.

    What cannot be judged so (a tool of another target, another pattern of a trigger) is told, too.
    """
    found = find_wider_limits(old, new)
    if (old.reasoner, old.model) != (new.reasoner, new.model):
        found.append(f"reasoner: {_reasoner_text(old)} -> {_reasoner_text(new)}")
    found += [f"trigger added: {one.trigger_name}"
              for one in new.subscriptions if one not in old.subscriptions]  # fmt: skip
    found += [f"schedule added: {one.name}" for one in new.schedules if one not in old.schedules]
    return found


def find_wider_limits(old: Agent, new: Agent) -> list[str]:
    """Return what `new` lets a run do beyond `old`, a line each: its tools, memory and bounds.

    What wakes it, and who reasons in it, are no bounds of a run.
    """
    found: list[str] = []
    if _MODES.index(new.requested_mode) > _MODES.index(old.requested_mode):
        found.append(f"mode: {old.requested_mode} -> {new.requested_mode}")
    if new.max_turns > old.max_turns:
        found.append(f"max_turns: {old.max_turns} -> {new.max_turns}")
    found += [f"{name}: changed" for name in ("cascade", "confidence")
              if getattr(old, name) != getattr(new, name)]  # fmt: skip
    found += _tool_lines(old.tools, new.tools)
    known = {(scope.bank, scope.scope) for scope in old.scopes}
    found += [f"memory added: {scope.bank}/{scope.scope}"
              for scope in new.scopes if (scope.bank, scope.scope) not in known]  # fmt: skip
    for table in ("budget", "rate_limits", "limits"):
        found += _raised_lines(table, asdict(getattr(old, table)), asdict(getattr(new, table)))
    if old.work is not None and new.work is not None:
        found += _work_lines(old.work, new.work)
    return found


def _work_lines(old: WorkPlan, new: WorkPlan) -> Iterator[str]:
    for name in ("waits_for", "asks"):
        for added in sorted(set(getattr(new, name)) - set(getattr(old, name))):
            yield f"work.{name} added: {added}"
    for name in ("max_turns", "no_progress", "deadline_us"):
        before, after = getattr(old, name), getattr(new, name)
        if after > before:
            yield f"work.{name}: {before} -> {after}"
    if new.proposes_conditions and not old.proposes_conditions:
        yield "work.done: it may propose some of its own"


def _reasoner_text(agent: Agent) -> str:
    return agent.reasoner if agent.model is None else f"{agent.reasoner} on {agent.model}"


def _tool_lines(old: Mapping[str, Tool], new: Mapping[str, Tool]) -> Iterator[str]:
    for name, tool in new.items():
        before = old.get(name)
        if before is None:
            target = f" at {tool.target}" if tool.target else ""
            yield f"tool added: {name} ({tool.verb} {tool.resource}{target})"
        else:
            yield from (f"tool {name}: {line}" for line in _looser_fields(before, tool))


def _looser_fields(old: Tool, new: Tool) -> Iterator[str]:
    for sink in sorted(set(old.sinks) - set(new.sinks)):
        yield f"{sink} is no sink any more"
    for sink in sorted(set(new.sinks) - set(old.sinks)):
        if sink.split("/")[1] not in old.args:  # one that was an argument before is stricter now
            yield f"sink added: {sink}"
    if (old.args, old.schema) != (new.args, new.schema):
        added = sorted(set(new.args) - set(old.args))
        yield f"arguments added: {', '.join(added)}" if added else "takes other arguments"
    if old.output != "trusted" and new.output == "trusted":
        yield "what it answers is trusted"
    if old.high_impact and not new.high_impact:
        yield "is not of high impact any more"
    if old.readers != new.readers and (new.readers is None or not new.readers <= (
        old.readers if old.readers is not None else new.readers
    )):  # fmt: skip
        yield "others may read what it answers"
    for field in ("attempts", "timeout_us"):
        before, after = getattr(old, field), getattr(new, field)
        if after > before:
            yield f"{field}: {before} -> {after}"
    for field in Tool.__struct_fields__:
        if field not in _HARMLESS and getattr(old, field) != getattr(new, field):
            yield f"{field}: {getattr(old, field)} -> {getattr(new, field)}"


def _raised_lines(table: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """Yield the ceilings that are raised or gone (None is none); a price is compared as a name."""
    for name, after in new.items():
        before = old[name]
        if before == after:
            continue
        if isinstance(before, int) and isinstance(after, int):
            if after > before:
                yield f"{table}.{name}: {before} -> {after}"
        elif after is None or not isinstance(after, int):
            yield f"{table}.{name}: {before} -> {'no limit' if after is None else after}"
