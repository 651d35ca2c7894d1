"""`vedette keys`: the key that signs the ledger."""

from __future__ import annotations

from typing import Any

import click

from vedette.interfaces.cli.common import human_verb, obey, say, settings_of


@click.group()
def keys() -> None:
    """Rotate the key that signs the ledger."""


@keys.command()
@human_verb
@click.pass_context
def rotate(ctx: click.Context, /, **given: Any) -> None:
    """Hand over to a new signing key and destroy the present one.

    The entry that names the new key is signed by the old one, so whoever verifies needs no more
    than the first public key, ledger.pub. Backups from before can be restored only with the old
    key: take a new one.
    """
    done = obey(settings_of(ctx), "rotate_key", given["reason"], {}, given["command_id"])
    say(
        given["as_json"],
        done,
        f"rotated in entry {done['seq']:,}; the ledger goes on under {done['key']}\n"
        "take a backup now: those from before belong to the old key",
    )
