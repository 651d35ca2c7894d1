"""`vedette dead`: dead letters, listed, looked at, taken up again, closed for good."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from vedette.domain.base.clock import SystemClock
from vedette.domain.base.errors import BadCommand
from vedette.interfaces.cli.common import (
    as_json_option,
    command_prefix,
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

_WIDTH = 60


@click.group()
def dead() -> None:
    """See the runs that could not be handled, take them up again, or close them for good."""


def _filter_options(verb: Callable[..., Any]) -> Callable[..., Any]:
    agent = click.option("--agent", metavar="NAME", help="Only this agent's.")
    error = click.option(
        "--error", metavar="NAME", help="Only these: the reason up to its colon, as KeyError."
    )
    return agent(error(verb))


def _selection_options(verb: Callable[..., Any]) -> Callable[..., Any]:
    run = click.argument("run", required=False)
    every = click.option("--all", "everything", is_flag=True, help="All that the options leave.")
    sure = click.option("--yes", is_flag=True, help="With --all: do it, not only count them.")
    return run(_filter_options(every(sure(order_options(verb)))))


@dead.command("list")
@_filter_options
@click.option("--before", metavar="CURSOR", help="The next page: the cursor of this one's end.")
@click.option("--limit", default=20, show_default=True, help="How many; at most 200.")
@as_json_option
@click.pass_context
def list_(ctx: click.Context, /, as_json: bool, **options: Any) -> None:
    """List dead letters with their reasons, newest event first."""
    from vedette.ledger.history.dead_letters import dead_letter_page

    with store_reader(settings_of(ctx)) as store:
        page = dead_letter_page(store, SystemClock().now_us(), **options)
    rows = [
        [
            item["run"], item["agent"], format_time(item["at"] or 0), str(len(item["unknown"])),
            _reason_text(item),
        ]
        for item in page["items"]
    ]  # fmt: skip
    heads = ["run", "agent", "died", "unknown", "why"]
    text = format_table(heads, rows) if rows else "no dead letters"
    if page["older"]:
        text += f"\nolder: {command_prefix(ctx)} dead list --before {page['older']}"
    print_result(as_json, page, text)


@dead.command()
@click.argument("run")
@as_json_option
@click.pass_context
def show(ctx: click.Context, run: str, as_json: bool) -> None:
    """Show why RUN died, where, and what is not known of its effects."""
    from vedette.ledger.history.dead_letters import show_dead_letter

    with store_reader(settings_of(ctx)) as store:
        found = show_dead_letter(store, run)
    lines = [
        f"{found['run']}  {found['agent']}  died {format_time(found['at'] or 0)}",
        f"  event {found['event']}, turns {found['turns']}, attempts {found['attempts']}, "
        f"taken up again {found['redriven']} times",
        "  why: " + ("(erased)" if found["erased"] else sanitize_text(str(found["why"]))),
    ]
    for action in found["actions"]:
        told = {"unknown": "nobody knows whether it happened", None: "not begun"}
        state = told.get(action["effect"], str(action["effect"]))
        lines.append(f"  {action['action']}  {action['tool']}: {state}")
    if found["trace"]:
        lines += ["", *(f"    {line}" for line in sanitize_text(found["trace"]).splitlines())]
    lines.append(f"see: {command_prefix(ctx)} explain {found['run']}")
    print_result(as_json, found, "\n".join(lines))


@dead.command()
@_selection_options
@click.pass_context
def redrive(ctx: click.Context, /, **options: Any) -> None:
    """Have RUN handled again, or with --all every dead letter that the options leave.

    What may have happened is found out first, as its tool declares; what never began is decided
    again. With --all and without --yes they are only counted.
    """
    _submit_order(ctx, "redrive", options, "handled again")


@dead.command()
@_selection_options
@click.pass_context
def drop(ctx: click.Context, /, **options: Any) -> None:
    """Close RUN for good, or with --all every dead letter that the options leave.

    Nothing of it is repeated; its content may be erased then. With --all and without --yes they
    are only counted.
    """
    _submit_order(ctx, "drop", options, "closed for good")


def _reason_text(item: dict[str, Any]) -> str:
    if item["erased"]:
        return "(erased)"
    return sanitize_text(str(item["why"])).replace("\n", " ")[:_WIDTH]


def _submit_order(ctx: click.Context, verb: str, options: dict[str, Any], result_text: str) -> None:
    settings = settings_of(ctx)
    runs, more = _select_runs(settings, options)
    rest = " (there are more: repeat the command for the rest)" if more else ""
    if options["everything"] and not options["yes"]:
        counted = {"dead": len(runs), "more": more, "done": False}
        print_result(
            options["as_json"],
            counted,
            f"{len(runs)} would be {result_text}{rest}; add --yes to do it",
        )
        return
    if not runs:
        print_result(
            options["as_json"], {"moved": [], "refused": [], "more": False}, "no dead letters"
        )
        return
    done = submit_command(settings, verb, options["reason"], {"runs": runs}, options["command_id"])
    text = f"{len(done['moved'])} {result_text}{rest}"
    for told in done["refused"]:
        text += f"\n{told['run']} stays as it is: {told['why']}"
    if verb == "redrive" and done["by"] == "here":
        text += "\nno fleet runs here; it is acted on at the next `vedette run`"
    print_result(options["as_json"], {**done, "more": more}, text)


def _select_runs(settings: Settings, options: dict[str, Any]) -> tuple[list[str], bool]:
    """Return the ids of what is meant, and whether there are more than one command may name."""
    from vedette.ledger.history.dead_letters import find_dead_letter, list_dead_letters
    from vedette.ledger.history.reader import resolve

    if (options["run"] is not None) == options["everything"]:
        raise BadCommand("say which", mend="give a run, or --all (with --agent or --error)")
    with store_reader(settings) as store:
        if options["everything"]:
            return list_dead_letters(store, agent=options["agent"], error=options["error"])
        if options["command_id"] is not None:
            # It may be the repeat of an order that was carried out: the store says so.
            return [resolve(store, options["run"])[1]], False
        return [find_dead_letter(store, options["run"]).id], False
