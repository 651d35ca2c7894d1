"""`vedette plot anomaly`: a picture of a series."""

from __future__ import annotations

from pathlib import Path

import click

from vedette.interfaces.cli.common import (
    as_json_option,
    dumps,
    parse_time_range,
    print_result,
    refuse_unknown_agent,
    sanitize_text,
    settings_of,
    store_reader,
    time_formatter,
    time_range_options,
    write_output,
)


@click.group()
def plot() -> None:
    """Draw what was recorded."""


@plot.command("anomaly")
@click.argument("series")
@time_range_options
@click.option("--agent", metavar="NAME", help="Whose judgements. Default: who judged most of it.")
@click.option("--points", default=2000, show_default=True, help="Draw at most so many.")
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
    help="Write the picture here. Default: SERIES.svg; - is standard output.",
)  # fmt: skip
@as_json_option
@click.pass_context
def anomaly(
    ctx: click.Context,
    series: str,
    last: str,
    until: str | None,
    agent: str | None,
    points: int,
    out: Path | None,
    as_json: bool,
) -> None:
    """Draw SERIES: values, score and threshold, incidents, holds and answers.

    SERIES is the subject of its events. The picture is one SVG file with nothing outside of it.
    --last counts from when events were recorded; --json prints the points instead.
    """
    from vedette.interfaces.render.series_svg import picture, summary
    from vedette.ledger.history.series import plot as made

    from_us, to_us = parse_time_range(last, until)
    settings = settings_of(ctx)
    with store_reader(settings) as store, store.snapshot():
        if agent is not None:
            refuse_unknown_agent(settings, store, agent)
        told = made(store, series, from_us, to_us, agent=agent, most=points)
    if as_json and out is None:
        click.echo(dumps(told))
        return
    path = out or Path(f"{_file_name(series)}.svg")
    if write_output(path, picture(told, time_formatter()), "picture", "--out"):
        print_result(as_json, told, sanitize_text(f"{path}: {summary(told, time_formatter())}"))


def _file_name(series: str) -> str:
    """Return a series' name without what a file's name may not hold."""
    kept = "".join(c if c.isalnum() or c in "-_." else "_" for c in series).strip(".")
    return kept[:100] or "series"
