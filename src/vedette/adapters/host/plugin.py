"""The source `host`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vedette.adapters.host.config import HostFile
from vedette.domain.base.clock import duration_us
from vedette.domain.ports.plugin import SourceContext, SourcePlugin

if TYPE_CHECKING:
    from vedette.domain.ports.sources import Source


class HostPlugin(SourcePlugin):
    """The plugin of the source `host`: live metrics of the machine the fleet runs on."""

    table = HostFile
    late = True

    def build(self, plan: HostFile, context: SourceContext) -> Source:
        """Make the source."""
        from vedette.adapters.host.source import HostSource

        return HostSource(plan.name, context.clock, duration_us(plan.every))

    async def probe(self, plan: HostFile) -> str:
        """Say what it is; it is always there."""
        return "this machine"


HOST = HostPlugin()
