"""`vedette status`: where the fleet stands."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from vedette.app.policy_state import folder_state
from vedette.app.stores import store_reader
from vedette.domain.base.clock import SystemClock
from vedette.interfaces.cli.agent_releases import canary_lines
from vedette.interfaces.cli.fleet import current_settings
from vedette.interfaces.cli.output import format_table, format_time, print_result, sanitize_text
from vedette.interfaces.cli.policy import folder_note
from vedette.policy.compatibility import format_refusal, read_check

if TYPE_CHECKING:
    from vedette.config.settings import Settings
    from vedette.store.reader import StoreReader


@click.command()
def status() -> None:
    """Show what runs, waits, is stopped and is live; works with and without a running fleet."""
    from vedette.interfaces.http.local_client import LocalClient
    from vedette.ledger.history.lists import status as stand

    settings = current_settings()
    with store_reader(settings) as store:
        found = stand(store, SystemClock().now_us())
        published = _publishing_engine(store)
        folder = folder_state(settings, store)
        refused = read_check(store, str(found["bundle"]))
        loss = store.ledger.loss_window()
    client = LocalClient(settings.state)
    running = client.is_alive()
    live = client.status() if running else {}
    box = live.get("box") or _sandbox_state(settings)
    found |= {"targets": live.get("targets", []), "until": live.get("until", {}), "box": box}
    found["changed_on_disk"] = live.get("changed_on_disk", [])
    found |= {"folder": folder, "engine": live.get("engine", published)}
    found["canaries"] = live.get("canaries", [])
    found["second"] = live.get("second")
    found["residuals"] = live.get("residuals")
    found["check"] = refused
    found["clock"] = live.get("clock")
    found["unrecorded"] = live.get("unrecorded", [])
    found["store_ready"] = live.get("store", {}).get("ready")
    found["in_doubt"] = loss.seq if loss is not None and not loss.until else None
    print_result({"running": running, **found}, _text(running, found))


def _sandbox_state(settings: Settings) -> dict[str, Any]:
    """Return how tightly a fleet that starts here now would close agents' code in."""
    from vedette.app.workers import assess_containment
    from vedette.config.fleet import read_fleet

    agents, _, _ = read_fleet(settings.root, settings, now_us=SystemClock().now_us())
    return dict(assess_containment(settings, agents).to_json())


def _sandbox_text(sandbox: dict[str, Any]) -> str:
    """Say in words how tightly agents' code is closed in."""
    if not sandbox["boxed"]:
        held = "in no box"
    else:
        filtered = "seccomp" if sandbox["seccomp"] else "no seccomp"
        kernel = f"Landlock ABI {sandbox['landlock']}" if sandbox["landlock"] else "no Landlock"
        held = f"in a box ({kernel}, {filtered})"
    return f"{held}; open: {'; '.join(sandbox['open']) or 'nothing'}"


def _publishing_engine(store: StoreReader) -> dict[str, str] | None:
    """Return by which engine the last revision was published: no fleet says what decides now."""
    last = store.ledger.latest_entries(("policy.published",), 0, 1)
    if not last:
        return None
    return {"name": json.loads(last[0][1])["engine"], "why": "as the last publication says"}


def view_text(view: Mapping[str, Any]) -> str:
    """Say in words how far the read model is, and who keeps it."""
    who = (
        "a follower keeps them"
        if view["followed"]
        else "no follower runs, so whoever reads them makes them"
    )
    if view["failure"]:
        return f"cannot be brought up: {view['failure']}"
    if not view["behind"]:
        return f"up to the ledger's end; {who}"
    return (
        f"as of entry {view['reached']:,}, {view['behind']:,} entries and "
        f"{view['seconds']:,.1f} s behind; {who}"
    )


def _stop_text(stop: dict[str, Any], until: dict[str, int]) -> str:
    end = until.get(f"{stop['scope']}:{stop['name']}")
    target = f"{stop['scope']} {stop['name']}".strip()
    return f"{target} until {format_time(end)}" if end else target


def _text(running: bool, state: dict[str, Any]) -> str:
    events = state["events"]
    lines = [
        f"fleet {state['fleet']}: {'running' if running else 'not running'}, "
        f"policy revision {state['revision']} ({str(state['bundle'])[:12]}), "
        f"ledger at {state['head']:,}",
        f"events: {events['accepted']:,} accepted, of which {events['woke_nobody']:,} woke nobody",
    ]
    lines += [
        f"changed on disk: {one['agent']} is {one['now'][:12] or 'not readable'}, release "
        f"{one['release'][:12]} runs; `vedette agent release {one['agent']}` makes it the release"
        for one in state["changed_on_disk"]
    ]
    lines += [line for one in state["canaries"] for line in canary_lines(one)]
    if refused := state.get("check"):
        lines.append(sanitize_text(format_refusal(state["revision"], refused)))
    if engine := state["engine"]:
        lines.append(f"decided by {engine['name']}: {engine['why']}")
    if running:
        other = state["second"] or "none: nothing is asked of another policy engine"
        lines.append(f"second opinion: {sanitize_text(other)}")
        lines.append(f"residuals: {sanitize_text(state['residuals'] or 'unknown')}")
    lines += [sanitize_text(line) for line in folder_note(state["folder"])]
    stopped = [_stop_text(stop, state["until"]) for stop in state["stops"]]
    lines.append(f"stopped: {', '.join(stopped) or 'nothing'}")
    if unrecorded := state.get("unrecorded"):
        names = ", ".join(name.replace(":", " ").strip() for name in unrecorded)
        lines.append(f"stopped in the running fleet, not recorded yet: {names}")
    if state.get("in_doubt"):
        lines.append(
            f"in doubt since history was lost (entry {state['in_doubt']:,}): what may have "
            "happened is asked about, until a person says `vedette restore --settled`"
        )
    if state.get("store_ready") is False:
        lines.append("the store cannot commit: nothing is accepted and nothing called until it can")
    if state.get("clock"):
        lines.append(f"clock: {state['clock']} until a person says `vedette resume --clock`")
    lines += [
        f"left alone: {target['target']} ({target.get('why') or target['state']}), "
        f"{target['waiting']:,} runs wait for it, tried again at {format_time(target['retry_us'])}"
        for target in state["targets"]
    ]
    lines.append(f"agents' code: {_sandbox_text(state['box'])}")
    waiting = [f"{number:,} for {what}" for what, number in state["waiting"].items()]
    lines.append(f"waiting: {', '.join(waiting) or 'nothing'}")
    if notices := state["notices"]:
        failing = f"; failing: {', '.join(notices['failing'])}" if notices["failing"] else ""
        lines.append(
            f"notices: {notices['sent']:,} sent, {notices['pending']:,} waiting, "
            f"{notices['failed']:,} attempts failed, {notices['dropped']:,} dropped{failing}"
        )
    lines.append(f"lists: {view_text(state['view'])}")
    oldest = state["oldest"]
    if oldest is not None:
        age = f"{oldest['age_us'] / 1e6:,.1f} s" if oldest["age_us"] is not None else "unknown"
        lines.append(f"oldest run not handled yet: {oldest['run']} of {oldest['agent']}, {age}")
    heads = ["agent", "events", "permits", "holds", "denials", "would", "done", "failed", "dead"]
    rows = []
    for name, agent in state["agents"].items():
        effects = agent["effects"]
        numbers = [agent["events"], agent["permits"], agent["holds"], agent["denials"]]
        numbers += [sum(agent["would"].values()), effects.get("done", 0)]
        numbers += [effects.get("failed", 0), agent["dead"]]
        rows.append([name, *(f"{number:,}" for number in numbers)])
    return "\n".join([*lines, "", format_table(heads, rows)])
