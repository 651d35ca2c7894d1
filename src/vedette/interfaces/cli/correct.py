"""`vedette correct`: say what a run should have been, or that it was right."""

from __future__ import annotations

import click

from vedette.interfaces.cli.common import (
    command_prefix,
    order_options,
    print_result,
    settings_of,
    submit_command,
)


@click.command()
@click.argument("run")
@click.option("--should", metavar="LABEL", help="What it should have been judged.")
@click.option("--right", is_flag=True, help="It was judged right.")
@click.option("--note", metavar="TEXT", help="What whoever curates the memory should know.")
@click.option("--new-label", is_flag=True, help="Take a label that the agent does not know yet.")
@order_options
@click.pass_context
def correct(
    ctx: click.Context, run: str, should: str | None, right: bool, note: str | None,
    new_label: bool, reason: str, command_id: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Say what RUN should have been judged.

    Nothing that was done changes, nor how the next event is judged: it becomes a proposal to
    remember, and is learned when a person promotes it (`vedette memory`).
    """
    args = {
        "run": run, "should": should, "right": right or None, "note": note,
        "new_label": new_label or None,
    }  # fmt: skip
    done = submit_command(settings_of(ctx), "correct", reason, args, command_id)
    if done["outcome"] == "right":
        text = f"recorded: {done['run']} was right ({done['was']})"
    else:
        text = f"recorded: {done['run']} should have been {done['should']}, was {done['was']}"
        text += (
            f"\nnothing is learned yet; see: {command_prefix(ctx)} memory list --state candidate"
        )
        if not done["woke"]:
            text += "\nno agent is subscribed to vedette.correction, so nobody proposes it"
        elif done["by"] == "here":
            text += "\nno fleet runs here; it is proposed at the next `vedette run`"
    print_result(as_json, done, text)
