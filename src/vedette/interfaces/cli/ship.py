"""`vedette audit ship`: the ledger into BigQuery, while the fleet does not run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from vedette.domain.base.errors import BadCommand
from vedette.interfaces.cli.common import as_json_option, print_result, settings_of, store_reader

if TYPE_CHECKING:
    from vedette.config.settings import Settings
    from vedette.store.store import SqlStore


@click.command("ship")
@click.option("--check", is_flag=True, help="Only compare what was shipped with the ledger.")
@as_json_option
@click.pass_context
def ship(ctx: click.Context, check: bool, as_json: bool) -> int:
    """Ship the ledger into BigQuery, once, to where [audit] of vedette.toml says.

    A running fleet ships by itself; without --check it must not run. With --check every entry up
    to the last one shipped is compared, by query. Exits with 1 if the tables are not what the
    ledger says.
    """
    import asyncio

    settings = settings_of(ctx)
    if not check:
        shipped, head = asyncio.run(_ship_entries(settings))
        print_result(as_json, {"shipped": shipped, "head": head}, f"shipped {shipped:,} entries")
        return 0
    told = _check_tables(settings)
    lines = [f"{name}: {one['rows']:,} rows" for name, one in told["tables"].items()]
    lines += [
        f"FOUND in {name}: {what}" for name, one in told["tables"].items() for what in one["wrong"]
    ]
    lines.append(f"compared up to entry {told['last']:,} of {told['head']:,}")
    print_result(as_json, told, "\n".join(lines))
    return 0 if told["ok"] else 1


async def _ship_entries(settings: Settings) -> tuple[int, int]:
    from vedette.app.ledger_followers import build_shipper, open_warehouse

    open_warehouse(
        settings
    )  # says what is wrong with [audit] before a store is opened to be written
    store = _open_marks_store(settings)
    try:
        work = build_shipper(settings, store)
        try:
            return await work.ship(), store.last_seq()
        finally:
            await work.close()
    finally:
        store.close()


def _open_marks_store(settings: Settings) -> SqlStore:
    """Open the store to write the marks. Raises StoreBusy while the fleet runs."""
    from vedette.adapters.signing_keys import open_ledger_key
    from vedette.app.composition_root import key_in_force
    from vedette.app.stores import open_store, store_exists
    from vedette.domain.base.clock import SystemClock
    from vedette.store.runner_lock import LOCK_FILE, acquire_lock

    if not store_exists(settings):
        raise BadCommand("there is no store here", mend="start `vedette run` once")
    name = f"vedette/{settings.fleet}"
    with acquire_lock(settings.state / LOCK_FILE):
        key = open_ledger_key(settings.state, name, lambda: key_in_force(settings))
    return open_store(
        settings, fleet=settings.fleet, key=key, key_name=name, now_us=SystemClock().now_us
    )


def _check_tables(settings: Settings) -> dict[str, Any]:
    from vedette.adapters.bigquery.reconciliation import find_differences
    from vedette.adapters.bigquery.shipper import read_mark
    from vedette.adapters.bigquery.tables import KINDS
    from vedette.app.ledger_followers import open_warehouse

    with store_reader(settings) as store:
        there = open_warehouse(settings)
        try:
            # The tables are shipped one after the other; what one lacks still is not wrong.
            last = min(read_mark(store, there, table).seq for table in KINDS)
            found = find_differences(there, settings.fleet, store, last)
        finally:
            there.close()
        head = store.last_seq()
    tables = {name: {"rows": rows, "wrong": wrong} for name, (rows, wrong) in found.items()}
    ok = not any(one["wrong"] for one in tables.values())
    return {"ok": ok, "last": last, "head": head, "tables": tables}
