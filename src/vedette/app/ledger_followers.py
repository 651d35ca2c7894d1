"""What follows the ledger beside the line: telemetry, notices, the shipper; made of settings."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from vedette.domain.base.errors import BadFleet

if TYPE_CHECKING:
    from vedette.adapters.bigquery.shipper import MetaStore, Shipper
    from vedette.adapters.bigquery.warehouse import Warehouse
    from vedette.app.composition_root import App
    from vedette.config.settings import Settings


def build_followers(
    app: App, trouble: Callable[[str], None] = lambda told: None
) -> list[tuple[str, Coroutine[Any, Any, None]]]:
    """Return what follows the ledger beside the line, as (name, coroutine). Raises BadFleet.

    `trouble` takes what a person should see of it.
    """
    from vedette.config.deployment import TelemetryPlan

    found: list[tuple[str, Coroutine[Any, Any, None]]] = []
    if app.settings.deployment.telemetry != TelemetryPlan():
        from vedette.app.followers.telemetry import telemetry_followers

        found += telemetry_followers(app, sys.stderr)
    if app.settings.notify.to:
        from vedette.app.followers.notifier import follow as tell_people

        found.append(("notices", tell_people(app, trouble)))
    if app.settings.deployment.audit.dataset is not None:
        from vedette.adapters.bigquery.shipper import follow

        services, store = app.services, app.store
        work = follow(
            build_shipper(app.settings, store),
            services.clock,
            app.settings.deployment.audit.every_us,
            services.metrics,
            lambda: store.is_leader,
            store.last_seq,
            trouble,
        )
        found.append(("shipper", work))
    return found


def build_shipper(settings: Settings, marks: MetaStore) -> Shipper:
    """Return what ships the ledger to where [audit] says. Raises BadFleet if it says nowhere."""
    from vedette.adapters.bigquery.shipper import Shipper
    from vedette.app.stores import open_reader

    to = open_warehouse(settings)
    return Shipper(settings.fleet, marks, lambda: open_reader(settings), to)


def open_warehouse(settings: Settings) -> Warehouse:
    """Return the dataset that [audit] names. Raises BadFleet if it names none."""
    from vedette.adapters.bigquery.warehouse import Warehouse

    plan = settings.deployment.audit
    if plan.project is None or plan.dataset is None:
        mend = "add project and dataset to [audit] in vedette.toml"
        raise BadFleet("the ledger is shipped nowhere", where="[audit]", mend=mend)
    return Warehouse(plan.project, plan.dataset)
