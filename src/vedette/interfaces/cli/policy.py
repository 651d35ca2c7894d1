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
    folder_given,
    human_verb,
    plain,
    reading,
    say,
    settings_of,
    shown_time,
)
from vedette.interfaces.cli.folder_state import folder_state
from vedette.interfaces.cli.loosening import obey_confirmed, yes_option
from vedette.interfaces.cli.policy_history import policy_diff, policy_history
from vedette.policy.compatibility import check_live, told_check

if TYPE_CHECKING:
    from vedette.config import Settings
    from vedette.store.read_runs import Reads

_folder = click.argument("folder", required=False, type=click.Path(path_type=Path))
_REFUSALS = 3


@click.group()
def policy() -> None:
    """Check, publish and roll back the policy, and look at it."""


@policy.command("check")
@_folder
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
    found = policy_findings(folder_given(folder, folder), str(folder), settings)
    lines = [
        f"{item['file']}:{item['line']}: {item['what']}"
        + (f" ({item['mend']})" if item["mend"] else "")
        for item in found
    ]
    say(as_json, {"ok": not found, "findings": found}, "\n".join(lines or ["it may become live"]))
    return 1 if found else 0


@policy.command("publish")
@_folder
@click.option("--commit", metavar="REV", help="Where it comes from; recorded with it.")
@click.option(
    "--new-key",
    is_flag=True,
    help="Sign with this state folder's key from now on, though another signed before.",
)
@yes_option
@human_verb
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
        "folder": str(folder_given(folder, settings.policies)),
        "commit": commit,
        "new_key": new_key or None,
    }
    return _published(settings, "policy_apply", reason, args, command_id, yes, as_json)


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
@human_verb
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
    return _published(settings, "policy_rollback", reason, args, command_id, yes, as_json)


def _published(
    settings: Settings,
    verb: str,
    reason: str,
    args: dict[str, Any],
    command_id: str | None,
    yes: bool,
    as_json: bool,
) -> int:
    try:
        done = obey_confirmed(settings, verb, reason, args, command_id, yes=yes)
    except BadPolicy as error:
        done = {"ok": False, "findings": [str(error)], "revision": None}
    if not done["ok"]:
        stays = f"; revision {done['revision']} stays" if done["revision"] else ""
        say(as_json, done, "\n".join([f"refused{stays}:", *done["findings"]]))
        return 1
    say(as_json, done, told_of(done))
    return 0


def told_of(done: Mapping[str, Any]) -> str:
    """Return what a person is told of a publication that succeeded."""
    text = f"revision {done['revision']} ({done['digest'][:12]}) is live"
    if not done["changed"]:
        text += " already; that is what it says"
    else:
        where = "" if done["behind"] else " everywhere"
        text += f"{where} after {done['took_us'] / 1000:.0f} ms"
        text += f" ({done['trial_us'] / 1000:.0f} ms of them its trial)"
    if done["still_calling"]:
        text += f"; {done['still_calling']} calls of older revisions have not ended yet"
    if done["behind"]:
        # Their names are made by the workers themselves.
        names = plain(", ".join(done["behind"]))
        text += f"\nnote: not known to be in force at worker {names}: see whether it lives"
    if done["told"]:
        text += f"\nnote: {plain(done['told'])}"
    return text


@policy.command("status")
@as_json_option
@click.pass_context
def policy_status(ctx: click.Context, as_json: bool) -> None:
    """Show the live revision, and whether the folder says something else."""
    settings = settings_of(ctx)
    with reading(settings) as store:
        value = _status(settings, store)
        value["check"] = _check_live(store, value["digest"])
    folder = value["folder"]
    signed = f"archive {value['archive'][:12]}, signed by key {value['signer']}"
    commit = f", commit {value['commit']}" if value["commit"] else ""
    lines = [
        f"live: revision {value['revision']}, digest {value['digest'][:12]}, "
        f"since {shown_time(value['since'])}",
        f"published by {value['by']}{commit}: {plain(value['reason'] or 'the reason was erased')}",
        f"decided by {value['engine']} when it was published",
        signed if value["archive"] else "no signed archive was recorded with it",
        f"folder {folder['path']}: {folder['says']}",
    ]
    if value["check"]:
        lines.insert(1, plain(told_check(value["revision"], value["check"])))
    if value["shelf"] is not None:
        lines.append(f"shelf {value['shelf']['where']}: {plain(value['shelf']['says'])}")
    for refusal in value["refusals"]:
        lines.append(f"refused {shown_time(refusal['at'])} by {refusal['by']}:")
        lines += [f"  {plain(told)}" for told in refusal["findings"]]
    say(as_json, value, "\n".join(lines))


def _check_live(store: Reads, digest: str) -> list[str] | None:
    """Return what this version's check finds in the live policy; None if it could not say."""
    import asyncio

    from vedette.adapters.policy_engines.regorus.stage import SubprocessStage

    return asyncio.run(check_live(store, digest, SubprocessStage().try_out))


def _status(settings: Settings, store: Reads) -> dict[str, Any]:
    number, digest = store.revision()
    published = _last(store, "policy.published", 1)
    refusals = _last(store, "policy.refused", _REFUSALS)
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
        "shelf": _shelf_state(settings, number, digest),
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


def _last(store: Reads, kind: str, number: int) -> list[tuple[dict[str, Any], Any]]:
    """Return the last entries of a kind with their bodies, newest first."""
    found = list(store.walk((kind,)))[-number:]
    return [(json.loads(raw), json.loads(data) if data else None) for _, raw, _, data in found][
        ::-1
    ]


def _shelf_state(settings: Settings, number: int, digest: str) -> dict[str, Any] | None:
    """Say what lies on the fleet's shelf, verified; None if it has none."""
    from vedette.app.policy_publication import FolderSealer, bundle_name, shelf_of
    from vedette.policy.distribution import on_shelf

    shelf = shelf_of(settings)
    if shelf is None:
        return None
    state: dict[str, Any] = {"where": shelf.where, "revision": None, "ok": False}
    name = bundle_name(settings.fleet)
    try:
        found = on_shelf(shelf, name, FolderSealer(settings.state), number)
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
