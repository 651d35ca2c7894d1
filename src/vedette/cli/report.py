"""`vedette report`: one page for the person who answers for the fleet."""

from __future__ import annotations

import click

from vedette.cli.common import as_json_option, reading, say, settings_of, since, stretch


@click.command()
@stretch
@click.option("--seed", metavar="TEXT", help="Draw the actions to check by another seed.")
@as_json_option
@click.pass_context
def report(
    ctx: click.Context, last: str, until: str | None, seed: str | None, as_json: bool
) -> None:
    """Tell what changed, what went wrong, what was spent and what people were asked.

    Also which rules never spoke, and 20 permitted actions to check by hand, drawn at random but the
    same ones all day. Read from the ledger, beside a running fleet or with none.
    """
    from vedette.timeline import report as made
    from vedette.timeline import report_text

    from_us, to_us = since(last, until)
    with reading(settings_of(ctx)) as store, store.snapshot():
        told = made(store, from_us, to_us, seed)
    say(as_json, told, "\n".join(report_text(told)))
