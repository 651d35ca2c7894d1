"""The Performer port in this process: an agent's tools.py, called with exact arguments.

Calls of plain functions run on threads, so that a slow target never stops the line; `may_start`
is asked on that thread, immediately before the function. Transactional tools are pure and run
where they are asked.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

from vedette.effect import Call, Outcome, RowWrite
from vedette.errors import BadFleet
from vedette.tool import Tool

THREADS = 32


class LocalHands:
    """Loads each agent's tools on first use, by `tools_of`."""

    def __init__(self, tools_of: Callable[[str], ModuleType]) -> None:
        self._tools_of = tools_of
        self._modules: dict[str, ModuleType] = {}
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="vedette-hand")

    def _function(self, agent: str, name: str) -> Callable[..., Any]:
        module = self._modules.get(agent)
        if module is None:
            module = self._modules[agent] = self._tools_of(agent)
        function = getattr(module, name, None)
        if not callable(function):
            raise BadFleet(f"tools.py of {agent} has no function {name!r}")
        found: Callable[..., Any] = function
        return found

    def rows(self, tool: Tool, call: Call, row: Mapping[str, Any] | None) -> list[RowWrite]:
        """Return what a transactional tool writes."""
        written = self._function(call.agent, tool.function)(call, row)
        if not isinstance(written, list) or not all(isinstance(w, RowWrite) for w in written):
            raise TypeError(f"{tool.name} did not answer with a list of RowWrite")
        return written

    async def perform(
        self, tool: Tool, call: Call, may_start: Callable[[], bool]
    ) -> Outcome | None:
        """Call the tool once, within its declared time; None if it may not start."""
        return await self._call(self._function(call.agent, tool.function), tool, call, may_start)

    async def ask(self, tool: Tool, call: Call) -> Outcome | None:
        """Ask a queryable target what came of the call's key."""
        if tool.query is None:
            return None
        return await self._call(self._function(call.agent, tool.query), tool, call, lambda: True)

    async def _call(
        self,
        function: Callable[..., Any],
        tool: Tool,
        call: Call,
        may_start: Callable[[], bool],
    ) -> Outcome | None:
        deadline = call.timeout_us / 1_000_000
        try:
            async with asyncio.timeout(deadline):
                if inspect.iscoroutinefunction(function):
                    outcome = await function(call) if may_start() else None
                else:
                    loop = asyncio.get_running_loop()
                    outcome = await loop.run_in_executor(
                        self._threads, lambda: function(call) if may_start() else None
                    )
        except TimeoutError:
            return Outcome("unknown", error=f"no answer within {deadline:g} s")
        if outcome is not None and not isinstance(outcome, Outcome):
            raise TypeError(f"{tool.name} did not answer with an Outcome")
        return outcome

    def close(self) -> None:
        """Let the threads end."""
        self._threads.shutdown(wait=False, cancel_futures=True)
