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
    reading,
    say,
    settings_of,
    whens,
    write_out,
)

if TYPE_CHECKING:
    from vedette.config import Settings

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
_WIDEST = 120


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
    with reading(settings) as store:
        told = story(store, id_)
    _find_code(settings, told)
    if page is not None:
        _write(page, told, as_json)
        return
    if as_json:
        click.echo(dumps(told))
        return
    width = min(_WIDEST, max(60, shutil.get_terminal_size((100, 24)).columns))
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    for style, line in explain_text(told, width, whens()):
        click.echo(click.style(line, **_STYLES.get(style, {})) if colour else line)


def _find_code(settings: Settings, told: dict[str, Any]) -> None:
    """Add to each run where the files of its release lie; None where they are not here."""
    from vedette.config.snapshot import find_snapshot

    for run in told["runs"]:
        found = None
        if run["release"]:
            found = find_snapshot(settings.state, run["release"], run["agent"])
        run["snapshot"] = None if found is None else str(found.folder)


def _write(page: Path, told: dict[str, Any], as_json: bool) -> None:
    from vedette.domain.base.clock import SystemClock
    from vedette.interfaces.render.explain_html import explain_page

    text = explain_page(told, whens(), SystemClock().now_us())
    if write_out(page, text, "page", "--html"):
        say(as_json, {"page": str(page), "bytes": len(text.encode())}, f"wrote {page}")
