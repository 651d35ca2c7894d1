"""`vedette ledger reconstruct`: what every agent did, from the ledger alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vedette.app.stores import store_reader
from vedette.domain.base.errors import BadCommand
from vedette.interfaces.cli.fleet import current_settings, parse_time_range, time_range_options
from vedette.interfaces.cli.output import dumps, fit_to_terminal, time_formatter, wants_json
from vedette.interfaces.cli.verify import archive_option, join_archive

if TYPE_CHECKING:
    from vedette.adapters.ledger_export import VerifiableLedger
    from vedette.ledger.history.target_match import MatchResult


@click.command("reconstruct")
@click.argument("export", required=False, type=click.Path(path_type=Path, file_okay=False))
@time_range_options
@click.option("--agent", "agents", multiple=True, metavar="NAME", help="Only this one's; repeat.")
@archive_option
@click.option(
    "--against",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help='A target\'s own record: JSON lines with "tool" and "key" of what happened to it.',
)
def reconstruct(
    export: Path | None, last: str, until: str | None, agents: tuple[str, ...],
    archive: Path | None, against: Path | None,
) -> int:  # fmt: skip
    """Rebuild every agent's timeline from the ledger, or from an EXPORT of it; offline.

    Nothing else is read: no state, no cache. Effects whose end is not known are listed as open.
    Exits with 1 if the entries do not agree with each other, or a target's record with them. What
    makes entries trustworthy is `vedette verify`.
    """
    from vedette.interfaces.render.report_text import reconstruction_text
    from vedette.ledger.history.reconstruction import reconstruct as rebuilt
    from vedette.ledger.history.target_match import match_target_record

    from_us, to_us = parse_time_range(last, until)
    with _open_record(export) as record:
        found = rebuilt(join_archive(archive, record), from_us, to_us, agents)
    matched = (
        match_target_record(found, _read_target_record(against)) if against is not None else None
    )
    if wants_json():
        value = found.to_json()
        click.echo(dumps({**value, "matched": matched.to_json() if matched else None}))
    else:
        for line in reconstruction_text(found, time_formatter()):
            click.echo(fit_to_terminal(line))
        if matched is not None:
            click.echo(fit_to_terminal("\n".join(_match_lines(matched))))
    return 0 if found.ok and (matched is None or matched.ok) else 1


@contextmanager
def _open_record(export: Path | None) -> Iterator[VerifiableLedger]:
    from vedette.adapters.ledger_export import LedgerExport

    if export is None:
        with store_reader(current_settings()) as store, store.snapshot():
            yield store.ledger
        return
    if not export.exists():
        mend = "name the folder of an export"
        raise BadCommand("there is no such export", where=str(export), mend=mend)
    yield LedgerExport(export)


def _read_target_record(path: Path) -> list[tuple[str, str]]:
    """Read a target's record. A line whose "effect" is false tells of a call without effect."""
    found = []
    try:
        for number, raw in enumerate(path.read_bytes().splitlines(), 1):
            line: Any = json.loads(raw)
            if not isinstance(line, dict) or not {"tool", "key"} <= line.keys():
                mend = 'every line is an object with "tool" and "key"'
                raise BadCommand("no effect can be read", where=f"{path}:{number}", mend=mend)
            if line.get("effect", True):
                found.append((str(line["tool"]), str(line["key"])))
    except (OSError, ValueError) as error:
        raise BadCommand(f"the record cannot be read: {error}", where=str(path)) from error
    return found


def _match_lines(result: MatchResult) -> Iterator[str]:
    yield f"THE TARGET: {result.matched:,} of {result.effects:,} effects have exactly one intent"
    for one in result.unmatched:
        yield f"  effect without intent: {one['tool']} {one['key']}: {one['why']}"
    for key in result.repeated:
        yield f"  happened more than once: {key}"
    for id in result.phantoms:
        yield f"  recorded as done, unknown to the target: {id}"
