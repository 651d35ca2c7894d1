"""`vedette pubsub`: make what the fleet declares of Pub/Sub, and send dead letters again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click

from vedette.interfaces.cli.fleet import current_settings, refuse_options
from vedette.interfaces.cli.orders import (
    OrderCommand,
    OrderOptions,
    deferred_note,
    submit_command,
)
from vedette.interfaces.cli.output import print_result, sanitize_text

if TYPE_CHECKING:
    from vedette.adapters.pubsub.declaration import Change
    from vedette.config.settings import Settings

_SIGNS = {"create": "+", "update": "~", "fixed": "!", "missing": "!", "extra": "?", "same": " "}


@click.command(cls=OrderCommand, needs_reason=False)
@click.option("--apply", is_flag=True, help="Make it so.")
@click.option("--redrive", metavar="SOURCE", help="Publish SOURCE's dead letters again.")
@click.option(
    "--limit", default=1000, show_default=True, help="Of dead letters: how many; at most 10,000."
)
def pubsub(apply: bool, redrive: str | None, limit: int, order: OrderOptions) -> int:
    """Say what differs of topics and subscriptions from what is declared, and change nothing.

    With --apply they are created and changed; nothing is deleted, and what cannot be changed in
    place (topic, ordering, filter) is left. Repeating it is safe. Exits 0 if all is as declared,
    else 1. PUBSUB_EMULATOR_HOST names an emulator; without it the default credentials of Google
    Cloud are used.

    With --redrive the dead letters of a source go to its topic again, with the ids they had: to
    everybody who subscribes to it. What this fleet has accepted already it knows by its id.
    """
    if redrive is None:
        refuse_options(("limit", "reason", "command_id"), "is for --redrive")
        return _report_changes(applied=apply)
    if apply:
        raise click.UsageError("--apply and --redrive exclude each other")
    order.require_reason()
    args = {"source": redrive, "most": limit}
    done = submit_command(current_settings(), "pubsub_redrive", args, order)
    lines = [f"{done['redriven']} dead letters of {redrive} were published again"]
    if done["left"]:
        lines[0] += "; there may be more: repeat it"
    lines += deferred_note(done, "it takes them in")
    print_result(done, "\n".join(lines))
    return 0


def _report_changes(*, applied: bool) -> int:
    from vedette.adapters.pubsub import admin
    from vedette.adapters.pubsub.declaration import build_declaration

    settings = current_settings()
    wanted = build_declaration(settings.sources, settings.targets)
    changes = asyncio.run(
        admin.apply_declaration(wanted) if applied else admin.plan_subscriptions(wanted)
    )
    code = admin.declaration_exit_code(changes, applied=applied)
    notes = _notes(settings)
    value = {
        "applied": applied,
        "changes": [_change_json(change) for change in changes],
        "notes": notes,
        "code": code,
    }
    lines = [_change_text(change, applied) for change in changes] or ["no Pub/Sub is declared"]
    print_result(value, "\n".join([*lines, *(f"note: {note}" for note in notes)]))
    return code


def _notes(settings: Settings) -> list[str]:
    """Return what has to be seen to elsewhere: the broker's own rights to dead letters."""
    from vedette.adapters.pubsub.config import PubsubFile, PushFile
    from vedette.adapters.pubsub.declaration import dead_letter_subscription

    return [
        f"source {plan.name}: the project's Pub/Sub service agent must be a publisher of "
        f"{plan.dead_letter_topic} and a subscriber of {plan.subscription}; that is not looked at"
        for plan in settings.sources
        if isinstance(plan, PubsubFile | PushFile) and dead_letter_subscription(plan)
    ]


def _change_json(change: Change) -> dict[str, Any]:
    return {
        "resource": change.resource,
        "name": change.name,
        "action": change.action,
        "fields": [
            {
                "name": one.name,
                "found": one.found,
                "declared": one.wanted,
                "in_place": one.is_mutable,
            }
            for one in change.fields
        ],
        "why": change.why or None,
    }


def _change_text(change: Change, applied: bool) -> str:
    words = {
        "create": "created" if applied else "to create",
        "update": "changed" if applied else "to change",
        "same": "as declared",
        "fixed": "differs, and cannot be changed in place: delete it yourself, then apply",
        "missing": f"is not there and cannot be made: {change.why}",
        "extra": "is not declared",
    }
    lines = [
        f"{_SIGNS[change.action]} {change.resource} {sanitize_text(change.name)}: "
        f"{words[change.action]}"
    ]
    for one in change.fields:
        stays = "" if one.is_mutable else " (stays: fixed at creation)"
        found = sanitize_text(str(one.found)) or "nothing"
        lines.append(f"    {one.name}: {found} -> {str(one.wanted) or 'nothing'}{stays}")
    return "\n".join(lines)
