"""The target `bigquery`: a table that tools insert into."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vedette.domain.ports.plugin import TargetPlugin
from vedette.domain.target_record import TargetRecord


class BigQueryTarget(TargetPlugin):
    """A table of BigQuery, by the column that holds idempotency keys."""

    record_keys = ("table",)
    place_keys = (("project", "dataset", "table"),)

    def read_record(self, table: Mapping[str, Any], where: str, since_us: int) -> TargetRecord:
        """Read its rows."""
        from vedette.adapters.bigquery.record import read_rows

        return TargetRecord(items=read_rows(table, where, since_us))


BIGQUERY = BigQueryTarget()
