"""Wiring of the edges of a deployment: sources beyond this machine, made of their plans."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from vedette.errors import BadFleet
from vedette.ports import Intake, Source

if TYPE_CHECKING:
    from vedette.adapters.bigquery.shipper import Marks, Shipper
    from vedette.adapters.bigquery.warehouse import Warehouse
    from vedette.adapters.pubsub.decode import Decoder
    from vedette.app import App
    from vedette.load import Settings
    from vedette.load.edges import EdgePlan, PubsubPlan, PushPlan


def edge_source(plan: EdgePlan, app: App, *, until_idle: bool) -> Source:
    """Make one source of its table. Raises BadFleet for one that is not served here."""
    from vedette.load.at_hand import AlertmanagerPlan, PrometheusPlan, SqlPlan
    from vedette.load.edges import BigQueryPlan, PubsubPlan, PushPlan
    from vedette.load.imap import ImapPlan

    clock, leads = app.line.clock, lambda: app.store.leads
    if isinstance(plan, PushPlan | AlertmanagerPlan):
        return Pushed(plan.name)
    if isinstance(plan, ImapPlan):
        from vedette.adapters.imap_source import ImapSource

        return ImapSource(plan, clock, watch=not until_idle, leads=leads)
    if isinstance(plan, SqlPlan):
        from vedette.adapters.sql_source.source import SqlSource

        return SqlSource(
            plan, clock, watch=not until_idle, leads=leads,
            max_bytes=app.settings.max_event_bytes,
        )  # fmt: skip
    if isinstance(plan, PrometheusPlan):
        from vedette.adapters.prometheus_source.source import PrometheusSource

        return PrometheusSource(plan, clock, app.line.metrics, watch=not until_idle, leads=leads)
    if isinstance(plan, PubsubPlan):
        from vedette.adapters.pubsub.source import PubsubSource

        line = app.line
        return PubsubSource(
            plan, decoder(plan, app), line.clock, line.metrics, leads=lambda: app.store.leads
        )
    if isinstance(plan, BigQueryPlan):
        from vedette.adapters.bigquery.source import BigQuerySource

        return BigQuerySource(
            plan, app.line.clock, watch=not until_idle, leads=lambda: app.store.leads
        )
    raise BadFleet(f"source {plan.name} cannot be made", where="vedette.toml")


class Pushed:
    """What is sent to us, as a source: it brings nothing itself, a route of `serve` takes it."""

    finite = False

    def __init__(self, name: str) -> None:
        self.name = name

    async def deliver(self, intake: Intake) -> None:
        """Wait until cancelled."""
        await asyncio.Event().wait()


def decoder(plan: PubsubPlan | PushPlan, app: App) -> Decoder:
    """Return what makes events of a Pub/Sub source's messages."""
    from vedette.adapters.pubsub.decode import Decoder

    scheduled = None
    if plan.schedules:
        from vedette.adapters.pubsub.scheduled import Schedules
        from vedette.adapters.schedule_source import cron_walls

        def known(event: str) -> bool:
            return bool(app.store.runs_of_event(event))

        clock = app.line.clock
        scheduled = Schedules(app.line.fleet, cron_walls, clock.now_us, known).delivery
    return Decoder(
        plan.name, type=plan.type, vouches=plan.vouches, scheduled=scheduled,
        max_bytes=app.settings.max_event_bytes,
    )  # fmt: skip


def followers(
    app: App, trouble: Callable[[str], None] = lambda told: None
) -> list[tuple[str, Coroutine[Any, Any, None]]]:
    """Return what follows the ledger beside the line, as (name, coroutine). Raises BadFleet.

    `trouble` takes what a person should see of it.
    """
    from vedette.load.edges import TelemetryPlan

    found: list[tuple[str, Coroutine[Any, Any, None]]] = []
    if app.settings.edges.telemetry != TelemetryPlan():
        from vedette.tell import tellers

        found += tellers(app, sys.stderr)
    if app.settings.notify.to:
        from vedette.notify import follow as tell_people

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
    from vedette.stores import open_reading

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
