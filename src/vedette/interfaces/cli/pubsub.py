"""`vedette pubsub`: make what the fleet declares of Pub/Sub, and send dead letters again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from vedette.interfaces.cli.common import (
    as_json_option,
    order_options,
    print_result,
    sanitize_text,
    settings_of,
    submit_command,
)

if TYPE_CHECKING:
    from vedette.adapters.pubsub.declaration import Change
    from vedette.config.settings import Settings

_SIGNS = {"create": "+", "update": "~", "fixed": "!", "missing": "!", "extra": "?", "same": " "}


@click.group()
def pubsub() -> None:
    """Make what the fleet declares of Pub/Sub; send dead letters again.

    PUBSUB_EMULATOR_HOST names an emulator; without it the default credentials of Google Cloud are
    used.
    """


@pubsub.command()
@as_json_option
@click.pass_context
def plan(ctx: click.Context, as_json: bool) -> None:
    """Say what `apply` would do, and change nothing.

    Exits 0 if all is as declared, else 1: `apply` would change something, or something cannot be
    changed in place, or lacks a topic.
    """
    _report_changes(ctx, as_json, applied=False)


@pubsub.command()
@as_json_option
@click.pass_context
def apply(ctx: click.Context, as_json: bool) -> None:
    """Create and change topics and subscriptions so that they are as declared.

    Nothing is deleted, and what cannot be changed in place (topic, ordering, filter) is left; then
    it exits 1. Repeating it is safe.
    """
    _report_changes(ctx, as_json, applied=True)


@pubsub.command()
@click.argument("source")
@click.option("--most", default=1000, show_default=True, help="How many messages; at most 10,000.")
@order_options
@click.pass_context
def redrive(
    ctx: click.Context,
    /,
    source: str,
    most: int,
    reason: str,
    as_json: bool,
    command_id: str | None,
) -> None:
    """Publish the dead letters of SOURCE again, to its topic, with the ids they had.

    Everybody who subscribes to that topic gets them once more. What this fleet has accepted
    already it knows by its id.
    """
    args = {"source": source, "most": most}
    done = submit_command(settings_of(ctx), "pubsub_redrive", reason, args, command_id)
    text = f"{done['redriven']} dead letters of {source} were published again"
    if done["left"]:
        text += "; there may be more: repeat it"
    if done["by"] == "here":
        text += "\nno fleet runs here; it takes them in when it does"
    print_result(as_json, done, text)


def _report_changes(ctx: click.Context, as_json: bool, *, applied: bool) -> None:
    import asyncio

    from vedette.adapters.pubsub import admin
    from vedette.adapters.pubsub.declaration import build_declaration

    settings = settings_of(ctx)
    wanted = build_declaration(settings.sources, settings.targets)
    changes = asyncio.run(admin.apply(wanted) if applied else admin.plan(wanted))
    code = admin.exit_code(changes, applied=applied)
    notes = _notes(settings)
    value = {
        "applied": applied,
        "changes": [_change_json(change) for change in changes],
        "notes": notes,
        "code": code,
    }
    lines = [_change_text(change, applied) for change in changes] or ["no Pub/Sub is declared"]
    lines += [f"note: {note}" for note in notes]
    print_result(as_json, value, "\n".join(lines))
    ctx.exit(code)


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
