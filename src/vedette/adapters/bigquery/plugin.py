"""The source `bigquery`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vedette.adapters.bigquery.config import BigQueryFile
from vedette.domain.ports.plugin import SourceContext, SourcePlugin

if TYPE_CHECKING:
    from vedette.domain.ports.sources import Source


class BigQueryPlugin(SourcePlugin):
    """New rows of a BigQuery table."""

    table = BigQueryFile

    def build(self, plan: BigQueryFile, context: SourceContext) -> Source:
        """Make the source."""
        from vedette.adapters.bigquery.source import BigQuerySource

        return BigQuerySource(plan, context.clock, watch=context.watch, is_leader=context.leads)


BIGQUERY = BigQueryPlugin()
