"""`vedette approve` and `vedette deny`: a person's answer to a hold."""

from __future__ import annotations

import click

from vedette.cli.common import human_verb, obey, prefix, say, settings_of

_digest = click.option(
    "--digest", metavar="HEX", help="Only if the hold is still for the action of this digest."
)


@click.command()
@click.argument("hold")
@_digest
@human_verb
@click.pass_context
def approve(
    ctx: click.Context, hold: str, digest: str | None, reason: str, command_id: str | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Approve exactly the action that HOLD holds, once.

    It is decided again under the policy of that moment before it is done.
    """
    _answer(ctx, "approve", hold, digest, reason, command_id, as_json)


@click.command()
@click.argument("hold")
@_digest
@human_verb
@click.pass_context
def deny(
    ctx: click.Context, hold: str, digest: str | None, reason: str, command_id: str | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Deny what HOLD holds, for good."""
    _answer(ctx, "deny", hold, digest, reason, command_id, as_json)


def _answer(
    ctx: click.Context,
    verb: str,
    hold: str,
    digest: str | None,
    reason: str,
    command_id: str | None,
    as_json: bool,
) -> None:
    args = {"hold": hold, "digest": digest}
    done = obey(settings_of(ctx), verb, reason, args, command_id)
    text = f"{done['hold']} is {done['state']}: {done['tool']} of {done['run']}"
    if done["by"] == "here":
        text += "\nno fleet runs here; it is acted on at the next `vedette run`"
    say(as_json, done, f"{text}\nsee: {prefix(ctx)} explain {done['run']}")
