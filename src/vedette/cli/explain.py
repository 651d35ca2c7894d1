"""`vedette explain`: one timeline."""

from __future__ import annotations

import shutil
import sys
from typing import Any

import click

from vedette.cli.common import as_json_option, dumps, reading, settings_of

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
@as_json_option
@click.pass_context
def explain(ctx: click.Context, id_: str, as_json: bool) -> None:
    """Tell the whole story of a run, event, action, hold or effect: ID, or its beginning.

    Event, memories, judgement, proposals with the origin of each argument, decisions with rule
    and revision, effects, outcomes.
    """
    from vedette.timeline import explain as story
    from vedette.timeline import explain_text

    with reading(settings_of(ctx)) as store:
        told = story(store, id_)
    if as_json:
        click.echo(dumps(told))
        return
    width = min(_WIDEST, max(60, shutil.get_terminal_size((100, 24)).columns))
    colour = sys.stdout.isatty()
    for style, line in explain_text(told, width):
        click.echo(click.style(line, **_STYLES.get(style, {})) if colour else line)
