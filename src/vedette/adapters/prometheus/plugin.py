"""The source `prometheus`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from vedette.config.source_tables import (
    PrometheusFile,
    PrometheusPlan,
    prometheus_plan,
    prometheus_problems,
)
from vedette.domain.ports.plugin import SourceContext, SourcePlugin, TableContext, TableProblem

if TYPE_CHECKING:
    from vedette.domain.ports.sources import Source


class PrometheusPlugin(SourcePlugin):
    """Points of a Prometheus server."""

    table = PrometheusFile

    def problems(self, table: PrometheusFile, context: TableContext) -> Iterable[TableProblem]:
        """Return what is wrong beyond the shape."""
        return prometheus_problems(table)

    def plan(self, table: PrometheusFile, context: TableContext) -> PrometheusPlan:
        """Return the plan of a table."""
        return prometheus_plan(table, context)

    def build(self, plan: PrometheusPlan, context: SourceContext) -> Source:
        """Make the source."""
        from vedette.adapters.prometheus.source import PrometheusSource

        return PrometheusSource(
            plan, context.clock, context.metrics, watch=context.watch, is_leader=context.leads
        )

    async def probe(self, plan: PrometheusPlan) -> str:
        """Ask the server."""
        from vedette.adapters.prometheus.source import probe

        return await probe(plan)


PROMETHEUS = PrometheusPlugin()
