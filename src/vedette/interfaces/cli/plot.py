"""`vedette plot`: a picture of a series."""

from __future__ import annotations

from pathlib import Path

import click

from vedette.app.stores import store_reader
from vedette.interfaces.cli.fleet import (
    current_settings,
    parse_time_range,
    refuse_unknown_agent,
    time_range_options,
)
from vedette.interfaces.cli.output import (
    dumps,
    print_result,
    sanitize_text,
    time_formatter,
    wants_json,
    write_output,
)


@click.command()
@click.argument("series")
@time_range_options
@click.option("--agent", metavar="NAME", help="Whose judgements. Default: who judged most of it.")
@click.option("--points", default=2000, show_default=True, help="Draw at most so many.")
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
    help="Write the picture here. Default: SERIES.svg; - is standard output.",
)  # fmt: skip
def plot(
    series: str, last: str, until: str | None, agent: str | None, points: int, out: Path | None
) -> None:
    """Draw SERIES: values, score and threshold, incidents, holds and answers.

    SERIES is the subject of its events. The picture is one SVG file with nothing outside of it.
    --last counts from when events were recorded; --json prints the points instead.
    """
    from vedette.interfaces.render.series_svg import describe_picture, picture
    from vedette.ledger.history.series import plot as made

    from_us, to_us = parse_time_range(last, until)
    settings = current_settings()
    with store_reader(settings) as store, store.snapshot():
        if agent is not None:
            refuse_unknown_agent(settings, store, agent)
        found = made(store.ledger, series, from_us, to_us, agent=agent, most=points)
    if wants_json() and out is None:
        click.echo(dumps(found))
        return
    path = out or Path(f"{_file_name(series)}.svg")
    if write_output(path, picture(found, time_formatter()), "picture", "--out"):
        print_result(found, sanitize_text(f"{path}: {describe_picture(found, time_formatter())}"))


def _file_name(series: str) -> str:
    """Return a series' name without what a file's name may not hold."""
    name = "".join(c if c.isalnum() or c in "-_." else "_" for c in series).strip(".")
    return name[:100] or "series"
