"""The ToolExecutor port in this process: an agent's tools.py, called with exact arguments.

Calls of plain functions run on threads, so that a slow target never stops the event loop;
`may_start` is called on that thread, immediately before the function. Transactional tools are pure
and run on the loop.

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
from types import ModuleType
from typing import Any, Literal

from msgspec import Struct, field

from vedette.domain.base import failpoint, machine
from vedette.domain.base.errors import BadFleet
from vedette.domain.effect import Call, Outcome, RowWrite
from vedette.domain.tool import Tool

# Threads of one agent: a call beyond them waits until one comes back.
THREADS = 32
# With this many hung, an agent's calls are refused rather than kept waiting.
MAX_HUNG = 16
# How many late answers are kept. One that is dropped costs a question to the target.
_MAX_STORED_OUTCOMES = 1024

_Key = tuple[str, str, str]
# What a function returned, and what it raised.
_Answer = tuple[Any, BaseException | None]


class _RunningCall(Struct, eq=False):
    """One call that has not come back.

    `started_at` is when its function was entered (monotonic seconds), None before. `is_cancelled`
    keeps it from being entered. `is_hung` says that its time is over, `keeps_answer` that its
    answer comes when nobody waits for it.
    """

    answer: asyncio.Future[_Answer]
    started_at: float | None = None
    is_cancelled: bool = False
    is_hung: bool = False
    keeps_answer: bool = False
    task: asyncio.Task[None] | None = None


class _ThreadPool(Struct):
    """One agent's threads. Whoever took one gives it back when its function has ended.

    So what is submitted begins at once, and nothing waits in the executor's own queue.
    """

    executor: machine.ThreadPoolExecutor
    used_count: int = 0
    hung_count: int = 0
    waiters: deque[asyncio.Future[bool]] = field(default_factory=deque)

    async def acquire(self) -> bool:
        """Wait for a free thread, in turn; False if too many hang to wait for one."""
        if self.hung_count >= MAX_HUNG:
            return False
        if self.used_count < THREADS:
            self.used_count += 1
            return True
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.waiters.append(turn)
        try:
            return await turn
        except asyncio.CancelledError:
            if not turn.cancelled() and turn.result():
                self.release()
            raise

    def release(self) -> None:
        """Let the next in turn have the thread."""
        self.used_count -= 1
        while self.waiters and self.used_count < THREADS:
            turn = self.waiters.popleft()
            if not turn.done():
                self.used_count += 1
                turn.set_result(True)

    def mark_hung(self) -> None:
        """Count a thread whose call outlived its time; nobody waits for too few."""
        self.hung_count += 1
        while self.waiters and self.hung_count >= MAX_HUNG:
            turn = self.waiters.popleft()
            if not turn.done():
                turn.set_result(False)


class InProcessTools:
    """The tool executor on tools.py in this process, by `tools_of`. Belongs to one event loop."""

    def __init__(self, tools_of: Callable[[str], ModuleType]) -> None:
        self._tools_of = tools_of
        self._modules: dict[str, ModuleType] = {}
        self._threads: dict[str, _ThreadPool] = {}
        self._running_calls: dict[_Key, _RunningCall] = {}
        self._stored_outcomes: dict[_Key, Outcome] = {}

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

    def compute_rows(self, tool: Tool, call: Call, row: Mapping[str, Any] | None) -> list[RowWrite]:
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
        known = await self._earlier_outcome(call)
        if known is not None:
            return known
        return await self._make_call(function, tool, call, may_start, refused="retry")

    async def query(self, tool: Tool, call: Call) -> Outcome | None:
        """Say what came of the call's key: an answer that came late, or what the target says.

        `unknown` while the call has not come back, as the target cannot know what it will do yet.
        """
        # What the tool said itself, however late, verifies nothing: there the target is asked.
        known = await self._earlier_outcome(
            call, may_be_over=tool.verify is None or tool.query != tool.verify
        )
        if known is not None or tool.query is None:
            return known
        function = self._function(call.agent, tool.query)
        return await self._make_call(function, tool, call, lambda: True, refused="unknown")

    async def _earlier_outcome(self, call: Call, *, may_be_over: bool = True) -> Outcome | None:
        """Return what is known of an earlier call of the same key; None if nothing is.

        Without `may_be_over` only that one is under way still counts.
        """
        key = (call.agent, call.tool, call.key)
        end = machine.monotonic_s() + _seconds(call)
        while (earlier := self._running_calls.get(key)) is not None:
            await asyncio.wait({earlier.answer}, timeout=max(0.0, end - machine.monotonic_s()))
            if not earlier.answer.done():
                return Outcome("unknown", error="an earlier call has not come back yet")
            outcome, _ = earlier.answer.result()
            if may_be_over and _is_final(outcome):
                found: Outcome = outcome
                return found
        return self._stored_outcomes.get(key) if may_be_over else None

    async def _make_call(
        self,
        function: Callable[..., Any],
        tool: Tool,
        call: Call,
        may_start: Callable[[], bool],
        *,
        refused: Literal["retry", "unknown"],
    ) -> Outcome | None:
        running = _RunningCall(asyncio.get_running_loop().create_future())
        self._running_calls[(call.agent, call.tool, call.key)] = running
        try:
            if inspect.iscoroutinefunction(function):
                self._start_task(function, call, may_start, running)
            elif not await self._start_thread(function, call, may_start, running):
                what = f"not called: {MAX_HUNG} or more calls of {call.agent} have not come back"
                return Outcome(refused, error=what)
            if not await _finishes_in_time(running, _seconds(call)):
                self._stop_waiting(call, running)
                return Outcome("unknown", error=f"no answer within {_seconds(call):g} s")
        except asyncio.CancelledError:
            # The caller goes; what was entered goes on, and its key is taken until it ends.
            running.is_cancelled = running.keeps_answer = True
            if running.task is not None:
                running.task.cancel()
            raise
        outcome, error = running.answer.result()
        if error is not None:
            raise error
        if outcome is not None and not isinstance(outcome, Outcome):
            raise TypeError(f"{tool.name} did not answer with an Outcome")
        return outcome

    def _start_task(
        self,
        function: Callable[..., Any],
        call: Call,
        may_start: Callable[[], bool],
        running: _RunningCall,
    ) -> None:
        async def run() -> None:
            answer: _Answer = (None, None)
            try:
                if may_start():
                    running.started_at = machine.monotonic_s()
                    failpoint.hit_failpoint("call:before")
                    answer = (await function(call), None)
                    failpoint.hit_failpoint("call:after")
            except (Exception, asyncio.CancelledError, SystemExit, KeyboardInterrupt) as error:
                # The last two would end the loop, and with it the fleet.
                answer = (None, error)
            self._finish_call(call, running, answer)

        # It is entered before whoever waits for it goes on (`_finishes_in_time`), so it always
        # comes to its end, though it may be cancelled.
        running.task = asyncio.create_task(run())

    async def _start_thread(
        self,
        function: Callable[..., Any],
        call: Call,
        may_start: Callable[[], bool],
        running: _RunningCall,
    ) -> bool:
        """Let a thread make the call; False if there is none to wait for."""
        loop = asyncio.get_running_loop()
        threads = self._threads_of(call.agent)

        def run() -> _Answer:
            try:
                if running.is_cancelled or not may_start():
                    return None, None
                running.started_at = machine.monotonic_s()
                failpoint.hit_failpoint("call:before")
                answer = function(call)
                failpoint.hit_failpoint("call:after")
                return answer, None
            except BaseException as error:
                return None, error

        def finish(answer: _Answer) -> None:
            threads.hung_count -= running.is_hung
            threads.release()
            self._finish_call(call, running, answer)

        def work() -> None:
            answer = run()
            # Once the loop is closed nobody waits for it: the next run asks the target.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(finish, answer)

        acquired = False
        try:
            acquired = await threads.acquire()
            if acquired:
                threads.executor.submit(work)
        except BaseException:
            if acquired:
                threads.release()
            self._finish_call(call, running, (None, None))
            raise
        if not acquired:
            self._finish_call(call, running, (None, None))
        return acquired

    def _threads_of(self, agent: str) -> _ThreadPool:
        found = self._threads.get(agent)
        if found is None:
            name = f"vedette-hand-{agent}"
            found = _ThreadPool(machine.ThreadPoolExecutor(THREADS, thread_name_prefix=name))
            self._threads[agent] = found
        return found

    def _stop_waiting(self, call: Call, running: _RunningCall) -> None:
        """Wait no longer for a call whose time is over."""
        running.keeps_answer = True
        if running.task is not None:
            running.task.cancel()
        else:
            running.is_hung = True
            self._threads_of(call.agent).mark_hung()

    def _finish_call(self, call: Call, running: _RunningCall, answer: _Answer) -> None:
        key = (call.agent, call.tool, call.key)
        del self._running_calls[key]
        if running.keeps_answer and _is_final(answer[0]):
            self._stored_outcomes[key] = answer[0]
            if len(self._stored_outcomes) > _MAX_STORED_OUTCOMES:
                del self._stored_outcomes[next(iter(self._stored_outcomes))]
        running.answer.set_result(answer)

    def close(self) -> None:
        """Let the threads end; waits for none."""
        for threads in self._threads.values():
            threads.executor.shutdown(wait=False, cancel_futures=True)


async def _finishes_in_time(running: _RunningCall, seconds: float) -> bool:
    """Wait for a call, no longer than `seconds` after its function was entered."""
    # Many a coroutine has ended when the loop comes back to here, and needs no timer.
    await asyncio.sleep(0)
    left = 0.0 if running.answer.done() else seconds
    while left > 0:
        await asyncio.wait({running.answer}, timeout=left)
        if running.answer.done():
            return True
        left = (
            seconds
            if running.started_at is None
            else running.started_at + seconds - machine.monotonic_s()
        )
    return running.answer.done()


def _seconds(call: Call) -> float:
    return call.timeout_us / 1_000_000


def _is_final(outcome: object) -> bool:
    """Say whether an answer settles its key: asked again, the target would say the same."""
    return isinstance(outcome, Outcome) and outcome.state in ("done", "failed")
