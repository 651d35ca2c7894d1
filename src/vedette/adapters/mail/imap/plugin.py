"""The source `imap`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from vedette.config.mail_servers import ImapFile, ImapPlan, imap_plan, imap_problems
from vedette.domain.ports.plugin import SourceContext, SourcePlugin, TableContext, TableProblem

if TYPE_CHECKING:
    from vedette.domain.ports.sources import Source


class ImapPlugin(SourcePlugin):
    """Mails of a mailbox on an IMAP server."""

    table = ImapFile

    def problems(self, table: ImapFile, context: TableContext) -> Iterable[TableProblem]:
        """Return what is wrong beyond the shape."""
        return imap_problems(table)

    def plan(self, table: ImapFile, context: TableContext) -> ImapPlan:
        """Return the plan of a table."""
        return imap_plan(table, context)

    def build(self, plan: ImapPlan, context: SourceContext) -> Source:
        """Make the source."""
        from vedette.adapters.mail.imap import ImapSource

        return ImapSource(plan, context.clock, watch=context.watch, is_leader=context.leads)

    async def probe(self, plan: ImapPlan) -> str:
        """Log in and look at the folders."""
        from vedette.adapters.mail.imap import probe

        return await probe(plan)


IMAP = ImapPlugin()
