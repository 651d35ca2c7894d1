"""`vedette store`: where the fleet's state is kept."""

from __future__ import annotations

import click

from vedette.cli.common import human_verb, say, settings_of
from vedette.errors import BadCommand


@click.group()
def store() -> None:
    """Move the fleet's state to another store."""


@store.command()
@click.option("--to", "url", metavar="URL", help="postgresql://user@host:5432/database, empty.")
@click.option("--to-env", "variable", metavar="NAME", help="The variable that holds the URL.")
@human_verb
@click.pass_context
def copy(
    ctx: click.Context,
    /,
    url: str | None,
    variable: str | None,
    reason: str,
    as_json: bool,
    command_id: str | None,
) -> None:
    """Copy the SQLite store into an empty PostgreSQL database, with holds, memory and proofs.

    The fleet must not run. Both are verified; a copy that fails leaves the database empty. A
    password belongs in --to-env, since other users see arguments. Repeating the command is safe: a
    database that holds a store is refused.
    """
    import asyncio
    import os

    from vedette.serve.endpoint import this_person
    from vedette.store_copy import copy_store

    if (url is None) == (variable is None):
        raise BadCommand("say where to", mend="give either --to URL or --to-env NAME")
    given = url or os.environ.get(variable or "", "")
    if not given:
        raise BadCommand(f"{variable} is not set", mend=f"set {variable} to the database's URL")
    done = asyncio.run(copy_store(settings_of(ctx), given, this_person(), reason))
    told = {"entries": done.size, "root": done.root, "rows": done.rows}
    text = f"copied {done.size:,} entries; both verify, root {done.root[:16]}…\n"
    text += "to go on there, write into vedette.toml:\n"
    text += f'  [store]\n  kind = "postgresql"\n  url_env = "{variable or "DATABASE_URL"}"'
    say(as_json, told, text)
