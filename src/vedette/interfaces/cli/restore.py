"""`vedette restore`: puts a backup in the place of a lost store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from vedette.domain.base.errors import BadCommand
from vedette.interfaces.cli.common import (
    order_options,
    print_result,
    program,
    settings_of,
    submit_command,
)


@click.command()
@click.option(
    "--from",
    "source",
    metavar="FOLDER",
    type=click.Path(path_type=Path, file_okay=False),
    help="The backup.",
)
@click.option(
    "--witness",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The copy of witness.log that was kept elsewhere: it says what is lost.",
)
@click.option("--no-witness", is_flag=True, help="There is none; what is lost cannot be said.")
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
@order_options
@click.pass_context
def restore(ctx: click.Context, /, **options: Any) -> None:
    """Put a backup in the place of a lost store, which must be gone. The fleet comes up stopped.

    The ledger goes on with an entry that names what is lost, as far as the witness saw it. After
    `vedette resume --all` sources deliver the lost events again. Until --settled is said, every
    effect that may have happened already is asked about first where its target can be asked; one
    whose key the target knows is absorbed there; any other waits for a person.
    """
    settings = settings_of(ctx)
    if options["settled"]:
        done = submit_command(
            settings, "settle_restore", options["reason"], {}, options["command_id"]
        )
        print_result(
            options["as_json"], done, "settled: what is accepted from now on is taken as new"
        )
        return
    if options["source"] is None:
        raise BadCommand("say what to restore", mend="add --from FOLDER")
    if (options["witness"] is None) is not options["no_witness"]:
        mend = "add --witness FILE, or --no-witness if there is none"
        raise BadCommand("say what the witness saw", mend=mend)
    import asyncio

    from vedette.app.backup import restore as put_back
    from vedette.interfaces.http.unix_socket import current_person

    done = asyncio.run(
        put_back(
            settings,
            options["source"].absolute(),
            witness=options["witness"],
            key=options["key"],
            who=current_person(),
            reason=options["reason"],
        )
    )
    print_result(options["as_json"], done, _text(done, options["no_witness"]))


def _text(result: dict[str, Any], no_witness: bool) -> str:
    size = result["size"]
    lines = [f"restored up to entry {size:,}"]
    if result["lost"]:
        lines.append(f"lost: entries {size + 1:,} to {size + result['lost']:,}, as the witness saw")
    elif no_witness:
        lines.append("without a witness: how much is lost is not known")
    else:
        lines.append("the witness saw nothing beyond it")
    lines.append("everything is stopped; to go on:")
    lines.append(f'  {program()} resume --all --reason "restored, checked"')
    return "\n".join(lines)
