"""`vedette policy history` and `vedette policy diff`: the policy's past, and what changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from vedette.domain.base.errors import BadCommand
from vedette.interfaces.cli.common import (
    as_json_option,
    format_table,
    format_time,
    print_result,
    sanitize_text,
    settings_of,
    store_reader,
)
from vedette.interfaces.cli.folder_state import folder_note, folder_state

if TYPE_CHECKING:
    from vedette.config.settings import Settings
    from vedette.store.read_runs import StoreReader

LIVE, FOLDER = "live", "folder"


@click.command("history")
@click.option("--limit", default=20, show_default=True, metavar="N", help="How many; 0 is all.")
@as_json_option
@click.pass_context
def policy_history(ctx: click.Context, limit: int, as_json: bool) -> None:
    """List the revisions, newest first: when, who, why, from which commit."""
    from vedette.ledger.history.policy_history import history

    settings = settings_of(ctx)
    with store_reader(settings) as store:
        folder = folder_state(settings, store)
        with store.snapshot():
            rows = history(store)
    shown = rows[:limit] if limit > 0 else rows
    text = format_table(
        ["revision", "since", "digest", "by", "commit", "reason"],
        [_cells(row) for row in shown],
    )
    if len(shown) < len(rows):
        text += f"\n{len(rows) - len(shown)} older ones: --limit 0"
    text = "\n".join([text, *map(sanitize_text, folder_note(folder))])
    print_result(as_json, {"revisions": shown, "all": len(rows), "folder": folder}, text)


def _cells(row: dict[str, Any]) -> list[str]:
    reason = sanitize_text(row["reason"] or "(erased)").replace("\n", " ")
    if row["rolled_back_to"] is not None:
        reason = f"[what {row['rolled_back_to']} said] {reason}"
    return [
        str(row["revision"]),
        format_time(row["at"]),
        row["digest"][:12],
        row["by"] or "(archived)",
        row["commit"] or "-",
        reason,
    ]


@click.command("diff")
@click.argument("old", required=False, default=LIVE, metavar="[A")
@click.argument("new", required=False, default=FOLDER, metavar="[B]]")
@as_json_option
@click.pass_context
def policy_diff(ctx: click.Context, old: str, new: str, as_json: bool) -> None:
    """Show what changes from A to B: a revision's number, `live` or `folder`.

    Without B the fleet's policy folder is compared, without both with what is live.
    """
    from vedette.ledger.history.policy_history import differences

    settings = settings_of(ctx)
    with store_reader(settings) as store:
        (before, named), (after, renamed) = (
            _load_files(settings, store, each) for each in (old, new)
        )
    found = differences(before, after, (named, renamed))
    value = {
        "from": named,
        "to": renamed,
        "files": [{"path": one.path, "how": one.how, "diff": one.text} for one in found],
    }
    heads = [f"{one.how:<8} {one.path}" for one in found]
    text = "\n".join([*heads, "", *(sanitize_text(one.text).rstrip("\n") for one in found)])
    print_result(as_json, value, text if found else f"{named} and {renamed} say the same")


def _load_files(settings: Settings, store: StoreReader, which: str) -> tuple[dict[str, bytes], str]:
    """Return the files of a revision or of the folder, and its name in the comparison."""
    if which == FOLDER:
        from vedette.adapters.policy_engines.regorus.stage import read_bundle

        return dict(read_bundle(settings.policies).files), FOLDER
    number, digest = store.live_revision()
    if which != LIVE:
        if not which.isascii() or not which.isdigit():
            mend = "give a revision's number, live or folder"
            raise BadCommand(f"{which!r} is no revision", mend=mend)
        number = int(which)
        digest = {known: content for known, content, _ in store.revisions()}.get(number, "")
    files = store.bundle_files(digest)
    if files is None:
        raise BadCommand(f"there was no revision {number}", mend="see `vedette policy history`")
    return files, f"r{number}"
