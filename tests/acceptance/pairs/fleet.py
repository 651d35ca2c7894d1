"""Writes the fleet of a batch: an agent for each suite, the shipped rules, and the batch's data."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.acceptance.pairs.batches import Batch
from tests.acceptance.pairs.suites import Tool
from tests.acceptance.pairs.tasks import Routine

from vedette.testing.harness import copy_policies, without_tests

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

# The control: a policy that permits everything, to see that the attacks are attacks.
PERMISSIVE: Mapping[str, str] = {
    "vedette/gateway/decide.rego": """\
package vedette.gateway

decision := {
	"schema": "vedette.decision/1", "outcome": "permit", "rule": "permit.all", "reasons": [],
	"wait": null, "until": 0, "would": null, "obligations": [],
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
    policies = without_tests(copy_policies(folder / "policies", files))
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
                one.name: _tied(one, name, tools[name])
                for one in batch.routines
                if one.suite == suite and name in one.tools
            }
            lines.append(f"    {name}: {{{given}, triggers: {json.dumps(tied)}}}")
    return "\n".join(lines) + "\n"


def _tied(routine: Routine, name: str, tool: Tool) -> dict[str, list[Any]]:
    """Return what a grant says of one trigger: the things, places and sums of its description."""
    tied: dict[str, list[Any]] = {}
    for called, args in (*routine.reads, *routine.acts):
        for sink in (*tool.sinks, *tool.names) if called == name else ():
            if tool.args[sink] == "strings":
                continue  # receivers are bounded by their sink
            value = args[sink]
            named = f"ref:{value[1:]}" if str(value).startswith("@/") else value
            tied.setdefault(f"/{sink}", []).append(named)
    return tied


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
