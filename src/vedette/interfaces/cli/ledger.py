"""`vedette ledger`: export, prove, archive and reconstruct what happened; hand its key over."""

from __future__ import annotations

import asyncio
import json
import shlex
from pathlib import Path

import click

from vedette.app.stores import store_reader
from vedette.domain.base.errors import BadCommand
from vedette.interfaces.cli.archive import archive
from vedette.interfaces.cli.fleet import current_settings, program
from vedette.interfaces.cli.orders import OrderCommand, OrderOptions, submit_command
from vedette.interfaces.cli.output import print_result
from vedette.interfaces.cli.reconstruct import reconstruct
from vedette.interfaces.cli.verify import archive_option, join_archive, read_key


@click.group()
def ledger() -> None:
    """Export, prove, archive and reconstruct the ledger; `vedette verify` verifies it."""


ledger.add_command(archive)
ledger.add_command(reconstruct)


@ledger.command("export")
@click.argument("folder", required=False, type=click.Path(path_type=Path, file_okay=False))
@click.option("--bodies", is_flag=True, help="With content: whoever gets it can read it.")
@click.option("--ship", is_flag=True, help="Instead: into BigQuery, where [audit] says.")
def ledger_export(folder: Path | None, bodies: bool, ship: bool) -> None:
    """Write the ledger into FOLDER, for anybody to verify.

    With --ship it is shipped into BigQuery, once. A running fleet does that by itself; so it must
    not run then.
    """
    from vedette.adapters.ledger_export import export

    if (folder is None) is not ship or (ship and bodies):
        raise BadCommand("say where to export to", mend="give a FOLDER, or --ship alone")
    settings = current_settings()
    if folder is None:
        from vedette.app.ledger_followers import ship_ledger

        shipped, head = asyncio.run(ship_ledger(settings))
        print_result({"shipped": shipped, "head": head}, f"shipped {shipped:,} entries")
        return
    with store_reader(settings) as store:
        done = export(
            store.ledger,
            folder.absolute(),
            verifier_key=read_key(settings.state / "ledger.pub"),
            witness=settings.state / "witness.log",
            bodies=bodies,
        )
    with_bodies = f", {done['bodies']:,} bodies" if done["bodies"] is not None else ""
    text = f"{done['entries']:,} entries{with_bodies} in {folder}"
    text += f"\n{program()} verify {shlex.quote(str(folder))}"
    print_result(done, text)


@ledger.command("prove")
@click.argument("seq", type=int, required=False)
@click.option(
    "--since",
    metavar="SIZE",
    type=int,
    help="Instead: that the checkpoint of SIZE entries is a beginning of the newest one.",
)
@archive_option
def ledger_prove(seq: int | None, since: int | None, archive: Path | None) -> None:
    """Print the proof that entry SEQ stands in the ledger; it is JSON either way.

    Checked anywhere by `vedette verify FILE --key ledger.pub`.
    """
    from vedette.adapters.ledger_export import prove_consistency, prove_inclusion

    if (seq is None) is (since is None):
        raise BadCommand("say what to prove", mend="give the SEQ of an entry, or --since SIZE")
    with store_reader(current_settings()) as store:
        record = join_archive(archive, store.ledger)
        proof = (
            prove_inclusion(record, seq)
            if seq is not None
            else prove_consistency(record, since or 0)
        )
        click.echo(json.dumps(proof, indent=2))


@ledger.command("rotate-key", cls=OrderCommand)
def rotate_key(order: OrderOptions) -> None:
    """Hand over to a new signing key and destroy the present one.

    The entry that names the new key is signed by the old one, so whoever verifies needs no more
    than the first public key, ledger.pub. Backups from before can be restored only with the old
    key: take a new one.
    """
    done = submit_command(current_settings(), "rotate_key", {}, order)
    print_result(
        done,
        f"rotated in entry {done['seq']:,}; the ledger goes on under {done['key']}\n"
        "take a backup now: those from before belong to the old key",
    )
