"""`vedette memory`: what agents know, what was proposed, and what people make of it."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vedette.app.stores import store_reader
from vedette.domain.base.errors import BadCommand
from vedette.interfaces.cli.fleet import command_prefix, current_settings
from vedette.interfaces.cli.orders import (
    OrderCommand,
    OrderOptions,
    confirm,
    require_terminal,
    submit_command,
)
from vedette.interfaces.cli.output import (
    format_table,
    format_time,
    limit_lines,
    print_result,
    sanitize_text,
    single_line,
)

if TYPE_CHECKING:
    from vedette.config.settings import Settings

_TEXT_WIDTH = 34
_STATES = ("active", "candidate", "off", "rejected")
_MAX_SHOWN = 10
_COLUMNS = 80


@click.group()
def memory() -> None:
    """See what agents know, propose more, promote it, take it back."""


# --- what there is ---------------------------------------------------------------------------


@memory.command()
@click.argument("id", required=False)
@click.option("--bank", metavar="NAME", help="Of the list: only this bank's.")
@click.option("--state", type=click.Choice(_STATES), help="Of the list: only what stands so.")
def show(id: str | None, bank: str | None, state: str | None) -> None:
    """List memories and candidates; or show ID: its text, what it rests on, its story.

    In the list reviewed files come first, then what was learned, oldest first. Of a labelled
    example that waits it is also shown which recent events it would have judged otherwise.
    """
    settings = current_settings()
    if id is None:
        _print_list(
            submit_command(settings, "memory_list", {"bank": bank, "state": state})["items"]
        )
        return
    found = _read_memory(settings, id)
    print_result(found, memory_text(found, command_prefix()))


def _print_list(items: list[dict[str, Any]]) -> None:
    rows = [
        [
            single_line(one["id"])[:16], one["bank"], one["state"], one["kind"],
            single_line(one["label"] or "-"), single_line(one["text"])[:_TEXT_WIDTH],
        ]
        for one in items
    ]  # fmt: skip
    heads = ["id", "bank", "state", "kind", "label", "text"]
    text = format_table(heads, rows, fits=False) if rows else "nothing of that"
    lines = [line[:_COLUMNS].rstrip() for line in text.splitlines()]
    print_result({"items": items}, "\n".join(lines))


def _read_memory(settings: Settings, id: str) -> dict[str, Any]:
    """Return what there is to see of a memory, with what its promotion would change."""
    return _add_flips(settings, submit_command(settings, "memory_show", {"id": id}))


def _add_flips(settings: Settings, detail: Mapping[str, Any]) -> dict[str, Any]:
    one, taught, would = detail["memory"], detail["taught"], []
    if taught:
        from vedette.app.memory_trial import try_candidate

        with store_reader(settings) as store:
            would = [try_candidate(store, agent, one, judge) for agent, judge in taught.items()]
    return {"memory": one, "story": detail["story"], "readers": detail["readers"], "would": would}


def memory_text(detail: Mapping[str, Any], program: str) -> str:
    """Return as lines what `vedette memory show` prints of a memory."""
    one = detail["memory"]
    label = f", label {single_line(one['label'])}" if one["label"] else ""
    lines = [
        f"{one['bank']}/{single_line(one['id'])}",
        f"  {one['state']}: {one['kind']}{label}, scope {one['scope']}, {one['trust']}",
    ]
    if one["replaces"]:
        lines.append(f"  takes the place of {single_line(one['replaces'])}")
    if one["agent"]:
        lines.append(f"  proposed by {one['agent']} in {one['run']}")
    for id in one["evidence"]:
        lines.append(f"  rests on {single_line(id)}")
    for part in sanitize_text(one["text"]).splitlines() or [""]:
        lines += textwrap.wrap(part, 74, initial_indent="    ", subsequent_indent="    ") or [""]
    for step in detail["story"]:
        reason = "(erased)" if step["erased"] else single_line(step["reason"] or "")
        who = step["by"] or one["agent"] or "?"
        lines.append(
            f"  {format_time(step['at'])} {step['kind'].partition('.')[2]} by {who}"
            + (f": {reason}" if reason else "")
        )
    for would in detail["would"]:
        lines += _flip_lines(would)
    if one["state"] == "candidate":
        lines.append(f"promote it: {program} memory set {one['id'][:12]} active --reason WHY")
    return "\n".join(part for line in lines for part in _wrap_line(line))


def _wrap_line(line: str) -> list[str]:
    """Return a line in 80 columns; what follows is indented below it."""
    if len(line) <= _COLUMNS:
        return [line]
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    wrapped = textwrap.wrap(
        line, _COLUMNS, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False
    )
    return wrapped or [line]


def _flip_lines(would: Mapping[str, Any]) -> list[str]:
    if would["why_not"]:
        return [f"  {would['agent']}: not tried on its events: {would['why_not']}"]
    flips = [
        f"{flip['run'][:20]}  {single_line(flip['before'])} -> {single_line(flip['after'])}"
        for flip in would["flips"]
    ]
    return [
        f"  {would['agent']}: of its last {would['events']} events {len(flips)} would be judged "
        "otherwise",
        *(f"    {line}" for line in limit_lines(flips, _MAX_SHOWN)),
    ]


# --- what people make of it ------------------------------------------------------------------


@memory.command(cls=OrderCommand)
@click.argument("into", metavar="BANK/SCOPE")
@click.option("--text", metavar="TEXT", help="What to remember.")
@click.option(
    "--file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Or a file of it."
)
@click.option(
    "--kind", type=click.Choice(("fact", "procedure", "example")), default="fact",
    show_default=True, help="What it is.",
)  # fmt: skip
@click.option("--label", metavar="LABEL", help="What an example is an example of.")
@click.option(
    "--topic", "topics", multiple=True, metavar="TOPIC", help="What it is about; repeat it."
)
@click.option("--replaces", metavar="ID", help="The memory that it takes the place of.")
def propose(
    into: str, text: str | None, file: Path | None, topics: tuple[str, ...], order: OrderOptions,
    **more: Any,
) -> None:  # fmt: skip
    """Propose something to remember. It changes nothing before somebody promotes it."""
    if (text is None) == (file is None):
        raise BadCommand("say what to remember", mend="give --text, or --file")
    said = text if file is None else file.read_text(encoding="utf-8")
    args = {"into": into, "text": said, **more, "topics": list(topics)}
    done = submit_command(current_settings(), "memory_propose", args, order)
    see = f"{command_prefix()} memory show {done['candidate'][:12]}"
    print_result(done, f"{done['candidate']} is proposed for {into}\nsee: {see}")


# The order that brings a memory into a state; what waits is promoted, what was off comes back.
_VERBS = {"active": "memory_on", "off": "memory_off", "rejected": "memory_reject"}


@memory.command("set", cls=OrderCommand)
@click.argument("words", metavar="[ID] active|off|rejected", nargs=-1)
@click.option(
    "--from", "source", metavar="SOURCE", help="Not one ID: all of an event, run, person:NAME."
)
@click.option("--yes", is_flag=True, help="Do not ask; needed where there is no terminal.")
@click.option("--as", "verb", hidden=True, type=click.Choice((*_VERBS.values(), "memory_approve")))
def set_(
    words: tuple[str, ...], source: str | None, yes: bool, verb: str | None, order: OrderOptions
) -> None:
    """Promote memory ID, bring it back (active), take it back (off), or turn it down (rejected).

    Before a candidate is promoted you are shown what it says, what it rests on and what it would
    have changed, and asked. It is in force from the next event on. A reviewed file may be taken
    back too.

    With --from everything that was learned from a source is taken back: from person:NAME what they
    proposed, what came of their corrections and answers, and what they ever promoted.
    """
    *ids, state = words or ("",)
    only_off = source is not None or not ids
    if state not in _VERBS or len(ids) > 1 or (only_off and state != "off"):
        raise click.UsageError(f"name an ID and one of {', '.join(_VERBS)}, or --from SOURCE off")
    settings, args = current_settings(), {"id": ids[0] if ids else None}
    if source is not None:
        args["source"] = source
    if verb is None:
        verb = _VERBS[state]
        if state == "active":
            now = submit_command(settings, "memory_show", {"id": ids[0]})["memory"]["state"]
            # What is active is so by this very order, if it is a repeat: the store knows its id.
            verb = "memory_approve" if now == "candidate" else verb
    if verb == "memory_approve":
        _promote(settings, ids[0], order, yes=yes)
        return
    done = submit_command(settings, verb, args, order)
    print_result(done, _result_text(done))


def _promote(settings: Settings, id: str, order: OrderOptions, *, yes: bool) -> None:
    program = command_prefix()

    def shown(detail: Mapping[str, Any]) -> str:
        return memory_text(detail, program).rpartition("\npromote it")[0]

    if not yes:
        mend = f"look at it with `{program} memory show {id}`, then add --yes"
        refusal = BadCommand("nobody can be asked here: there is no terminal", mend=mend)
        require_terminal(refusal)  # before it is tried on events for nobody
        confirm("promote it?", [shown(_read_memory(settings, id))], refusal, sure=False)
    done = submit_command(settings, "memory_approve", {"id": id}, order)
    done["seen"] = _add_flips(settings, done["seen"])
    before = f"{shown(done['seen'])}\n" if yes else ""
    print_result(done, before + _result_text(done))


def _result_text(result: Mapping[str, Any]) -> str:
    words = {"active": "is recalled", "off": "is not recalled any more", "rejected": "is rejected"}
    lines = [f"{one['memory']} {words[one['state']]}" for one in result["moved"]]
    if result["judges"]:
        lines.append(f"taught anew: {', '.join(result['judges'])}")
    return "\n".join(lines)
