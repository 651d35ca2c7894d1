"""`vedette keys`: the key that signs the ledger."""

from __future__ import annotations

from typing import Any

import click

from vedette.interfaces.cli.common import order_options, print_result, settings_of, submit_command


@click.group()
def keys() -> None:
    """Rotate the key that signs the ledger."""


@keys.command()
@order_options
@click.pass_context
def rotate(ctx: click.Context, /, **options: Any) -> None:
    """Hand over to a new signing key and destroy the present one.

    The entry that names the new key is signed by the old one, so whoever verifies needs no more
    than the first public key, ledger.pub. Backups from before can be restored only with the old
    key: take a new one.
    """
    done = submit_command(
        settings_of(ctx), "rotate_key", options["reason"], {}, options["command_id"]
    )
    print_result(
        options["as_json"],
        done,
        f"rotated in entry {done['seq']:,}; the ledger goes on under {done['key']}\n"
        "take a backup now: those from before belong to the old key",
    )
