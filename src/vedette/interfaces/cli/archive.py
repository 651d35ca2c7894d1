"""`vedette ledger archive`: moves what is old out of the store, and forgets old content."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vedette.app.stores import store_reader
from vedette.domain.base.clock import SystemClock
from vedette.domain.base.errors import BadCommand
from vedette.interfaces.cli.fleet import current_settings, parse_since
from vedette.interfaces.cli.orders import OrderCommand, OrderOptions, submit_command
from vedette.interfaces.cli.output import format_time, print_result

if TYPE_CHECKING:
    from vedette.config.settings import Settings


@click.command("archive", cls=OrderCommand)
@click.option(
    "--to",
    metavar="FOLDER",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where the segments go. Default: archive/ in the state folder.",
)
@click.option(
    "--before", metavar="DATE|TIME", help="Entries from before 2026-05-01 (UTC), or older than 30d."
)
def archive(to: Path | None, before: str | None, order: OrderOptions) -> None:
    """Move closed entries into segments of their own, and erase content past its retention.

    Without --before the retention of vedette.toml says how old. A segment is verified before its
    entries leave the store; a run that has not ended keeps all entries after its event. Store and
    archive verify together (verify --archive FOLDER), and each by itself.
    """
    settings, now = current_settings(), SystemClock().now_us()
    bodies_us, entries_us = settings.retention_bodies_us, settings.retention_entries_us
    cutoff_us = None if entries_us is None else now - entries_us
    if before is not None:
        cutoff_us = parse_since(before, now, "--before")
    if cutoff_us is None and bodies_us is None:
        mend = "add --before DATE or --before 30d, or [retention] to vedette.toml"
        raise BadCommand("nothing says how old is old", mend=mend)
    done: dict[str, Any] = {"erased": 0, "archived": 0, "segment": None}
    if bodies_us is not None:
        # Two orders, and the id is of the one that moves entries.
        given = OrderOptions(order.reason)
        erased = submit_command(settings, "expire", {"before_us": now - bodies_us}, given)
        done["erased"] += erased["erased"]
    if cutoff_us is not None:
        folder = (to or settings.state / "archive").absolute()
        _archive_entries(settings, folder, cutoff_us, order, done)
    print_result(done, _text(done))


def _archive_entries(
    settings: Settings, folder: Path, before_us: int, order: OrderOptions, result: dict[str, Any]
) -> None:
    import shutil

    from vedette.adapters.ledger_export import (
        archived_part,
        checkpoint_size_before,
        write_segment,
    )

    with store_reader(settings) as store:
        first_size, open_from = archived_part(store.ledger).size, store.ledger.first_open_entry()
        size = checkpoint_size_before(store.ledger, before_us, open_from)
        result["before"] = before_us
        result["held_by"] = open_from
        if size <= first_size:
            return
        key = (settings.state / "ledger.pub").read_text(encoding="utf-8").strip()
        archived = write_segment(store.ledger, folder, size, key)
    size = archived.size
    segment = folder / f"{first_size + 1:012}-{size:012}"
    args = {"archived": archived.to_bytes().decode()}
    try:
        pruned = submit_command(settings, "let_go", args, order)
    except BadCommand:
        with store_reader(settings) as store:
            still_there = archived_part(store.ledger).size < size
        if still_there:
            # The next archiving may end elsewhere, and two segments must not overlap.
            shutil.rmtree(segment)
        raise
    result["erased"] += pruned["erased"]
    result["archived"] = size - first_size
    result["segment"] = str(segment)


def _text(result: dict[str, Any]) -> str:
    lines = [f"erased {result['erased']:,} bodies"]
    if result["archived"]:
        lines.append(f"archived {result['archived']:,} entries into {result['segment']}")
    elif result.get("before"):
        why = f"; a run of entry {result['held_by']:,} has not ended" if result["held_by"] else ""
        lines.append(f"no closed entries from before {format_time(result['before'])}{why}")
    return "\n".join(lines)
