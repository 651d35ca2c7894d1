"""`vedette stop` and `vedette resume`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from vedette.domain.base.errors import BadCommand
from vedette.interfaces.cli import UNAVAILABLE
from vedette.interfaces.cli.common import (
    format_time,
    order_options,
    print_result,
    settings_of,
    submit_command,
)


def _target_options(verb: Callable[..., Any]) -> Callable[..., Any]:
    agent = click.argument("agent", required=False)
    tool = click.option("--tool", metavar="NAME", help="A tool, whichever agent uses it.")
    everything = click.option("--all", "everything", is_flag=True, help="The whole fleet.")
    return agent(tool(everything(verb)))


@click.command()
@_target_options
@click.option(
    "--for", "length", metavar="TIME", help="Lift it after so long, for example 30m or 2h."
)
@order_options
@click.pass_context
def stop(ctx: click.Context, /, **options: Any) -> None:
    """Stop AGENT, a tool, or everything: nothing of it starts from the moment this returns.

    Events are still accepted and no work is lost; the stop lasts over restarts until `resume`, or
    until its time is over.
    """
    _submit_order(ctx, "stop", options)


@click.command()
@_target_options
@order_options
@click.pass_context
def resume(ctx: click.Context, /, **options: Any) -> None:
    """Lift the stop of AGENT, of a tool, or the one of everything."""
    _submit_order(ctx, "resume", options)


def _submit_order(ctx: click.Context, verb: str, options: dict[str, Any]) -> None:
    args = {"agent": options["agent"], "tool": options["tool"], "all": options["everything"]}
    if options.get("length") is not None:
        args["for_us"] = _parse_length(options["length"])
    done = submit_command(settings_of(ctx), verb, options["reason"], args, options["command_id"])
    print_result(options["as_json"], done, stop_text(done))
    if not done["recorded"]:
        ctx.exit(UNAVAILABLE)


def stop_text(result: dict[str, Any]) -> str:
    """Say in words what is stopped now, and what that is worth if it could not be committed."""
    stopped = ", ".join(name.replace(":", " ").strip() for name in result["stopped"]) or "nothing"
    until = f", until {format_time(result['until'])}" if result["until"] else ""
    told = f"stopped now: {stopped}{until} ({result['took_us'] / 1000:.1f} ms)"
    if result["recorded"]:
        return told
    told += (
        f"\nIt holds in the running fleet; not recorded yet: {result['why']}. It is recorded when "
        "the store takes writes again; a fleet that ends before has forgotten it: order it anew."
    )
    if result["others"]:
        told += (
            "\nthe other workers are not told yet: each of them starts no call only once it cannot "
            "commit either, so stop them too"
        )
    return told


def _parse_length(text: str) -> int:
    from vedette.domain.base.clock import duration_us

    try:
        return duration_us(text)
    except ValueError as error:
        raise BadCommand(str(error), mend="for example --for 30m or --for 2h") from error
