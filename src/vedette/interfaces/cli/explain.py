"""`vedette explain`: one timeline."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vedette.interfaces.cli.common import (
    as_json_option,
    dumps,
    print_result,
    settings_of,
    store_reader,
    time_formatter,
    write_output,
)

if TYPE_CHECKING:
    from vedette.config.settings import Settings

_STYLES: dict[str, dict[str, Any]] = {
    "title": {"bold": True},
    "head": {"bold": True},
    "dim": {"dim": True},
    "permit": {"fg": "green"},
    "done": {"fg": "green"},
    "hold": {"fg": "yellow"},
    "deny": {"fg": "red"},
    "failed": {"fg": "red"},
}
_MAX_WIDTH = 120


@click.command()
@click.argument("id_", metavar="ID")
@click.option(
    "--html",
    "page",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write one self-contained page into FILE; - for standard output.",
)
@as_json_option
@click.pass_context
def explain(ctx: click.Context, id_: str, page: Path | None, as_json: bool) -> None:
    """Tell the whole story of a run, event, action, hold or effect: ID, or its beginning.

    Event, memories, judgement, proposals with the origin of each argument, decisions with rule
    and revision, effects, outcomes.
    """
    from vedette.interfaces.render.explain_text import explain_text
    from vedette.ledger.history.explain import explain as story

    settings = settings_of(ctx)
    with store_reader(settings) as store:
        explanation = story(store, id_)
    _add_snapshots(settings, explanation)
    if page is not None:
        _write_page(page, explanation, as_json)
        return
    if as_json:
        click.echo(dumps(explanation))
        return
    width = min(_MAX_WIDTH, max(60, shutil.get_terminal_size((100, 24)).columns))
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    for style, line in explain_text(explanation, width, time_formatter()):
        click.echo(click.style(line, **_STYLES.get(style, {})) if colour else line)


def _add_snapshots(settings: Settings, explanation: dict[str, Any]) -> None:
    """Add to each run where the files of its release lie; None where they are not here."""
    from vedette.config.snapshot import find_snapshot

    for run in explanation["runs"]:
        found = None
        if run["release"]:
            found = find_snapshot(settings.state, run["release"], run["agent"])
        run["snapshot"] = None if found is None else str(found.folder)


def _write_page(page: Path, explanation: dict[str, Any], as_json: bool) -> None:
    from vedette.domain.base.clock import SystemClock
    from vedette.interfaces.render.explain_html import explain_page

    text = explain_page(explanation, time_formatter(), SystemClock().now_us())
    if write_output(page, text, "page", "--html"):
        print_result(as_json, {"page": str(page), "bytes": len(text.encode())}, f"wrote {page}")
