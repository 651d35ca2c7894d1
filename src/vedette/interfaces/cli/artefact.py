"""`vedette artefact`: what a tool answered that was too large for a turn."""

from __future__ import annotations

import click

from vedette.app.stores import store_reader
from vedette.domain.artefact import MAX_RANGE_CHARS
from vedette.domain.base.safe_text import BAR, escape_text
from vedette.interfaces.cli.fleet import current_settings
from vedette.interfaces.cli.output import print_result


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
    head = f"{found['artefact']}  {found['tool']} of {found['run']}"
    if found["erased"]:
        print_result(found, f"{head}\n(erased)")
        return
    readers = "" if found["readers"] is None else f", for {', '.join(found['readers']) or 'nobody'}"
    end = offset + len(found["text"])
    lines = [
        head,
        f"{found['type']}, {found['size']:,} characters, {found['label']}{readers}",
        f"{offset:,} to {end:,}:",
        *(BAR + escape_text(line) for line in found["text"].splitlines()),
    ]
    if found["next"] is not None:
        lines.append(f"… go on with --offset {found['next']}")
    print_result(found, "\n".join(lines))
