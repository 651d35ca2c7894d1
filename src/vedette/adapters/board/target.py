"""The target `board`, a file of SQLite: its tools are an agent's own, its record is read here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vedette.domain.ports.plugin import TargetPlugin
from vedette.domain.target_record import TargetRecord


class BoardTarget(TargetPlugin):
    """The target `board`: a board of comments in a file of SQLite."""

    required = ("path",)
    record_keys = ("path",)
    place_keys = (("path",),)

    def read_record(self, table: Mapping[str, Any], where: str, since_us: int) -> TargetRecord:
        """Read its statements."""
        from vedette.adapters.board.record import read_statements

        return TargetRecord(items=read_statements(table, where))


BOARD = BoardTarget()
