"""Wiring of what goes on beside the line: telemetry, notices, the shipper, servers' tools."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from vedette.domain.base.errors import BadFleet

if TYPE_CHECKING:
    from vedette.adapters.bigquery.shipper import Shipper
    from vedette.adapters.bigquery.warehouse import Warehouse
    from vedette.app.composition_root import App
    from vedette.config.settings import Settings
    from vedette.domain.ports.store import Store


def build_followers(
    app: App, trouble: Callable[[str], None] = lambda message: None
) -> list[tuple[str, Coroutine[Any, Any, None]]]:
    """Wire the ledger's followers beside the line, as (name, coroutine). Raises BadFleet.

    `trouble` takes what a person should see of it.
    """
    from vedette.config.deployment import TelemetryPlan

    found: list[tuple[str, Coroutine[Any, Any, None]]] = [
        ("canaries", app.canaries.watch(trouble)),
        ("former releases", app.former_releases.watch()),
    ]
    if app.settings.deployment.telemetry != TelemetryPlan():
        from vedette.app.followers.telemetry import telemetry_followers

        found += telemetry_followers(app, sys.stderr)
    if app.settings.notify.to:
        from vedette.app.followers.notifier import follow_for_notices as tell_people

        found.append(("notices", tell_people(app, trouble)))
    if app.settings.deployment.audit.dataset is not None:
        from vedette.adapters.bigquery.shipper import ship_ledger

        services, store = app.services, app.store
        work = ship_ledger(
            build_shipper(app.settings, store),
            services.clock,
            app.settings.deployment.audit.every_us,
            services.metrics,
            lambda: store.cluster.is_leader,
            store.ledger.last_seq,
            trouble,
        )
        found.append(("shipper", work))
    from vedette.app.server_watch import pinning_targets, watch_pinned_tools

    if pinning_targets(app.settings):  # a release may bring the first tool of one
        agents = app.services.fleet.agents
        watch = watch_pinned_tools(app.settings, agents, app.services.clock, trouble)
        found.append(("pinned tools", watch))
    return found


def build_shipper(settings: Settings, marks: Store) -> Shipper:
    """Wire what ships the ledger to where [audit] says. Raises BadFleet if it says nowhere."""
    from vedette.adapters.bigquery.shipper import Shipper
    from vedette.app.stores import open_reader

    to = open_warehouse(settings)
    return Shipper(settings.fleet, marks, lambda: open_reader(settings), to)


def open_warehouse(settings: Settings) -> Warehouse:
    """Wire the warehouse dataset that [audit] names. Raises BadFleet if it names none."""
    from vedette.adapters.bigquery.warehouse import Warehouse

    plan = settings.deployment.audit
    if plan.project is None or plan.dataset is None:
        mend = "add project and dataset to [audit] in vedette.toml"
        raise BadFleet("the ledger is shipped nowhere", where="[audit]", mend=mend)
    return Warehouse(plan.project, plan.dataset)


async def ship_ledger(settings: Settings) -> tuple[int, int]:
    """Ship the ledger while no fleet runs; return how many entries, and the last seq.

    Raises BadFleet where [audit] says nowhere, BadCommand, StoreBusy.
    """
    from vedette.app.stores import open_idle_store

    open_warehouse(settings)  # what is wrong with [audit] is said before a store is opened
    store = open_idle_store(settings)
    try:
        shipper = build_shipper(settings, store)
        try:
            return await shipper.ship(), store.ledger.last_seq()
        finally:
            await shipper.close()
    finally:
        store.close()


def check_shipped(settings: Settings) -> dict[str, Any]:
    """Compare what was shipped with the ledger; return rows and differences by table."""
    from vedette.adapters.bigquery.reconciliation import find_differences
    from vedette.adapters.bigquery.shipper import read_shipped_position
    from vedette.adapters.bigquery.tables import KINDS
    from vedette.app.stores import store_reader

    with store_reader(settings) as store:
        warehouse = open_warehouse(settings)
        try:
            # The tables are shipped one after the other; what one lacks still is not wrong.
            last = min(read_shipped_position(store, warehouse, table).seq for table in KINDS)
            found = find_differences(warehouse, settings.fleet, store.ledger, last)
        finally:
            warehouse.close()
        head = store.ledger.last_seq()
    tables = {name: {"rows": rows, "wrong": wrong} for name, (rows, wrong) in found.items()}
    ok = not any(one["wrong"] for one in tables.values())
    return {"ok": ok, "last": last, "head": head, "tables": tables}
