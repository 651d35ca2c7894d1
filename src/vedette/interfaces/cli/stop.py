"""`vedette stop` and `vedette resume`: the kill switch, and a clock that jumped."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import click

from vedette.interfaces.cli.error_report import DONE, UNAVAILABLE
from vedette.interfaces.cli.fleet import current_settings, parse_length
from vedette.interfaces.cli.orders import OrderCommand, OrderOptions, submit_command
from vedette.interfaces.cli.output import format_time, print_result


def _target_options(verb: Callable[..., Any]) -> Callable[..., Any]:
    agent = click.argument("agent", required=False)
    tool = click.option("--tool", metavar="NAME", help="A tool, whichever agent uses it.")
    everything = click.option("--all", "everything", is_flag=True, help="The whole fleet.")
    return agent(tool(everything(verb)))


@click.command(cls=OrderCommand)
@_target_options
@click.option(
    "--for", "length", metavar="TIME", help="Lift it after so long, for example 30m or 2h."
)
def stop(
    agent: str | None, tool: str | None, everything: bool, length: str | None, order: OrderOptions
) -> int:
    """Stop AGENT, a tool, or everything: nothing of it starts from the moment this returns.

    Events are still accepted and no work is lost; the stop lasts over restarts until `resume`, or
    until its time is over.
    """
    args: dict[str, Any] = {"agent": agent, "tool": tool, "all": everything}
    if length is not None:
        args["for_us"] = parse_length(length, "--for 30m or --for 2h")
    return _submit_order("stop", args, order)


@click.command(cls=OrderCommand)
@_target_options
@click.option("--clock", is_flag=True, help="Instead: this machine's wall clock is right.")
def resume(
    agent: str | None, tool: str | None, everything: bool, clock: bool, order: OrderOptions
) -> int:
    """Lift the stop of AGENT, of a tool, or the one of everything.

    With --clock the fleet goes by the wall clock again, which had jumped (`vedette status` tells
    how far); until then it goes by the time that has passed. What is over by the confirmed time
    expires now, so look at `vedette hold` first. With several workers each has its own clock.
    """
    if not clock:
        args = {"agent": agent, "tool": tool, "all": everything}
        return _submit_order("resume", args, order)
    if agent or tool or everything:
        raise click.UsageError("--clock lifts no stop: give it alone")
    done = submit_command(current_settings(), "clock_confirm", {}, order)
    by_us = int(done["by_us"])
    distance = timedelta(seconds=abs(by_us) // 1_000_000)
    way = "forward" if by_us >= 0 else "back"
    print_result(done, f"confirmed in entry {done['seq']:,}: fleet time moved {distance} {way}")
    return DONE


def _submit_order(verb: str, args: dict[str, Any], order: OrderOptions) -> int:
    done = submit_command(current_settings(), verb, args, order)
    print_result(done, stop_text(done))
    return DONE if done["recorded"] else UNAVAILABLE


def stop_text(result: dict[str, Any]) -> str:
    """Say for `vedette stop` what is stopped, and what that is worth if it was not committed."""
    stopped = ", ".join(name.replace(":", " ").strip() for name in result["stopped"]) or "nothing"
    until = f", until {format_time(result['until'])}" if result["until"] else ""
    text = f"stopped now: {stopped}{until} ({result['took_us'] / 1000:.1f} ms)"
    if result["recorded"]:
        return text
    text += (
        f"\nIt holds in the running fleet; not recorded yet: {result['why']}. It is recorded when "
        "the store takes writes again; a fleet that ends before has forgotten it: order it anew."
    )
    if result["others"]:
        text += (
            "\nthe other workers are not told yet: each of them starts no call only once it cannot "
            "commit either, so stop them too"
        )
    return text
