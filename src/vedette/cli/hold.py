"""`vedette hold list`: what waits for an answer."""

from __future__ import annotations

import json
from typing import Any

import click

from vedette.cli.common import as_json_option, plain, prefix, reading, say, settings_of, shown_time
from vedette.clock import SystemClock

_WAITS = ("approval", "time", "resume", "target", "budget", "all")
_MOST = 160


@click.group()
def hold() -> None:
    """See what waits for a person, or for anything else."""


@hold.command("list")
@click.option(
    "--waits", type=click.Choice(_WAITS), default="approval", show_default=True,
    help="What it waits for.",
)  # fmt: skip
@click.option("--after", metavar="CURSOR", help="The next page.")
@click.option("--limit", default=20, show_default=True, help="How many; at most 200.")
@as_json_option
@click.pass_context
def hold_list(ctx: click.Context, waits: str, after: str | None, limit: int, as_json: bool) -> None:
    """List holds, oldest first, with all that is needed to answer them."""
    from vedette.timeline import inbox

    with reading(settings_of(ctx)) as store:
        page = inbox(
            store,
            SystemClock().now_us(),
            after=after,
            limit=limit,
            waits=None if waits == "all" else waits,
        )
    lines = [line for item in page["items"] for line in _lines(item)]
    if not lines:
        lines.append("nothing waits")
    if page["newer"]:
        lines.append(f"more: {prefix(ctx)} hold list --waits {waits} --after {page['newer']}")
    say(as_json, page, "\n".join(lines))


def _lines(item: dict[str, Any]) -> list[str]:
    age = _age(item["age_us"])
    lines = [
        f"{item['hold']}  {item['agent']}: {item['tool']}  ({item['state']}, for {age}, "
        f"waits for {item['waits']})"
    ]
    lines += [f"    {line}" for line in _arguments(item)]
    if item["why"]:
        lines.append(f"    why: {plain(str(item['why']))}")
    reasons = "; ".join(item["reasons"] or ())
    lines.append(f"    held by {item['rule']}" + (f": {plain(reasons)}" if reasons else ""))
    if item["effect"]:
        lines.append(f"    its effect is {item['effect']}")
    if item["expires"]:
        lines.append(f"    without an answer it is denied {shown_time(item['expires'])}")
    return lines


def _arguments(item: dict[str, Any]) -> list[str]:
    if item["erased"]:
        return ["its arguments were erased"]
    given = item["arguments"]
    named = given.items() if isinstance(given, dict) else ((a.get("name"), a) for a in given or ())
    return [f"{name} = {_value(value)}" for name, value in named]


def _value(value: Any) -> str:
    """Show an argument: its value, and where it comes from if that is told."""
    if isinstance(value, dict) and "value" in value:
        origin = value.get("origin")
        source = value.get("source") or value.get("ref")
        told = ", ".join(str(part) for part in (origin, source) if part)
        return _short(value["value"]) + (f"  [{told}]" if told else "")
    return _short(value)


def _short(value: Any) -> str:
    text = plain(json.dumps(value, ensure_ascii=False))
    return text if len(text) <= _MOST else text[:_MOST] + "…"


def _age(age_us: int | None) -> str:
    if age_us is None:
        return "an unknown time"
    seconds = age_us // 1_000_000
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"
