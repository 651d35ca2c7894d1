"""The source `sql`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from vedette.config.source_tables import SqlFile, SqlPlan, sql_plan, sql_problems
from vedette.domain.ports.plugin import SourceContext, SourcePlugin, TableContext, TableProblem

if TYPE_CHECKING:
    from vedette.domain.ports.sources import Source


class SqlPlugin(SourcePlugin):
    """New rows of a table of SQLite or PostgreSQL."""

    table = SqlFile

    def problems(self, table: SqlFile, context: TableContext) -> Iterable[TableProblem]:
        """Return what is wrong beyond the shape."""
        return sql_problems(table)

    def plan(self, table: SqlFile, context: TableContext) -> SqlPlan:
        """Return the plan of a table."""
        return sql_plan(table, context)

    def build(self, plan: SqlPlan, context: SourceContext) -> Source:
        """Make the source."""
        from vedette.adapters.sql.source import SqlSource

        return SqlSource(
            plan, context.clock, watch=context.watch, is_leader=context.leads,
            max_bytes=context.max_event_bytes,
        )  # fmt: skip

    async def probe(self, plan: SqlPlan) -> str:
        """Read the table's columns."""
        from vedette.adapters.sql.source import probe

        return await probe(plan)


SQL = SqlPlugin()
