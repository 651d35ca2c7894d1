"""`vedette agent mode`: whether an agent observes, asks or acts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from vedette.app.stores import store_reader
from vedette.domain.base.errors import BadCommand, BadPolicy
from vedette.interfaces.cli.fleet import current_settings, find_agent, load_agents
from vedette.interfaces.cli.orders import OrderCommand, OrderOptions, submit_with_confirmation
from vedette.interfaces.cli.output import format_time, print_result, sanitize_text

if TYPE_CHECKING:
    from vedette.config.settings import Settings

_MODES = ("observe", "ask", "act")
_MEANING = {
    "observe": "nothing is done; what would have been is counted",
    "ask": "a person decides every action",
    "act": "what policy permits is done",
}


@click.command(cls=OrderCommand, needs_reason=False)
@click.argument("agent")
@click.argument("mode", required=False, type=click.Choice(_MODES))
@click.option(
    "--yes", is_flag=True, help="Loosen without asking; needed where there is no terminal."
)
def mode(agent: str, mode: str | None, yes: bool, order: OrderOptions) -> int:
    """Show the mode of AGENT, or set it: observe, ask or act.

    The mode stands in policies/grants/data.yaml. That word is changed there, comments kept, and
    published through the usual trial; when this returns it is in force everywhere. A mode that
    rises is shown with the recorded decisions that it changes, and asked about. In force is the
    more careful of what policy grants and what agent.yaml requests. A refusal changes nothing and
    exits with 1.
    """
    settings = current_settings()
    if mode is None:
        value = _read_mode(settings, agent)
        print_result(value, _mode_text(value))
        return 0
    if not (order.reason or "").strip():
        raise BadCommand("a reason is missing", mend="add --reason 'why'")
    try:
        args = {"agent": agent, "mode": mode}
        done = submit_with_confirmation(settings, "mode", args, order, yes=yes)
    except BadPolicy as error:
        done = {"ok": False, "findings": [str(error)], "revision": None}
    if not done["ok"]:
        stays = f"; revision {done['revision']} stays" if done["revision"] else ""
        lines = [f"refused{stays}, the file is as it was:", *done["findings"]]
        print_result(done, "\n".join(lines))
        return 1
    print_result(done, _result_text(done))
    return 0


def _read_mode(settings: Settings, agent: str) -> dict[str, Any]:
    """Return the mode of an agent: requested, granted, in force, and since when.

    From the live policy if there is a store; else from the folder. Raises NotFound.
    """
    from vedette.adapters.policy_engines.regorus.stage import read_bundle
    from vedette.app.stores import store_exists
    from vedette.operations.modes import effective_mode, read_grant

    requested = find_agent(load_agents(settings).fleet.agents, agent).requested_mode
    folder = read_grant(read_bundle(settings.policies).files, agent)["mode"]
    live, first = folder, None
    revisions: list[tuple[int, str, int]] = []
    if store_exists(settings):
        with store_reader(settings) as store:
            revisions = store.policy.revisions()
            for revision in revisions:
                granted = read_grant(store.policy.bundle_files(revision[1]) or {}, agent)["mode"]
                if first is not None and granted != live:
                    break
                live, first = granted, revision
    return {
        "agent": agent,
        "requested": requested,
        "folder": folder,
        "granted": live,
        "in_force": effective_mode(requested, live),
        "revision": revisions[0][0] if revisions else None,
        "since_revision": first[0] if first else None,
        "since": first[2] if first else None,
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
    text = f"{result['agent']}: {result['was']} -> {result['mode']}"
    if result["was"] == result["mode"]:
        text = f"{result['agent']}: {result['mode']} already"
    if result["changed"]:
        where = "" if result["behind"] else " everywhere"
        text += f", in force{where} after {result['took_us'] / 1000:.0f} ms"
        text += f" (revision {result['revision']})"
    lines = [text]
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
