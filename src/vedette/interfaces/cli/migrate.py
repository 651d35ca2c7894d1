"""`vedette migrate`: the fleet's state moves to PostgreSQL."""

from __future__ import annotations

import asyncio
import os

import click

from vedette.domain.base.errors import BadCommand
from vedette.interfaces.cli.fleet import current_settings
from vedette.interfaces.cli.orders import OrderCommand, OrderOptions
from vedette.interfaces.cli.output import print_result

_ENV = "env:"


@click.command(cls=OrderCommand, repeatable=False)
@click.argument("to", metavar="URL|env:NAME", required=False)
def migrate(to: str | None, order: OrderOptions) -> None:
    """Copy the SQLite store into an empty PostgreSQL database, with holds, memory and proofs.

    The URL is postgresql://user@host:5432/database; one with a password belongs in a variable,
    env:NAME, since other users see arguments. The fleet must not run. Both are verified; a copy
    that fails leaves the database empty. Repeating the command is safe: a database that holds a
    store is refused.
    """
    from vedette.app.store_copy import copy_store
    from vedette.interfaces.http.unix_socket import current_person

    if to is None:
        raise BadCommand("say where to", mend="give a URL, or env:NAME of the variable that has it")
    variable = to.removeprefix(_ENV) if to.startswith(_ENV) else None
    url = to if variable is None else os.environ.get(variable, "")
    if not url:
        raise BadCommand(f"{variable} is not set", mend=f"set {variable} to the database's URL")
    settings, reason = current_settings(), order.require_reason()
    done = asyncio.run(copy_store(settings, url, current_person(), reason))
    text = f"copied {done.size:,} entries; both verify, root {done.root[:16]}…\n"
    text += "to go on there, write into vedette.toml:\n"
    text += f'  [store]\n  kind = "postgresql"\n  url_env = "{variable or "DATABASE_URL"}"'
    print_result({"entries": done.size, "root": done.root, "rows": done.rows}, text)
