"""`vedette memory`: what agents know, what was proposed, and what people make of it."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

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
    submit_command,
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


@memory.command("list")
@click.option("--bank", metavar="NAME", help="Only this bank's.")
@click.option("--state", type=click.Choice(_STATES), help="Only what stands so.")
@as_json_option
@click.pass_context
def list_(ctx: click.Context, bank: str | None, state: str | None, as_json: bool) -> None:
    """List memories and candidates: reviewed files first, then what was learned, oldest first."""
    args = {"bank": bank, "state": state}
    found = submit_command(settings_of(ctx), "memory_list", "", args, None)
    items = found["items"]
    rows = [
        [
            _single_line(one["id"])[:16], one["bank"], one["state"], one["kind"],
            _single_line(one["label"] or "-"), _single_line(one["text"])[:_TEXT_WIDTH],
        ]
        for one in items
    ]  # fmt: skip
    heads = ["id", "bank", "state", "kind", "label", "text"]
    text = format_table(heads, rows, fits=False) if rows else "nothing of that"
    print_result(
        as_json, {"items": items}, "\n".join(line[:80].rstrip() for line in text.splitlines())
    )


@memory.command()
@click.argument("id")
@as_json_option
@click.pass_context
def show(ctx: click.Context, id: str, as_json: bool) -> None:
    """Show a memory or candidate ID: its text, what it rests on, its story.

    Of a labelled example that waits, also which recent events it would have judged otherwise.
    """
    settings = settings_of(ctx)
    found = read_memory(settings, id)
    print_result(as_json, found, memory_text(found, command_prefix(ctx)))


def read_memory(settings: Settings, id: str) -> dict[str, Any]:
    """Return what there is to see of a memory, with what its promotion would change."""
    return _add_flips(settings, submit_command(settings, "memory_show", "", {"id": id}, None))


def _add_flips(settings: Settings, detail: Mapping[str, Any]) -> dict[str, Any]:
    from vedette.interfaces.cli.memory_flips import find_flips

    one, taught = detail["memory"], detail["taught"]
    would = [find_flips(settings, agent, one, lessons) for agent, lessons in taught.items()]
    return {"memory": one, "story": detail["story"], "readers": detail["readers"], "would": would}


def memory_text(detail: Mapping[str, Any], program: str) -> str:
    """Return what there is to see of a memory as lines."""
    one = detail["memory"]
    label = f", label {_single_line(one['label'])}" if one["label"] else ""
    lines = [
        f"{one['bank']}/{_single_line(one['id'])}",
        f"  {one['state']}: {one['kind']}{label}, scope {one['scope']}, {one['trust']}",
    ]
    if one["replaces"]:
        lines.append(f"  takes the place of {_single_line(one['replaces'])}")
    if one["agent"]:
        lines.append(f"  proposed by {one['agent']} in {one['run']}")
    for id in one["evidence"]:
        lines.append(f"  rests on {_single_line(id)}")
    for part in sanitize_text(one["text"]).splitlines() or [""]:
        lines += textwrap.wrap(part, 74, initial_indent="    ", subsequent_indent="    ") or [""]
    for step in detail["story"]:
        reason = "(erased)" if step["erased"] else _single_line(step["reason"] or "")
        who = step["by"] or one["agent"] or "?"
        lines.append(
            f"  {format_time(step['at'])} {step['kind'].partition('.')[2]} by {who}"
            + (f": {reason}" if reason else "")
        )
    for would in detail["would"]:
        lines += _flip_lines(would)
    if one["state"] == "candidate":
        lines.append(f"promote it: {program} memory approve {one['id'][:12]} --reason WHY")
    return "\n".join(part for line in lines for part in _wrap_line(line))


def _single_line(text: str) -> str:
    """Return text of unknown origin as one line that can be told from ours."""
    return sanitize_text(" ".join(str(text).split()))


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
    flips = would["flips"]
    lines = [
        f"  {would['agent']}: of its last {would['events']} events {len(flips)} would be judged "
        "otherwise"
    ]
    for flip in flips[:_MAX_SHOWN]:
        moved = f"{_single_line(flip['before'])} -> {_single_line(flip['after'])}"
        lines.append(f"    {flip['run'][:20]}  {moved}")
    if len(flips) > _MAX_SHOWN:
        lines.append(f"    and {len(flips) - _MAX_SHOWN} more")
    return lines


@memory.command()
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
@order_options
@click.pass_context
def propose(
    ctx: click.Context, /, into: str, text: str | None, file: Path | None, reason: str,
    command_id: str | None, as_json: bool, **more: Any,
) -> None:  # fmt: skip
    """Propose something to remember. It changes nothing before somebody promotes it."""
    if (text is None) == (file is None):
        raise BadCommand("say what to remember", mend="give --text, or --file")
    said = text if file is None else file.read_text(encoding="utf-8")
    args = {"into": into, "text": said, **more, "topics": list(more["topics"])}
    done = submit_command(settings_of(ctx), "memory_propose", reason, args, command_id)
    see = f"{command_prefix(ctx)} memory show {done['candidate'][:12]}"
    print_result(as_json, done, f"{done['candidate']} is proposed for {into}\nsee: {see}")


@memory.command()
@click.argument("candidate")
@click.option("--yes", is_flag=True, help="Do not ask; needed where there is no terminal.")
@order_options
@click.pass_context
def approve(
    ctx: click.Context, candidate: str, yes: bool, reason: str, command_id: str | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Promote CANDIDATE: it is recalled from the next event on.

    You are shown what it says, what it rests on and what it would have changed, and asked. With
    --yes nothing is asked, and the same is printed.
    """
    settings = settings_of(ctx)
    asks = not yes
    if asks and not sys.stdin.isatty():
        raise BadCommand(
            "nobody can be asked here: there is no terminal",
            mend=f"look at it with `{command_prefix(ctx)} memory show {candidate}`, then add --yes",
        )
    if asks:
        shown = memory_text(read_memory(settings, candidate), command_prefix(ctx)).rpartition(
            "\npromote it"
        )[0]
        click.echo(shown, err=as_json)
        click.confirm("promote it?", abort=True, err=as_json)
    done = submit_command(settings, "memory_approve", reason, {"id": candidate}, command_id)
    done["seen"] = _add_flips(settings, done["seen"])
    before = (
        ""
        if asks
        else memory_text(done["seen"], command_prefix(ctx)).rpartition("\npromote it")[0] + "\n"
    )
    print_result(as_json, done, before + _result_text(done))


@memory.command()
@click.argument("candidate")
@order_options
@click.pass_context
def reject(
    ctx: click.Context, candidate: str, reason: str, command_id: str | None, as_json: bool
) -> None:
    """Turn CANDIDATE down for good."""
    _submit_order(ctx, "memory_reject", {"id": candidate}, reason, command_id, as_json)


@memory.command()
@click.argument("id", required=False)
@click.option(
    "--from", "source", metavar="SOURCE", help="All of an event, run, agent, person:NAME."
)
@order_options
@click.pass_context
def off(
    ctx: click.Context, id: str | None, source: str | None, reason: str, command_id: str | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Take memory ID back, or with --from everything that was learned from a source.

    It is not recalled any more, from the next event on. A reviewed file may be taken back too.

    From person:NAME was learned what they proposed, what came of their corrections and answers,
    and what they ever promoted or brought back.
    """
    _submit_order(ctx, "memory_off", {"id": id, "source": source}, reason, command_id, as_json)


@memory.command("on")
@click.argument("id")
@order_options
@click.pass_context
def on_(ctx: click.Context, id: str, reason: str, command_id: str | None, as_json: bool) -> None:
    """Bring memory ID back that was taken back."""
    _submit_order(ctx, "memory_on", {"id": id}, reason, command_id, as_json)


def _submit_order(
    ctx: click.Context, verb: str, args: Mapping[str, Any], reason: str, command_id: str | None,
    as_json: bool,
) -> None:  # fmt: skip
    done = submit_command(settings_of(ctx), verb, reason, args, command_id)
    print_result(as_json, done, _result_text(done))


def _result_text(result: Mapping[str, Any]) -> str:
    words = {"active": "is recalled", "off": "is not recalled any more", "rejected": "is rejected"}
    lines = [f"{one['memory']} {words[one['state']]}" for one in result["moved"]]
    if result["judges"]:
        lines.append(f"taught anew: {', '.join(result['judges'])}")
    return "\n".join(lines)
