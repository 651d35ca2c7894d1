"""The sources `pubsub` and `pubsub-push`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from vedette.adapters.pubsub.config import PubsubFile, PushFile
from vedette.domain.base.clock import MICROS, duration_us
from vedette.domain.ports.plugin import (
    Plan,
    PushedSource,
    SourceContext,
    SourcePlugin,
    TableContext,
    TableProblem,
)

if TYPE_CHECKING:
    from vedette.domain.ports.sources import Source


class SubscriptionPlugin(SourcePlugin):
    """Base of the plugins `pubsub` and `pubsub-push`: what a subscription's table must hold to."""

    def problems(
        self, table: PubsubFile | PushFile, context: TableContext
    ) -> Iterator[TableProblem]:
        """Yield what is wrong beyond the shape."""
        if not 10 * MICROS <= duration_us(table.ack_deadline) <= 600 * MICROS:
            what = "Pub/Sub takes ack deadlines from 10s to 10m"
            yield ("ack_deadline",), what, "write for example 60s"

    def dead_letters(self, plans: Sequence[Plan]) -> Any:
        """Return what publishes the broker's dead letters again."""
        from vedette.adapters.pubsub.redrive import DeadLetters

        return DeadLetters(plans)


class PubsubPlugin(SubscriptionPlugin):
    """The plugin of the source `pubsub`: messages of a subscription, pulled."""

    table = PubsubFile

    def build(self, plan: PubsubFile, context: SourceContext) -> Source:
        """Make the source."""
        from vedette.adapters.pubsub.source import PubsubSource
        from vedette.adapters.pubsub.source_decoder import build_decoder

        made = build_decoder(plan, context)
        return PubsubSource(plan, made, context.clock, context.metrics, is_leader=context.leads)


class PushPlugin(SubscriptionPlugin):
    """The plugin of the source `pubsub-push`: messages that are pushed to POST /v1/pubsub/NAME."""

    table = PushFile

    def problems(
        self, table: PubsubFile | PushFile, context: TableContext
    ) -> Iterator[TableProblem]:
        """Yield what is wrong beyond the shape."""
        if not context.serves_http:
            yield (), "nothing is served here that could be pushed to", "set http of [serve]"
        yield from super().problems(table, context)

    def build(self, plan: PushFile, context: SourceContext) -> Source:
        """Make the source."""
        return PushedSource(plan.name)

    async def probe(self, plan: PushFile) -> str:
        """Say that nothing is to be looked at."""
        return "others push to it while the fleet runs"


PUBSUB, PUSH = PubsubPlugin(), PushPlugin()
