"""The shipped reasoners as plugins: agents' own judges, their root_agents on ADK, their clients.

They lie here and in no adapter, since each is made of several: agents' code runs in workers, or in
the engine's process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vedette.adapters.reasoners.client import ClientReasoner
from vedette.config.models import fallback_chain
from vedette.config.plugins import plugins
from vedette.domain.base.errors import BadConfidence
from vedette.domain.client_call import CONFIDENCE_KEY, client_confidence
from vedette.domain.event import CALL_TYPE
from vedette.domain.ports.plugin import (
    REASONERS,
    ReasonerContext,
    ReasonerPlugin,
    TableProblem,
)

if TYPE_CHECKING:
    from vedette.adapters.reasoners.workers.supervisor import WorkerPool
    from vedette.config.settings import Settings
    from vedette.domain.agent import Agent
    from vedette.domain.ports.reasoner import Reasoner
    from vedette.memory.training_set import Lessons


class WorkerContext(ReasonerContext, frozen=True):
    """What is wired into a fleet's reasoners, beside what any plugin is given.

    `pool` is None where agents' code runs in the engine's process; with one `tools.prepare` is told
    of an agent whose tools are about to be needed. Judges store no state of theirs without
    `makes_checkpoints`. `model_pool` is where models are asked from,
    None where the engine's process asks them, or there are none.
    """

    settings: Settings
    lessons: Lessons
    pool: WorkerPool | None
    model_pool: WorkerPool | None
    tools: Any
    makes_checkpoints: bool = True


class JudgePlugin(ReasonerPlugin):
    """The plugin of the shipped reasoner `judge`: an agent's own judge.py, made of memories."""

    defines = ("judge", "Judge", "add class Judge(vedette.judging.Judge)")
    asks_model = False

    async def build(self, context: ReasonerContext) -> Reasoner:
        """Make what runs the judges of a fleet's agents."""
        from vedette.app.workers import build_judge_reasoner

        assert isinstance(context, WorkerContext)
        prepare = context.tools.prepare if context.pool is not None else None
        return build_judge_reasoner(
            context.fleet, context.lessons, context.clock, context.pool, prepare,
            makes_checkpoints=context.makes_checkpoints,
        )  # fmt: skip


class AdkPlugin(ReasonerPlugin):
    """The plugin of the shipped reasoner `adk`: the root_agent of agent.py, asked through ADK."""

    defines = ("agent", "root_agent", "assign root_agent")

    async def build(self, context: ReasonerContext) -> Reasoner:
        """Make what asks the models. Raises BadFleet for a root_agent that may do too much."""
        assert isinstance(context, WorkerContext)
        entries = context.settings.models
        if context.model_pool is not None:
            from vedette.app.model_workers import build_model_reasoner

            return await build_model_reasoner(context.fleet, context.model_pool, entries)
        from vedette.adapters.reasoners.adk.model import AskedModel
        from vedette.adapters.reasoners.adk.reasoner import AdkReasoner

        agents = [one for one in context.fleet.agents.values() if one.last_reasoner == "adk"]
        folders = {agent.name: Path(agent.folder) for agent in agents}
        releases = {agent.name: agent.release for agent in agents}
        bounds = {agent.name: _token_bounds(agent) for agent in agents}
        models = {name: AskedModel(plan) for name, plan in entries.items()}
        made = AdkReasoner(folders, bounds=bounds, releases=releases, models=models)
        for agent in agents:
            await asyncio.to_thread(made.require_model, agent.model)
        return made

    async def prepare(self, reasoner: Reasoner, agent: Agent) -> Callable[[], None]:
        """Load another release of an agent's root_agent; return what puts it in place."""
        from vedette.adapters.reasoners.adk.reasoner import AdkReasoner
        from vedette.adapters.reasoners.workers.model_client import WorkerModels
        from vedette.app.model_workers import prepare_model

        if isinstance(reasoner, WorkerModels):
            return await prepare_model(reasoner, agent)
        if not isinstance(reasoner, AdkReasoner):
            return lambda: None  # a rehearsal's, which loads none
        await asyncio.to_thread(reasoner.require_model, agent.model)
        folder, bounds = Path(agent.folder), _token_bounds(agent)
        return await reasoner.prepare(agent.name, folder, agent.release, bounds)


class ClientPlugin(ReasonerPlugin):
    """The plugin of the shipped reasoner `client`: whoever calls an agent's tools from outside."""

    asks_model = False

    def problems(self, agent: Any) -> Iterable[TableProblem]:
        """Yield what an agent.yaml declares that a client's calls have no use for."""
        for index, trigger in enumerate(agent.triggers):
            if trigger.on != CALL_TYPE:
                yield ("triggers", index), "a client's calls wake it", f"write on: {CALL_TYPE}"
            for name in ("source", "subject"):
                if getattr(trigger, name) is not None:
                    what = "each call wakes it, and this would leave some out"
                    yield ("triggers", index, name), what, "remove it"
        if len(agent.triggers) > 1:
            yield ("triggers", 1), "is not needed: each call wakes it", "keep the first"
        names = ["outcome"]  # MCP's wire has that of ours, and knows no dots
        for index, tool in enumerate(agent.tools):
            name = tool.name.replace(".", "_")
            if name in names:
                what = f"another tool is {name!r} on MCP's wire"
                yield ("tools", index, "name"), what, "rename one of the two"
            names.append(name)
        if agent.memory:
            yield ("memory",), "nobody tells a client what is remembered", "remove it"
        try:
            client_confidence(agent.name, agent.charter)
        except BadConfidence as error:
            yield ("charter", CONFIDENCE_KEY), error.what, error.mend or ""

    async def build(self, context: ReasonerContext) -> Reasoner:
        """Make what turns calls into proposals."""
        return ClientReasoner()


async def close_models(reasoners: Mapping[str, Reasoner]) -> None:
    """Let go of the connections to models, of those reasoners that have any."""
    for reasoner in reasoners.values():
        close = getattr(reasoner, "close_models", None)
        if close is not None:
            await close()


def named_models(settings: Settings, agents: Iterable[Agent]) -> list[str]:
    """Return the entries of [models] that one of these agents may ask, fallbacks too."""
    return sorted({name for one in agents for name in fallback_chain(one.model, settings.models)})


def _token_bounds(agent: Agent) -> tuple[int | None, int | None]:
    """Return what one call of an agent's model may read and write at most."""
    return agent.budget.input_tokens_per_call, agent.budget.output_tokens_per_call


async def build_reasoners(context: WorkerContext) -> dict[str, Reasoner]:
    """Wire what the fleet's agents name as their reasoner, and the judges' in any case."""
    known = plugins(REASONERS)
    found: dict[str, Reasoner] = {}
    agents = context.fleet.agents.values()
    named = {name for agent in agents for name in (agent.reasoner, agent.last_reasoner)}
    for name in sorted({"judge", *named}):
        with known.wrap_errors(name):
            found[name] = await known.get(name).build(context)
    return found


JUDGE, ADK, CLIENT = JudgePlugin(), AdkPlugin(), ClientPlugin()
