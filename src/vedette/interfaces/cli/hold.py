"""`vedette hold list`, `show`, `claim`, `note`: what waits for an answer, and who looks at it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from vedette.domain.base.clock import SystemClock
from vedette.domain.display_text import format_event
from vedette.interfaces.cli.approve import find_hold, render_group
from vedette.interfaces.cli.common import (
    as_json_option,
    command_prefix,
    format_time,
    print_result,
    sanitize_text,
    settings_of,
    store_reader,
    submit_command,
)
from vedette.interfaces.cli.hold_text import (
    DIGEST_DIGITS,
    attention_lines,
    fold_lines,
    group_lines,
    hold_lines,
    safe_json,
    safe_line,
    width,
)

_WAITS = ("approval", "time", "resume", "target", "budget", "policy", "all")
_MAX_CHARS = 160


@click.group()
def hold() -> None:
    """See what waits for a person, or for anything else; say that you look at it."""


@hold.command("list")
@click.option(
    "--waits", type=click.Choice(_WAITS), default="approval", show_default=True,
    help="What it waits for.",
)  # fmt: skip
@click.option("--after", metavar="CURSOR", help="The next page.")
@click.option("--limit", default=20, show_default=True, help="How many; at most 200.")
@click.option("--group", "by_group", is_flag=True, help="What is alike together, told once.")
@as_json_option
@click.pass_context
def hold_list(
    ctx: click.Context, waits: str, after: str | None, limit: int, by_group: bool, as_json: bool
) -> None:
    """List holds, oldest first: who, about what and the exact action.

    What stands behind a bar was written outside. `hold show` shows one whole, to answer it.
    """
    from vedette.ledger.history.lists import inbox

    if by_group:
        _print_groups(ctx, None if waits == "all" else waits, as_json)
        return
    with store_reader(settings_of(ctx)) as store:
        page = inbox(
            store,
            SystemClock().now_us(),
            after=after,
            limit=limit,
            waits=None if waits == "all" else waits,
        )
    lines = fold_lines(
        [line for item in page["items"] for line in _lines(item)], width(), at_spaces=True
    )
    lines.append(f"look at one: {command_prefix(ctx)} hold show HOLD" if lines else "nothing waits")
    if page["newer"]:
        lines.append(
            f"more: {command_prefix(ctx)} hold list --waits {waits} --after {page['newer']}"
        )
    print_result(as_json, page, "\n".join(lines))


def _print_groups(ctx: click.Context, waits: str | None, as_json: bool) -> None:
    from vedette.ledger.history.hold_groups import groups

    with store_reader(settings_of(ctx)) as store:
        found = groups(store, SystemClock().now_us(), waits)
    lines = [line for each in found["items"] for line in group_lines(each)]
    if lines:
        lines.append(f"look at one: {command_prefix(ctx)} hold show GROUP")
    if found["cut"]:
        lines.append(f"only the oldest {found['holds']} holds were looked at")
    print_result(as_json, found, "\n".join(lines or ["nothing waits"]))


@hold.command("show")
@click.argument("name", metavar="HOLD|GROUP")
@as_json_option
@click.pass_context
def hold_show(ctx: click.Context, name: str, as_json: bool) -> None:
    """Show all of HOLD, or of a GROUP of them, and how to answer it."""
    from vedette.ledger.history.hold_groups import group

    with store_reader(settings_of(ctx)) as store:
        if name.startswith("grp_"):
            found = group(store, SystemClock().now_us(), name)
        else:
            item = find_hold(store, name)
            print_result(
                as_json, item, "\n".join([*hold_lines(item), *_answer_commands(ctx, "", item)])
            )
            return
    lines, digest = render_group(found)
    told = {**found, "shown_digest": digest}
    print_result(as_json, told, "\n".join([*lines, *_answer_commands(ctx, "--group ", told)]))


def _answer_commands(ctx: click.Context, option: str, shown: Mapping[str, Any]) -> list[str]:
    """Return the commands that answer what was shown; the reason is for the person to write."""
    name = shown["group"] if option else shown["hold"]
    given = f"{option}{name} --digest {shown['shown_digest'][:DIGEST_DIGITS]} --reason"
    return [f"answer it: {command_prefix(ctx)} {verb} {given} …" for verb in ("approve", "deny")]


@hold.command("claim")
@click.argument("hold_id", metavar="HOLD")
@click.option(
    "--reason", default="looking at it", show_default=True, metavar="TEXT", help="It is recorded."
)
@as_json_option
@click.pass_context
def hold_claim(ctx: click.Context, hold_id: str, reason: str, as_json: bool) -> None:
    """Say for half an hour that you look at HOLD.

    It is no lock: anybody may still answer, and is told that you had claimed it.
    """
    done = submit_command(settings_of(ctx), "claim", reason, {"hold": hold_id}, None)
    who = sanitize_text(done["claimed_by"])
    text = f"{hold_id} is claimed by {who} until {format_time(done['until'])}"
    if done["was"]:
        text += f"\nnote: {sanitize_text(done['was'])} had claimed it"
    print_result(as_json, done, text)


@hold.command("note")
@click.argument("hold_id", metavar="HOLD")
@click.argument("text")
@as_json_option
@click.pass_context
def hold_note(ctx: click.Context, hold_id: str, text: str, as_json: bool) -> None:
    """Note TEXT about HOLD, for whoever answers it or reads of it later."""
    done = submit_command(settings_of(ctx), "note", "a note", {"hold": hold_id, "text": text}, None)
    print_result(as_json, done, f"noted about {hold_id} (entry {done['entry']})")


def _lines(item: dict[str, Any]) -> list[str]:
    age = _format_age(item["age_us"])
    lines = [
        f"{item['hold']}  {item['agent']}: {item['tool']}",
        f"    {item['state']} for {age}, waits for {item['waits']}",
    ]
    lines += format_event(item["about"], width(), 4)
    lines += [f"    {line}" for line in _arguments(item)]
    if item["why"]:
        lines.append(f"    why: {safe_line(item['why'])}")
    reasons = "; ".join(item["reasons"] or ())
    lines.append(f"    held by {item['rule']}" + (f": {safe_line(reasons)}" if reasons else ""))
    if item["effect"]:
        lines.append(f"    its effect is {item['effect']}")
    if item["expires"]:
        lines.append(f"    without an answer it is denied {format_time(item['expires'])}")
    lines += [f"  {line}" for line in attention_lines(item)]
    return lines


def _arguments(item: dict[str, Any]) -> list[str]:
    if item["erased"]:
        return ["its arguments were erased"]
    given = item["arguments"]
    named = given.items() if isinstance(given, dict) else ((a.get("name"), a) for a in given or ())
    return [f"{name} = {_format_value(value)}" for name, value in named]


def _format_value(value: Any) -> str:
    """Show an argument: its value, and where it comes from if that is told."""
    if isinstance(value, dict) and "value" in value:
        origin = value.get("origin")
        source = value.get("source") or value.get("ref")
        told = ", ".join(safe_line(part) for part in (origin, source) if part)
        return _shorten_value(value["value"]) + (f"  [{told}]" if told else "")
    return _shorten_value(value)


def _shorten_value(value: Any) -> str:
    text = safe_json(value)
    return text if len(text) <= _MAX_CHARS else text[:_MAX_CHARS] + "…"


def _format_age(age_us: int | None) -> str:
    if age_us is None:
        return "an unknown time"
    seconds = age_us // 1_000_000
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"
