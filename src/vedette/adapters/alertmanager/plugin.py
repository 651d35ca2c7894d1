"""The source `alertmanager`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from vedette.config.source_tables import (
    AlertmanagerFile,
    AlertmanagerPlan,
    alertmanager_plan,
    alertmanager_problems,
)
from vedette.domain.ports.plugin import (
    PushedSource,
    SourceContext,
    SourcePlugin,
    TableContext,
    TableProblem,
)

if TYPE_CHECKING:
    from vedette.domain.ports.sources import Source


class AlertmanagerPlugin(SourcePlugin):
    """Alerts that are posted to /v1/alertmanager/NAME."""

    table = AlertmanagerFile

    def problems(self, table: AlertmanagerFile, context: TableContext) -> Iterable[TableProblem]:
        """Return what is wrong beyond the shape."""
        return alertmanager_problems(table, context)

    def plan(self, table: AlertmanagerFile, context: TableContext) -> AlertmanagerPlan:
        """Return the plan of a table."""
        return alertmanager_plan(table, context)

    def build(self, plan: AlertmanagerPlan, context: SourceContext) -> Source:
        """Make the source."""
        return PushedSource(plan.name)

    async def probe(self, plan: AlertmanagerPlan) -> str:
        """Say where alerts are taken. Raises BadFleet if the token is not there."""
        import asyncio

        await asyncio.to_thread(plan.token)
        return f"POST /v1/alertmanager/{plan.name} takes alerts, with the token"


ALERTMANAGER = AlertmanagerPlugin()
