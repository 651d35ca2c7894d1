"""`vedette agent`: the agents, what each of them may do, and what becomes of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct

from vedette.app.stores import store_reader
from vedette.interfaces.cli.agent_import import import_
from vedette.interfaces.cli.agent_mode import mode
from vedette.interfaces.cli.agent_new import new
from vedette.interfaces.cli.agent_releases import canary, diff, history, release, rollback
from vedette.interfaces.cli.fleet import current_settings, find_agent, load_agents
from vedette.interfaces.cli.output import format_table, format_time, print_result, sanitize_text

if TYPE_CHECKING:
    from vedette.config.settings import Settings
    from vedette.domain.agent import Agent
    from vedette.operations.permissions import PermissionQuery


@click.group()
def agent() -> None:
    """See agents and what each of them may do; write or import one, set a mode, release and roll
    back.
    """


agent.add_command(new)
agent.add_command(import_)
agent.add_command(mode)
for command in (release, history, diff, rollback, canary):
    agent.add_command(command)


@agent.command("show")
@click.argument("name", required=False)
def agent_show(name: str | None) -> None:
    """List the agents; or show what the agent NAME may do, and what would wake it.

    The list has the mode in force and who answers for each. For one agent the live policy is asked
    about every tool, with every origin at every sink; without a store the policy of the folder is.
    For each answer the rule that gives it is shown.
    """
    state = _load_fleet_state(current_settings())
    if name is None:
        _print_list(state)
    else:
        _print_one(state, find_agent(state.agents, name))


class _FleetState(Struct):
    """The agents, the policy that is live (revision 0: the folder's), and what is stopped."""

    settings: Settings
    agents: Mapping[str, Agent]
    files: Mapping[str, bytes]
    revision: int
    stops: list[tuple[str, str]]


def _load_fleet_state(settings: Settings) -> _FleetState:
    from vedette.adapters.policy_engines.regorus.stage import read_bundle
    from vedette.app.stores import store_exists

    agents = load_agents(settings).fleet.agents
    if store_exists(settings):
        with store_reader(settings) as store:
            number, digest = store.policy.live_revision()
            if number:
                files, stops = (
                    store.policy.bundle_files(digest) or {},
                    list(store.policy.stop_scopes()),
                )
                return _FleetState(settings, agents, files, number, stops)
    return _FleetState(settings, agents, read_bundle(settings.policies).files, 0, [])


def _print_list(state: _FleetState) -> None:
    from vedette.operations.modes import effective_mode, read_grant

    value = [
        {
            "agent": one.name,
            "mode": effective_mode(one.requested_mode, read_grant(state.files, one.name)["mode"]),
            "owner": one.owner,
            "title": one.title,
            "stopped": any(s == "all" or (s == "agent" and n == one.name) for s, n in state.stops),
        }
        for one in state.agents.values()
    ]
    rows = [
        [
            str(one["agent"]), f"{one['mode']}{', stopped' if one['stopped'] else ''}",
            sanitize_text(str(one["owner"])), sanitize_text(str(one["title"])),
        ]
        for one in value
    ]  # fmt: skip
    print_result(value, format_table(["agent", "mode", "owner", "title"], rows))


def _print_one(state: _FleetState, one: Agent) -> None:
    from vedette.app.policy_state import folder_digest
    from vedette.domain.agent import Fleet
    from vedette.operations.permissions import effective_permissions

    query = _build_query(state, one)
    fleet = Fleet(state.settings.fleet, dict(state.agents))
    value = effective_permissions(query, fleet, state.stops)
    differs = bool(state.revision) and folder_digest(state.settings) != query.engine.digest
    value["folder_differs"] = differs
    print_result(value, "\n".join(_lines(value)))


def _build_query(state: _FleetState, one: Agent) -> PermissionQuery:
    from vedette.adapters.policy_engines.regorus.engine import RegorusEngine
    from vedette.adapters.schedule.source import cron_walls
    from vedette.domain.base.clock import SystemClock
    from vedette.domain.bundle import Bundle
    from vedette.operations.modes import effective_mode, read_grant, replace_mode
    from vedette.operations.permissions import PermissionQuery, stopped_tools
    from vedette.policy.bundle_data import mount

    files = state.files
    engine, acting = RegorusEngine(Bundle.of(files)), None
    own = read_grant(files, one.name)
    if effective_mode(one.requested_mode, own["mode"]) != "act" and own.keys() != {"mode"}:
        acting = RegorusEngine(replace_mode(files, one.name, "act"))
    return PermissionQuery(
        one, engine, state.revision, files, mount(files), SystemClock().now_us(), cron_walls,
        stopped_tools(one, state.stops), acting,
    )  # fmt: skip


# --- the page -----------------------------------------------------------------------------------

FOLDER_DIFFERS_NOTE = "  note: the policy folder says more than is live: `vedette policy status`"


def _lines(value: dict[str, Any]) -> list[str]:
    mode = value["mode"]
    lines = [
        f"{value['agent']}: {sanitize_text(value['title'])}",
        f"  {value['identity']}, release {value['release'][:12]}",
        f"  owner {sanitize_text(value['owner'])}",
        f"  mode {mode['in_force']} (requested {mode['requested']}, granted {mode['granted']})",
        f"  policy: revision {value['revision']}"
        if value["revision"]
        else "  policy: the folder's; nothing is live yet",
    ]
    if value["folder_differs"]:
        lines.append(FOLDER_DIFFERS_NOTE)
    lines += [f"  STOPPED: {', '.join(value['stopped'])}"] if value["stopped"] else []
    lines += ["WAKES ON", *(f"  {sanitize_text(line)}" for line in value["wakes"] or ["nothing"])]
    for name, at in value["next_ticks"].items():
        lines.append(f"  next tick of {sanitize_text(name)}: {format_time(at or 0)}")
    if value["beside"]:
        lines.append(f"  the same events also wake {', '.join(value['beside'])}")
    lines.append(
        _MODE_HEADINGS[mode["in_force"]] if value["tools"] else "MAY do nothing: it has no tools"
    )
    for tool in value["tools"]:
        lines += _tool_lines(tool)
    lines.append("READS")
    lines += [
        f"  {one['scope']}: {_OUTCOME_WORDS[one['outcome']]} ({one['rule']})"
        for one in value["memory"]
    ] or ["  no memory"]
    lines += _limit_lines(value)
    if value["not_granted"]:
        lines.append(f"REQUESTED, NOT GRANTED  {', '.join(value['not_granted'])}")
    if value["not_requested"]:
        lines.append(f"GRANTED, NOT REQUESTED  {', '.join(value['not_requested'])}")
    return lines


_OUTCOME_WORDS = {"permit": "yes", "hold": "asks a person", "deny": "no"}
_MODE_HEADINGS = {
    "act": "MAY",
    "ask": "MAY, once a person has decided each (and in mode act:)",
    "observe": "MAY in mode act (it observes now, so nothing is done)",
}


def _outcome_text(answer: dict[str, Any]) -> str:
    act = answer["in_act"]
    return f"{_OUTCOME_WORDS[act['outcome']]} ({act['rule']})"


def _tool_lines(tool: dict[str, Any]) -> list[str]:
    inverse = f"; undone by {tool['inverse']}" if tool["inverse"] else ""
    impact = f"impact {tool['impact']}" if tool["impact"] else "no grant"
    lines = [
        f"  {tool['tool']} ({tool['verb']} {tool['resource']}, {impact}{inverse})",
        f"      {_outcome_text(tool)}",
    ]
    if tool["bar_milli"] is not None:
        lines[-1] += f", from a confidence of {tool['bar_milli'] / 1000:.3f}"
    for pointer, limit in tool["only"].items():
        values = sanitize_text(", ".join(str(value) for value in limit["values"]))
        lines.append(f"      {pointer} only {values}; beyond: {_outcome_text(limit['beyond'])}")
    for sink, answers in tool["sinks"].items():
        groups: dict[str, list[str]] = {}
        for origin, answer in answers.items():
            groups.setdefault(_outcome_text(answer).replace(f".{origin})", ")"), []).append(origin)
        for said, of in groups.items():
            lines.append(f"      {sink} {', '.join(of)}: {said}")
    return lines


def _limit_lines(value: dict[str, Any]) -> list[str]:
    actions = value["limits"]["actions"] or {}
    windows = ", ".join(f"{most} a {span}" for span, most in actions.items())
    asks = [f"  {name} {most} (asked for in agent.yaml)" for name, most in value["budget"].items()]
    return [
        "LIMITS",
        f"  actions: {windows or 'none are known'}; hops: {value['limits']['hops']}",
        *asks,
    ]
