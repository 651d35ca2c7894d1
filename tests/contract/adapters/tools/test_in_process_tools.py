"""Calling tools in this process, on real threads: what is called, when, and how often.

A call that hangs waits for an event that its test sets, so nothing here sleeps for long.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from msgspec.structs import replace

from vedette.adapters.tools.in_process import MAX_HUNG, THREADS, InProcessTools
from vedette.domain.effect import Call, Outcome
from vedette.domain.tool import SettlementMode, Tool
from vedette.testing.clock import ManualClock
from vedette.testing.toy_fleet import World, job, send_proposal, toy_fleet, wait_until

SHORT_US = 50_000
LONG_US = 5_000_000
LATE = Outcome("unknown", error="no answer within 0.05 s")


@dataclass
class Target:
    """What the tools reach. Calls of a key in `stuck` wait for `release`, then take effect."""

    stuck: set[str] = field(default_factory=set)
    release: threading.Event = field(default_factory=threading.Event)
    answer: Callable[[Call], Any] = lambda call: Outcome("done", {"id": call.key})
    entered: Counter[str] = field(default_factory=Counter)
    happened: Counter[str] = field(default_factory=Counter)
    asked: Counter[str] = field(default_factory=Counter)
    left: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def act(self, call: Call) -> Any:
        with self.lock:
            self.entered[call.key] += 1
        try:
            if call.key in self.stuck:
                assert self.release.wait(10)
            answer = self.answer(call)
            if isinstance(answer, BaseException):
                raise answer
            with self.lock:
                self.happened[call.key] += 1
            return answer
        finally:
            with self.lock:
                self.left += 1

    async def act_async(self, call: Call) -> Any:
        if call.key in self.stuck:
            await asyncio.Event().wait()
        return self.act(call)

    def query(self, call: Call) -> Outcome | None:
        with self.lock:
            self.asked[call.key] += 1
        return Outcome("done", {"asked": True}) if self.happened[call.key] else None


@pytest.fixture
def target() -> Iterator[Target]:
    target = Target()
    yield target
    target.release.set()


@asynccontextmanager
async def open_tools(target: Target) -> AsyncIterator[InProcessTools]:
    module = ModuleType("tools")
    for name in ("act", "act_async", "query"):
        setattr(module, name, getattr(target, name))
    tools = InProcessTools(lambda agent: module)
    try:
        yield tools
    finally:
        target.release.set()
        await wait_until(lambda: not tools._running_calls)
        tools.close()


def a_tool(settles: SettlementMode = "queryable", function: str = "act") -> Tool:
    query = "query" if settles == "queryable" else None
    return Tool("order.place", "order", "wire", {}, (), settles, function, query)


def a_call(key: str = "k", *, agent: str = "worker", timeout_us: int = LONG_US) -> Call:
    return Call("order.place", {}, key, agent, "run", {}, (agent,), 1, timeout_us)


def yes() -> bool:
    return True


# --- one call -----------------------------------------------------------------------------------


@pytest.mark.parametrize("function", ["act", "act_async"])
@pytest.mark.parametrize("state", ["done", "failed", "retry", "unknown"])
async def test_what_a_tool_answers_is_the_outcome(
    target: Target, function: str, state: Any
) -> None:
    target.answer = lambda call: Outcome(state, {"n": 1}, "told")
    async with open_tools(target) as tools:
        outcome = await tools.perform(a_tool(function=function), a_call(), yes)
    assert outcome == Outcome(state, {"n": 1}, "told")


@pytest.mark.parametrize("function", ["act", "act_async"])
async def test_what_may_not_start_is_not_called(target: Target, function: str) -> None:
    threads: list[str] = []

    def no() -> bool:
        threads.append(threading.current_thread().name)
        return False

    async with open_tools(target) as tools:
        tool = a_tool(function=function)
        assert await tools.perform(tool, a_call(), no) is None
        assert not target.entered
        assert len(threads) == 1
        assert threads[0].startswith("vedette-hand") == (function == "act")
        # Nothing is left of it: the key may be called.
        assert await tools.perform(tool, a_call(), yes) == Outcome("done", {"id": "k"})


@pytest.mark.parametrize("function", ["act", "act_async"])
@pytest.mark.parametrize(
    ("raised", "seen"),
    [
        (ValueError("a bug"), ValueError),
        (StopIteration(), RuntimeError),
        (SystemExit(4), SystemExit),
        (asyncio.CancelledError(), asyncio.CancelledError),
    ],
)
async def test_a_tool_that_raises_ends_its_own_call_only(
    target: Target, function: str, raised: BaseException, seen: type[BaseException]
) -> None:
    target.answer = lambda call: raised
    async with open_tools(target) as tools:
        with pytest.raises(seen):
            await tools.perform(a_tool(function=function), a_call(), yes)
        target.answer = lambda call: Outcome("done")
        assert await tools.perform(a_tool(function=function), a_call(), yes) == Outcome("done")


@pytest.mark.parametrize("function", ["act", "act_async"])
async def test_an_answer_that_is_no_outcome_is_refused(target: Target, function: str) -> None:
    target.answer = lambda call: "fine"
    async with open_tools(target) as tools:
        with pytest.raises(TypeError, match=r"order\.place did not answer with an Outcome"):
            await tools.perform(a_tool(function=function), a_call(), yes)


async def test_a_coroutine_that_ends_at_once_needs_no_timer(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    timers: list[object] = []
    loop = asyncio.get_running_loop()
    at = loop.call_at

    def call_at(when: float, *more: Any, **named: Any) -> asyncio.TimerHandle:
        timers.append(when)
        return at(when, *more, **named)

    monkeypatch.setattr(loop, "call_at", call_at)
    async with open_tools(target) as tools:
        tool = a_tool(function="act_async")
        assert await tools.perform(tool, a_call(), yes) == Outcome("done", {"id": "k"})
        assert timers == []
        # The control: one that does not end at once has its time.
        target.stuck.add("slow")
        assert await tools.perform(tool, a_call("slow", timeout_us=SHORT_US), yes) == LATE
        assert timers


async def test_the_target_is_asked_where_it_can_be(target: Target) -> None:
    async with open_tools(target) as tools:
        assert await tools.query(a_tool(), a_call()) is None
        await tools.perform(a_tool(), a_call(), yes)
        assert await tools.query(a_tool(), a_call()) == Outcome("done", {"asked": True})
        assert await tools.query(a_tool("none"), a_call()) is None
    assert target.asked["k"] == 2


async def test_an_async_tool_out_of_time_is_ended(target: Target) -> None:
    target.stuck = {"k"}
    async with open_tools(target) as tools:
        tool, call = a_tool(function="act_async"), a_call(timeout_us=SHORT_US)
        assert await tools.perform(tool, call, yes) == LATE
        target.stuck = set()
        # It is over, and can do nothing any more: so the target's word is good.
        assert await tools.query(tool, call) is None
        assert await tools.perform(tool, call, yes) == Outcome("done", {"id": "k"})
    assert target.happened["k"] == 1


# --- a call that outlives its time --------------------------------------------------------------


async def test_a_call_that_has_not_come_back_is_neither_asked_about_nor_repeated(
    target: Target,
) -> None:
    target.stuck = {"k"}
    async with open_tools(target) as tools:
        tool, call = a_tool(), a_call(timeout_us=SHORT_US)
        assert await tools.perform(tool, call, yes) == LATE
        # The target would say that nothing happened, and in a moment it would not be true.
        for repeat in (tools.query(tool, call), tools.perform(tool, call, yes)):
            began = time.monotonic()
            outcome = await repeat
            assert outcome is not None
            assert (outcome.state, outcome.error) == (
                "unknown", "an earlier call has not come back yet",
            )  # fmt: skip
            assert time.monotonic() - began >= SHORT_US / 1e6 * 0.9
        assert (target.entered["k"], target.asked["k"]) == (1, 0)
        # Another key is another matter.
        assert await tools.query(tool, a_call("other")) is None
        target.release.set()
        await wait_until(lambda: not tools._running_calls)
        assert await tools.query(tool, call) == Outcome("done", {"id": "k"})
        assert await tools.perform(tool, call, yes) == Outcome("done", {"id": "k"})
    assert (target.entered["k"], target.asked["k"], target.happened["k"]) == (1, 0, 1)


@pytest.mark.parametrize("settles", ["idempotent", "none"])
async def test_a_key_has_one_call_at_a_time(target: Target, settles: SettlementMode) -> None:
    target.stuck = {"k"}
    async with open_tools(target) as tools:
        tool = a_tool(settles)
        assert await tools.perform(tool, a_call(timeout_us=SHORT_US), yes) == LATE
        repeat = asyncio.create_task(tools.perform(tool, a_call(), yes))
        await asyncio.sleep(0.02)
        assert (repeat.done(), target.entered["k"]) == (False, 1)
        target.release.set()
        assert await repeat == Outcome("done", {"id": "k"})
    assert (target.entered["k"], target.happened["k"]) == (1, 1)


async def test_two_calls_of_a_key_at_once_are_one(target: Target) -> None:
    async with open_tools(target) as tools:
        both = await asyncio.gather(*(tools.perform(a_tool(), a_call(), yes) for _ in range(2)))
    assert both == [Outcome("done", {"id": "k"})] * 2
    assert target.entered["k"] == 1


@pytest.mark.parametrize(
    "late", [Outcome("retry"), Outcome("unknown"), ValueError("broke off"), "no outcome"]
)
async def test_a_late_answer_that_settles_nothing_leaves_it_to_the_target(
    target: Target, late: Any
) -> None:
    target.stuck, target.answer = {"k"}, lambda call: late
    async with open_tools(target) as tools:
        tool, call = a_tool(), a_call(timeout_us=SHORT_US)
        assert await tools.perform(tool, call, yes) == LATE
        target.release.set()
        await wait_until(lambda: not tools._running_calls)
        await tools.query(tool, call)
        assert target.asked["k"] == 1
        target.answer = lambda call: Outcome("done")
        assert await tools.perform(tool, call, yes) == Outcome("done")
    assert target.entered["k"] == 2


async def test_a_late_failure_is_what_asking_tells(target: Target) -> None:
    target.stuck, target.answer = {"k"}, lambda call: Outcome("failed", error="no such order")
    async with open_tools(target) as tools:
        call = a_call(timeout_us=SHORT_US)
        assert await tools.perform(a_tool(), call, yes) == LATE
        target.release.set()
        assert await tools.query(a_tool(), call) == Outcome("failed", error="no such order")
    assert target.asked["k"] == 0


async def test_the_line_brings_about_a_late_effect_once(tmp_path: Path) -> None:
    """The whole way: out of time, unknown, asked about in vain, then back with its answer."""
    world, clock, release = World(), ManualClock(), threading.Event()
    world.answer = lambda call: None if release.wait(10) else RuntimeError("never released")
    async with toy_fleet(tmp_path, world, clock=clock) as fleet:
        tools: Any = fleet.app.services.fleet.agents["worker"].tools
        tools["order.place"] = replace(tools["order.place"], timeout_us=SHORT_US)
        event = job("1", send_proposal(tool="order.place"))
        try:
            await fleet.send(event)
            await fleet.wait_until_idle()
            for _ in range(2):
                assert fleet.actions(event)[0].effect == "unknown"
                clock.advance(10_000_000)
                await fleet.wait_until_idle()
        finally:
            release.set()
        clock.advance(60_000_000)
        await fleet.wait_until_idle()
        assert fleet.actions(event)[0].effect == "done"
    assert (len(world.calls), world.effects("order.place")) == (1, 1)


# --- threads ------------------------------------------------------------------------------------


async def hang(tools: InProcessTools, target: Target, count: int, agent: str = "worker") -> None:
    """Let this many calls of an agent outlive their time."""
    keys = [f"hung {agent} {n}" for n in range(count)]
    target.stuck |= set(keys)
    calls = [a_call(key, agent=agent, timeout_us=SHORT_US) for key in keys]
    outcomes = await asyncio.gather(*(tools.perform(a_tool(), call, yes) for call in calls))
    assert outcomes == [LATE] * count


async def test_calls_that_hang_take_no_thread_from_another_agent(target: Target) -> None:
    async with open_tools(target) as tools:
        await hang(tools, target, THREADS)
        calls = [a_call(str(n), agent="other", timeout_us=300_000) for n in range(THREADS)]
        outcomes = await asyncio.gather(*(tools.perform(a_tool(), call, yes) for call in calls))
        assert {outcome.state for outcome in outcomes if outcome} == {"done"}


async def test_a_call_waits_in_turn_for_a_thread_and_its_time_begins_then(target: Target) -> None:
    """More calls than threads, each a third as long as its time: the last ones wait longer."""
    waves, time_us = 4, 300_000

    def slowly(call: Call) -> Outcome:
        time.sleep(time_us / 3e6)
        return Outcome("done")

    target.answer = slowly
    async with open_tools(target) as tools:
        calls = [a_call(str(n), timeout_us=time_us) for n in range(waves * THREADS)]
        began = time.monotonic()
        outcomes = await asyncio.gather(*(tools.perform(a_tool(), call, yes) for call in calls))
        assert time.monotonic() - began > time_us / 1e6
    assert outcomes == [Outcome("done")] * len(calls)
    # Those of one wave begin beside one another, in any order.
    assert all(abs(at - int(key)) < THREADS for at, key in enumerate(target.entered))


async def test_too_many_that_hang_let_no_call_of_their_agent_begin(target: Target) -> None:
    """The answer is an outcome at once, not None: the line backs off and holds no slot for it."""
    async with open_tools(target) as tools:
        await hang(tools, target, MAX_HUNG - 1)
        assert await tools.perform(a_tool(), a_call("before"), yes) == Outcome(
            "done", {"id": "before"}
        )
        target.stuck.add("last")
        assert await tools.perform(a_tool(), a_call("last", timeout_us=SHORT_US), yes) == LATE
        refused = await asyncio.wait_for(tools.perform(a_tool(), a_call("k"), yes), 1)
        assert refused is not None
        assert refused.state == "retry"
        assert refused.error == f"not called: {MAX_HUNG} or more calls of worker have not come back"
        # Nobody asked the target, so nobody knows: a `retry` might end as a failure.
        outcome = await asyncio.wait_for(tools.query(a_tool(), a_call("k")), 1)
        assert outcome is not None
        assert outcome.state == "unknown"
        assert (target.entered["k"], target.asked["k"]) == (0, 0)
        target.release.set()
        await wait_until(lambda: not tools._running_calls)
        assert await tools.perform(a_tool(), a_call("k"), yes) == Outcome("done", {"id": "k"})


async def test_who_waits_for_a_thread_is_told_when_all_hang(target: Target) -> None:
    async with open_tools(target) as tools:
        hung = asyncio.create_task(hang(tools, target, THREADS))
        await wait_until(lambda: len(target.entered) == THREADS)
        waiting = await asyncio.wait_for(tools.perform(a_tool(), a_call("k"), yes), 2)
        await hung
        assert waiting is not None
        assert waiting.state == "retry"
        assert target.entered["k"] == 0


async def test_who_goes_while_waiting_leaves_its_turn_to_the_next(target: Target) -> None:
    async with open_tools(target) as tools:
        target.stuck = {str(n) for n in range(THREADS)}
        busy = [
            asyncio.create_task(tools.perform(a_tool(), a_call(key), yes)) for key in target.stuck
        ]
        await wait_until(lambda: len(target.entered) == THREADS)
        gone = asyncio.create_task(tools.perform(a_tool(), a_call("gone"), yes))
        stays = asyncio.create_task(tools.perform(a_tool(), a_call("stays"), yes))
        await asyncio.sleep(0)
        gone.cancel()
        target.release.set()
        assert await stays == Outcome("done", {"id": "stays"})
        await asyncio.gather(*busy)
        with pytest.raises(asyncio.CancelledError):
            await gone
        assert target.entered["gone"] == 0
        assert await tools.perform(a_tool(), a_call("gone"), yes) is not None
        assert tools._threads["worker"].used_count == 0


# --- the end ------------------------------------------------------------------------------------


async def test_closing_waits_for_no_call(target: Target) -> None:
    target.stuck = {"k"}
    async with open_tools(target) as tools:
        waiting = asyncio.create_task(tools.perform(a_tool(), a_call(), yes))
        await wait_until(lambda: target.entered["k"] == 1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        began = time.monotonic()
        tools.close()
        assert time.monotonic() - began < 0.2
        assert target.left == 0


def test_a_call_may_come_back_after_the_loop_is_closed(target: Target) -> None:
    target.stuck = {"k"}
    module = ModuleType("tools")
    module.act = target.act  # type: ignore[attr-defined]
    tools = InProcessTools(lambda agent: module)
    outcome = asyncio.run(tools.perform(a_tool(), a_call(timeout_us=SHORT_US), yes))
    assert outcome == LATE
    tools.close()
    target.release.set()
    mine = [t for t in threading.enumerate() if t.name.startswith("vedette-hand-worker")]
    for thread in mine:
        thread.join(5)
    assert (target.left, target.happened["k"]) == (1, 1)
