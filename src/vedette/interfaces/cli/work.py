"""`vedette work`: give agents tasks, look at them, add to them, steer, pause, resume, cancel."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from vedette.app.stores import store_reader
from vedette.domain.base.errors import BadCommand
from vedette.interfaces.cli.fleet import command_prefix, current_settings, load_agents
from vedette.interfaces.cli.orders import (
    OrderCommand,
    OrderOptions,
    deferred_note,
    submit_command,
)
from vedette.interfaces.cli.output import (
    format_table,
    format_time,
    print_result,
    sanitize_text,
    single_line,
)

_GOAL_WIDTH = 40
_SAID = {
    "task.steered": "noted for the next turn; the task goes on",
    "task.paused": "paused: nothing of it begins until it is resumed",
    "task.resumed": "resumed: its bounds count anew from here",
    "task.cancelled": "cancelled: what is open is not begun any more",
    "task.moved": "it goes on under the release that the fleet runs",
    "task.added": "added; its next turn is told, and no finish before that ends it",
    "task.revised": "its goal is this from its next turn on",
}


@click.group()
def work() -> None:
    """Give an agent a task, see how far it is, add to it; steer, pause, resume, cancel it."""


@work.command(cls=OrderCommand)
@click.argument("agent")
@click.option("--goal", metavar="TEXT", required=True, help="What is to be reached, word for word.")
@click.option("--input", "inputs", metavar="NAME=VALUE", multiple=True, help="JSON, else a text.")
@click.option(
    "--done", metavar="FILE", type=click.Path(path_type=Path),
    help="What must hold beside the agent's done.yaml: a file like that.",
)  # fmt: skip
@click.option("--deadline", metavar="TIME", help="After which a person is asked, for example 3d.")
def start(
    agent: str, goal: str, inputs: tuple[str, ...], done: Path | None, deadline: str | None,
    order: OrderOptions,
) -> None:  # fmt: skip
    """Give AGENT a task. It ends when its done conditions hold, or by a person's word."""
    settings = current_settings()
    args: dict[str, Any] = {"agent": agent, "goal": goal, "deadline": deadline}
    if inputs:
        args["inputs"] = dict(_parse_input(text) for text in inputs)
    if done is not None:
        args["conditions"] = _read_done_file(done)
    given = submit_command(settings, "work_start", args, order)
    lines = [f"task {given['run']} of {given['agent']}"]
    lines += deferred_note(given, "it is begun")
    lines.append(f"see: {command_prefix()} work show {given['run']}")
    print_result(given, "\n".join(lines))


def _parse_input(text: str) -> tuple[str, Any]:
    name, sign, value = text.partition("=")
    if not sign or not name.isidentifier():
        raise BadCommand(f"{text!r} is no input", mend="write --input NAME=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _read_done_file(path: Path) -> Any:
    from vedette.config.problem import raise_first_error
    from vedette.config.yaml import read_yaml

    document, problems = read_yaml(path, str(path))
    raise_first_error(problems)
    value = document.value
    if not isinstance(value, dict) or not isinstance(value.get("conditions"), list):
        raise BadCommand("has no conditions", where=str(path), mend="write conditions: and a list")
    return value["conditions"]


@work.command("list")
@click.option("--all", "ended", is_flag=True, help="Those too that have ended.")
@click.option("--limit", type=click.IntRange(1, 200), default=50, show_default=True)
def list_(ended: bool, limit: int) -> None:
    """List tasks, newest first: how far each is, and what it waits for."""
    from vedette.ledger.history.tasks import list_tasks

    settings = current_settings()
    agents = load_agents(settings).fleet.agents
    with store_reader(settings) as store:
        found = list_tasks(store, agents, ended=ended, limit=limit)
    rows = [
        [
            one["run"], one["agent"], _standing(one), str(one["turns"]), _count(one["items"]),
            single_line(one["goal"])[:_GOAL_WIDTH],
        ]
        for one in found
    ]  # fmt: skip
    heads = ["run", "agent", "state", "turns", "items", "goal"]
    print_result({"items": found}, format_table(heads, rows) if rows else "no task")


@work.command()
@click.argument("run")
@click.option("--trajectory", is_flag=True, help="Its course, and what each item took and cost.")
def show(run: str, trajectory: bool) -> None:
    """Show a task: goal, conditions, items, what was spent, what it waits for, what was said.

    With --trajectory also what it did by item, what was refused, what came right after a failure,
    and how long it waited for people: read from the ledger alone.
    """
    from vedette.ledger.history.tasks import show_task

    settings = current_settings()
    agents = load_agents(settings).fleet.agents
    with store_reader(settings) as store, store.snapshot():
        found = show_task(store, agents, run)
        lines = _task_lines(found)
        if trajectory:
            from vedette.interfaces.render.task_text import ITEM_HEADS, item_rows, trajectory_lines
            from vedette.ledger.history.trajectory import read_trajectory

            course = read_trajectory(store.ledger, run).to_json()
            found = {**found, "trajectory": course}
            lines += ["trajectory", *(f"  {one}" for one in trajectory_lines(course, format_time))]
            if rows := item_rows(course):
                lines.append(format_table(ITEM_HEADS, rows))
    print_result(found, "\n".join(lines))


@work.command(cls=OrderCommand)
@click.argument("run")
@click.option("--note", metavar="TEXT", required=True, help="What its next turns are told of you.")
def steer(run: str, note: str, order: OrderOptions) -> None:
    """Note something to the task of RUN; if it waits for a person, it goes on."""
    _say("work_steer", {"run": run, "note": note}, order)


@work.command(cls=OrderCommand)
@click.argument("run")
@click.option("--item", metavar="ID", required=True, help="Its name in the task.")
@click.option("--title", metavar="TEXT", required=True, help="What is to be done.")
@click.option("--input", "inputs", metavar="NAME=VALUE", multiple=True, help="JSON, else a text.")
def add(run: str, item: str, title: str, inputs: tuple[str, ...], order: OrderOptions) -> None:
    """Add an item to the task of RUN; if it waits for a person, it goes on."""
    args: dict[str, Any] = {"run": run, "item": item, "title": title}
    if inputs:
        args["inputs"] = dict(_parse_input(text) for text in inputs)
    _say("work_add", args, order)


@work.command(cls=OrderCommand)
@click.argument("run")
@click.option("--goal", metavar="TEXT", required=True, help="What is to be reached, word for word.")
@click.option(
    "--done", metavar="FILE", type=click.Path(path_type=Path),
    help="What must hold, in the place of what was given or proposed; done.yaml's still must.",
)  # fmt: skip
def goal(run: str, goal: str, done: Path | None, order: OrderOptions) -> None:
    """Give the task of RUN another goal; its items stay. If it waits for a person, it goes on.

    What its first turn proposed holds no more. To drop the approval of a person you need approver.
    """
    args: dict[str, Any] = {"run": run, "goal": goal}
    if done is not None:
        args["conditions"] = _read_done_file(done)
    _say("work_goal", args, order)


@work.command(cls=OrderCommand)
@click.argument("run")
def pause(run: str, order: OrderOptions) -> None:
    """Have the task of RUN begin nothing more until it is resumed."""
    _say("work_pause", {"run": run}, order)


@work.command(cls=OrderCommand)
@click.argument("run")
def resume(run: str, order: OrderOptions) -> None:
    """Have the task of RUN go on; its turns, time and progress are counted anew."""
    _say("work_resume", {"run": run}, order)


@work.command(cls=OrderCommand)
@click.argument("run")
def cancel(run: str, order: OrderOptions) -> None:
    """End the task of RUN; what is open is not begun any more."""
    _say("work_cancel", {"run": run}, order)


@work.command(cls=OrderCommand)
@click.argument("run")
def move(run: str, order: OrderOptions) -> None:
    """Have the task of RUN go on under the release of its agent that the fleet runs now.

    Without that it stays on the release that it runs on until its model's next hand-off.
    """
    _say("work_move", {"run": run}, order)


def _say(verb: str, args: Mapping[str, Any], order: OrderOptions) -> None:
    done = submit_command(current_settings(), verb, args, order)
    lines = [f"{done['run']}: {_SAID[done['said']]}", *deferred_note(done, "it is acted on")]
    if untold := done.get("untold"):
        lines.append(f"events that joined it, and that no turn was told of: {untold}")
    if dropped := done.get("dropped"):
        lines.append(f"no condition any more: {', '.join(dropped)}")
    print_result(done, "\n".join(lines))


def _standing(one: Mapping[str, Any]) -> str:
    return f"waits: {one['waits']}" if one["waits"] else str(one["state"])


def _count(items: Mapping[str, int]) -> str:
    return f"{items.get('done', 0)} of {items['of']}" if items["of"] else "-"


def _ask_standing(one: Mapping[str, Any]) -> str:
    """Return how an ask stands, in a line: its run, and what that waits for."""
    if one["run"] is None:
        return str(one["state"])
    waits = f", which waits: {one['waits']}" if one["waits"] else ""
    spent = "".join(f", {amount} {unit}" for unit, amount in (one["spent"] or {}).items())
    return f"{one['state']}{spent}, {one['run']}{waits}"


def _release_lines(found: Mapping[str, Any]) -> list[str]:
    own, live = found["release"], found["live_release"]
    if own is None:
        return []
    behind = "" if own == live else f"; the fleet runs {live[:12]}"
    return [f"release: {own[:12]}{behind}"]


def _task_lines(found: Mapping[str, Any]) -> list[str]:
    from vedette.ledger.history.action import format_awaited

    turns = f"{found['turns']} of {found['limits']['turns']} turns"
    lines = [f"{found['run']} of {found['agent']}: {_standing(found)}, {turns}"]
    if found["why"]:
        lines.append(f"  why: {single_line(found['why'])}")
    lines += _release_lines(found)
    lines.append("goal" if found["revision"] == 1 else f"goal, revision {found['revision']}")
    lines += [f"  {line}" for line in sanitize_text(found["goal"]).splitlines()]
    if found["conditions"]:
        lines.append("conditions, as the last turn was told")
    if found["proposed"]:
        lines.append(f"  proposed by its first turn: {', '.join(found['proposed'])}")
    lines += [
        f"  [{'x' if one['held'] else ' '}] {one['name']}: {single_line(one['why'])}"
        for one in found["conditions"]
    ]
    lines += _plan_lines(found)
    if found["item_list"]:
        lines.append(f"items: {_count(found['items'])} done")
    for item in found["item_list"]:
        why = f": {single_line(item['why'])}" if item["why"] else ""
        title = single_line(item["title"])
        lines.append(f"  {item['state']:9} {single_line(item['id'])} {title}{why}")
    if found["asked_by"]:
        asker = found["asked_by"]
        names = " → ".join(single_line(name) for name in asker["agents"])
        lines.insert(1, f"  asked by {names}, for {asker['run']}")
    for one in found["asks"]:
        lines.append(f"asked {single_line(one['agent'])}: {_ask_standing(one)}")
    for one in found["awaits"]:
        what = single_line(format_awaited(one))
        lines.append(f"{one['tool']} waits for {what}, until {format_time(one['until'])} at most")
    limits = found["limits"]
    for unit, amount in found["spend"].items():
        bound = f" of {limits[unit]}" if unit in limits else ""
        lines.append(f"spent: {amount}{bound} {unit}")
    for word in found["said"]:
        who = f" by {single_line(word['by'])}" if word["by"] else ""
        kind = word["kind"].partition(".")[2]
        lines.append(f"{format_time(word['at'])} {kind}{who}: {single_line(word['why'] or '')}")
    return lines


def _plan_lines(found: Mapping[str, Any]) -> list[str]:
    """Return the lines of a plan: its phases, and why each of its revisions was made."""
    plan = found["plan"]
    if not plan:
        return []
    lines = [f"plan, revision {plan['revision']}"]
    for phase in plan["phases"]:
        count = f"{phase['closed']} of {phase['of']} closed"
        lines.append(f"  {phase['state']:9} {single_line(phase['title'])}: {count}")
    for one in found["plans"]:
        lines.append(f"  made by {one['trigger']}: {single_line(one['reason'])}")
    return lines
