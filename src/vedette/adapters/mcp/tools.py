"""Performs tools of MCP servers: one process for each agent and target, which speaks to the server.

A tool is called only if the server says of it what was pinned, which is looked at before each
permit; a tool that is not declared cannot be named at all. A server that hangs is ended with its
process; whatever becomes of a server, the outcome of a call is settled as the tool declares.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from vedette.adapters.mcp.client_process import ClientProcess, ProcessLost, UnsendableMessage
from vedette.adapters.mcp.outcomes import OutcomeState, outcome_of
from vedette.adapters.mcp.scratch import remove_leftovers
from vedette.domain.base import failpoint, machine
from vedette.domain.effect import PERMIT_LIFE_US, Call, Outcome
from vedette.domain.ports.plugin import BoxSettings
from vedette.domain.tool import Tool

# How often a call is begun anew because its permit, or the list of tools, was over before it began.
_TRIES = 4
_GRACE_S = 1.0
IDLE_S = 300.0

_MEND = "see what changed with `vedette tool add --again`"


class _Server:
    """The process for one agent's calls of one target, and who waits for it."""

    def __init__(self, box: BoxSettings) -> None:
        self._box = box
        self._starting = asyncio.Lock()
        self._process: ClientProcess | None = None
        self._table: Mapping[str, Any] = {}
        self._under_way: dict[ClientProcess, int] = {}
        self._idle: asyncio.TimerHandle | None = None

    async def acquire(self, table: Mapping[str, Any]) -> ClientProcess:
        """Return a process that runs, for one call; `release` gives it back. Raises ProcessLost."""
        async with self._starting:
            process = self._process
            if process is not None and (not process.is_alive or self._table != table):
                self.retire(process)
                process = None
            if process is None:
                process = ClientProcess(table, self._box)
                try:
                    await process.start()
                except BaseException:
                    process.kill()
                    raise
                self._process, self._table = process, table
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        self._under_way[process] = self._under_way.get(process, 0) + 1
        return process

    def release(self, process: ClientProcess) -> None:
        """Take a process back; one that is retired ends with the last call."""
        self._under_way[process] -= 1
        if self._under_way[process]:
            return
        del self._under_way[process]
        if process is not self._process:
            process.kill()
        elif self._idle is None:
            loop = asyncio.get_running_loop()
            self._idle = loop.call_later(IDLE_S, self.retire, process)

    def retire(self, process: ClientProcess) -> None:
        """Give a process to nobody any more; it ends once no call is under way."""
        if self._process is process:
            self._process = None
        if process not in self._under_way:
            process.kill()

    def close(self) -> None:
        """End it."""
        if self._idle is not None:
            self._idle.cancel()
        for process in {*self._under_way, *([self._process] if self._process else [])}:
            process.kill()


class McpTools:
    """Makes the calls of MCP tools. Belongs to one event loop."""

    def __init__(self, box: BoxSettings) -> None:
        self._box = box
        remove_leftovers(box.scratch)
        self._servers: dict[tuple[str, str], _Server] = {}

    async def perform(
        self, tool: Tool, call: Call, may_start: Callable[[], bool]
    ) -> Outcome | None:
        """Call the server's tool once; None if it may not start."""
        server = self._servers.setdefault((call.agent, str(tool.target)), _Server(self._box))
        try:
            process = await server.acquire(call.target)
        except ProcessLost as error:
            return Outcome("retry", error=f"not called: the server's process {error}")
        try:
            return await self._call(process, server, tool, call, may_start)
        finally:
            server.release(process)

    async def _call(
        self,
        process: ClientProcess,
        server: _Server,
        tool: Tool,
        call: Call,
        may_start: Callable[[], bool],
    ) -> Outcome | None:
        assert tool.request is not None
        named = {"tool": tool.request["tool"], "digest": tool.request["digest"]}
        seconds = call.timeout_us / 1_000_000
        meta = {"vedette/key": call.key, "traceparent": call.traceparent}
        for _ in range(_TRIES):
            try:
                checked = await process.ask({"do": "check", **named}, seconds)
            except (ProcessLost, TimeoutError) as error:
                why = str(error) or f"no list of tools within {seconds:g} s"
                return Outcome("retry", error=f"not called: the server's process {why}")
            if "refused" in checked:
                return Outcome("failed", error=f"not called: {checked['refused']}; {_MEND}")
            if "ok" not in checked:
                if "url" in call.target:  # it may have moved: the next call looks its host up
                    server.retire(process)
                return Outcome("retry", error=f"not called: {checked.get('away', 'no server')}")
            if not may_start():
                return None
            failpoint.hit_failpoint("call:before")
            message = {
                "do": "call", **named, "arguments": dict(call.args), "seconds": seconds,
                "meta": meta, "until_us": machine.boot_us() + PERMIT_LIFE_US,
            }  # fmt: skip
            try:
                answer = await process.ask(message, seconds + _GRACE_S)
            except UnsendableMessage as error:
                return Outcome("failed", error=f"not called: {error}")
            except (ProcessLost, TimeoutError) as error:
                answer = {"lost": f"the server's process {str(error) or 'hangs'}"}
            failpoint.hit_failpoint("call:after")
            if "again" not in answer:
                return self._settle(process, server, tool, answer)
        return Outcome("retry", error="not called: the server's list of tools changes all the time")

    def _settle(
        self, process: ClientProcess, server: _Server, tool: Tool, answer: Mapping[str, Any]
    ) -> Outcome:
        lost: OutcomeState = "retry" if tool.settles == "idempotent" else "unknown"
        says = (tool.request or {}).get("errors")
        if_error: OutcomeState = (
            "failed" if says == "not_done" or tool.settles == "idempotent" else "unknown"
        )
        if isinstance(answer.get("result"), dict):
            return outcome_of(answer["result"], if_error=if_error, if_unreadable=lost)
        if "error" in answer:
            return Outcome(if_error, error=str(answer["error"]))
        if "refused" in answer:
            return Outcome("failed", error=f"not called: {answer['refused']}; {_MEND}")
        if "failed" in answer:
            return Outcome("failed", error=str(answer["failed"]))
        if "rejected" in answer:
            server.retire(process)
            return Outcome("retry", error=f"not called: {answer['rejected']}")
        # It may hang, or half of it be gone: the next call gets another.
        server.retire(process)
        why = str(answer.get("lost", "no answer"))
        return Outcome(lost, error=why)

    async def query(self, tool: Tool, call: Call) -> Outcome | None:
        """Say that nobody knows: MCP has no way to ask what came of a call."""
        return Outcome("unknown", error="MCP cannot be asked what came of a call")

    def close(self) -> None:
        """End the servers' processes; waits for none."""
        for server in self._servers.values():
            server.close()
