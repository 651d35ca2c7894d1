"""`vedette report`: one page for the person who answers for the fleet."""

from __future__ import annotations

import click

from vedette.app.stores import store_reader
from vedette.interfaces.cli.fleet import (
    current_settings,
    parse_time_range,
    refuse_unknown_agent,
    time_range_options,
)
from vedette.interfaces.cli.output import print_result, time_formatter


@click.command()
@time_range_options
@click.option("--seed", metavar="TEXT", help="Draw the actions to check by another seed.")
@click.option("--agent", metavar="NAME", help="Only what this agent would have done.")
@click.option("--judges", is_flag=True, help="Also make every judgement of the ledger again.")
def report(last: str, until: str | None, seed: str | None, agent: str | None, judges: bool) -> None:
    """Tell what changed, what went wrong, what was spent and what people were asked.

    Also which rules never spoke, and 20 permitted actions to check by hand, drawn at random but the
    same ones all day; and what agents in observe or ask would have done, how often people agree
    with it, and what each lacks to earn act. Read from the ledger, beside a running fleet or with
    none. With --judges it ends with what `verify judgements` finds.
    """
    from vedette.interfaces.render.replay_text import judge_lines
    from vedette.interfaces.render.report_text import report_text, would_lines
    from vedette.ledger.history.report import report as made

    from_us, to_us = parse_time_range(last, until)
    settings = current_settings()
    with store_reader(settings) as store, store.snapshot():
        if agent is not None:
            refuse_unknown_agent(settings, store, agent)
        found = made(store, from_us, to_us, seed, agent)
        found["judgements"] = None
        if judges:
            from vedette.app.judge_releases import rejudge_store
            from vedette.domain.base.clock import SystemClock

            found["judgements"] = rejudge_store(settings, store, SystemClock()).to_json()
    lines = would_lines(found) if agent is not None else report_text(found, time_formatter())
    if found["judgements"] is not None:
        lines += ["JUDGED AGAIN (the whole ledger)", *judge_lines(found["judgements"])]
    print_result(found, "\n".join(lines))
