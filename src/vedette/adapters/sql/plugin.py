"""The source `sql`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from vedette.adapters.row_source import vouched_column_problems
from vedette.adapters.sql.config import SqlFile
from vedette.config.secret_reference import secret_keys
from vedette.domain.ports.plugin import SourceContext, SourcePlugin, TableContext, TableProblem

if TYPE_CHECKING:
    from vedette.domain.ports.sources import Source


class SqlPlugin(SourcePlugin):
    """The plugin of the source `sql`: new rows of a table of SQLite or PostgreSQL."""

    table = SqlFile

    def problems(self, table: SqlFile, context: TableContext) -> Iterator[TableProblem]:
        """Yield what is wrong beyond the shape."""
        if len(secret_keys(vars(table), "url")) + bool(table.path) != 1:
            mend = "give one of path (SQLite), url_env, url_file, url_secret (PostgreSQL)"
            yield (), "needs one database", mend
        if table.create_from and table.path is None:
            yield ("create_from",), "is for a file of SQLite only", "leave it out"
        if table.columns and table.id_column not in table.columns:
            # Who is woken by a row has to be able to name it.
            yield ("columns",), f"lacks the id {table.id_column!r}", "add it"
        named = {table.id_column, table.subject_column, table.time_column}
        handed_over = {*table.columns, *filter(None, named)} if table.columns else None
        yield from vouched_column_problems(table.vouched, handed_over)

    def plan(self, table: SqlFile, context: TableContext) -> SqlFile:
        """Return the table with its paths resolved."""
        plan: SqlFile = context.resolve(table, "create_from")
        return plan

    def build(self, plan: SqlFile, context: SourceContext) -> Source:
        """Make the source."""
        from vedette.adapters.sql.source import SqlSource

        return SqlSource(
            plan, context.clock, watch=context.watch, is_leader=context.leads,
            max_bytes=context.max_event_bytes,
        )  # fmt: skip

    async def probe(self, plan: SqlFile) -> str:
        """Read the table's columns."""
        from vedette.adapters.sql.source import probe

        return await probe(plan)


SQL = SqlPlugin()
