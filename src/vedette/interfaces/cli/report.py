"""`vedette report`: one page for the person who answers for the fleet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from vedette.interfaces.cli.common import (
    as_json_option,
    parse_time_range,
    print_result,
    refuse_unknown_agent,
    settings_of,
    store_reader,
    time_formatter,
    time_range_options,
)
from vedette.interfaces.cli.replay import judge_lines

if TYPE_CHECKING:
    from vedette.config.settings import Settings
    from vedette.store.read_runs import StoreReader


@click.command()
@time_range_options
@click.option("--seed", metavar="TEXT", help="Draw the actions to check by another seed.")
@click.option("--agent", metavar="NAME", help="Only what this agent would have done.")
@click.option("--judges", is_flag=True, help="Also make every judgement of the ledger again.")
@as_json_option
@click.pass_context
def report(
    ctx: click.Context,
    last: str,
    until: str | None,
    seed: str | None,
    agent: str | None,
    judges: bool,
    as_json: bool,
) -> None:
    """Tell what changed, what went wrong, what was spent and what people were asked.

    Also which rules never spoke, and 20 permitted actions to check by hand, drawn at random but the
    same ones all day; and what agents in observe or ask would have done, how often people agree
    with it, and what each lacks to earn act. Read from the ledger, beside a running fleet or with
    none. With --judges it ends with what `replay --judges` finds.
    """
    from vedette.interfaces.render.report_text import report_text, would_lines
    from vedette.ledger.history.report import report as made

    from_us, to_us = parse_time_range(last, until)
    settings = settings_of(ctx)
    with store_reader(settings) as store, store.snapshot():
        if agent is not None:
            refuse_unknown_agent(settings, store, agent)
        told = made(store, from_us, to_us, seed, agent)
        told["judgements"] = _replay_judgements(settings, store) if judges else None
    lines = [*(report_text(told, time_formatter()) if agent is None else would_lines(told))]
    if told["judgements"] is not None:
        lines += ["JUDGED AGAIN (the whole ledger)", *judge_lines(told["judgements"])]
    print_result(as_json, told, "\n".join(lines))


def _replay_judgements(settings: Settings, store: StoreReader) -> dict[str, Any]:
    from vedette.app.judge_releases import rejudge_store
    from vedette.domain.base.clock import SystemClock

    return rejudge_store(settings, store, SystemClock()).to_json()
