"""The Performer port in this process: an agent's tools.py, called with exact arguments.

Calls of plain functions run on threads, so that a slow target never stops the line; `may_start`
is asked on that thread, immediately before the function. Transactional tools are pure and run
where they are asked.

A thread cannot be ended from outside: a call that outlives its time goes on, and may bring about
its effect later still. So its key is neither asked about nor called again before it has come back,
and its thread counts as used until then. Every agent has threads of its own: what hangs for one
takes nothing from another.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import field
from types import ModuleType
from typing import Any, Literal

from vedette.domain.base import failpoint, machine
from vedette.domain.base.dataclass import dataclass
from vedette.domain.base.errors import BadFleet
from vedette.domain.effect import Call, Outcome, RowWrite
from vedette.domain.tool import Tool

# Threads of one agent. As many as the line has slots: while nothing hangs, no call waits here.
THREADS = 32
# With this many hung, an agent's calls are refused: waiting ones would hold the line's slots.
HUNG = 16
# How many late answers are kept. One that is dropped costs a question to the target.
_LATE = 1024

_Key = tuple[str, str, str]
# What a function returned, and what it raised.
_Answer = tuple[Any, BaseException | None]


@dataclass(slots=True, eq=False)
class _Running:
    """One call that has not come back.

    `began` is when its function was entered (monotonic seconds), None before. `unwanted` keeps
    it from being entered. `hung` says that its time is over, `kept` that its answer comes when
    nobody waits for it.
    """

    ended: asyncio.Future[_Answer]
    began: float | None = None
    unwanted: bool = False
    hung: bool = False
    kept: bool = False
    task: asyncio.Task[None] | None = None


@dataclass(slots=True)
class _Threads:
    """One agent's threads. Whoever took one gives it back when its function has ended.

    So what is submitted begins at once, and nothing waits in the executor's own queue.
    """

    executor: machine.ThreadPoolExecutor
    used: int = 0
    hung: int = 0
    waiting: deque[asyncio.Future[bool]] = field(default_factory=deque)

    async def take(self) -> bool:
        """Wait for a free thread, in turn; False if too many hang to wait for one."""
        if self.hung >= HUNG:
            return False
        if self.used < THREADS:
            self.used += 1
            return True
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.waiting.append(turn)
        try:
            return await turn
        except asyncio.CancelledError:
            if not turn.cancelled() and turn.result():
                self.give_back()
            raise

    def give_back(self) -> None:
        """Let the next in turn have the thread."""
        self.used -= 1
        while self.waiting and self.used < THREADS:
            turn = self.waiting.popleft()
            if not turn.done():
                self.used += 1
                turn.set_result(True)

    def hang(self) -> None:
        """Count a thread whose call outlived its time; nobody waits for too few."""
        self.hung += 1
        while self.waiting and self.hung >= HUNG:
            turn = self.waiting.popleft()
            if not turn.done():
                turn.set_result(False)


class LocalHands:
    """Loads each agent's tools on first use, by `tools_of`. Belongs to one event loop."""

    def __init__(self, tools_of: Callable[[str], ModuleType]) -> None:
        self._tools_of = tools_of
        self._modules: dict[str, ModuleType] = {}
        self._threads: dict[str, _Threads] = {}
        self._running: dict[_Key, _Running] = {}
        self._late: dict[_Key, Outcome] = {}

    def load(self, agent: str) -> ModuleType:
        """Return an agent's tools, loaded on first use."""
        module = self._modules.get(agent)
        if module is None:
            module = self._modules[agent] = self._tools_of(agent)
        return module

    def renew(self, agent: str) -> None:
        """Load an agent's tools anew when they are next needed.

        A call that has not come back keeps its key, whatever it is then called by.
        """
        self._modules.pop(agent, None)

    def _function(self, agent: str, name: str) -> Callable[..., Any]:
        function = getattr(self.load(agent), name, None)
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
        """Call the tool once, within its declared time; None if it may not start.

        The time runs from the moment the function is entered. While an earlier call of the key
        has not come back this one is not made: its answer is waited for, as long as a call may
        take, and is this one's answer. `retry` if so many of the agent's calls hang that this one
        was not made.
        """
        function = self._function(call.agent, tool.function)
        known = await self._earlier(call)
        if known is not None:
            return known
        return await self._call(function, tool, call, may_start, refused="retry")

    async def ask(self, tool: Tool, call: Call) -> Outcome | None:
        """Say what came of the call's key: an answer that came late, or what the target says.

        `unknown` while the call has not come back, as the target cannot know what it will do yet.
        """
        # What the tool said itself, however late, verifies nothing: there the target is asked.
        known = await self._earlier(call, late=tool.verify is None or tool.query != tool.verify)
        if known is not None or tool.query is None:
            return known
        function = self._function(call.agent, tool.query)
        return await self._call(function, tool, call, lambda: True, refused="unknown")

    async def _earlier(self, call: Call, *, late: bool = True) -> Outcome | None:
        """Return what is known of an earlier call of the same key; None if nothing is.

        Without `late` only that one is under way still counts.
        """
        key = (call.agent, call.tool, call.key)
        end = machine.monotonic_s() + _seconds(call)
        while (earlier := self._running.get(key)) is not None:
            await asyncio.wait({earlier.ended}, timeout=max(0.0, end - machine.monotonic_s()))
            if not earlier.ended.done():
                return Outcome("unknown", error="an earlier call has not come back yet")
            outcome, _ = earlier.ended.result()
            if late and _settles(outcome):
                found: Outcome = outcome
                return found
        return self._late.get(key) if late else None

    async def _call(
        self,
        function: Callable[..., Any],
        tool: Tool,
        call: Call,
        may_start: Callable[[], bool],
        *,
        refused: Literal["retry", "unknown"],
    ) -> Outcome | None:
        running = _Running(asyncio.get_running_loop().create_future())
        self._running[(call.agent, call.tool, call.key)] = running
        try:
            if inspect.iscoroutinefunction(function):
                self._begin_task(function, call, may_start, running)
            elif not await self._begin_thread(function, call, may_start, running):
                told = f"not called: {HUNG} or more calls of {call.agent} have not come back"
                return Outcome(refused, error=told)
            if not await _in_time(running, _seconds(call)):
                self._leave(call, running)
                return Outcome("unknown", error=f"no answer within {_seconds(call):g} s")
        except asyncio.CancelledError:
            # Whoever asked goes; what was entered goes on, and its key is taken until it ends.
            running.unwanted = running.kept = True
            if running.task is not None:
                running.task.cancel()
            raise
        outcome, error = running.ended.result()
        if error is not None:
            raise error
        if outcome is not None and not isinstance(outcome, Outcome):
            raise TypeError(f"{tool.name} did not answer with an Outcome")
        return outcome

    def _begin_task(
        self,
        function: Callable[..., Any],
        call: Call,
        may_start: Callable[[], bool],
        running: _Running,
    ) -> None:
        async def made() -> None:
            answer: _Answer = (None, None)
            try:
                if may_start():
                    running.began = machine.monotonic_s()
                    failpoint.reach("call:before")
                    answer = (await function(call), None)
                    failpoint.reach("call:after")
            except (Exception, asyncio.CancelledError, SystemExit, KeyboardInterrupt) as error:
                # The last two would end the loop, and with it the fleet.
                answer = (None, error)
            self._ended(call, running, answer)

        # It is entered before whoever waits for it goes on (`_in_time`), so it always comes to its
        # end, though it may be cancelled.
        running.task = asyncio.create_task(made())

    async def _begin_thread(
        self,
        function: Callable[..., Any],
        call: Call,
        may_start: Callable[[], bool],
        running: _Running,
    ) -> bool:
        """Let a thread make the call; False if there is none to wait for."""
        loop = asyncio.get_running_loop()
        threads = self._threads_of(call.agent)

        def made() -> _Answer:
            try:
                if running.unwanted or not may_start():
                    return None, None
                running.began = machine.monotonic_s()
                failpoint.reach("call:before")
                answer = function(call)
                failpoint.reach("call:after")
                return answer, None
            except BaseException as error:
                return None, error

        def ended(answer: _Answer) -> None:
            threads.hung -= running.hung
            threads.give_back()
            self._ended(call, running, answer)

        def work() -> None:
            answer = made()
            # Once the loop is closed there is nobody to be told: the next run asks the target.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(ended, answer)

        taken = False
        try:
            taken = await threads.take()
            if taken:
                threads.executor.submit(work)
        except BaseException:
            if taken:
                threads.give_back()
            self._ended(call, running, (None, None))
            raise
        if not taken:
            self._ended(call, running, (None, None))
        return taken

    def _threads_of(self, agent: str) -> _Threads:
        found = self._threads.get(agent)
        if found is None:
            name = f"vedette-hand-{agent}"
            found = _Threads(machine.ThreadPoolExecutor(THREADS, thread_name_prefix=name))
            self._threads[agent] = found
        return found

    def _leave(self, call: Call, running: _Running) -> None:
        """Wait no longer for a call whose time is over."""
        running.kept = True
        if running.task is not None:
            running.task.cancel()
        else:
            running.hung = True
            self._threads_of(call.agent).hang()

    def _ended(self, call: Call, running: _Running, answer: _Answer) -> None:
        key = (call.agent, call.tool, call.key)
        del self._running[key]
        if running.kept and _settles(answer[0]):
            self._late[key] = answer[0]
            if len(self._late) > _LATE:
                del self._late[next(iter(self._late))]
        running.ended.set_result(answer)

    def close(self) -> None:
        """Let the threads end; waits for none."""
        for threads in self._threads.values():
            threads.executor.shutdown(wait=False, cancel_futures=True)


async def _in_time(running: _Running, seconds: float) -> bool:
    """Wait for a call, no longer than `seconds` after its function was entered."""
    # Many a coroutine has ended when the loop comes back to here, and needs no timer.
    await asyncio.sleep(0)
    left = 0.0 if running.ended.done() else seconds
    while left > 0:
        await asyncio.wait({running.ended}, timeout=left)
        if running.ended.done():
            return True
        left = seconds if running.began is None else running.began + seconds - machine.monotonic_s()
    return running.ended.done()


def _seconds(call: Call) -> float:
    return call.timeout_us / 1_000_000


def _settles(outcome: object) -> bool:
    """Say whether an answer settles its key: asked again, the target would say the same."""
    return isinstance(outcome, Outcome) and outcome.state in ("done", "failed")
