"""`vedette upgrade`: the store of an older version is brought to this one's schema."""

from __future__ import annotations

import asyncio
import time

import click

from vedette.interfaces.cli.fleet import current_settings
from vedette.interfaces.cli.orders import OrderCommand, OrderOptions
from vedette.interfaces.cli.output import print_result, wants_json

_INTERVAL_S = 1.0
_STEPS = {"fill": "written", "prove": "proved"}


@click.command(cls=OrderCommand, repeatable=False)
def upgrade(order: OrderOptions) -> None:
    """Bring the store of an older version to this version's schema, and prove that nothing is lost.

    The fleet must not run. The new store is made beside the old one and takes its place only once
    every entry, its content and the ledger's proof are the same; the old one stays in `before/` of
    the state folder (of PostgreSQL take a dump first). Repeating the command is safe: one that was
    broken off goes on.
    """
    from vedette.app.store_upgrade import upgrade_store
    from vedette.interfaces.http.unix_socket import current_person
    from vedette.store.schema import SCHEMA

    settings, reason = current_settings(), order.require_reason()
    done, remarks = asyncio.run(
        upgrade_store(settings, current_person(), reason, ProgressPrinter(quiet=wants_json()))
    )
    for remark in remarks:
        click.echo(f"note: {remark}", err=True)
    if done is None:
        print_result(
            {"upgraded": False, "schema": SCHEMA},
            f"the store has schema {SCHEMA} already; there is nothing to do",
        )
        return
    text = f"upgraded {done.entries:,} entries from schema {done.schema} to {SCHEMA}; "
    text += f"all are proved, root {done.root[:16]}…\n"
    text += f"{done.bytes_before:,} bytes before, {done.bytes_after:,} after"
    if done.kept is not None:
        text += f"\nthe old store lies in {done.kept}: an older version goes on with that, and you "
        text += "delete it once you trust this one"
    value: dict[str, object] = {
        "upgraded": True, "schema": SCHEMA, "from": done.schema, "entries": done.entries,
        "size": done.size, "root": done.root, "bytes_before": done.bytes_before,
        "bytes_after": done.bytes_after, "kept": done.kept,
    }  # fmt: skip
    print_result(value, text)


class ProgressPrinter:
    """Prints how far an upgrade is, to stderr: once a second, and the end of each step."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._told_s = time.monotonic()

    def __call__(self, step: str, count: int, total: int) -> None:
        """Take note that `count` of `total` entries are done."""
        now_s = time.monotonic()
        if self._quiet or (count < total and now_s < self._told_s + _INTERVAL_S):
            return
        self._told_s = now_s
        click.echo(f"{_STEPS[step]}: {count:,} of {total:,} entries", err=True)
