"""`vedette backup`: a copy of the fleet's state that can be restored."""

from __future__ import annotations

from pathlib import Path

import click

from vedette.interfaces.cli.common import as_json_option, print_result, program, settings_of


@click.command()
@click.option(
    "--to",
    metavar="FOLDER",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="A new folder, best on another disk.",
)
@click.option("--with-keys", is_flag=True, help="With the private keys: keep such a backup secret.")
@as_json_option
@click.pass_context
def backup(ctx: click.Context, to: Path, with_keys: bool, as_json: bool) -> None:
    """Copy store, memory and public key into FOLDER, as of one moment, beside a running fleet.

    The copy is verified before it is called a backup. Without --with-keys the private keys must be
    kept elsewhere: no restore without ledger.key, no signed policy without policy.key. Take a new
    backup after every `vedette keys rotate`.
    """
    from vedette.app.backup import back_up

    told = back_up(settings_of(ctx), to.absolute(), with_keys=with_keys)
    size = sum(value["bytes"] for value in told["files"].values())
    text = f"{told['size']:,} entries, {size:,} bytes, verified, in {to}"
    if not with_keys:
        text += "\nthe private key is not in it: keep ledger.key elsewhere"
    text += f"\nto restore: {program()} restore --from {to} --witness FILE"
    print_result(as_json, told, text)
