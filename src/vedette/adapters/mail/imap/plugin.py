"""The source `imap`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from vedette.adapters.mail.imap.config import ImapFile
from vedette.adapters.mail.server_table import server_problems
from vedette.domain.ports.plugin import SourceContext, SourcePlugin, TableContext, TableProblem

if TYPE_CHECKING:
    from vedette.domain.ports.sources import Source


class ImapPlugin(SourcePlugin):
    """Mails of a mailbox on an IMAP server."""

    table = ImapFile

    def problems(self, table: ImapFile, context: TableContext) -> Iterator[TableProblem]:
        """Yield what is wrong beyond the shape."""
        yield from server_problems(table.server)
        if not table.folders or not all(name.strip() for name in table.folders):
            yield ("folders",), "names no folder", 'write folders = ["INBOX"]'

    def plan(self, table: ImapFile, context: TableContext) -> ImapFile:
        """Return the table with its paths resolved, and each folder once."""
        plan: ImapFile = context.resolve(table)
        return plan.replace(folders=list(dict.fromkeys(table.folders)))

    def build(self, plan: ImapFile, context: SourceContext) -> Source:
        """Make the source."""
        from vedette.adapters.mail.imap.source import ImapSource

        return ImapSource(plan, context.clock, watch=context.watch, is_leader=context.leads)

    async def probe(self, plan: ImapFile) -> str:
        """Log in and look at the folders."""
        from vedette.adapters.mail.imap.inspection import inspect_mailbox

        return await inspect_mailbox(plan.server, plan.folders, creates=None)


IMAP = ImapPlugin()
