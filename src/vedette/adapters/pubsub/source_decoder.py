"""The decoder of a Pub/Sub source: it makes events of messages, as the source's table says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vedette.adapters.pubsub.decoder import Decoder

if TYPE_CHECKING:
    from vedette.adapters.pubsub.config import PubsubFile, PushFile
    from vedette.domain.ports.plugin import SourceContext


def build_decoder(plan: PubsubFile | PushFile, context: SourceContext) -> Decoder:
    """Return the decoder that makes events of a Pub/Sub source's messages."""
    decode_tick = None
    if plan.schedules:
        from vedette.adapters.pubsub.cloud_scheduler import ScheduleIndex

        decode_tick = ScheduleIndex(
            context.fleet, context.cron_walls, context.clock.now_us, context.is_known
        ).delivery
    return Decoder(
        plan.name, type=plan.type, vouches=plan.vouches, decode_tick=decode_tick,
        max_bytes=context.max_event_bytes,
    )  # fmt: skip
