"""`vedette correct`: say what a run should have been, or that it was right."""

from __future__ import annotations

import click

from vedette.interfaces.cli.fleet import command_prefix, current_settings
from vedette.interfaces.cli.orders import (
    OrderCommand,
    OrderOptions,
    deferred_note,
    submit_command,
)
from vedette.interfaces.cli.output import print_result


@click.command(cls=OrderCommand)
@click.argument("run")
@click.argument("label", required=False)
@click.option("--right", is_flag=True, help="It was judged right.")
@click.option("--note", metavar="TEXT", help="What whoever curates the memory should know.")
@click.option("--new-label", is_flag=True, help="Take a label that the agent does not know yet.")
def correct(
    run: str, label: str | None, right: bool, note: str | None, new_label: bool, order: OrderOptions
) -> None:
    """Say by a LABEL what RUN should have been judged.

    Nothing that was done changes, nor how the next event is judged: it becomes a proposal to
    remember, and is learned when a person promotes it (`vedette memory`).
    """
    args = {
        "run": run, "should": label, "right": right or None, "note": note,
        "new_label": new_label or None,
    }  # fmt: skip
    done = submit_command(current_settings(), "correct", args, order)
    if done["outcome"] == "right":
        lines = [f"recorded: {done['run']} was right ({done['was']})"]
    else:
        see = f"{command_prefix()} memory show --state candidate"
        lines = [
            f"recorded: {done['run']} should have been {done['should']}, was {done['was']}",
            f"nothing is learned yet; see: {see}",
        ]
        if not done["woke"]:
            lines.append("no agent is subscribed to vedette.correction, so nobody proposes it")
        else:
            lines += deferred_note(done, "it is proposed")
    print_result(done, "\n".join(lines))
