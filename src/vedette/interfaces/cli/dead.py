"""`vedette dead`: dead letters, listed, looked at, taken up again, closed for good."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from vedette.domain.base.clock import SystemClock
from vedette.domain.base.errors import BadCommand
from vedette.interfaces.cli.common import (
    as_json_option,
    human_verb,
    obey,
    plain,
    prefix,
    reading,
    say,
    settings_of,
    shown_time,
    table,
)

if TYPE_CHECKING:
    from vedette.config import Settings

_WIDE = 60


@click.group()
def dead() -> None:
    """See the runs that could not be handled, take them up again, or close them for good."""


def _filters(verb: Callable[..., Any]) -> Callable[..., Any]:
    agent = click.option("--agent", metavar="NAME", help="Only this agent's.")
    error = click.option(
        "--error", metavar="NAME", help="Only these: the reason up to its colon, as KeyError."
    )
    return agent(error(verb))


def _which(verb: Callable[..., Any]) -> Callable[..., Any]:
    run = click.argument("run", required=False)
    every = click.option("--all", "everything", is_flag=True, help="All that the options leave.")
    sure = click.option("--yes", is_flag=True, help="With --all: do it, not only count them.")
    return run(_filters(every(sure(human_verb(verb)))))


@dead.command("list")
@_filters
@click.option("--before", metavar="CURSOR", help="The next page: the cursor of this one's end.")
@click.option("--limit", default=20, show_default=True, help="How many; at most 200.")
@as_json_option
@click.pass_context
def list_(ctx: click.Context, /, as_json: bool, **given: Any) -> None:
    """List dead letters with their reasons, newest event first."""
    from vedette.ledger.history.dead_letters import dead_page

    with reading(settings_of(ctx)) as store:
        page = dead_page(store, SystemClock().now_us(), **given)
    rows = [
        [
            item["run"], item["agent"], shown_time(item["at"] or 0), str(len(item["unknown"])),
            "(erased)" if item["erased"] else plain(str(item["why"])).replace("\n", " ")[:_WIDE],
        ]
        for item in page["items"]
    ]  # fmt: skip
    heads = ["run", "agent", "died", "unknown", "why"]
    text = table(heads, rows) if rows else "no dead letters"
    if page["older"]:
        text += f"\nolder: {prefix(ctx)} dead list --before {page['older']}"
    say(as_json, page, text)


@dead.command()
@click.argument("run")
@as_json_option
@click.pass_context
def show(ctx: click.Context, run: str, as_json: bool) -> None:
    """Show why RUN died, where, and what is not known of its effects."""
    from vedette.ledger.history.dead_letters import dead_show

    with reading(settings_of(ctx)) as store:
        found = dead_show(store, run)
    lines = [
        f"{found['run']}  {found['agent']}  died {shown_time(found['at'] or 0)}",
        f"  event {found['event']}, turns {found['turns']}, attempts {found['attempts']}, "
        f"taken up again {found['redriven']} times",
        "  why: " + ("(erased)" if found["erased"] else plain(str(found["why"]))),
    ]
    for action in found["actions"]:
        told = {"unknown": "nobody knows whether it happened", None: "not begun"}
        state = told.get(action["effect"], str(action["effect"]))
        lines.append(f"  {action['action']}  {action['tool']}: {state}")
    if found["trace"]:
        lines += ["", *(f"    {line}" for line in plain(found["trace"]).splitlines())]
    lines.append(f"see: {prefix(ctx)} explain {found['run']}")
    say(as_json, found, "\n".join(lines))


@dead.command()
@_which
@click.pass_context
def redrive(ctx: click.Context, /, **given: Any) -> None:
    """Have RUN handled again, or with --all every dead letter that the options leave.

    What may have happened is found out first, as its tool declares; what never began is decided
    again. With --all and without --yes they are only counted.
    """
    _order(ctx, "redrive", given, "handled again")


@dead.command()
@_which
@click.pass_context
def drop(ctx: click.Context, /, **given: Any) -> None:
    """Close RUN for good, or with --all every dead letter that the options leave.

    Nothing of it is repeated; its content may be erased then. With --all and without --yes they
    are only counted.
    """
    _order(ctx, "drop", given, "closed for good")


def _order(ctx: click.Context, verb: str, given: dict[str, Any], done_as: str) -> None:
    settings = settings_of(ctx)
    runs, more = _runs(settings, given)
    rest = " (there are more: repeat the command for the rest)" if more else ""
    if given["everything"] and not given["yes"]:
        counted = {"dead": len(runs), "more": more, "done": False}
        say(given["as_json"], counted, f"{len(runs)} would be {done_as}{rest}; add --yes to do it")
        return
    if not runs:
        say(given["as_json"], {"moved": [], "refused": [], "more": False}, "no dead letters")
        return
    done = obey(settings, verb, given["reason"], {"runs": runs}, given["command_id"])
    text = f"{len(done['moved'])} {done_as}{rest}"
    for told in done["refused"]:
        text += f"\n{told['run']} stays as it is: {told['why']}"
    if verb == "redrive" and done["by"] == "here":
        text += "\nno fleet runs here; it is acted on at the next `vedette run`"
    say(given["as_json"], {**done, "more": more}, text)


def _runs(settings: Settings, given: dict[str, Any]) -> tuple[list[str], bool]:
    """Return the ids of what is meant, and whether there are more than one command may name."""
    from vedette.ledger.history.dead_letters import dead_named, letter
    from vedette.ledger.history.reader import resolve

    if (given["run"] is not None) == given["everything"]:
        raise BadCommand("say which", mend="give a run, or --all (with --agent or --error)")
    with reading(settings) as store:
        if given["everything"]:
            return dead_named(store, agent=given["agent"], error=given["error"])
        if given["command_id"] is not None:
            # It may be the repeat of an order that was carried out: the store says so.
            return [resolve(store, given["run"])[1]], False
        return [letter(store, given["run"]).id], False
