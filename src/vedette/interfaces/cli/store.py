"""`vedette store`: where the fleet's state is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from vedette.domain.base.errors import BadCommand
from vedette.interfaces.cli.common import (
    as_json_option,
    order_options,
    print_result,
    sanitize_text,
    settings_of,
    store_reader,
)

if TYPE_CHECKING:
    from vedette.config.settings import Settings


@click.group()
def store() -> None:
    """Move the state to PostgreSQL; check its rows; rebuild the read tables."""


@store.command()
@click.option("--to", "url", metavar="URL", help="postgresql://user@host:5432/database, empty.")
@click.option("--to-env", "variable", metavar="NAME", help="The variable that holds the URL.")
@order_options
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

    from vedette.app.store_copy import copy_store
    from vedette.interfaces.http.unix_socket import current_person

    if (url is None) == (variable is None):
        raise BadCommand("say where to", mend="give either --to URL or --to-env NAME")
    given = url or os.environ.get(variable or "", "")
    if not given:
        raise BadCommand(f"{variable} is not set", mend=f"set {variable} to the database's URL")
    done = asyncio.run(copy_store(settings_of(ctx), given, current_person(), reason))
    told = {"entries": done.size, "root": done.root, "rows": done.rows}
    text = f"copied {done.size:,} entries; both verify, root {done.root[:16]}…\n"
    text += "to go on there, write into vedette.toml:\n"
    text += f'  [store]\n  kind = "postgresql"\n  url_env = "{variable or "DATABASE_URL"}"'
    print_result(as_json, told, text)


@store.command()
@as_json_option
@click.pass_context
def check(ctx: click.Context, as_json: bool) -> None:
    """Hold every row of the store against the ledger; name what an edited one changed.

    Says of each the table, the row, the column, what it says and what it should say. Works beside a
    running fleet; reads the whole ledger. `ledger verify` proves the entries themselves, first.
    Exits 1 if a row is not what it should be.
    """
    with store_reader(settings_of(ctx)) as opened, opened.snapshot():
        found = list(opened.audit())
    rows = [
        {"table": odd.table, "row": odd.row, "column": odd.column, "says": _column_json(odd.actual),
         "should": _column_json(odd.expected)}
        for odd in found
    ]  # fmt: skip
    text = (
        "\n".join(sanitize_text(str(odd)) for odd in found) or "every row is what the ledger says"
    )
    print_result(as_json, {"ok": not rows, "rows": rows}, text)
    if rows:
        ctx.exit(1)


def _column_json(value: Any) -> Any:
    """Return a value of a column as JSON can tell it."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return [_column_json(one) for one in value] if isinstance(value, tuple) else value


@store.command()
@click.option("--check", is_flag=True, help="Only say which rows are not what the ledger says.")
@as_json_option
@click.pass_context
def rebuild(ctx: click.Context, check: bool, as_json: bool) -> None:
    """Make the tables that lists and counts are read from anew, from the ledger alone.

    Without --check the fleet must not run. Reads the whole ledger. Exits 1 if --check finds a row.
    """
    import asyncio

    settings = settings_of(ctx)
    if check:
        with store_reader(settings) as opened, opened.snapshot():
            rows = [f"{name} {id}".strip() for name, id in opened.find_wrong_rows()]
        text = "\n".join(rows) or "every row is what the ledger says"
        print_result(as_json, {"spoilt": rows}, text)
        if rows:
            ctx.exit(1)
        return
    number = asyncio.run(_rebuild_views(settings))
    print_result(as_json, {"rows": number}, f"made {number:,} rows anew from the ledger")


async def _rebuild_views(settings: Settings) -> int:
    from vedette.adapters.signing_keys import open_ledger_key
    from vedette.app.composition_root import key_in_force
    from vedette.app.stores import open_store, store_exists
    from vedette.domain.base.clock import SystemClock
    from vedette.domain.base.state_folder import secure_folder
    from vedette.store.runner_lock import LOCK_FILE, acquire_lock

    if not store_exists(settings):
        raise BadCommand("there is no store here", mend="start `vedette run` once")
    name = f"vedette/{settings.fleet}"
    secure_folder(settings.state)
    with acquire_lock(settings.state / LOCK_FILE):
        key = open_ledger_key(settings.state, name, lambda: key_in_force(settings))
    opened = open_store(
        settings, fleet=settings.fleet, key=key, key_name=name, now_us=SystemClock().now_us
    )
    try:
        return await opened.rebuild_views()
    finally:
        opened.close()
