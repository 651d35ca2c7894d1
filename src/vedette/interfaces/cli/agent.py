"""`vedette agent`: the agents, and what each of them may do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from vedette.domain.base.errors import NotFound
from vedette.interfaces.cli.common import (
    as_json_option,
    format_table,
    format_time,
    order_options,
    print_result,
    sanitize_text,
    settings_of,
    store_reader,
    submit_command,
)

if TYPE_CHECKING:
    from vedette.config.settings import Settings
    from vedette.domain.agent import Agent
    from vedette.operations.permissions import PermissionQuery


@click.group()
def agent() -> None:
    """See the agents, and what each of them may do."""


@agent.command("list")
@as_json_option
@click.pass_context
def agent_list(ctx: click.Context, as_json: bool) -> None:
    """List the agents with the mode in force and who answers for them."""
    from vedette.operations.modes import effective_mode, read_grant

    settings = settings_of(ctx)
    agents, files, _, stops = _load_fleet_state(settings)
    value = [
        {
            "agent": one.name,
            "mode": effective_mode(one.requested_mode, read_grant(files, one.name)["mode"]),
            "owner": one.owner,
            "title": one.title,
            "stopped": any(s == "all" or (s == "agent" and n == one.name) for s, n in stops),
        }
        for one in agents.values()
    ]
    rows = [
        [
            str(one["agent"]), f"{one['mode']}{', stopped' if one['stopped'] else ''}",
            sanitize_text(str(one["owner"])), sanitize_text(str(one["title"])),
        ]
        for one in value
    ]  # fmt: skip
    print_result(as_json, value, format_table(["agent", "mode", "owner", "title"], rows))


@agent.command("show")
@click.argument("name")
@as_json_option
@click.pass_context
def agent_show(ctx: click.Context, name: str, as_json: bool) -> None:
    """Show what the agent NAME may do, and what would wake it.

    The live policy is asked about every tool, with every origin at every sink; without a store the
    policy of the folder is. For each answer the rule that gives it is shown.
    """
    from vedette.operations.permissions import effective_permissions

    settings = settings_of(ctx)
    agents, files, revision, stops = _load_fleet_state(settings)
    if name not in agents:
        from vedette.config.problem import did_you_mean

        raise NotFound(f"there is no agent {name!r}", mend=did_you_mean(name, list(agents)))
    from vedette.domain.agent import Fleet

    query = _build_query(agents[name], files, revision, stops)
    value = effective_permissions(query, Fleet(settings.fleet, dict(agents)), stops)
    value["folder_differs"] = bool(revision) and folder_digest(settings) != query.engine.digest
    print_result(as_json, value, "\n".join(_lines(value)))


@agent.command("release")
@click.argument("name")
@order_options
@click.pass_context
def agent_release(
    ctx: click.Context, name: str, reason: str, command_id: str | None, as_json: bool
) -> None:
    """Make the present content of the folder of the agent NAME the release that runs.

    It is checked as at a start and its code is loaded once; then the agent ends what it is at, and
    goes on with the new release. A refusal changes nothing. Without a running fleet there is
    nothing to do: the next start is a release of what lies there.
    """
    done = submit_command(settings_of(ctx), "agent_release", reason, {"agent": name}, command_id)
    if not done["changed"]:
        told = f"{name}: release {done['release'][:12]} already"
    else:
        told = f"{name}: {done['was'][:12]} -> {done['release'][:12]}"
    if done["by"] == "here":
        told += "; no fleet runs, and the next start is a release of what lies there then"
    print_result(as_json, done, told)


_FleetState = tuple[
    Mapping[str, "Agent"], Mapping[str, bytes], int, list[tuple[str, str]]
]  # agents, the bundle's files, its revision (0: the folder's), what is stopped


def _load_fleet_state(settings: Settings) -> _FleetState:
    from vedette.adapters.policy_engines.regorus.stage import read_bundle
    from vedette.app.stores import store_exists
    from vedette.config.fleet import load_fleet
    from vedette.domain.base.clock import SystemClock

    agents = load_fleet(settings.root, settings, now_us=SystemClock().now_us()).fleet.agents
    if store_exists(settings):
        with store_reader(settings) as store:
            number, digest = store.live_revision()
            if number:
                return agents, store.bundle_files(digest) or {}, number, list(store.stop_scopes())
    return agents, read_bundle(settings.policies).files, 0, []


def _build_query(
    one: Agent, files: Mapping[str, bytes], revision: int, stops: list[tuple[str, str]]
) -> PermissionQuery:
    from vedette.adapters.policy_engines.regorus.engine import RegorusEngine
    from vedette.adapters.schedule.source import cron_walls
    from vedette.domain.base.clock import SystemClock
    from vedette.domain.bundle import Bundle
    from vedette.operations.modes import effective_mode, read_grant, replace_mode
    from vedette.operations.permissions import PermissionQuery
    from vedette.policy.bundle_data import mount

    stopped = frozenset(
        tool
        for scope, name in stops
        for tool in one.tools
        if scope == "all" or (scope == "agent" and name == one.name) or name == tool
    )
    engine, acting = RegorusEngine(Bundle.of(files)), None
    own = read_grant(files, one.name)
    if effective_mode(one.requested_mode, own["mode"]) != "act" and own.keys() != {"mode"}:
        acting = RegorusEngine(replace_mode(files, one.name, "act"))
    now_us = SystemClock().now_us()
    return PermissionQuery(
        one, engine, revision, files, mount(files), now_us, cron_walls, stopped, acting
    )


def folder_digest(settings: Settings) -> str | None:
    """Return the digest of the policy folder; None where it cannot be read."""
    from vedette.adapters.policy_engines.regorus.stage import read_bundle
    from vedette.domain.base.errors import BadPolicy

    try:
        return read_bundle(settings.policies).digest
    except BadPolicy:
        return None


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
    lines += ["WAKES ON", *(f"  {sanitize_text(told)}" for told in value["wakes"] or ["nothing"])]
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
        lines[-1] += f", if its judge is sure to {tool['bar_milli'] / 1000:.3f}"
    for pointer, limit in tool["only"].items():
        values = sanitize_text(", ".join(str(value) for value in limit["values"]))
        lines.append(f"      {pointer} only {values}; beyond: {_outcome_text(limit['beyond'])}")
    for sink, answers in tool["sinks"].items():
        groups: dict[str, list[str]] = {}
        for origin, told in answers.items():
            groups.setdefault(_outcome_text(told).replace(f".{origin})", ")"), []).append(origin)
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
