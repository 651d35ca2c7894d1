"""`vedette policy`: publish and roll back the policy, look at it and at its past."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vedette.app.policy_state import folder_state, policy_status
from vedette.app.stores import store_reader
from vedette.domain.base.errors import BadCommand, BadPolicy
from vedette.interfaces.cli.check import policy_folder
from vedette.interfaces.cli.fleet import current_settings
from vedette.interfaces.cli.orders import OrderCommand, OrderOptions, submit_with_confirmation
from vedette.interfaces.cli.output import format_table, format_time, print_result, sanitize_text
from vedette.policy.compatibility import check_live, format_refusal

if TYPE_CHECKING:
    from vedette.config.settings import Settings
    from vedette.store.reader import StoreReader

LIVE, FOLDER = "live", "folder"

_yes_option = click.option(
    "--yes", is_flag=True, help="Loosen without asking; needed where there is no terminal."
)


@click.group()
def policy() -> None:
    """Publish and roll back the policy, and look at it; `vedette check policy` tries it out."""


# --- making it live --------------------------------------------------------------------------


@policy.command(cls=OrderCommand)
@click.argument("folder", required=False, type=click.Path(path_type=Path))
@click.option("--commit", metavar="REV", help="Where it comes from; recorded with it.")
@click.option(
    "--new-key",
    is_flag=True,
    help="Sign with this state folder's key from now on, though another signed before.",
)
@_yes_option
def publish(
    folder: Path | None, commit: str | None, new_key: bool, yes: bool, order: OrderOptions
) -> int:
    """Make FOLDER (default: the fleet's) the live policy; no redeploy, no restart.

    It is tried out, signed, and kept with who published it and why. What it loosens is shown, with
    the recorded decisions that would come out otherwise, and asked about. When this returns no
    older revision can commit or start anything any more. A refused folder changes nothing and
    exits with 1.
    """
    settings = current_settings()
    args = {
        "folder": str(policy_folder(folder or settings.policies)),
        "commit": commit,
        "new_key": new_key or None,
    }
    return _publish(settings, "policy_apply", args, order, yes)


@policy.command(cls=OrderCommand)
@click.argument("number", type=click.IntRange(min=1))
@_yes_option
def rollback(number: int, yes: bool, order: OrderOptions) -> int:
    """Make what revision NUMBER said live again, as a new revision.

    It goes through the same trial as any other: if it does not fit the fleet of today it is
    refused, which changes nothing and exits with 1. What it loosens is shown and asked about: an
    agent that was set to observe since acts again, say. The policy folder waits from then on, until
    it says what is live or is published.
    """
    return _publish(current_settings(), "policy_rollback", {"number": number}, order, yes)


def _publish(
    settings: Settings, verb: str, args: dict[str, Any], order: OrderOptions, yes: bool
) -> int:
    try:
        done = submit_with_confirmation(settings, verb, args, order, yes=yes)
    except BadPolicy as error:
        done = {"ok": False, "findings": [str(error)], "revision": None}
    if not done["ok"]:
        stays = f"; revision {done['revision']} stays" if done["revision"] else ""
        print_result(done, "\n".join([f"refused{stays}:", *done["findings"]]))
        return 1
    print_result(done, publication_text(done))
    return 0


def publication_text(result: Mapping[str, Any]) -> str:
    """Return what `vedette policy` prints of a publication that succeeded."""
    text = f"revision {result['revision']} ({result['digest'][:12]}) is live"
    if not result["changed"]:
        text += " already; that is what it says"
    else:
        where = "" if result["behind"] else " everywhere"
        text += f"{where} after {result['took_us'] / 1000:.0f} ms"
        text += f" ({result['trial_us'] / 1000:.0f} ms of them its trial)"
    if result["still_calling"]:
        text += f"; {result['still_calling']} calls of older revisions have not ended yet"
    if result["behind"]:
        # Their names are made by the workers themselves.
        names = sanitize_text(", ".join(result["behind"]))
        text += f"\nnote: not known to be in force at worker {names}: see whether it lives"
    if result["told"]:
        text += f"\nnote: {sanitize_text(result['told'])}"
    return text


# --- what is live ----------------------------------------------------------------------------


@policy.command()
def status() -> None:
    """Show the live revision, and whether the folder says something else."""
    settings = current_settings()
    with store_reader(settings) as store:
        value = policy_status(settings, store)
        value["check"] = _check_live(store, value["digest"])
    folder = value["folder"]
    signed = f"archive {value['archive'][:12]}, signed by key {value['signer']}"
    commit = f", commit {value['commit']}" if value["commit"] else ""
    lines = [
        f"live: revision {value['revision']}, digest {value['digest'][:12]}, "
        f"since {format_time(value['since'])}",
        f"published by {value['by']}{commit}: "
        f"{sanitize_text(value['reason'] or 'the reason was erased')}",
        f"decided by {value['engine']} when it was published",
        signed if value["archive"] else "no signed archive was recorded with it",
        f"folder {folder['path']}: {folder['says']}",
    ]
    if value["check"]:
        lines.insert(1, sanitize_text(format_refusal(value["revision"], value["check"])))
    if value["shelf"] is not None:
        lines.append(f"shelf {value['shelf']['where']}: {sanitize_text(value['shelf']['says'])}")
    for refusal in value["refusals"]:
        lines.append(f"refused {format_time(refusal['at'])} by {refusal['by']}:")
        lines += [f"  {sanitize_text(finding)}" for finding in refusal["findings"]]
    print_result(value, "\n".join(lines))


def _check_live(store: StoreReader, digest: str) -> list[str] | None:
    """Return what this version's check finds in the live policy; None if it could not say."""
    from vedette.adapters.policy_engines.regorus.stage import SubprocessStage

    return asyncio.run(check_live(store, digest, SubprocessStage().try_out))


def folder_note(state: Mapping[str, Any]) -> list[str]:
    """Return a verb's line on a policy folder that differs; none where it says what is live."""
    return [f"policy folder {state['path']}: {state['says']}"] if state["differs"] else []


# --- its past --------------------------------------------------------------------------------


@policy.command()
@click.option("--limit", default=20, show_default=True, metavar="N", help="How many; 0 is all.")
def history(limit: int) -> None:
    """List the revisions, newest first: when, who, why, from which commit."""
    from vedette.ledger.history.policy_history import history as read_history

    settings = current_settings()
    with store_reader(settings) as store:
        folder = folder_state(settings, store)
        with store.snapshot():
            rows = read_history(store)
    shown = rows[:limit] if limit > 0 else rows
    heads = ["revision", "since", "digest", "by", "commit", "reason"]
    text = format_table(heads, [_cells(row) for row in shown])
    if len(shown) < len(rows):
        text += f"\n{len(rows) - len(shown)} older ones: --limit 0"
    text = "\n".join([text, *map(sanitize_text, folder_note(folder))])
    print_result({"revisions": shown, "all": len(rows), "folder": folder}, text)


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


@policy.command()
@click.argument("old", required=False, default=LIVE, metavar="[A")
@click.argument("new", required=False, default=FOLDER, metavar="[B]]")
def diff(old: str, new: str) -> None:
    """Show what changes from A to B: a revision's number, `live` or `folder`.

    Without B the fleet's policy folder is compared, without both with what is live.
    """
    from vedette.ledger.history.policy_history import differences

    settings = current_settings()
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
    print_result(value, text if found else f"{named} and {renamed} say the same")


def _load_files(settings: Settings, store: StoreReader, which: str) -> tuple[dict[str, bytes], str]:
    """Return the files of a revision or of the folder, and its name in the comparison."""
    if which == FOLDER:
        from vedette.adapters.policy_engines.regorus.stage import read_bundle

        return dict(read_bundle(settings.policies).files), FOLDER
    number, digest = store.policy.live_revision()
    if which != LIVE:
        if not which.isascii() or not which.isdigit():
            mend = "give a revision's number, live or folder"
            raise BadCommand(f"{which!r} is no revision", mend=mend)
        number = int(which)
        digest = {known: content for known, content, _ in store.policy.revisions()}.get(number, "")
    files = store.policy.bundle_files(digest)
    if files is None:
        raise BadCommand(f"there was no revision {number}", mend="see `vedette policy history`")
    return files, f"r{number}"
