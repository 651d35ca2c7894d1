"""The target `webhook`: an address that tools post to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vedette.domain.ports.plugin import TargetPlugin
from vedette.domain.target_record import TargetRecord


class WebhookTarget(TargetPlugin):
    """The target `webhook`: an address that tools post to."""

    required = ("url",)
    record_keys = ("record_file", "record_url")
    place_keys = (("url",), ("record_file",), ("record_url",))

    def read_record(self, table: Mapping[str, Any], where: str, since_us: int) -> TargetRecord:
        """Read the calls that its receiver recorded."""
        from vedette.adapters.notify.record import read_calls

        return TargetRecord(items=read_calls(table, where))


WEBHOOK = WebhookTarget()
