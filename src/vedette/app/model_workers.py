"""Wiring of models into workers: what asks them has a key, and no code of an agent beside it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from vedette.app.workers import build_pool
from vedette.config.models import ModelPlan, fallback_chain
from vedette.domain.agent import Agent, Fleet
from vedette.domain.base.errors import BadFleet, VedetteError
from vedette.domain.ports.reasoner import Metrics

if TYPE_CHECKING:
    from vedette.adapters.reasoners.workers.model_client import WorkerModels
    from vedette.adapters.reasoners.workers.supervisor import WorkerPool
    from vedette.config.settings import Settings

# What the fork server imports of our own, so that its workers have it; that of a provider's client,
# which takes up to three seconds, if an entry asks that provider.
_PRELOAD = ("adapters.reasoners.adk.preload", "adapters.reasoners.workers.model_worker")
_CLIENTS = {
    "anthropic": "adapters.reasoners.adk.claude",
    "openai": "adapters.reasoners.adk.openai_responses",
    "ollama": "adapters.reasoners.adk.litellm_model",
    "litellm": "adapters.reasoners.adk.litellm_model",
}
# How many agents' models are made ready at a time.
_MOST_AT_ONCE = 8
_RETRY = "see what the engine's standard error tells of it, and do it again"


def open_model_pool(
    settings: Settings, fleet: Fleet, metrics: Metrics, folder: Path | None = None
) -> WorkerPool | None:
    """Wire the pool of workers that import ADK, if there are agents that a model reasons for.

    Its lock lies in `folder`, or below the state folder. Its fork server is one of its own: no
    judge's worker is forked from what ADK takes.
    """
    if not any(agent.last_reasoner == "adk" for agent in fleet.agents.values()):
        return None
    named = {agent.model for agent in fleet.agents.values()}
    asked = {one for name in named for one in fallback_chain(name, settings.models)}
    preload = preloaded_modules(settings.models[name] for name in asked)
    return build_pool(settings, metrics, folder or settings.state / "models", preload)


def preloaded_modules(plans: Iterable[ModelPlan]) -> tuple[str, ...]:
    """Return the modules of ours that workers which ask these models are forked with."""
    clients = sorted({_CLIENTS[plan.provider] for plan in plans if plan.provider in _CLIENTS})
    return *_PRELOAD, *clients


async def build_model_reasoner(
    fleet: Fleet, pool: WorkerPool, models: Mapping[str, ModelPlan]
) -> WorkerModels:
    """Wire what has workers ask the models of a fleet's agents. Raises as `prepare_model`."""
    from vedette.adapters.reasoners.workers.model_client import WorkerModels

    reasoner, limit = WorkerModels(pool, models), asyncio.Semaphore(_MOST_AT_ONCE)

    async def prepare(agent: Agent) -> None:
        async with limit:
            place = await prepare_model(reasoner, agent)
        place()

    agents = (agent for agent in fleet.agents.values() if agent.last_reasoner == "adk")
    for failure in await asyncio.gather(*map(prepare, agents), return_exceptions=True):
        if failure is not None:
            raise failure
    return reasoner


async def prepare_model(reasoner: WorkerModels, agent: Agent) -> Callable[[], None]:
    """Have a worker describe an agent's root_agent, and another make it again by that.

    Returns what puts it in the present one's place. Raises BadFleet for an agent.py that cannot be
    imported, for a root_agent that may do more than propose, and for a model that nobody serves, or
    whose key is not there.
    """
    from vedette.adapters.reasoners.adk.provider import find_access, find_entry_access, merge_access
    from vedette.adapters.reasoners.workers.model_client import ModelWorkerSpec
    from vedette.adapters.reasoners.workers.root_agents import describe_in_worker

    where, folder = f"{agent.name}/agent.py", Path(agent.folder)
    description = None
    if (folder / "agent.py").exists():
        description = await describe_in_worker(reasoner.pool, agent.name, folder, agent.release)
    models = tuple(reasoner.models[name] for name in fallback_chain(agent.model, reasoner.models))
    try:
        home = Path.home()
        if models:
            access = merge_access(find_entry_access(plan, os.environ, home) for plan in models)
        else:
            named = "" if description is None else str(description.get("model", ""))
            access = find_access(named, os.environ, home)
        bounds = (agent.budget.input_tokens_per_call, agent.budget.output_tokens_per_call)
        spec = ModelWorkerSpec(
            agent.folder, agent.release, description, access.environment, access.reach, bounds,
            agent.limits, models=models,
        )  # fmt: skip
        return await reasoner.prepare(agent.name, spec)
    except BadFleet as error:
        if error.where is not None:
            raise
        raise BadFleet(error.what, where=where, mend=error.mend, code=error.code) from error
    except VedetteError as error:
        raise BadFleet(error.what, where=where, mend=error.mend or _RETRY) from error
