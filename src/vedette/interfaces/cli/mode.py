"""`vedette mode`: whether an agent observes, asks or acts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from vedette.domain.base.errors import BadCommand, BadPolicy, NotFound
from vedette.interfaces.cli.common import (
    as_json_option,
    format_time,
    print_result,
    sanitize_text,
    settings_of,
    store_reader,
)
from vedette.interfaces.cli.loosening import submit_with_confirmation, yes_option

if TYPE_CHECKING:
    from vedette.config.settings import Settings

_MODES = ("observe", "ask", "act")
_MEANING = {
    "observe": "nothing is done; what would have been is counted",
    "ask": "a person decides every action",
    "act": "what policy permits is done",
}


@click.command()
@click.argument("agent")
@click.argument("mode", required=False, type=click.Choice(_MODES))
@click.option("--reason", metavar="TEXT", help="Why; it is recorded with your name.")
@click.option("--command-id", metavar="ID", help="A repeat of the same id is not done again.")
@yes_option
@as_json_option
@click.pass_context
def mode(
    ctx: click.Context,
    agent: str,
    mode: str | None,
    reason: str | None,
    command_id: str | None,
    yes: bool,
    as_json: bool,
) -> int:
    """Show the mode of AGENT, or set it: observe, ask or act.

    The mode stands in policies/grants/data.yaml. That word is changed there, comments kept, and
    published through the usual trial; when this returns it is in force everywhere. A mode that
    rises is shown with the recorded decisions that it changes, and asked about. In force is the
    more careful of what policy grants and what agent.yaml requests. A refusal changes nothing and
    exits with 1.
    """
    settings = settings_of(ctx)
    if mode is None:
        value = read_mode(settings, agent)
        print_result(as_json, value, _mode_text(value))
        return 0
    if not (reason or "").strip():
        raise BadCommand("a reason is missing", mend="add --reason 'why'")
    try:
        args = {"agent": agent, "mode": mode}
        done = submit_with_confirmation(settings, "mode", reason or "", args, command_id, yes=yes)
    except BadPolicy as error:
        done = {"ok": False, "findings": [str(error)], "revision": None}
    if not done["ok"]:
        stays = f"; revision {done['revision']} stays" if done["revision"] else ""
        lines = [f"refused{stays}, the file is as it was:", *done["findings"]]
        print_result(as_json, done, "\n".join(lines))
        return 1
    print_result(as_json, done, _result_text(done))
    return 0


def read_mode(settings: Settings, agent: str) -> dict[str, Any]:
    """Return the mode of an agent: requested, granted, in force, and since when.

    From the live policy if there is a store; else from the folder. Raises BadCommand.
    """
    from vedette.adapters.policy_engines.regorus.stage import read_bundle
    from vedette.app.stores import store_exists
    from vedette.config.fleet import load_fleet
    from vedette.domain.base.clock import SystemClock
    from vedette.operations.modes import effective_mode, read_grant

    now_us = SystemClock().now_us()
    agents = load_fleet(settings.root, settings, now_us=now_us).fleet.agents
    if agent not in agents:
        raise NotFound(f"there is no agent {agent!r}", mend=f"one of: {', '.join(agents)}")
    requested = agents[agent].requested_mode
    folder = read_grant(read_bundle(settings.policies).files, agent)["mode"]
    value: dict[str, Any] = {"agent": agent, "requested": requested, "folder": folder}
    if not store_exists(settings):
        told = {"granted": folder, "in_force": effective_mode(requested, folder)}
        return {**value, **told, "revision": None, "since_revision": None, "since": None}
    with store_reader(settings) as store:
        revisions = store.revisions()
        live = (
            read_grant(store.bundle_files(revisions[0][1]) or {}, agent)["mode"]
            if revisions
            else folder
        )
        since = revisions[0] if revisions else None
        for number, digest, at in revisions[1:]:
            if read_grant(store.bundle_files(digest) or {}, agent)["mode"] != live:
                break
            since = (number, digest, at)
    return {
        **value,
        "granted": live,
        "in_force": effective_mode(requested, live),
        "revision": revisions[0][0] if revisions else None,
        "since_revision": since[0] if since else None,
        "since": since[2] if since else None,
    }


def _mode_text(value: dict[str, Any]) -> str:
    lines = [
        f"{value['agent']}: {value['in_force']} ({_MEANING[value['in_force']]})",
        f"  requested in agent.yaml: {value['requested']}",
        f"  granted by policy:       {value['granted']}",
    ]
    if value["since"]:
        lines[-1] += f", since revision {value['since_revision']} ({format_time(value['since'])})"
    if value["folder"] != value["granted"]:
        lines.append(f"  the policy folder says {value['folder']}: see `vedette policy status`")
    return "\n".join(lines)


def _result_text(result: dict[str, Any]) -> str:
    told = f"{result['agent']}: {result['was']} -> {result['mode']}"
    if result["was"] == result["mode"]:
        told = f"{result['agent']}: {result['mode']} already"
    if result["changed"]:
        where = "" if result["behind"] else " everywhere"
        told += f", in force{where} after {result['took_us'] / 1000:.0f} ms"
        told += f" (revision {result['revision']})"
    lines = [told]
    if result["behind"]:
        lines.append(
            f"note: not known to be in force at worker {sanitize_text(', '.join(result['behind']))}"
        )
    if result["in_force"] != result["mode"]:
        lines.append(
            f"note: agent.yaml requests {result['requested']}, so {result['in_force']} is in force;"
            " change `mode:` there and start the fleet again"
        )
    if result["folder"] != "written":
        lines.append(f"note: {result['folder']}")
    if result["told"]:
        lines.append(f"note: {sanitize_text(result['told'])}")
    return "\n".join(lines)
