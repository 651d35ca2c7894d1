"""`vedette stop` and `vedette resume`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from vedette.domain.base.errors import BadCommand
from vedette.interfaces.cli import UNAVAILABLE
from vedette.interfaces.cli.common import human_verb, obey, say, settings_of, shown_time


def _what(verb: Callable[..., Any]) -> Callable[..., Any]:
    agent = click.argument("agent", required=False)
    tool = click.option("--tool", metavar="NAME", help="A tool, whichever agent uses it.")
    everything = click.option("--all", "everything", is_flag=True, help="The whole fleet.")
    return agent(tool(everything(verb)))


@click.command()
@_what
@click.option(
    "--for", "length", metavar="TIME", help="Lift it after so long, for example 30m or 2h."
)
@human_verb
@click.pass_context
def stop(ctx: click.Context, /, **given: Any) -> None:
    """Stop AGENT, a tool, or everything: nothing of it starts from the moment this returns.

    Events are still accepted and no work is lost; the stop lasts over restarts until `resume`, or
    until its time is over.
    """
    _order(ctx, "stop", given)


@click.command()
@_what
@human_verb
@click.pass_context
def resume(ctx: click.Context, /, **given: Any) -> None:
    """Lift the stop of AGENT, of a tool, or the one of everything."""
    _order(ctx, "resume", given)


def _order(ctx: click.Context, verb: str, given: dict[str, Any]) -> None:
    args = {"agent": given["agent"], "tool": given["tool"], "all": given["everything"]}
    if given.get("length") is not None:
        args["for_us"] = _length(given["length"])
    done = obey(settings_of(ctx), verb, given["reason"], args, given["command_id"])
    say(given["as_json"], done, told_of(done))
    if not done["recorded"]:
        ctx.exit(UNAVAILABLE)


def told_of(done: dict[str, Any]) -> str:
    """Say in words what is stopped now, and what that is worth if it could not be committed."""
    stopped = ", ".join(name.replace(":", " ").strip() for name in done["stopped"]) or "nothing"
    until = f", until {shown_time(done['until'])}" if done["until"] else ""
    told = f"stopped now: {stopped}{until} ({done['took_us'] / 1000:.1f} ms)"
    if done["recorded"]:
        return told
    told += (
        f"\nIt holds in the running fleet; not recorded yet: {done['why']}. It is recorded when "
        "the store takes writes again; a fleet that ends before has forgotten it: order it anew."
    )
    if done["others"]:
        told += (
            "\nthe other workers are not told yet: each of them starts no call only once it cannot "
            "commit either, so stop them too"
        )
    return told


def _length(text: str) -> int:
    from vedette.domain.base.clock import duration_us

    try:
        return duration_us(text)
    except ValueError as error:
        raise BadCommand(str(error), mend="for example --for 30m or --for 2h") from error
