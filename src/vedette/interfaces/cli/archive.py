"""`vedette ledger archive`: moves what is old out of the store, and forgets old content."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vedette.domain.base.clock import SystemClock, duration_us, instant_before
from vedette.domain.base.errors import BadCommand
from vedette.interfaces.cli.common import (
    format_time,
    order_options,
    print_result,
    settings_of,
    store_reader,
    submit_command,
)

if TYPE_CHECKING:
    from vedette.config.settings import Settings


@click.command("archive")
@click.option(
    "--to",
    metavar="FOLDER",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where the segments go. Default: archive/ in the state folder.",
)
@click.option("--before", metavar="DATE", help="Entries from before DATE (UTC), as 2026-05-01.")
@click.option("--keep", metavar="TIME", help="Entries older than TIME, as 30d.")
@order_options
@click.pass_context
def archive(ctx: click.Context, /, **options: Any) -> None:
    """Move closed entries into segments of their own, and erase content past its retention.

    Without --before and --keep the retention of vedette.toml says how old. A segment is verified
    before its entries leave the store; a run that has not ended keeps all entries after its event.
    Store and archive verify together (ledger verify --archive FOLDER), and each by itself.
    """
    settings = settings_of(ctx)
    now = SystemClock().now_us()
    entries = _parse_cutoff(options["before"], options["keep"], settings.retention_entries_us, now)
    bodies = settings.retention_bodies_us
    if entries is None and bodies is None:
        mend = "add --before DATE or --keep TIME, or [retention] to vedette.toml"
        raise BadCommand("nothing says how old is old", mend=mend)
    done: dict[str, Any] = {"erased": 0, "archived": 0, "segment": None}
    if bodies is not None:
        args = {"before_us": now - bodies}
        done["erased"] += submit_command(settings, "expire", options["reason"], args, None)[
            "erased"
        ]
    if entries is not None:
        folder = (options["to"] or settings.state / "archive").absolute()
        _archive_entries(settings, folder, entries, options, done)
    print_result(options["as_json"], done, _text(done))


def _archive_entries(
    settings: Settings,
    folder: Path,
    before_us: int,
    options: dict[str, Any],
    result: dict[str, Any],
) -> None:
    import shutil

    from vedette.adapters.ledger_export import archived_part, checkpoint_size_before
    from vedette.adapters.ledger_export import write_segment as write_segment

    with store_reader(settings) as store:
        begun, open_from = archived_part(store).size, store.first_open_entry()
        size = checkpoint_size_before(store, before_us, open_from)
        result["before"] = before_us
        result["held_by"] = open_from
        if size <= begun:
            return
        key = (settings.state / "ledger.pub").read_text(encoding="utf-8").strip()
        archived = write_segment(store, folder, size, key)
    size = archived.size
    segment = folder / f"{begun + 1:012}-{size:012}"
    args = {"archived": archived.to_bytes().decode()}
    try:
        told = submit_command(settings, "let_go", options["reason"], args, options["command_id"])
    except BadCommand:
        with store_reader(settings) as store:
            still_there = archived_part(store).size < size
        if still_there:
            # The next archiving may end elsewhere, and two segments must not overlap.
            shutil.rmtree(segment)
        raise
    result["erased"] += told["erased"]
    result["archived"] = size - begun
    result["segment"] = str(segment)


def _parse_cutoff(
    before: str | None, keep: str | None, declared_us: int | None, now: int
) -> int | None:
    if before is not None and keep is not None:
        raise BadCommand("--before and --keep say the same", mend="give one of them")
    if before is not None:
        try:
            day = date.fromisoformat(before)
        except ValueError as error:
            raise BadCommand(f"{before!r} is no date", mend="write it as 2026-05-01") from error
        return int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()) * 1_000_000
    if keep is not None:
        try:
            return instant_before(now, duration_us(keep))
        except ValueError as error:
            raise BadCommand(f"{keep!r} is no time", mend="write it as 30d") from error
    return now - declared_us if declared_us is not None else None


def _text(result: dict[str, Any]) -> str:
    lines = [f"erased {result['erased']:,} bodies"]
    if result["archived"]:
        lines.append(f"archived {result['archived']:,} entries into {result['segment']}")
    elif result.get("before"):
        why = f"; a run of entry {result['held_by']:,} has not ended" if result["held_by"] else ""
        lines.append(f"no closed entries from before {format_time(result['before'])}{why}")
    return "\n".join(lines)
