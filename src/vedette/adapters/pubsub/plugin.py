"""The sources `pubsub` and `pubsub-push`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from vedette.config.deployment import PubsubPlan, PushPlan, pubsub_plan, pubsub_problems, push_plan
from vedette.config.deployment_tables import PubsubFile, PushFile
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


class _BrokerPlugin(SourcePlugin):
    def dead_letters(self, plans: Sequence[Plan]) -> Any:
        """Return what publishes the broker's dead letters again."""
        from vedette.adapters.pubsub.redrive import DeadLetters

        return DeadLetters(plans)


class PubsubPlugin(_BrokerPlugin):
    """Messages of a subscription, pulled."""

    table = PubsubFile

    def problems(self, table: PubsubFile, context: TableContext) -> Iterable[TableProblem]:
        """Return what is wrong beyond the shape."""
        return pubsub_problems(table, context, pushed=False)

    def plan(self, table: PubsubFile, context: TableContext) -> PubsubPlan:
        """Return the plan of a table."""
        return pubsub_plan(table)

    def build(self, plan: PubsubPlan, context: SourceContext) -> Source:
        """Make the source."""
        from vedette.adapters.pubsub.source import PubsubSource
        from vedette.adapters.pubsub.source_decoder import build_decoder

        made = build_decoder(plan, context)
        return PubsubSource(plan, made, context.clock, context.metrics, is_leader=context.leads)


class PushPlugin(_BrokerPlugin):
    """Messages that are pushed to POST /v1/pubsub/NAME."""

    table = PushFile

    def problems(self, table: PushFile, context: TableContext) -> Iterable[TableProblem]:
        """Return what is wrong beyond the shape."""
        return pubsub_problems(table, context, pushed=True)

    def plan(self, table: PushFile, context: TableContext) -> PushPlan:
        """Return the plan of a table."""
        return push_plan(table)

    def build(self, plan: PushPlan, context: SourceContext) -> Source:
        """Make the source."""
        return PushedSource(plan.name)

    async def probe(self, plan: PushPlan) -> str:
        """Say that nothing is to be looked at."""
        return "others push to it while the fleet runs"


PUBSUB, PUSH = PubsubPlugin(), PushPlugin()
