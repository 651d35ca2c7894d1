"""The target `pubsub`: a topic that tools publish to."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from vedette.domain.ports.plugin import TargetPlugin
from vedette.domain.target_record import TargetRecord

# Pub/Sub itself, and what its client's credentials come from.
_GOOGLE = (
    ("pubsub.googleapis.com", 443), ("oauth2.googleapis.com", 443),
    ("metadata.google.internal", 80), ("169.254.169.254", 80),
)  # fmt: skip


class PubsubTarget(TargetPlugin):
    """A topic of Pub/Sub, or of its emulator."""

    required = ("project", "topic")
    allows_udp = True  # gRPC asks name servers by itself
    record_keys = ("record_subscription",)
    place_keys = (("project", "topic"), ("project", "record_subscription"))

    def addresses(self, table: Mapping[str, Any]) -> Iterable[tuple[str, int]]:
        """Return where Pub/Sub is; the emulator that PUBSUB_EMULATOR_HOST names, if it does."""
        emulator = os.environ.get("PUBSUB_EMULATOR_HOST")
        if not emulator:
            return _GOOGLE
        host, _, port = emulator.rpartition(":")
        return ((host.strip("[]"), int(port)),)

    def read_record(self, table: Mapping[str, Any], where: str, since_us: int) -> TargetRecord:
        """Read the messages that are on the topic."""
        from vedette.adapters.pubsub.record import read_messages, retention_us

        keeps_us = retention_us(table, where)
        return TargetRecord(items=read_messages(table, where), retention_us=keeps_us)


PUBSUB = PubsubTarget()
