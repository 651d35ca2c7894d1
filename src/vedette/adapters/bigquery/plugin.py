"""The source `bigquery`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from vedette.adapters.bigquery.config import BigQueryFile
from vedette.adapters.row_source import vouched_column_problems
from vedette.domain.ports.plugin import SourceContext, SourcePlugin, TableContext, TableProblem

if TYPE_CHECKING:
    from vedette.domain.ports.sources import Source


class BigQueryPlugin(SourcePlugin):
    """New rows of a BigQuery table."""

    table = BigQueryFile

    def problems(self, table: BigQueryFile, context: TableContext) -> Iterator[TableProblem]:
        """Yield what is wrong beyond the shape."""
        yield from vouched_column_problems(table.vouched, None)

    def build(self, plan: BigQueryFile, context: SourceContext) -> Source:
        """Make the source."""
        from vedette.adapters.bigquery.source import BigQuerySource

        return BigQuerySource(plan, context.clock, watch=context.watch, is_leader=context.leads)


BIGQUERY = BigQueryPlugin()
