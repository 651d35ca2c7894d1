"""`vedette erase`: deletes content; what happened stays proved."""

from __future__ import annotations

from typing import Any

import click

from vedette.cli.common import human_verb, obey, say, settings_of


@click.command()
@click.option("--event", metavar="ID", help="All content of one event.")
@click.option("--subject", metavar="WHO", help="All content under a subject (mail: its sender).")
@click.option(
    "--entry",
    metavar="SEQ",
    type=click.IntRange(min=1),
    help="The content of one entry of the ledger (of a refused delivery, say).",
)
@human_verb
@click.pass_context
def erase(ctx: click.Context, /, **given: Any) -> None:
    """Erase the content of an event, all under a subject, or that of one entry.

    Entries keep their salted digests, so `ledger verify` still passes and says what was erased;
    decisions made of that content can no longer be replayed.
    """
    args = {"event": given["event"], "subject": given["subject"], "entry": given["entry"]}
    done = obey(settings_of(ctx), "erase", given["reason"], args, given["command_id"])
    number = len(done["erased"])
    noun = "body" if number == 1 else "bodies"
    told = f"erased {number} {noun}; `vedette ledger verify` still passes"
    if not done["scrubbed"]:
        told += "\nthe store's files still hold copies, for a reader or until they are vacuumed"
    say(given["as_json"], done, told)
