"""Wiring of what runs a candidate release: reasoners and tools of its own, in workers of its own.

So what its code does (it hangs, it takes memory, it ends its process) is held against nobody else's
workers, and nothing that runs the present release is touched.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct

from vedette.app.reasoner_plugins import WorkerContext, build_reasoners
from vedette.app.remote_workers import add_google_tokens
from vedette.app.workers import build_pool, build_tool_executor, judging_modules
from vedette.domain.agent import Agent, Fleet
from vedette.engine.services import CandidateCode, Services
from vedette.memory.training_set import CandidateLessons, Lessons

if TYPE_CHECKING:
    from vedette.config.settings import Settings


class OpenedCode(Struct):
    """What runs a candidate's code, and what lets go of it."""

    code: CandidateCode
    close: Callable[[], None]


async def open_candidate_code(
    settings: Settings, services: Services, live: Lessons, agent: Agent
) -> OpenedCode:
    """Wire what runs a candidate's code. `live` decides what its judge is taught.

    Its judge makes no checkpoint: a key that comes back is taken up from the release's own.
    """
    from vedette.adapters.identity.secrets import with_secrets

    alone = Fleet(services.fleet.name, {agent.name: agent})
    folder = settings.state / "candidates" / agent.name
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    pool = build_pool(settings, services.metrics, folder, judging_modules(alone))
    try:
        tools = build_tool_executor(settings, alone, pool)
        tools = add_google_tokens(settings, with_secrets(tools, settings.targets))
        context = WorkerContext(
            alone, services.clock, services.metrics, settings, CandidateLessons.of(live, agent),
            pool, None, tools, makes_checkpoints=False,
        )  # fmt: skip
        reasoners = await build_reasoners(context)
    except BaseException:
        if pool is not None:
            pool.close()
        raise

    def close() -> None:
        cast("Any", tools).close()
        if pool is not None:
            pool.close()

    return OpenedCode(CandidateCode(agent, reasoners, tools), close)
