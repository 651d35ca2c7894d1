"""`vedette dead`: dead letters, listed, looked at, taken up again, closed for good."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from vedette.app.stores import store_reader
from vedette.domain.base.clock import SystemClock
from vedette.domain.base.errors import BadCommand
from vedette.interfaces.cli.fleet import (
    command_prefix,
    current_settings,
    page_options,
    refuse_options,
)
from vedette.interfaces.cli.orders import (
    OrderCommand,
    OrderOptions,
    deferred_note,
    submit_command,
)
from vedette.interfaces.cli.output import format_table, format_time, print_result, sanitize_text

if TYPE_CHECKING:
    from vedette.config.settings import Settings

_WIDTH = 60
_EFFECT_TEXTS = {"unknown": "nobody knows whether it happened", "None": "not begun"}


@click.command(cls=OrderCommand, needs_reason=False)
@click.argument("run", required=False)
@click.option("--redrive", is_flag=True, help="Have RUN handled again.")
@click.option("--drop", is_flag=True, help="Close RUN for good.")
@click.option("--all", "everything", is_flag=True, help="Not one RUN: all that the options leave.")
@click.option("--yes", is_flag=True, help="With --all: do it, not only count them.")
@click.option("--agent", metavar="NAME", help="Only this agent's.")
@click.option(
    "--error", metavar="NAME", help="Only these: the reason up to its colon, as KeyError."
)
@page_options
def dead(
    run: str | None, redrive: bool, drop: bool, everything: bool, yes: bool, agent: str | None,
    error: str | None, page: str | None, limit: int, order: OrderOptions,
) -> None:  # fmt: skip
    """List the runs that could not be handled, newest event first; or show why RUN died.

    With --redrive what may have happened is found out first, as its tool declares; what never began
    is decided again. With --drop nothing of it is repeated, and its content may be erased then.
    """
    if redrive and drop:
        raise click.UsageError("--redrive and --drop exclude each other")
    if redrive or drop or run is not None:
        refuse_options(("page", "limit"), "is of the list")
    if not (redrive or drop):
        refuse_options(("reason", "command_id"), "is for --redrive or --drop")
    if redrive or drop:
        _order(run, everything, yes, agent, error, order, verb="redrive" if redrive else "drop")
    elif everything or yes:
        raise click.UsageError("say what to do: --redrive or --drop")
    elif run is not None:
        refuse_options(("agent", "error"), "is of the list")
        _show(run)
    else:
        _list(agent, error, page, limit)


def _list(agent: str | None, error: str | None, before: str | None, limit: int) -> None:
    from vedette.ledger.history.dead_letters import dead_letter_page

    with store_reader(current_settings()) as store:
        page = dead_letter_page(
            store, SystemClock().now_us(), agent=agent, error=error, before=before, limit=limit
        )
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
        text += f"\nolder: {command_prefix()} dead --page {page['older']}"
    print_result(page, text)


def _show(run: str) -> None:
    from vedette.ledger.history.dead_letters import show_dead_letter

    with store_reader(current_settings()) as store:
        found = show_dead_letter(store, run)
    lines = [
        f"{found['run']}  {found['agent']}  died {format_time(found['at'] or 0)}",
        f"  event {found['event']}, turns {found['turns']}, attempts {found['attempts']}, "
        f"taken up again {found['redriven']} times",
        "  why: " + ("(erased)" if found["erased"] else sanitize_text(str(found["why"]))),
    ]
    for action in found["actions"]:
        effect = str(action["effect"])
        lines.append(f"  {action['action']}  {action['tool']}: {_EFFECT_TEXTS.get(effect, effect)}")
    if found["trace"]:
        lines += ["", *(f"    {line}" for line in sanitize_text(found["trace"]).splitlines())]
    lines.append(f"see: {command_prefix()} explain {found['run']}")
    print_result(found, "\n".join(lines))


def _reason_text(item: dict[str, Any]) -> str:
    if item["erased"]:
        return "(erased)"
    return sanitize_text(str(item["why"])).replace("\n", " ")[:_WIDTH]


def _order(
    run: str | None, everything: bool, yes: bool, agent: str | None, error: str | None,
    order: OrderOptions, *, verb: str,
) -> None:  # fmt: skip
    order.require_reason()
    result_text = "handled again" if verb == "redrive" else "closed for good"
    settings = current_settings()
    runs, more = _select_runs(settings, run, everything, agent, error, order)
    rest = " (there are more: repeat the command for the rest)" if more else ""
    if everything and not yes:
        counted = {"dead": len(runs), "more": more, "done": False}
        print_result(counted, f"{len(runs)} would be {result_text}{rest}; add --yes to do it")
        return
    if not runs:
        print_result({"moved": [], "refused": [], "more": False}, "no dead letters")
        return
    done = submit_command(settings, verb, {"runs": runs}, order)
    lines = [f"{len(done['moved'])} {result_text}{rest}"]
    lines += [f"{one['run']} stays as it is: {one['why']}" for one in done["refused"]]
    if verb == "redrive":
        lines += deferred_note(done, "it is acted on")
    print_result({**done, "more": more}, "\n".join(lines))


def _select_runs(
    settings: Settings, run: str | None, everything: bool, agent: str | None, error: str | None,
    order: OrderOptions,
) -> tuple[list[str], bool]:  # fmt: skip
    """Return the ids of what is meant, and whether there are more than one command may name."""
    from vedette.ledger.history.dead_letters import find_dead_letter, list_dead_letters
    from vedette.ledger.history.reader import resolve

    if (run is not None) == everything:
        raise BadCommand("say which", mend="give a run, or --all (with --agent or --error)")
    with store_reader(settings) as store:
        if run is None:
            return list_dead_letters(store, agent=agent, error=error)
        if order.command_id is not None:
            # It may be the repeat of an order that was carried out: the store says so.
            return [resolve(store, run)[1]], False
        return [find_dead_letter(store, run).id], False
