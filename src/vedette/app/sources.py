"""The sources of a fleet, each made of its table in vedette.toml; and its schedules."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from vedette.domain.ports.plugin import SOURCES, Plan, SourceContext
from vedette.domain.ports.sources import Source

if TYPE_CHECKING:
    from vedette.app.composition_root import App


def build_sources(app: App, *, until_idle: bool) -> tuple[list[Source], list[Source]]:
    """Wire the sources that the settings name, and the fleet's schedules.

    Those that need time to be loaded and have nothing to deliver at once come second.
    """
    from vedette.config.plugins import plugins

    first: list[Source] = []
    later: list[Source] = []
    for plan in app.settings.sources:
        source = build_source(plan, app, until_idle=until_idle)
        (later if plugins(SOURCES).get(plan.kind).late else first).append(source)
    if any(agent.schedules for agent in app.services.fleet.agents.values()):
        from vedette.adapters.schedule.source import ScheduleSource

        later.append(
            ScheduleSource(app.services.fleet, app.services.clock, build_outcome_reader(app))
        )
    return first, later


def build_outcome_reader(app: App) -> Callable[[str, int, int], Awaitable[dict[str, Any] | None]]:
    """Wire what tells an agent's tick what happened, if policy lets the agent read it.

    It is asked for as the scope `ledger/outcomes`; the answer is recorded like any other read.
    """
    from vedette.domain.agent import MemoryScope
    from vedette.domain.decision import DecisionContext
    from vedette.domain.event import ENVELOPE, Event
    from vedette.memory.retrieval import recall_entries
    from vedette.memory.review import collect_patterns

    services, scope = app.services, MemoryScope("ledger", "outcomes")
    reading_event = Event("vedette:engine", "gather", "vedette.gather", vouched=ENVELOPE)

    async def read_outcomes(agent: str, after_us: int, upto_us: int) -> dict[str, Any] | None:
        declared = services.fleet.agent(agent)
        decision_context = DecisionContext(declared, reading_event, 1, services.clock.now_us())
        decided = services.gateway.may_read(decision_context, scope.bank, scope.scope)
        await app.store.commands.append_entries(recall_entries(declared, scope, decided))
        if decided.decision.outcome != "permit":
            return None
        found = collect_patterns(app.store.ledger, after_us, upto_us)
        names = {pattern["agent"] for pattern in found["patterns"]} & set(services.fleet.agents)
        reads = {
            name: [f"{one.bank}/{one.scope}" for one in services.fleet.agent(name).scopes]
            for name in sorted(names)
        }
        return {**found, "reads": reads}

    return read_outcomes


def build_source(plan: Plan, app: App, *, until_idle: bool) -> Source:
    """Wire one source of its plan. Raises BadFleet, which names the plugin's wheel."""
    from vedette.config.plugins import plugins

    found = plugins(SOURCES)
    with found.wrap_errors(plan.kind):
        source: Source = found.get(plan.kind).build(plan, source_context(app, until_idle))
    return source


def source_context(app: App, until_idle: bool = False) -> SourceContext:
    """Return what the fleet's sources are wired with."""

    def cron_walls(text: str) -> Any:
        from vedette.adapters.schedule.source import cron_walls

        return cron_walls(text)

    services, store = app.services, app.store
    return SourceContext(
        services.clock, services.metrics, not until_idle, app.settings.max_event_bytes,
        lambda: store.cluster.is_leader, services.fleet,
        lambda event: bool(store.runs.runs_of_event(event)),
        cron_walls,
    )  # fmt: skip
