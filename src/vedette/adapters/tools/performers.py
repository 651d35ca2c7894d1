"""The ToolExecutor port over the performers of plugins, and over what runs agents' own code."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from vedette.domain.effect import Call, Outcome, RowWrite
from vedette.domain.ports.plugin import ToolPerformer
from vedette.domain.ports.reasoner import ToolExecutor
from vedette.domain.tool import Tool

# How often a performer may take the time of a call: for an earlier one of its key, and for itself.
_TIMES_TIMEOUT = 2
# That it has, behind that, to say itself that the time is over.
_GRACE_S = 2.0


class PluginTools:
    """The tool executor on plugins' performers; what is no plugin's is passed on to `code`."""

    def __init__(self, code: ToolExecutor, build: Callable[[str], ToolPerformer]) -> None:
        """`build` makes a performer by its plugin's name, when it is first needed."""
        self._code: Any = code
        self._build = build
        self._performers: dict[str, ToolPerformer] = {}

    def __getattr__(self, name: str) -> Any:
        # `prepare` and whatever else `code` has beside the port.
        return getattr(self._code, name)

    def compute_rows(self, tool: Tool, call: Call, row: Mapping[str, Any] | None) -> list[RowWrite]:
        """Return what a transactional tool writes; no plugin's is one."""
        written: list[RowWrite] = self._code.compute_rows(tool, call, row)
        return written

    async def perform(
        self, tool: Tool, call: Call, may_start: Callable[[], bool]
    ) -> Outcome | None:
        """Call the tool once; None if it may not start."""
        if tool.performer is None:
            outcome: Outcome | None = await self._code.perform(tool, call, may_start)
            return outcome
        return await _bound(self._performer(tool.performer).perform(tool, call, may_start), call)

    async def query(self, tool: Tool, call: Call) -> Outcome | None:
        """Ask the target what came of the call's key; None if it knows nothing of it."""
        if tool.performer is None:
            outcome: Outcome | None = await self._code.query(tool, call)
            return outcome
        return await _bound(self._performer(tool.performer).query(tool, call), call)

    def close(self) -> None:
        """Close what performs; waits for nothing."""
        for performer in self._performers.values():
            performer.close()
        self._code.close()

    def _performer(self, name: str) -> ToolPerformer:
        if name not in self._performers:
            self._performers[name] = self._build(name)
        return self._performers[name]


async def _bound(work: Awaitable[Outcome | None], call: Call) -> Outcome | None:
    """Wait for a performer no longer than for any tool, whatever it does with its time."""
    seconds = call.timeout_us / 1_000_000
    try:
        async with asyncio.timeout(_TIMES_TIMEOUT * seconds + _GRACE_S):
            return await work
    except TimeoutError:
        return Outcome("unknown", error=f"no answer within {seconds:g} s")
