"""`vedette ledger archive`: moves what is old out of the store, and forgets old content."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vedette.domain.base.clock import SystemClock, ago, duration_us
from vedette.domain.base.errors import BadCommand
from vedette.interfaces.cli.common import human_verb, obey, reading, say, settings_of, shown_time

if TYPE_CHECKING:
    from vedette.config import Settings


@click.command("archive")
@click.option(
    "--to",
    metavar="FOLDER",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where the segments go. Default: archive/ in the state folder.",
)
@click.option("--before", metavar="DATE", help="Entries from before DATE (UTC), as 2026-05-01.")
@click.option("--keep", metavar="TIME", help="Entries older than TIME, as 30d.")
@human_verb
@click.pass_context
def archive(ctx: click.Context, /, **given: Any) -> None:
    """Move closed entries into segments of their own, and erase content past its retention.

    Without --before and --keep the retention of vedette.toml says how old. A segment is verified
    before its entries leave the store; a run that has not ended keeps all entries after its event.
    Store and archive verify together (ledger verify --archive FOLDER), and each by itself.
    """
    settings = settings_of(ctx)
    now = SystemClock().now_us()
    entries = _before(given["before"], given["keep"], settings.retention_entries_us, now)
    bodies = settings.retention_bodies_us
    if entries is None and bodies is None:
        mend = "add --before DATE or --keep TIME, or [retention] to vedette.toml"
        raise BadCommand("nothing says how old is old", mend=mend)
    done: dict[str, Any] = {"erased": 0, "archived": 0, "segment": None}
    if bodies is not None:
        args = {"before_us": now - bodies}
        done["erased"] += obey(settings, "expire", given["reason"], args, None)["erased"]
    if entries is not None:
        folder = (given["to"] or settings.state / "archive").absolute()
        _archive(settings, folder, entries, given, done)
    say(given["as_json"], done, _text(done))


def _archive(
    settings: Settings, folder: Path, before_us: int, given: dict[str, Any], done: dict[str, Any]
) -> None:
    import shutil

    from vedette.adapters.ledger_export import archive as write_segment
    from vedette.adapters.ledger_export import archived_of, last_before

    with reading(settings) as store:
        begun, open_from = archived_of(store).size, store.open_from()
        size = last_before(store, before_us, open_from)
        done["before"] = before_us
        done["held_by"] = open_from
        if size <= begun:
            return
        key = (settings.state / "ledger.pub").read_text(encoding="utf-8").strip()
        archived = write_segment(store, folder, size, key)
    size = archived.size
    segment = folder / f"{begun + 1:012}-{size:012}"
    args = {"archived": archived.to_bytes().decode()}
    try:
        told = obey(settings, "let_go", given["reason"], args, given["command_id"])
    except BadCommand:
        with reading(settings) as store:
            still_there = archived_of(store).size < size
        if still_there:
            # The next archiving may end elsewhere, and two segments must not overlap.
            shutil.rmtree(segment)
        raise
    done["erased"] += told["erased"]
    done["archived"] = size - begun
    done["segment"] = str(segment)


def _before(before: str | None, keep: str | None, declared_us: int | None, now: int) -> int | None:
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
            return ago(now, duration_us(keep))
        except ValueError as error:
            raise BadCommand(f"{keep!r} is no time", mend="write it as 30d") from error
    return now - declared_us if declared_us is not None else None


def _text(done: dict[str, Any]) -> str:
    lines = [f"erased {done['erased']:,} bodies"]
    if done["archived"]:
        lines.append(f"archived {done['archived']:,} entries into {done['segment']}")
    elif done.get("before"):
        why = f"; a run of entry {done['held_by']:,} has not ended" if done["held_by"] else ""
        lines.append(f"no closed entries from before {shown_time(done['before'])}{why}")
    return "\n".join(lines)
