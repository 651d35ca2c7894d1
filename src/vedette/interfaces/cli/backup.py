"""`vedette backup` and `vedette restore`: a copy of the fleet's state, and back from it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import click

from vedette.domain.base.errors import BadCommand
from vedette.interfaces.cli.fleet import current_settings, program
from vedette.interfaces.cli.orders import OrderCommand, OrderOptions, submit_command
from vedette.interfaces.cli.output import print_result

_NO_WITNESS = "none"


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option("--with-keys", is_flag=True, help="With the private keys: keep such a backup secret.")
def backup(folder: Path, with_keys: bool) -> None:
    """Copy store, memory and public key into FOLDER, as of one moment, beside a running fleet.

    FOLDER is a new one, best on another disk. The copy is verified before it is called a backup.
    Without --with-keys the private keys must be kept elsewhere: no restore without ledger.key, no
    signed policy without policy.key. Take a new backup after every `vedette ledger rotate-key`.
    """
    from vedette.app.backup import back_up

    done = back_up(current_settings(), folder.absolute(), with_keys=with_keys)
    size = sum(value["bytes"] for value in done["files"].values())
    lines = [f"{done['size']:,} entries, {size:,} bytes, verified, in {folder}"]
    if not with_keys:
        lines.append("the private key is not in it: keep ledger.key elsewhere")
    lines.append(f"to restore: {program()} restore {folder} --witness FILE")
    print_result(done, "\n".join(lines))


@click.command(cls=OrderCommand)
@click.argument("folder", required=False, type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--witness",
    metavar="FILE|none",
    help="The copy of witness.log that was kept elsewhere: it says what is lost.",
)
@click.option(
    "--key",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The private key as of the backup. Default: that in it, or in the state folder.",
)
@click.option(
    "--settled",
    is_flag=True,
    help="Instead: say that no source delivers again what was lost.",
)
def restore(
    folder: Path | None, witness: str | None, key: Path | None, settled: bool, order: OrderOptions
) -> None:
    """Put the backup in FOLDER in the place of a lost store. The fleet comes up stopped.

    The store must be gone. The ledger goes on with an entry that names what is lost, as far as the
    witness saw it. After `vedette resume --all` sources deliver the lost events again. Until
    --settled is said, every effect that may have happened already is asked about first where its
    target can be asked; one whose key the target knows is absorbed there; any other waits for a
    person.
    """
    settings = current_settings()
    if settled:
        done = submit_command(settings, "settle_restore", {}, order)
        print_result(done, "settled: what is accepted from now on is taken as new")
        return
    if order.command_id is not None:
        raise click.UsageError(
            "--command-id is for --settled: a store that is there is no lost one"
        )
    if folder is None:
        raise BadCommand("say what to restore", mend="name the FOLDER of a backup")
    if witness is None:
        mend = "add --witness FILE, or --witness none if there is none"
        raise BadCommand("say what the witness saw", mend=mend)
    from vedette.app.backup import restore as put_back
    from vedette.interfaces.http.unix_socket import current_person

    done = asyncio.run(
        put_back(
            settings,
            folder.absolute(),
            witness=None if witness == _NO_WITNESS else Path(witness),
            key=key,
            who=current_person(),
            reason=order.require_reason(),
        )
    )
    print_result(done, "\n".join(_restore_lines(done, witness == _NO_WITNESS)))


def _restore_lines(result: dict[str, Any], no_witness: bool) -> list[str]:
    size = result["size"]
    lines = [f"restored up to entry {size:,}"]
    if result["lost"]:
        lines.append(f"lost: entries {size + 1:,} to {size + result['lost']:,}, as the witness saw")
    elif no_witness:
        lines.append("without a witness: how much is lost is not known")
    else:
        lines.append("the witness saw nothing beyond it")
    lines.append("everything is stopped; to go on:")
    return [*lines, f'  {program()} resume --all --reason "restored, checked"']
