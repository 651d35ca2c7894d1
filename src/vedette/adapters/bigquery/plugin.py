"""The source `bigquery`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vedette.config.deployment import BigQueryPlan, bigquery_plan
from vedette.config.deployment_tables import BigQueryFile
from vedette.domain.ports.plugin import SourceContext, SourcePlugin, TableContext

if TYPE_CHECKING:
    from vedette.domain.ports.sources import Source


class BigQueryPlugin(SourcePlugin):
    """New rows of a BigQuery table."""

    table = BigQueryFile

    def plan(self, table: BigQueryFile, context: TableContext) -> BigQueryPlan:
        """Return the plan of a table."""
        return bigquery_plan(table)

    def build(self, plan: BigQueryPlan, context: SourceContext) -> Source:
        """Make the source."""
        from vedette.adapters.bigquery.source import BigQuerySource

        return BigQuerySource(plan, context.clock, watch=context.watch, is_leader=context.leads)


BIGQUERY = BigQueryPlugin()
