"""`vedette artefact`: what a tool answered that was too large for a turn."""

from __future__ import annotations

import click

from vedette.app.stores import store_reader
from vedette.domain.artefact import MAX_RANGE_CHARS
from vedette.domain.base.safe_text import escape_text, quote_lines, wrap_line
from vedette.interfaces.cli.fleet import current_settings
from vedette.interfaces.cli.output import print_result

_WIDTH = 80


@click.group()
def artefact() -> None:
    """Read large outputs, which turns tell of by reference."""


@artefact.command("show")
@click.argument("id_", metavar="ID")
@click.option("--offset", type=int, default=0, help="From which character on.")
@click.option(
    "--length", type=int, default=MAX_RANGE_CHARS, show_default=True, help="How many at most."
)
def artefact_show(id_: str, offset: int, length: int) -> None:
    """Show a part of the artefact ID: whose it is, its type and size, the text.

    Ids of a run's artefacts are in `vedette explain RUN`.
    """
    from vedette.ledger.history.artefacts import read_artefact

    with store_reader(current_settings()) as store:
        found = read_artefact(store, id_, offset, length)
    head = [found["artefact"], f"what {found['tool']} answered in {found['run']}"]
    if found["erased"]:
        print_result(found, "\n".join([*head, "(erased)"]))
        return
    who = found["readers"]
    readers = "" if who is None else f", for {escape_text(', '.join(who)) or 'nobody'}"
    lines = [
        *head,
        *wrap_line(
            f"{found['type']}, {found['size']:,} characters, {found['label']}{readers}",
            _WIDTH, at_spaces=True,
        ),
        f"{offset:,} to {offset + len(found['text']):,}:",
        *quote_lines(found["text"].split("\n"), _WIDTH),
    ]  # fmt: skip
    if found["next"] is not None:
        lines.append(f"go on with --offset {found['next']}")
    print_result(found, "\n".join(lines))
