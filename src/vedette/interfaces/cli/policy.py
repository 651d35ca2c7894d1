"""`vedette policy`: check, publish and roll back the policy, and look at it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vedette.domain.base.errors import BadPolicy, Unavailable
from vedette.interfaces.cli.check import policy_findings
from vedette.interfaces.cli.common import (
    as_json_option,
    format_time,
    order_options,
    print_result,
    resolve_folder,
    sanitize_text,
    settings_of,
    store_reader,
)
from vedette.interfaces.cli.folder_state import folder_state
from vedette.interfaces.cli.loosening import submit_with_confirmation, yes_option
from vedette.interfaces.cli.policy_history import policy_diff, policy_history
from vedette.policy.compatibility import check_live, format_refusal

if TYPE_CHECKING:
    from vedette.config.settings import Settings
    from vedette.store.read_runs import StoreReader

_folder_argument = click.argument("folder", required=False, type=click.Path(path_type=Path))
_MAX_REFUSALS = 3


@click.group()
def policy() -> None:
    """Check, publish and roll back the policy, and look at it."""


@policy.command("check")
@_folder_argument
@as_json_option
@click.pass_context
def policy_check(ctx: click.Context, folder: Path | None, as_json: bool) -> int:
    """Say what would keep FOLDER (default: the fleet's) from becoming live; exits with 1 then.

    It is tried out in a process of its own: parsed, its tests run, both evaluators compared.
    """
    settings = settings_of(ctx) if folder is None else None
    if settings is not None:
        folder = settings.policies
    assert folder is not None
    found = policy_findings(resolve_folder(folder, folder), str(folder), settings)
    lines = [
        f"{item['file']}:{item['line']}: {item['what']}"
        + (f" ({item['mend']})" if item["mend"] else "")
        for item in found
    ]
    print_result(
        as_json, {"ok": not found, "findings": found}, "\n".join(lines or ["it may become live"])
    )
    return 1 if found else 0


@policy.command("publish")
@_folder_argument
@click.option("--commit", metavar="REV", help="Where it comes from; recorded with it.")
@click.option(
    "--new-key",
    is_flag=True,
    help="Sign with this state folder's key from now on, though another signed before.",
)
@yes_option
@order_options
@click.pass_context
def policy_publish(
    ctx: click.Context,
    folder: Path | None,
    commit: str | None,
    new_key: bool,
    yes: bool,
    reason: str,
    command_id: str | None,
    as_json: bool,
) -> int:
    """Make FOLDER (default: the fleet's) the live policy; no redeploy, no restart.

    It is tried out, signed, and kept with who published it and why. What it loosens is shown, with
    the recorded decisions that would come out otherwise, and asked about. When this returns no
    older revision can commit or start anything any more. A refused folder changes nothing and
    exits with 1.
    """
    settings = settings_of(ctx)
    args = {
        "folder": str(resolve_folder(folder, settings.policies)),
        "commit": commit,
        "new_key": new_key or None,
    }
    return _publish(settings, "policy_apply", reason, args, command_id, yes, as_json)


# The same under the name that it had first.
policy.add_command(
    click.Command(
        "apply", params=policy_publish.params, callback=policy_publish.callback,
        help="The same as publish.", short_help="The same as publish.",
    )
)  # fmt: skip


@policy.command("rollback")
@click.argument("number", type=click.IntRange(min=1))
@yes_option
@order_options
@click.pass_context
def policy_rollback(
    ctx: click.Context, number: int, yes: bool, reason: str, command_id: str | None, as_json: bool
) -> int:
    """Make what revision NUMBER said live again, as a new revision.

    It goes through the same trial as any other: if it does not fit the fleet of today it is
    refused, which changes nothing and exits with 1. What it loosens is shown and asked about: an
    agent that was set to observe since acts again, say. The policy folder waits from then on, until
    it says what is live or is published.
    """
    settings = settings_of(ctx)
    args = {"number": number}
    return _publish(settings, "policy_rollback", reason, args, command_id, yes, as_json)


def _publish(
    settings: Settings,
    verb: str,
    reason: str,
    args: dict[str, Any],
    command_id: str | None,
    yes: bool,
    as_json: bool,
) -> int:
    try:
        done = submit_with_confirmation(settings, verb, reason, args, command_id, yes=yes)
    except BadPolicy as error:
        done = {"ok": False, "findings": [str(error)], "revision": None}
    if not done["ok"]:
        stays = f"; revision {done['revision']} stays" if done["revision"] else ""
        print_result(as_json, done, "\n".join([f"refused{stays}:", *done["findings"]]))
        return 1
    print_result(as_json, done, publication_text(done))
    return 0


def publication_text(result: Mapping[str, Any]) -> str:
    """Return what a person is told of a publication that succeeded."""
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


@policy.command("status")
@as_json_option
@click.pass_context
def policy_status(ctx: click.Context, as_json: bool) -> None:
    """Show the live revision, and whether the folder says something else."""
    settings = settings_of(ctx)
    with store_reader(settings) as store:
        value = _status(settings, store)
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
        lines += [f"  {sanitize_text(told)}" for told in refusal["findings"]]
    print_result(as_json, value, "\n".join(lines))


def _check_live(store: StoreReader, digest: str) -> list[str] | None:
    """Return what this version's check finds in the live policy; None if it could not say."""
    import asyncio

    from vedette.adapters.policy_engines.regorus.stage import SubprocessStage

    return asyncio.run(check_live(store, digest, SubprocessStage().try_out))


def _status(settings: Settings, store: StoreReader) -> dict[str, Any]:
    number, digest = store.live_revision()
    published = _last_entries(store, "policy.published", 1)
    refusals = _last_entries(store, "policy.refused", _MAX_REFUSALS)
    entry, body = published[0] if published else ({"at": 0}, {})
    return {
        "revision": number,
        "digest": digest,
        "since": entry["at"],
        "by": entry.get("actor"),
        "reason": (body or {}).get("reason"),
        "engine": entry.get("engine"),
        "commit": entry.get("commit"),
        "archive": entry.get("archive") or "",
        "signer": entry.get("signer"),
        "folder": folder_state(settings, store),
        "shelf": _repository_state(settings, number, digest),
        "refusals": [
            {
                "at": refused["at"],
                "by": refused.get("actor"),
                "bundle": refused.get("bundle"),
                "findings": (told or {}).get("findings", ["(erased)"]),
            }
            for refused, told in refusals
        ],
    }


def _last_entries(store: StoreReader, kind: str, number: int) -> list[tuple[dict[str, Any], Any]]:
    """Return the last entries of a kind with their bodies, newest first."""
    found = list(store.walk((kind,)))[-number:]
    return [(json.loads(raw), json.loads(data) if data else None) for _, raw, _, data in found][
        ::-1
    ]


def _repository_state(settings: Settings, number: int, digest: str) -> dict[str, Any] | None:
    """Say what lies on the fleet's shelf, verified; None if it has none."""
    from vedette.app.policy_publication import FolderSigner, bundle_name, open_bundle_repository
    from vedette.policy.distribution import read_repository

    shelf = open_bundle_repository(settings)
    if shelf is None:
        return None
    state: dict[str, Any] = {"where": shelf.where, "revision": None, "ok": False}
    name = bundle_name(settings.fleet)
    try:
        found = read_repository(shelf, name, FolderSigner(settings.state), number)
    except (BadPolicy, Unavailable) as error:
        return {**state, "says": str(error)}
    if found is None:
        return {**state, "says": "nothing is there; a fleet that runs puts the live one there"}
    there, what = found
    if found == (number, digest):
        says = f"revision {there}, verified; it is the live one"
    else:
        says = f"revision {there} (digest {what[:12]}), verified; {number} is live"
    return {**state, "revision": there, "ok": found == (number, digest), "says": says}


policy.add_command(policy_history)
policy.add_command(policy_diff)
