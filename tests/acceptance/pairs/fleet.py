"""Writes the fleet of a batch: an agent for each suite, the shipped rules, and the batch's data."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.acceptance.pairs.batches import Batch
from tests.acceptance.pairs.suites import RECEIVER, Tool
from tests.acceptance.pairs.tasks import Call, Routine

from vedette.domain.origin import resolve_path
from vedette.testing.harness import copy_policies, remove_tests

ACT = "def act(call):\n    return call.target['world'].act(call)\n"
LIMITS = """\
hops: 8
actions: {default: {minute: 1000000, hour: 1000000, day: 1000000}, agents: {}}
confidence_milli: {default: 800, agents: {}}
complete: true
"""
BUDGETS = (
    "fleet: {actions: {hour: 1000000, day: 1000000}}\nagents: {}\nprices: {}\ncomplete: true\n"
)

# The agent that other agents hear of letters from: it publishes what it read, as it read it.
SCRIBE = "scribe"
PUBLISH = "incident.publish"
_PUBLISHES = Tool({"type": "string", "subject": "string", "data": "object"}, {})
_SCRIBES_GRANT = f"""\
{SCRIBE}:
  mode: act
  tools: {{{PUBLISH}: {{verb: publish, resource: incident, impact: low}}}}
"""

# The control: a policy that permits everything to agents that it knows (less than that is refused
# wherever it is tried), to see that the attacks are attacks.
PERMISSIVE: Mapping[str, str] = {
    "vedette/gateway/decide.rego": """\
package vedette.gateway

decision := {
	"schema": "vedette.decision/1", "outcome": "permit", "rule": "permit.all", "reasons": [],
	"wait": null, "until": 0, "would": null, "obligations": [],
} if {
	input.schema == "vedette.question/2"
	is_object(input.action)
	data.vedette.identity.ok
}
"""
}


def write_fleet(folder: Path, batch: Batch) -> tuple[Path, Path]:
    """Write agents and policy below a folder; return both."""
    content = folder / "content"
    for suite, tools in batch.suites.items():
        triggers = {one.name: f"{suite}.{one.name}" for one in batch.routines if one.suite == suite}
        triggers["remember"] = f"{suite}.remember"
        _write_agent(content, batch, suite, tools, triggers, batch.charters[suite])
    _write_agent(content, batch, SCRIBE, {PUBLISH: _PUBLISHES}, {"letters": "letter.received"}, {})
    bank = content / "memory" / "notes"
    bank.mkdir(parents=True)
    scopes = [{"name": suite, "readers": [suite], "writers": [suite]} for suite in batch.suites]
    about = {"bank": "notes", "purpose": "What agents would like remembered.", "topics": []}
    # JSON is YAML.
    (bank / "bank.yaml").write_text(json.dumps({"version": 1, **about, "scopes": scopes}))
    files = {
        "grants/data.yaml": (batch.grants or grants_of(batch)) + _SCRIBES_GRANT,
        "sinks/data.yaml": _sinks(batch),
        "links/data.yaml": _links(batch),
        "registry/data.json": json.dumps(batch.registry),
        "limits/data.yaml": LIMITS,
        "budgets/data.yaml": BUDGETS,
    }
    policies = remove_tests(copy_policies(folder / "policies", files))
    (policies / "registry" / "data.yaml").unlink()
    return content, policies


def _write_agent(
    content: Path,
    batch: Batch,
    name: str,
    tools: Mapping[str, Tool],
    triggers: Mapping[str, str],
    charter: Mapping[str, Any],
) -> None:
    place = content / "agents" / name
    place.mkdir(parents=True)
    (place / "__init__.py").touch()
    (place / "instruction.md").write_text("Do what each routine says.\n")
    (place / "judge.py").write_text(
        "from vedette.judging import Judge as Base\n\n\nclass Judge(Base):\n    pass\n"
    )
    (place / "tools.py").write_text(ACT)
    memory = [{"bank": "notes", "scope": name, "limit": 50}] if name in batch.suites else []
    agent = {
        "version": 1, "name": name, "title": "Routines", "owner": f"ada{batch.house}",
        "max_turns": 8, "mode": "act", "charter": charter, "budget": {"actions_per_run": 64},
        "triggers": [{"on": type, "name": trigger} for trigger, type in triggers.items()],
        "memory": memory,
        "tools": [
            {
                "name": called, "verb": called.split(".")[1], "resource": called.split(".")[0],
                "args": dict(tool.args), "sinks": [f"/{sink}" for sink in tool.sinks],
                "settles": "idempotent", "function": "act", "target": "world",
                **({"permitted_readers": [batch.house]} if tool.secret else {}),
            }
            for called, tool in tools.items()
        ],
    }  # fmt: skip
    (place / "agent.yaml").write_text(json.dumps(agent, indent=1))


def grants_of(batch: Batch) -> str:
    """Return the grants that follow from what the routines' calls name."""
    lines = []
    for suite, tools in batch.suites.items():
        lines.append(f"{suite}:\n  mode: act\n  memory: [notes/{suite}]\n  tools:")
        for name in tools:
            resource, verb = name.split(".")
            given = f"verb: {verb}, resource: {resource}, impact: low"
            tied = {
                one.name: _tied(batch, one, name)
                for one in batch.routines
                if one.suite == suite and name in one.tools
            }
            lines.append(f"    {name}: {{{given}, triggers: {json.dumps(tied)}}}")
    return "\n".join(lines) + "\n"


def _tied(batch: Batch, routine: Routine, name: str) -> dict[str, list[Any]]:
    """Return what a grant says of one trigger: what its description fixes.

    That is each thing, place, sum and title, and the receivers where all of them are known; of the
    words of a text only where they leave the house.
    """
    tool = batch.suites[routine.suite][name]
    tied: dict[str, list[Any]] = {}
    for args in (args for called, args in (*routine.reads, *routine.acts) if called == name):
        leaving = tool.links if _leaves(batch, routine.suite, tool, args) else ()
        for one in sorted({*tool.sinks, *tool.names, *leaving}):
            if tool.args[one] != "strings":
                value = args[one]
                named = f"ref:{value[1:]}" if str(value).startswith("@/") else value
                tied.setdefault(f"/{one}", []).append(named)
            elif None not in (known := _known(batch, routine.suite, args[one])):
                tied.setdefault(f"/{one}", []).append(known)
    return tied


def vary_words(batch: Batch) -> Batch:
    """Return the routines alone, under the same grants, with other words wherever some leave."""

    def vary(suite: str, call: Call) -> Call:
        name, args = call
        tool = batch.suites[suite][name]
        words = tool.links if _leaves(batch, suite, tool, args) else ()
        others = {
            one: f"{args[one]} Again."
            for one in words
            if one not in (*tool.sinks, *tool.names) and not args[one].startswith("@/")
        }
        return name, {**args, **others}

    routines = [
        replace(one, acts=[vary(one.suite, call) for call in one.acts]) for one in batch.routines
    ]
    return replace(batch, grants=batch.grants or grants_of(batch), routines=routines, attacks=[])


def _leaves(batch: Batch, suite: str, tool: Tool, args: Mapping[str, Any]) -> bool:
    """Say whether a call reaches anybody who is not of the house."""
    given = [args[sink] for sink, says in tool.sinks.items() if says == RECEIVER]
    known = [one for value in given for one in _known(batch, suite, value)]
    return not all(str(one).endswith(batch.house) for one in known)


def _known(batch: Batch, suite: str, given: Any) -> list[str | None]:
    """Return receivers as charter and registry call them, None for whom only the event knows."""
    roots = {"charter": batch.charters[suite], "registry": batch.registry}
    found: list[str | None] = []
    for one in given if isinstance(given, list) else [given]:
        _, root, *path = one.split("/") if one.startswith("@/") else ("", "", one)
        value = resolve_path(roots[root], path) if root in roots else None if root else one
        found += value if isinstance(value, list) else [value]
    return found


def _tools(batch: Batch) -> dict[str, Tool]:
    return {name: tool for tools in batch.suites.values() for name, tool in tools.items()}


def _sinks(batch: Batch) -> str:
    lines = ["tools:"]
    for name, tool in _tools(batch).items():
        lines.append(f"  {name}:")
        lines += [f"    /{sink}: {{{says}}}" for sink, says in tool.sinks.items()]
    return _complete(lines)


def _links(batch: Batch) -> str:
    lines = ["tools:"]
    for name, tool in _tools(batch).items():
        if tool.links:
            lines.append(f"  {name}:")
            says = "accepts: [trusted, registered], otherwise: deny"
            lines += [f"    /{text}: {{{says}}}" for text in tool.links]
    return _complete(lines)


def _complete(lines: Sequence[str]) -> str:
    return "\n".join([*lines, "complete: true", ""])
