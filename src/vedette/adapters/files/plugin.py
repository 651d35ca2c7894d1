"""The sources `csv` and `jsonl`."""

from __future__ import annotations

from glob import glob
from typing import TYPE_CHECKING

from vedette.config.settings import CsvPlan, JsonlPlan
from vedette.config.settings_file import CsvFile, JsonlFile
from vedette.domain.base.errors import BadFleet
from vedette.domain.ports.plugin import SourceContext, SourcePlugin, TableContext

if TYPE_CHECKING:
    from vedette.domain.ports.sources import Source


class _FilePlugin(SourcePlugin):
    async def probe(self, plan: CsvPlan | JsonlPlan) -> str:
        """Count the files that match."""
        files = glob(plan.path)  # noqa: PTH207 (an absolute pattern)
        if not files:
            raise BadFleet("0 files match", mend="set the path of the source")
        return f"{len(files)} files match"


class CsvPlugin(_FilePlugin):
    """Metric series out of CSV files."""

    table = CsvFile

    def plan(self, table: CsvFile, context: TableContext) -> CsvPlan:
        """Return the plan of a table."""
        return CsvPlan(table.name, context.pattern(table.path), table.rate)

    def build(self, plan: CsvPlan, context: SourceContext) -> Source:
        """Make the source."""
        from vedette.adapters.files.source import CsvSource

        limit = context.max_event_bytes
        return CsvSource(plan.name, plan.path, context.clock, rate=plan.rate, max_bytes=limit)


class JsonlPlugin(_FilePlugin):
    """CloudEvents out of files with one JSON object per line."""

    table = JsonlFile

    def plan(self, table: JsonlFile, context: TableContext) -> JsonlPlan:
        """Return the plan of a table."""
        return JsonlPlan(table.name, context.pattern(table.path), table.rate, table.type)

    def build(self, plan: JsonlPlan, context: SourceContext) -> Source:
        """Make the source."""
        from vedette.adapters.files.source import JsonlSource

        limit = context.max_event_bytes
        return JsonlSource(plan.name, plan.path, context.clock, rate=plan.rate, max_bytes=limit)


CSV, JSONL = CsvPlugin(), JsonlPlugin()
