"""`vedette report`: one page for the person who answers for the fleet."""

from __future__ import annotations

import click

from vedette.cli.common import (
    as_json_option,
    reading,
    refuse_unknown_agent,
    say,
    settings_of,
    since,
    stretch,
    whens,
)


@click.command()
@stretch
@click.option("--seed", metavar="TEXT", help="Draw the actions to check by another seed.")
@click.option("--agent", metavar="NAME", help="Only what this agent would have done.")
@as_json_option
@click.pass_context
def report(
    ctx: click.Context,
    last: str,
    until: str | None,
    seed: str | None,
    agent: str | None,
    as_json: bool,
) -> None:
    """Tell what changed, what went wrong, what was spent and what people were asked.

    Also which rules never spoke, and 20 permitted actions to check by hand, drawn at random but the
    same ones all day; and what agents in observe or ask would have done, how often people agree
    with it, and what each lacks to earn act. Read from the ledger, beside a running fleet or with
    none.
    """
    from vedette.timeline import report as made
    from vedette.timeline import report_text
    from vedette.timeline.report_text import would_lines

    from_us, to_us = since(last, until)
    settings = settings_of(ctx)
    with reading(settings) as store, store.snapshot():
        if agent is not None:
            refuse_unknown_agent(settings, store, agent)
        told = made(store, from_us, to_us, seed, agent)
    lines = report_text(told, whens()) if agent is None else would_lines(told)
    say(as_json, told, "\n".join(lines))
