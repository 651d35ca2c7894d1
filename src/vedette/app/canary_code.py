"""Wiring of what runs a canary, or a release of before: reasoners and tools in workers of its own.

So what its code does (it hangs, it takes memory, it ends its process) is held against nobody else's
workers, and nothing that runs the present release is touched.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct

from vedette.app.model_workers import open_model_pool
from vedette.app.reasoner_plugins import WorkerContext, build_reasoners, close_models
from vedette.app.remote_workers import add_google_tokens
from vedette.app.workers import build_tool_executor, open_pool, try_judge
from vedette.domain.agent import Agent, Fleet
from vedette.engine.services import CanaryCode, Services
from vedette.memory.training_set import CanaryLessons, Lessons

if TYPE_CHECKING:
    from vedette.config.settings import Settings


class OpenedCode(Struct):
    """What runs a canary's code, and what lets go of it."""

    code: CanaryCode
    close: Callable[[], Awaitable[None]]


async def stay_open() -> None:
    """Let go of nothing: what runs the code is somebody else's."""


async def open_canary_code(
    settings: Settings, services: Services, live: Lessons, agent: Agent, *, place: str = "canaries"
) -> OpenedCode:
    """Wire what runs a canary's code, and make it once; `live` decides what it is taught.

    Its workers' locks lie below `place` of the state folder. Its judge makes no checkpoint: a key
    that comes back is taken up from the release's own.
    Raises what making it raises.
    """
    from vedette.adapters.identity.secrets import with_secrets

    alone, state = Fleet(services.fleet.name, {agent.name: agent}), settings.state / place
    async with AsyncExitStack() as stack:
        judge_folder, model_folder = (state / agent.name / part for part in ("judge", "model"))
        # One by one: what `parents` makes has the modes of the umask.
        own = state / agent.name
        for folder in (state.parent, state, own, judge_folder, model_folder):
            folder.mkdir(mode=0o700, exist_ok=True)
        pool = open_pool(settings, alone, services.metrics, folder=judge_folder)
        model_pool = open_model_pool(settings, alone, services.metrics, model_folder)
        for each in (pool, model_pool):
            if each is not None:
                stack.callback(each.close)
        tools = build_tool_executor(settings, alone, pool)
        tools = add_google_tokens(settings, with_secrets(tools, settings.targets))
        stack.callback(cast("Any", tools).close)
        lessons = CanaryLessons.of(live, agent)
        context = WorkerContext(
            alone, services.clock, services.metrics, settings, lessons, pool, model_pool, tools,
            makes_checkpoints=False,
        )  # fmt: skip
        reasoners = await build_reasoners(context)
        stack.push_async_callback(close_models, reasoners)
        if agent.has_judge:
            taught = live.preview_lessons(agent.name, services.clock.now_us())
            await try_judge(reasoners["judge"], agent, taught)
        return OpenedCode(CanaryCode(agent, reasoners, tools), stack.pop_all().aclose)
    raise AssertionError("an exit stack suppresses nothing")
