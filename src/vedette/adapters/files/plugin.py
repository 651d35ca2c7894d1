"""The sources `csv` and `jsonl`."""

from __future__ import annotations

from glob import glob
from typing import TYPE_CHECKING, Any

from vedette.adapters.files.config import CsvFile, JsonlFile
from vedette.domain.base.errors import BadFleet
from vedette.domain.ports.plugin import SourceContext, SourcePlugin, TableContext

if TYPE_CHECKING:
    from vedette.domain.ports.sources import Source


class FilePlugin(SourcePlugin):
    """Base of the plugins `csv` and `jsonl`; `path` of the plan is an absolute glob pattern."""

    def plan(self, table: Any, context: TableContext) -> Any:
        """Return the table with its pattern resolved."""
        return table.replace(path=context.pattern(table.path))

    async def probe(self, plan: CsvFile | JsonlFile) -> str:
        """Count the files that match."""
        files = glob(plan.path)  # noqa: PTH207 (an absolute pattern)
        if not files:
            raise BadFleet("0 files match", mend="set the path of the source")
        return f"{len(files)} files match"


class CsvPlugin(FilePlugin):
    """The plugin of the source `csv`: metric series out of CSV files."""

    table = CsvFile

    def build(self, plan: CsvFile, context: SourceContext) -> Source:
        """Make the source."""
        from vedette.adapters.files.source import CsvSource

        limit = context.max_event_bytes
        return CsvSource(plan.name, plan.path, context.clock, rate=plan.rate, max_bytes=limit)


class JsonlPlugin(FilePlugin):
    """The plugin of the source `jsonl`: CloudEvents out of files with one JSON object per line."""

    table = JsonlFile

    def build(self, plan: JsonlFile, context: SourceContext) -> Source:
        """Make the source."""
        from vedette.adapters.files.source import JsonlSource

        return JsonlSource(
            plan.name, plan.path, context.clock, rate=plan.rate, type=plan.type,
            max_bytes=context.max_event_bytes,
        )  # fmt: skip


CSV, JSONL = CsvPlugin(), JsonlPlugin()
