"""`vedette agent release | history | diff | rollback | canary`: an agent's releases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from vedette.app.stores import store_reader
from vedette.domain.base.errors import BadCommand
from vedette.interfaces.cli.fleet import current_settings, parse_length, refuse_options
from vedette.interfaces.cli.orders import (
    OrderCommand,
    OrderOptions,
    deferred_note,
    submit_command,
    submit_with_confirmation,
)
from vedette.interfaces.cli.output import format_table, format_time, print_result, sanitize_text

if TYPE_CHECKING:
    from vedette.config.settings import Settings
    from vedette.domain.agent import Agent
    from vedette.ledger.history.release_history import ReleasePeriod

LIVE, FOLDER = "live", "folder"
_SHORT = 12


@click.command(cls=OrderCommand)
@click.argument("name")
@click.option("--move-tasks", is_flag=True, help="Have its tasks go on under it, too, at once.")
def release(name: str, move_tasks: bool, order: OrderOptions) -> None:
    """Make the present content of the folder of the agent NAME the release that runs.

    It is checked as at a start and its code is loaded once; then the agent ends what it is at, and
    goes on with the new release; a task that has taken a turn stays on the one it runs on until its
    next hand-off. A refusal changes nothing. Without a running fleet there is
    nothing to do: the next start is a release of what lies there.
    """
    args = {"agent": name, "move_tasks": move_tasks or None}
    done = submit_command(current_settings(), "agent_release", args, order)
    if not done["changed"]:
        text = f"{name}: release {done['release'][:_SHORT]} already"
    else:
        text = f"{name}: {done['was'][:_SHORT]} -> {done['release'][:_SHORT]}"
    if done["by"] == "here":
        text += "; no fleet runs, and the next start is a release of what lies there then"
    print_result(done, text)


# --- its past --------------------------------------------------------------------------------


@click.command()
@click.argument("name")
@click.option("--limit", default=20, show_default=True, metavar="N", help="How many; 0 is all.")
def history(name: str, limit: int) -> None:
    """List the releases of the agent NAME, newest first: when, who, why, what was in force.

    With each stand the policy revision of that time, how many memories had been promoted, retired
    or restored since the start before it, and how many runs the release thought. A release whose
    files are not kept any more has a star.
    """
    from vedette.ledger.history.release_history import read_release_history

    settings = current_settings()
    with store_reader(settings) as store, store.snapshot():
        found = read_release_history(store.ledger, name)
    shown = found[:limit] if limit > 0 else found
    rows = [{**one.to_json(), "kept": _is_kept(settings, name, one)} for one in shown]
    heads = ["release", "since", "how", "runs", "policy", "memory", "by", "reason"]
    text = format_table(heads, [_cells(row) for row in rows])
    if len(shown) < len(found):
        text += f"\n{len(found) - len(shown)} older ones: --limit 0"
    print_result({"agent": name, "releases": rows, "all": len(found)}, text)


def _is_kept(settings: Settings, name: str, period: ReleasePeriod) -> bool:
    from vedette.config.snapshot import find_snapshot

    return find_snapshot(settings.state, period.release, name) is not None


def _cells(row: dict[str, Any]) -> list[str]:
    reason = row["reason"] or ("-" if row["how"] == "start" else "(erased)")
    return [
        row["release"][:_SHORT] + ("" if row["kept"] else "*"),
        format_time(row["at"]),
        row["how"],
        str(row["runs"]),
        str(row["policy_rev"]),
        f"+{row['memory_changes']}" if row["memory_changes"] else "-",
        row["by"] or "-",
        sanitize_text(reason).replace("\n", " "),
    ]


@click.command()
@click.argument("name")
@click.argument("old", required=False, default=LIVE, metavar="[A")
@click.argument("new", required=False, default=FOLDER, metavar="[B]]")
def diff(name: str, old: str, new: str) -> int:
    """Show what changes of the agent NAME from A to B: a release, `live` or `folder`.

    Without B its folder is compared, without both with the release that runs. What agent.yaml
    asks for beyond the other is told first, and before it which policy and memory were in force
    with each, where these differ. Exits with 1 if the files of the two differ.
    """
    from vedette.config.agent_folder import read_files
    from vedette.ledger.history.policy_history import differences
    from vedette.operations.release_comparison import find_wider_requests

    settings = current_settings()
    (before, named), (after, renamed) = (_load_side(settings, name, side) for side in (old, new))
    found = differences(read_files(_folder(before)), read_files(_folder(after)), (named, renamed))
    wider = find_wider_requests(before, after)
    value: dict[str, Any] = {
        "agent": name,
        "from": before.release,
        "to": after.release,
        "wider": wider,
        "files": [{"path": one.path, "how": one.how, "diff": one.text} for one in found],
    }
    value["in_force"] = in_force = _compare_in_force(settings, name, (old, new))
    heads = [f"{one.how:<8} {one.path}" for one in found]
    asks = [f"{renamed} asks for more:", *(f"  {sanitize_text(line)}" for line in wider)]
    bodies = (sanitize_text(one.text).rstrip("\n") for one in found)
    text = "\n".join([*(asks if wider else []), *heads, "", *bodies])
    same = f"{named} and {renamed} are the same"
    print_result(value, "\n".join([*_in_force_lines(in_force), text if found else same]))
    return int(bool(found))


@click.command(cls=OrderCommand)
@click.argument("name")
@click.option("--to", metavar="RELEASE", help="Which; without it the one before.")
@click.option("--policy", is_flag=True, help="Publish again what policy was in force with it.")
@click.option("--memory", is_flag=True, help="Retire what it alone has learned since.")
@click.option("--move-tasks", is_flag=True, help="Have all of its tasks go on under it at once.")
@click.option("--yes", is_flag=True, help="With --policy: loosen without asking.")
def rollback(
    name: str, to: str | None, policy: bool, memory: bool, move_tasks: bool, yes: bool,
    order: OrderOptions,
) -> int:  # fmt: skip
    """Make a former release of the agent NAME the one that runs, out of its kept files.

    It goes the way of `agent release`. The folder waits from then on: no start releases what it
    holds before `agent release` does. With --policy the policy that was last in force with it is
    published first; where that is refused nothing changes. With --memory what was promoted or
    restored since is retired, in banks that no other agent reads; what a person retired since stays
    off, and is named with the reason. Tasks on a release that was made since go on under this one
    at once.
    """
    settings = current_settings()
    args = {"agent": name, "to": to, "policy": policy or None, "memory": memory or None,
            "move_tasks": move_tasks or None}  # fmt: skip
    done = submit_with_confirmation(settings, "agent_rollback", args, order, yes=yes)
    if not done["changed"]:
        findings = done["policy"]["findings"]
        text = [f"refused; revision {done['policy']['revision']} and release stay:", *findings]
        print_result(done, "\n".join(text))
        return 1
    in_force = done["in_force"]
    lines = [f"{name}: {done['was'][:_SHORT]} -> {done['release'][:_SHORT]}"]
    if done["policy"] is not None:
        lines.append(f"policy: revision {done['policy']['revision']} is live, as it was then")
    else:
        lines.append(f"policy: revision {in_force['policy_rev']} was last in force with it")
    changes = in_force["memory_changes_since"]
    lines.append(f"memory: {changes or 'no'} promotions, retirements and restorations since")
    lines += _memory_lines(done)
    lines += _wider_lines(done)
    print_result(done, "\n".join([*lines, *deferred_note(done, "it runs")]))
    return 0


def _memory_lines(done: Mapping[str, Any]) -> list[str]:
    in_force, moved = done["in_force"], done["memory"]
    if moved is not None:
        lines = [f"  {one['memory']}: {one['state']}, as it was then" for one in moved]
    else:
        lines = [f"  {one}: stays; --memory retires it" for one in in_force["memories"]]
    for one, why in in_force["retired_memories"].items():
        lines.append(f"  {one}: stays off ({why or 'erased'}); `vedette memory on` restores it")
    return [*lines, *(f"  {one}: stays, others read it" for one in in_force["shared_memories"])]


@click.command(cls=OrderCommand, needs_reason=False)
@click.argument("name")
@click.option("--share", metavar="PERCENT", help="Begin one: of its keys, as 10%.")
@click.option("--for", "for_", metavar="DURATION", help="How long it runs; 2h if not said.")
@click.option("--min-runs", type=click.IntRange(min=1), help="Fewer prove nothing; 50 if not said.")
@click.option("--end", is_flag=True, help="End it: its keys are the release's again.")
def canary(
    name: str, share: str | None, for_: str | None, min_runs: int | None, end: bool,
    order: OrderOptions,
) -> None:  # fmt: skip
    """Run the folder of the agent NAME beside its release, for a share of its keys; or show that.

    A key has the same side for as long as the canary runs; runs that were begun before it end on
    the release. Where the canary's keys show more errors, holds, cost or corrections than
    chance allows, the engine aborts it. Without an option what runs is shown.
    """
    settings = current_settings()
    if share is not None and end:
        raise click.UsageError("--share and --end exclude each other")
    if share is None:
        refuse_options(("for_", "min_runs"), "is for --share")
    if share is None and not end:
        refuse_options(("reason", "command_id"), "is for --share or --end")
        _show_canary(settings, name)
        return
    order.require_reason()
    if end:
        done = submit_command(settings, "agent_canary_end", {"agent": name}, order)
        print_result(done, f"{name}: its canary is over; release {done['release'][:_SHORT]} runs")
        return
    args = {
        "agent": name, "share_milli": _parse_share(str(share)), "min_runs": min_runs,
        "for_us": None if for_ is None else parse_length(for_, "--for 2h"),
    }  # fmt: skip
    done = submit_command(settings, "agent_canary", args, order)
    print_result(done, "\n".join([*canary_lines(done), *_wider_lines(done)]))


def _wider_lines(done: Mapping[str, Any]) -> list[str]:
    """Return what is printed of what a release asks for beyond the one that ran."""
    wider = [f"  {sanitize_text(line)}" for line in done["wider"]]
    return ["it asks for more:", *wider] if wider else []


def _show_canary(settings: Settings, name: str) -> None:
    from vedette.interfaces.http.local_client import LocalClient

    client = LocalClient(settings.state)
    running = client.status()["canaries"] if client.is_alive() else []
    found = next((one for one in running if one["agent"] == name), None)
    none = f"{name} has no canary" + ("" if client.is_alive() else "; no fleet runs here")
    text = none if found is None else "\n".join(canary_lines(found))
    print_result({"agent": name, "canary": found}, text)


def canary_lines(one: Mapping[str, Any]) -> list[str]:
    """Return what is printed of a running canary, line by line."""
    ours, theirs = one["canary_side"], one["baseline_side"]
    runs = ours["runs"] + theirs["runs"]
    share = f" ({ours['runs'] / runs:.1%} of the runs)" if runs else ""
    lines = [
        f"canary: {one['agent']} tries {one['canary'][:_SHORT]} beside "
        f"{one['release'][:_SHORT]} for {one['share_milli'] / 10:g}% of its keys until "
        f"{format_time(one['until'])}; a person releases it then",
        f"  {ours['runs']:,} runs of {ours['keys']:,} keys, beside {theirs['runs']:,} of "
        f"{theirs['keys']:,}{share}",
    ]
    if not one["can_find_fault"]:
        lines.append("  too few keys so far: one that failed on each of its own would not be found")
    if one["others"]:
        compared = ours["keys"] + theirs["keys"]
        lines.append(f"  {one['others']:,} runs of other keys are not compared: {compared:,} are")
    for measure, marked in ours["marked"].items():
        if marked or theirs["marked"][measure]:
            chance = one["probability_millionth"][measure] / 1e6
            lines.append(
                f"  {measure}: {marked} keys beside {theirs['marked'][measure]} "
                f"(chance {chance:.6f}, aborted at {one['bound_millionth'] / 1e6:.6f})"
            )
    return lines


def _parse_share(text: str) -> int:
    """Return a share of keys in thousandths. Raises click.BadParameter."""
    try:
        milli = float(text.removesuffix("%")) * 10
    except ValueError:
        milli = -1.0
    if not text.endswith("%") or not 1 <= milli <= 500 or milli != int(milli):
        raise click.BadParameter(
            f"{text!r} is no share: between 0.1% and 50%", param_hint="--share"
        )
    return int(milli)


def _folder(agent: Agent) -> Any:
    from pathlib import Path

    return Path(agent.folder)


def _compare_in_force(
    settings: Settings, name: str, sides: tuple[str, str]
) -> dict[str, Any] | None:
    """Return what of policy and memory was last in force with each side; None before any start.

    With the folder it is what is in force now.
    """
    from vedette.domain.base.errors import BadStore, NotFound
    from vedette.ledger.history.release_history import (
        count_memory_changes,
        find_end,
        find_release,
        read_release_history,
    )

    try:
        with store_reader(settings) as store, store.snapshot():
            periods = read_release_history(store.ledger, name, runs=False)
            found = [
                periods[0] if side in (LIVE, FOLDER) else find_release(periods, side)
                for side in sides
            ]
            ends = [find_end(periods, one) for one in found]
            changes = [
                0 if end is None else count_memory_changes(store.ledger, end) for end in ends
            ]
    except (BadStore, NotFound):
        return None
    return {
        "policy_rev": [one.last_policy_rev for one in found],
        "memory_changes": abs(changes[0] - changes[1]),
    }


def _in_force_lines(in_force: Mapping[str, Any] | None) -> list[str]:
    if in_force is None:
        return []
    (before, after), lines = in_force["policy_rev"], []
    if before != after:
        lines.append(f"policy   revision {before} -> {after}")
    if in_force["memory_changes"]:
        lines.append(f"memory   {in_force['memory_changes']} promotions, retirements, restorations")
    return lines


def _load_side(settings: Settings, name: str, side: str) -> tuple[Agent, str]:
    """Return an agent as one side of a comparison declares it, and the side's name."""
    from vedette.config.agent_snapshot import load_released_agent
    from vedette.domain.base.clock import SystemClock
    from vedette.interfaces.cli.fleet import find_agent, load_agents
    from vedette.ledger.history.release_history import find_release, read_release_history

    if side == FOLDER:
        return find_agent(load_agents(settings).fleet.agents, name), FOLDER
    with store_reader(settings) as store:
        periods = read_release_history(store.ledger, name, runs=False)
    wanted = periods[0] if side == LIVE else find_release(periods, side)
    now_us = SystemClock().now_us()
    agent = load_released_agent(settings, name, wanted.release, now_us=now_us)
    if agent is None:
        what = f"the files of release {wanted.release[:_SHORT]} of {name} are not kept here"
        raise BadCommand(what, mend="see `vedette agent history NAME`: kept ones have no star")
    return agent, wanted.release[:_SHORT]
