"""The source `host`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vedette.config.settings import HostPlan
from vedette.config.settings_file import HostFile
from vedette.domain.base.clock import duration_us
from vedette.domain.ports.plugin import SourceContext, SourcePlugin, TableContext

if TYPE_CHECKING:
    from vedette.domain.ports.sources import Source


class HostPlugin(SourcePlugin):
    """Live metrics of the machine the fleet runs on."""

    table = HostFile
    late = True

    def plan(self, table: HostFile, context: TableContext) -> HostPlan:
        """Return the plan of a table."""
        return HostPlan(table.name, duration_us(table.every))

    def build(self, plan: HostPlan, context: SourceContext) -> Source:
        """Make the source."""
        from vedette.adapters.host.source import HostSource

        return HostSource(plan.name, context.clock, plan.every_us)

    async def probe(self, plan: HostPlan) -> str:
        """Say what it is; it is always there."""
        return "this machine"


HOST = HostPlugin()
