"""`vedette policy`: check, apply and look at the policy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vedette.cli.check import policy_findings
from vedette.cli.common import (
    as_json_option,
    folder_given,
    human_verb,
    obey,
    plain,
    reading,
    say,
    settings_of,
    shown_time,
)
from vedette.errors import BadPolicy

if TYPE_CHECKING:
    from vedette.load import Settings
    from vedette.storage.reads import Reads

_folder = click.argument("folder", required=False, type=click.Path(path_type=Path))
_REFUSALS = 3


@click.group()
def policy() -> None:
    """Check, apply and look at the policy."""


@policy.command("check")
@_folder
@as_json_option
@click.pass_context
def policy_check(ctx: click.Context, folder: Path | None, as_json: bool) -> int:
    """Say what would keep FOLDER (default: the fleet's) from becoming live; exits with 1 then.

    It is tried out in a process of its own: parsed, its tests run, both evaluators compared.
    """
    if folder is None:
        settings = settings_of(ctx)
        folder = settings.policies
    found = policy_findings(folder_given(folder, folder), str(folder))
    lines = [
        f"{item['file']}:{item['line']}: {item['what']}"
        + (f" ({item['mend']})" if item["mend"] else "")
        for item in found
    ]
    say(as_json, {"ok": not found, "findings": found}, "\n".join(lines or ["it may become live"]))
    return 1 if found else 0


@policy.command("apply")
@_folder
@human_verb
@click.pass_context
def policy_apply(
    ctx: click.Context, folder: Path | None, reason: str, command_id: str | None, as_json: bool
) -> int:
    """Make FOLDER (default: the fleet's) the live policy; no redeploy, no restart.

    When this returns no older revision can commit or start anything any more. A refused folder
    changes nothing and exits with 1.
    """
    settings = settings_of(ctx)
    args = {"folder": str(folder_given(folder, settings.policies))}
    try:
        done = obey(settings, "policy_apply", reason, args, command_id)
    except BadPolicy as error:
        done = {"ok": False, "findings": [str(error)], "revision": None}
    if not done["ok"]:
        stays = f"; revision {done['revision']} stays" if done["revision"] else ""
        say(as_json, done, "\n".join([f"refused{stays}:", *done["findings"]]))
        return 1
    text = f"revision {done['revision']} ({done['digest'][:12]}) is live"
    if not done["changed"]:
        text += " already; the folder says the same"
    else:
        text += f" after {done['took_us'] / 1000:.0f} ms"
    if done["still_calling"]:
        text += f"; {done['still_calling']} calls of older revisions have not ended yet"
    say(as_json, done, text)
    return 0


@policy.command("status")
@as_json_option
@click.pass_context
def policy_status(ctx: click.Context, as_json: bool) -> None:
    """Show the live revision, and whether the folder says something else."""
    settings = settings_of(ctx)
    with reading(settings) as store:
        value = _status(settings, store)
    folder = value["folder"]
    lines = [
        f"live: revision {value['revision']}, digest {value['digest'][:12]}, "
        f"since {shown_time(value['since'])}",
        f"published by {value['by']}: {plain(value['reason'] or 'the reason was erased')}",
        f"folder {folder['path']}: {folder['says']}",
    ]
    for refusal in value["refusals"]:
        lines.append(f"refused {shown_time(refusal['at'])} by {refusal['by']}:")
        lines += [f"  {plain(told)}" for told in refusal["findings"]]
    say(as_json, value, "\n".join(lines))


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
        "folder": _folder_state(settings.policies, digest),
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


def _folder_state(folder: Path, live: str) -> dict[str, Any]:
    from vedette.adapters.rego.stage import read_bundle

    try:
        digest = read_bundle(folder).digest
    except BadPolicy as error:
        return {"path": str(folder), "digest": None, "differs": True, "says": str(error)}
    differs = digest != live
    says = "the same as live"
    if differs:
        says = f"differs from live (digest {digest[:12]}); `vedette policy check` says if it may be"
    return {"path": str(folder), "digest": digest, "differs": differs, "says": says}
