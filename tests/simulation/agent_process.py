"""The processes of agents, as an engine sees them: what is asked of them, and their death.

Agents' code runs in the engine's process here (`InProcessTools`, `InProcessReasoner`). When the
process of an agent dies its engine is told what the worker pool tells it: a judgement or a
transactional tool that was asked gives no answer, of a call that had begun the outcome is unknown,
and the judge's states are gone. The next one comes up at once.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any

from vedette.adapters.reasoners.workers.pending_call import WorkerLost
from vedette.domain.effect import Call, Outcome, RowWrite
from vedette.domain.memory import Briefing
from vedette.domain.ports.reasoner import ReasonerJudgement
from vedette.domain.tool import Tool


class AgentProcesses:
    """When the processes of one engine's agents die; `tools` and `judges` take its ports' place."""

    def __init__(self, tools: Any, judges: Any) -> None:
        self.tools, self.judges = ProcessTools(self, tools), Judges(self, judges)
        self.calls: dict[str, dict[asyncio.Future[None], None]] = defaultdict(dict)
        self._asked: Counter[str] = Counter()
        self._dies_at: dict[str, int] = {}

    def die_at(self, agent: str, nth: int) -> None:
        """Let an agent's process die of the `nth` thing that is asked of it from now."""
        self._dies_at[agent] = self._asked[agent] + nth

    def ask(self, agent: str) -> None:
        """Count what is asked of an agent's process. Raises WorkerLost if it dies of that."""
        self._asked[agent] += 1
        if self._asked[agent] != self._dies_at.get(agent):
            return
        self.judges.renew(agent)
        for lost in self.calls.pop(agent, {}):
            lost.set_result(None)
        raise WorkerLost(f"the worker of {agent} died")


class Judges:
    """The Reasoner port."""

    def __init__(self, processes: AgentProcesses, judges: Any) -> None:
        self._processes, self._judges = processes, judges

    async def reason(self, briefing: Briefing) -> ReasonerJudgement:
        """Judge an event. Raises WorkerLost."""
        self._processes.ask(briefing.agent)
        thought: ReasonerJudgement = await self._judges.reason(briefing)
        return thought

    def __getattr__(self, name: str) -> Any:
        return getattr(self._judges, name)


class ProcessTools:
    """The Performer port."""

    def __init__(self, processes: AgentProcesses, tools: Any) -> None:
        self._processes, self._tools = processes, tools

    def compute_rows(self, tool: Tool, call: Call, row: Mapping[str, Any] | None) -> list[RowWrite]:
        """Return what a transactional tool writes. Raises WorkerLost."""
        self._processes.ask(call.agent)
        rows: list[RowWrite] = self._tools.compute_rows(tool, call, row)
        return rows

    async def perform(
        self, tool: Tool, call: Call, may_start: Callable[[], bool]
    ) -> Outcome | None:
        """Call a tool; unknown if the process dies meanwhile."""
        return await self._call(call, self._tools.perform(tool, call, may_start))

    async def query(self, tool: Tool, call: Call) -> Outcome | None:
        """Ask what came of a call; unknown if the process dies meanwhile."""
        return await self._call(call, self._tools.query(tool, call))

    async def _call(
        self, call: Call, attempt: Coroutine[Any, Any, Outcome | None]
    ) -> Outcome | None:
        calls = self._processes.calls[call.agent]
        lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        calls[lost] = None
        work = asyncio.ensure_future(attempt)
        try:
            await asyncio.sleep(0)  # what may not start is not begun
            with suppress(WorkerLost):
                self._processes.ask(call.agent)
            either: set[asyncio.Future[Any]] = {work, lost}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                return work.result()
            return Outcome("unknown", error=f"the worker of {call.agent} died")
        finally:
            calls.pop(lost, None)
            work.cancel()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tools, name)
