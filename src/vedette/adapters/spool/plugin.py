"""The source `spool`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from vedette.adapters.spool.config import SpoolFile
from vedette.domain.ports.plugin import SourceContext, SourcePlugin

if TYPE_CHECKING:
    from vedette.domain.ports.sources import Source


class SpoolPlugin(SourcePlugin):
    """The plugin of the source `spool`: events that other programs put into a folder."""

    table = SpoolFile

    def build(self, plan: SpoolFile, context: SourceContext) -> Source:
        """Make the source."""
        from vedette.adapters.spool.source import SpoolSource

        return SpoolSource(
            plan, context.clock, watch=context.watch, is_leader=context.leads,
            max_bytes=context.max_event_bytes,
        )  # fmt: skip

    async def probe(self, plan: SpoolFile) -> str:
        """Count the files that wait."""
        from vedette.adapters.spool.source import probe

        return await asyncio.to_thread(probe, plan)


SPOOL = SpoolPlugin()
