"""`vedette explain`: one timeline; or what an error code means."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vedette.app.stores import store_reader
from vedette.domain.base.errors import NotFound
from vedette.interfaces.cli.error_codes import EXPLANATIONS, ErrorExplanation
from vedette.interfaces.cli.fleet import current_settings, refuse_options
from vedette.interfaces.cli.output import (
    dumps,
    print_result,
    time_formatter,
    wants_json,
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
@click.argument("id_", metavar="ID", required=False)
@click.option(
    "--html",
    "page",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write one self-contained page into FILE; - for standard output.",
)
@click.option(
    "--error", is_flag=True, help="ID is an error code, as in error[CODE]; without one list all."
)
def explain(id_: str | None, page: Path | None, error: bool) -> None:
    """Tell the whole story of a run, event, action, hold or effect: ID, or its beginning.

    Event, memories, judgement, proposals with the origin of each argument, decisions with rule
    and revision, effects, outcomes. With --error: what an error means, how it comes about, and the
    mend; that needs no fleet.
    """
    if error:
        refuse_options(("page",), "is of a story, not of an error")
        _explain_error(id_)
    elif id_ is None:
        ctx = click.get_current_context()
        raise click.MissingParameter(ctx=ctx, param_type="argument", param_hint="'ID'")
    else:
        _print_story(id_, page)


# --- a story ---------------------------------------------------------------------------------


def _print_story(id: str, page: Path | None) -> None:
    from vedette.interfaces.render.explain_text import explain_text
    from vedette.ledger.history.explain import explain as story

    settings = current_settings()
    with store_reader(settings) as store:
        explanation = story(store, id)
    _add_snapshots(settings, explanation)
    if page is not None:
        _write_page(page, explanation)
        return
    if wants_json():
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


def _write_page(page: Path, explanation: dict[str, Any]) -> None:
    from vedette.domain.base.clock import SystemClock
    from vedette.interfaces.render.explain_html import explain_page

    text = explain_page(explanation, time_formatter(), SystemClock().now_us())
    if write_output(page, text, "page", "--html"):
        print_result({"page": str(page), "bytes": len(text.encode())}, f"wrote {page}")


# --- an error --------------------------------------------------------------------------------


def _explain_error(code: str | None) -> None:
    if code is None:
        width = max(map(len, EXPLANATIONS)) + 2
        lines = [
            textwrap.fill(
                one.meaning, 80, initial_indent=name.ljust(width), subsequent_indent=" " * width
            )
            for name, one in EXPLANATIONS.items()
        ]
        print_result(
            {"codes": [_error_json(name, one) for name, one in EXPLANATIONS.items()]},
            "\n".join(lines),
        )
        return
    code = code.strip().strip("[]")
    explanation = EXPLANATIONS.get(code)
    if explanation is None:
        from vedette.config.problem import did_you_mean

        mend = did_you_mean(code, list(EXPLANATIONS))
        raise NotFound(f"there is no error code {code!r}", mend=mend)
    value = _error_json(code, explanation)
    lines = [code]
    for name in ("means", "because", "mend"):
        lines.append(
            textwrap.fill(
                value[name], 80, initial_indent=f"  {name:<8} ", subsequent_indent=" " * 11,
                break_on_hyphens=False,
            )
        )  # fmt: skip
    print_result(value, "\n".join(lines))


def _error_json(code: str, explanation: ErrorExplanation) -> dict[str, str]:
    return {
        "code": code,
        "means": explanation.meaning,
        "because": explanation.cause,
        "mend": explanation.mend,
    }
