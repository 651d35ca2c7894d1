"""What follows the ledger beside the line: telemetry, notices, the shipper; made of settings."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from vedette.domain.base.errors import BadFleet

if TYPE_CHECKING:
    from vedette.adapters.bigquery.shipper import Marks, Shipper
    from vedette.adapters.bigquery.warehouse import Warehouse
    from vedette.app.composition_root import App
    from vedette.config import Settings


def followers(
    app: App, trouble: Callable[[str], None] = lambda told: None
) -> list[tuple[str, Coroutine[Any, Any, None]]]:
    """Return what follows the ledger beside the line, as (name, coroutine). Raises BadFleet.

    `trouble` takes what a person should see of it.
    """
    from vedette.config.deployment import TelemetryPlan

    found: list[tuple[str, Coroutine[Any, Any, None]]] = []
    if app.settings.edges.telemetry != TelemetryPlan():
        from vedette.app.followers.telemetry import tellers

        found += tellers(app, sys.stderr)
    if app.settings.notify.to:
        from vedette.app.followers.notifier import follow as tell_people

        found.append(("notices", tell_people(app, trouble)))
    if app.settings.edges.audit.dataset is not None:
        from vedette.adapters.bigquery.shipper import follow

        line, store = app.line, app.store
        work = follow(
            shipper(app.settings, store), line.clock, app.settings.edges.audit.every_us,
            line.metrics, lambda: store.leads, store.head, trouble,
        )  # fmt: skip
        found.append(("shipper", work))
    return found


def shipper(settings: Settings, marks: Marks) -> Shipper:
    """Return what ships the ledger to where [audit] says. Raises BadFleet if it says nowhere."""
    from vedette.adapters.bigquery.shipper import Shipper
    from vedette.app.stores import open_reading

    to = warehouse(settings)
    return Shipper(settings.fleet, marks, lambda: open_reading(settings), to)


def warehouse(settings: Settings) -> Warehouse:
    """Return the dataset that [audit] names. Raises BadFleet if it names none."""
    from vedette.adapters.bigquery.warehouse import Warehouse

    plan = settings.edges.audit
    if plan.project is None or plan.dataset is None:
        mend = "add project and dataset to [audit] in vedette.toml"
        raise BadFleet("the ledger is shipped nowhere", where="[audit]", mend=mend)
    return Warehouse(plan.project, plan.dataset)
