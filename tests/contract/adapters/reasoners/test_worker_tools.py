"""Tools in worker processes: the contract of the Performer port, and what a death leaves behind.

The target is a file, appended to by the tools: what stands there happened. A call that hangs waits
for a file that its test writes.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.workers import alive, until

from vedette.adapters.reasoners.workers import tool_client
from vedette.adapters.reasoners.workers.pending_call import WorkerLost
from vedette.adapters.reasoners.workers.supervisor import WorkerPool
from vedette.adapters.reasoners.workers.tool_client import MAX_HUNG, WorkerTools
from vedette.config.reach import Reach
from vedette.domain.agent import ResourceLimits
from vedette.domain.effect import PERMIT_LIFE_US, Call, Outcome, RowWrite
from vedette.domain.tool import SettlementMode, Tool

TOOLS_PY = """\
import asyncio
import ctypes
import os
import time
from pathlib import Path

from vedette.domain.effect import Outcome, RowWrite


def _note(call, what):
    with open(call.target["log"], "a") as log:
        log.write(f"{what} {call.key}\\n")


def act(call):
    _note(call, "entered")
    do = call.args.get("do")
    if do == "hang":
        while not Path(call.target["release"]).exists():
            time.sleep(0.005)
    elif do == "loop":
        # Holds the interpreter: not even the worker's own loop goes on.
        ctypes.PyDLL(None).sleep(60)
    elif do == "exit":
        os._exit(3)
    elif do == "eat":
        eaten = []
        while True:
            eaten.append(bytearray(8_000_000))
    elif do == "raise":
        raise ValueError("a bug")
    elif do == "leave":
        raise SystemExit(4)
    elif do == "fine":
        return "fine"
    elif do == "slow":
        time.sleep(0.3)
    _note(call, "happened")
    return Outcome(call.args.get("state", "done"), {"id": call.key, "n": 0.1}, "told")


async def act_async(call):
    if call.args.get("do") == "hang":
        await asyncio.sleep(60)
    elif call.args.get("do") == "block":
        time.sleep(0.7)
    return act(call)


def query(call):
    _note(call, "asked")
    if call.args.get("query") == "exit":
        os._exit(4)
    done = f"happened {call.key}" in Path(call.target["log"]).read_text()
    return Outcome("done", {"asked": True}) if done else None


def rows(call, row):
    do = call.args.get("do")
    if do == "loop":
        while True:
            pass
    if do == "exit":
        os._exit(3)
    if do == "raise":
        raise ValueError("no such note")
    if do == "wrong":
        return "no rows"
    mine = RowWrite("notes", call.key, {**(row or {}), "share": 0.1})
    return [mine, RowWrite("notes", "x", None)]
"""
SHORT_US, LONG_US = 100_000, 20_000_000
LIMITS = ResourceLimits(time_us=1_000_000, memory=256 * 1024 * 1024)


class There:
    """Hands in a worker process, and the target's record."""

    def __init__(self, folder: Path) -> None:
        agent = folder / "agents" / "worker"
        agent.mkdir(parents=True)
        (agent / "__init__.py").touch()
        (agent / "tools.py").write_text(TOOLS_PY)
        target = folder / "target"
        target.mkdir()
        self.log, self.release = target / "log", target / "release"
        self.log.touch()
        self.deaths: list[str] = []
        self.pool = WorkerPool(
            folder / "state", on_worker_lost=lambda agent, kind, why: self.deaths.append(why)
        )
        reach = Reach((str(target),))
        self.tools = WorkerTools(
            self.pool, lambda name: (str(agent), None, LIMITS), lambda _: reach
        )

    def call(self, key: str = "k", *, timeout_us: int = LONG_US, **args: Any) -> Call:
        target = {"log": str(self.log), "release": str(self.release)}
        return Call("order.place", args, key, "worker", "run", target, ("worker",), 1, timeout_us)

    def count(self, what: str, key: str = "k") -> int:
        """Return how often something happened to a key."""
        return self.log.read_text().splitlines().count(f"{what} {key}")

    @property
    def pid(self) -> int:
        return self.pool.worker_pids.get(("worker", "hands"), 0)


@pytest.fixture
async def there(tmp_path: Path) -> AsyncIterator[There]:
    async with opened(tmp_path) as there:
        yield there


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[There]:
    there = There(folder)
    try:
        yield there
    finally:
        there.pool.close()


def a_tool(settles: SettlementMode = "queryable", function: str = "act") -> Tool:
    query = "query" if settles == "queryable" else None
    return Tool("order.place", "order", "wire", {}, (), settles, function, query)


def yes() -> bool:
    return True


DONE = Outcome("done", {"id": "k", "n": 0.1}, "told")

# --- the contract ---------------------------------------------------------------------------


@pytest.mark.parametrize("function", ["act", "act_async"])
async def test_what_a_tool_answers_is_the_outcome(there: There, function: str) -> None:
    for state in ("done", "failed", "retry", "unknown"):
        call = there.call(state, state=state)
        outcome = await there.tools.perform(a_tool(function=function), call, yes)
        assert outcome is not None
        assert (outcome.state, outcome.data["n"], outcome.error) == (state, 0.1, "told")


@pytest.mark.parametrize("function", ["act", "act_async"])
async def test_what_may_not_start_is_not_called(there: There, function: str) -> None:
    requests = []

    def no() -> bool:
        requests.append(there.count("entered"))
        return False

    tool = a_tool(function=function)
    assert await there.tools.perform(tool, there.call(), no) is None
    assert (requests, there.count("entered")) == ([0], 0)
    assert await there.tools.perform(tool, there.call(), yes) == DONE


async def test_it_is_asked_immediately_before_the_call(there: There) -> None:
    """Not when the call is handed over: with one slow call per thread, the rest ask later."""
    requests: list[float] = []

    def at() -> bool:
        requests.append(time.monotonic())
        return True

    calls = [there.call(f"k{n}", do="slow") for n in range(64)]
    outcomes = await asyncio.gather(*(there.tools.perform(a_tool(), call, at) for call in calls))
    assert {outcome.state for outcome in outcomes if outcome} == {"done"}
    assert max(requests) - min(requests) >= 0.3


@asynccontextmanager
async def frozen(there: There) -> AsyncIterator[None]:
    """Keep the worker from running, once it is ready."""
    assert await there.tools.perform(a_tool(), there.call("first"), yes) is not None
    pid = there.pool.worker_pids["worker", "hands"]
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


async def test_a_permit_that_grew_old_on_its_way_is_asked_for_again(there: There) -> None:
    """It goes with the call; what was changed meanwhile holds for a call that has not begun."""
    permits = [True]
    asked: list[bool] = []

    def may_start() -> bool:
        asked.append(permits[-1])
        return permits[-1]

    async with frozen(there):
        made = asyncio.create_task(there.tools.perform(a_tool(), there.call(), may_start))
        await until(lambda: asked == [True])
        permits.append(False)
        await asyncio.sleep(2 * PERMIT_LIFE_US / 1e6)
    assert await made is None
    assert asked == [True, False]
    assert there.count("entered") == 0


@pytest.mark.parametrize("settles", ["none", "queryable", "idempotent"])
async def test_a_call_that_was_permitted_and_not_begun_is_made_by_the_next_worker(
    there: There, settles: SettlementMode
) -> None:
    """It had come to the worker that died; the target has seen nothing of it."""
    asked: list[float] = []

    def may_start() -> bool:
        asked.append(time.monotonic())
        return True

    async with frozen(there):
        made = asyncio.create_task(there.tools.perform(a_tool(settles), there.call(), may_start))
        await until(lambda: len(asked) == 1)
        os.kill(there.pid, signal.SIGKILL)
        assert await made == DONE
    assert len(asked) == 2, "and whether it may start is asked again"
    assert there.count("entered") == 1


async def test_an_engine_whose_turns_take_long_is_not_asked_for_ever(there: There) -> None:
    """A permit's age counts from when it was given, not from when somebody asked for it."""
    asked: list[float] = []

    def may_start() -> bool:
        asked.append(time.monotonic())
        return True

    made = asyncio.create_task(there.tools.perform(a_tool(), there.call(), may_start))
    end = time.monotonic() + 20
    while not made.done() and time.monotonic() < end:
        time.sleep(1.5 * PERMIT_LIFE_US / 1e6)  # noqa: ASYNC251 (a turn of the loop that takes long)
        await asyncio.sleep(0)
    assert made.done()
    assert await made == DONE
    assert len(asked) <= 2


async def test_a_call_that_waits_behind_one_that_holds_the_loop_ends_no_worker(
    there: There, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is permitted, and has not begun: its own time has not either."""
    monkeypatch.setattr(tool_client, "_GRACE_S", 0.1)
    long, short = there.call("long", do="block"), there.call("short", timeout_us=SHORT_US)
    tool = a_tool(function="act_async")
    assert await there.tools.perform(tool, there.call(), yes) == DONE
    outcomes = await asyncio.gather(
        *(there.tools.perform(tool, call, yes) for call in (long, short))
    )
    assert [one and one.state for one in outcomes] == ["done", "done"]
    assert there.deaths == []


async def test_a_declaration_is_sent_once_though_it_is_made_anew_for_each_question(
    there: There,
) -> None:
    """So it is with what is asked to verify: an equal tool for every call of it."""
    await there.tools.perform(a_tool(), there.call(), yes)
    handle = there.tools._handle("worker")
    for _ in range(20):
        await there.tools.query(a_tool(), there.call())
    assert (len(handle._slots), len(handle._tools)) == (1, 1)


async def test_what_is_cancelled_before_it_came_to_its_worker_is_answered(there: There) -> None:
    await there.tools.perform(a_tool(), there.call("first"), yes)
    made = asyncio.create_task(there.tools.perform(a_tool(), there.call(), yes))
    await asyncio.sleep(0)
    made.cancel()
    with pytest.raises(asyncio.CancelledError):
        await made
    await until(lambda: not there.tools._handle("worker").pending)
    assert there.deaths == []


async def test_an_error_in_may_start_makes_no_call(there: There) -> None:
    def broken() -> bool:
        raise RuntimeError("the line is broken")

    with pytest.raises(RuntimeError, match="the line is broken"):
        await there.tools.perform(a_tool(), there.call(), broken)
    await asyncio.sleep(0.05)
    assert there.count("entered") == 0


@pytest.mark.parametrize("function", ["act", "act_async"])
@pytest.mark.parametrize(
    ("do", "expected"),
    [
        ("raise", "ValueError: a bug"),
        ("leave", "SystemExit: 4"),
        ("fine", "TypeError: order.place did not answer with an Outcome"),
    ],
)
async def test_a_tool_that_raises_ends_its_own_call_only(
    there: There, function: str, do: str, expected: str
) -> None:
    with pytest.raises(Exception, match=r".") as raised:
        await there.tools.perform(a_tool(function=function), there.call(do=do), yes)
    assert f"{type(raised.value).__name__}: {raised.value}" == expected
    assert await there.tools.perform(a_tool(function=function), there.call(), yes) == DONE
    assert there.deaths == []


async def test_the_target_is_asked_where_it_can_be(there: There) -> None:
    assert await there.tools.query(a_tool(), there.call()) is None
    await there.tools.perform(a_tool(), there.call(), yes)
    assert await there.tools.query(a_tool(), there.call()) == Outcome("done", {"asked": True})
    assert await there.tools.query(a_tool("none"), there.call()) is None
    assert there.count("asked") == 2


async def test_a_call_that_outlives_its_time_is_not_repeated_before_it_is_back(
    there: There,
) -> None:
    call = there.call(timeout_us=SHORT_US, do="hang")
    late = await there.tools.perform(a_tool(), call, yes)
    assert late == Outcome("unknown", error="no answer within 0.1 s")
    for repeat in (there.tools.query(a_tool(), call), there.tools.perform(a_tool(), call, yes)):
        outcome = await repeat
        assert outcome is not None
        assert outcome.error == "an earlier call has not come back yet"
    assert (there.count("entered"), there.count("asked")) == (1, 0)
    there.release.touch()
    long = replace(call, timeout_us=LONG_US)
    assert await there.tools.perform(a_tool(), long, yes) == DONE
    assert there.count("entered") == 1


async def test_two_calls_of_a_key_at_once_are_one(there: There) -> None:
    both = [there.tools.perform(a_tool(), there.call(), yes) for _ in range(2)]
    assert await asyncio.gather(*both) == [DONE, DONE]
    assert there.count("entered") == 1


async def test_who_goes_lets_the_call_go_on(there: There) -> None:
    call = there.call(do="hang")
    gone = asyncio.create_task(there.tools.perform(a_tool(), call, yes))
    await until(lambda: there.count("entered") == 1)
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    repeat = asyncio.create_task(there.tools.perform(a_tool(), call, yes))
    await asyncio.sleep(0)
    # Words are taken up in their order: once this is back the call before it waits over there.
    await there.tools.perform(a_tool(), there.call("behind"), yes)
    there.release.touch()
    assert await repeat == DONE
    assert there.count("entered") == 1


# --- rows ------------------------------------------------------------------------------------


async def test_rows_come_back_while_the_loop_waits(there: There) -> None:
    tool = a_tool("transactional", "rows")
    written = there.tools.compute_rows(tool, there.call(), {"a": 1})
    assert written == [RowWrite("notes", "k", {"a": 1, "share": 0.1}), RowWrite("notes", "x", None)]
    with pytest.raises(Exception, match="no such note"):
        there.tools.compute_rows(tool, there.call(do="raise"), None)
    with pytest.raises(Exception, match="did not answer with a list of RowWrite"):
        there.tools.compute_rows(tool, there.call(do="wrong"), None)


@pytest.mark.parametrize(
    ("do", "why"), [("loop", "took longer than 1 s|not answer for 1 s"), ("exit", "exit code 3")]
)
async def test_rows_that_never_come_end_their_worker(there: There, do: str, why: str) -> None:
    tool = a_tool("transactional", "rows")
    there.tools.compute_rows(tool, there.call(), None)
    began = time.monotonic()
    with pytest.raises(WorkerLost, match=why):
        there.tools.compute_rows(tool, there.call(do=do), None)
    assert time.monotonic() - began < 10
    assert there.tools.compute_rows(tool, there.call(), None)


# --- deaths ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("do", "why"),
    [
        ("exit", "ended by itself with exit code 3"),
        ("loop", "did not answer for 1 s|did not end a call"),
        ("eat", "MemoryError"),
    ],
)
async def test_a_call_that_kills_its_worker_is_unknown(there: There, do: str, why: str) -> None:
    """And so is one that was under way beside it; one that was not begun is begun again."""
    beside = asyncio.create_task(there.tools.perform(a_tool(), there.call("b", do="hang"), yes))
    await until(lambda: there.count("entered", "b") == 1)
    pid = there.pid
    call = there.call("guilty", do=do, timeout_us=2_000_000)
    (outcome,) = await asyncio.gather(
        there.tools.perform(a_tool(), call, yes), return_exceptions=True
    )
    if do == "eat":
        assert type(outcome).__name__ == why
    else:
        assert isinstance(outcome, Outcome)
        assert outcome.state == "unknown"
        assert any(part in outcome.error for part in why.split("|"))
    assert (await beside) is not None
    assert beside.result().state == "unknown"  # type: ignore[union-attr]
    assert not alive(pid)
    assert (there.count("entered", "b"), there.count("happened", "b")) == (1, 0)
    assert await there.tools.perform(a_tool(), there.call(), yes) == DONE


async def test_a_call_that_was_not_begun_is_made_by_the_next_worker(there: There) -> None:
    """Its permit is asked for again, since nobody knows what it would rest on.

    `a` has asked for its permit when the worker dies; `b` is asked of one that is dead already,
    before the engine knows.
    """
    await there.tools.perform(a_tool(), there.call("warm"), yes)
    killed: list[int] = []
    waiting: list[asyncio.Task[Outcome | None]] = []

    def kill_first() -> bool:
        if not killed:
            killed.append(there.pid)
            os.kill(there.pid, signal.SIGKILL)
            while alive(killed[0]):
                time.sleep(0.001)
            perform = there.tools.perform(a_tool(), there.call("b"), yes)
            waiting.append(asyncio.create_task(perform))
            return False
        return True

    gone = await there.tools.perform(a_tool(), there.call("a"), kill_first)
    late = await waiting[0]
    assert [outcome.state for outcome in (gone, late) if outcome] == ["done", "done"]
    assert there.pid != killed[0]
    assert (there.count("entered", "a"), there.count("entered", "b")) == (1, 1)


async def test_a_question_to_the_target_that_kills_is_unknown(there: There) -> None:
    outcome = await there.tools.query(a_tool(), there.call(query="exit"))
    assert outcome is not None
    assert (outcome.state, "exit code 4" in outcome.error) == ("unknown", True)


async def test_tools_that_crash_while_loading_let_nothing_happen(tmp_path: Path) -> None:
    async with opened(tmp_path) as there:
        (tmp_path / "agents/worker/tools.py").write_text("import os\nos._exit(9)\n")
        outcome = await there.tools.perform(a_tool(), there.call(), yes)
        assert outcome is not None
        assert outcome.state == "retry"
        assert outcome.error.startswith("not called: the worker of worker ended by itself")


async def test_calls_that_hang_are_ended_with_their_worker(there: There) -> None:
    """A thread cannot be ended, a process can: after too many the agent begins afresh."""
    calls = [there.call(f"h{n}", do="hang", timeout_us=SHORT_US) for n in range(MAX_HUNG)]
    outcomes = await asyncio.gather(*(there.tools.perform(a_tool(), call, yes) for call in calls))
    assert {outcome.state for outcome in outcomes if outcome} == {"unknown"}
    await until(lambda: there.deaths == [f"had {MAX_HUNG} calls that did not come back"])
    assert await there.tools.perform(a_tool(), there.call(), yes) == DONE
    there.release.touch()
    await asyncio.sleep(0.05)
    assert not any(there.count("happened", f"h{n}") for n in range(MAX_HUNG))


async def test_a_call_on_its_way_may_come_back_when_the_pool_closes(there: There) -> None:
    made = asyncio.create_task(there.tools.perform(a_tool(), there.call(do="hang"), yes))
    await until(lambda: there.count("entered") == 1)
    made.cancel()
    await asyncio.sleep(0)
    there.release.touch()
    began = time.monotonic()
    there.pool.close()
    assert time.monotonic() - began < 1
    assert there.count("happened") == 1


async def test_closing_waits_for_no_call_that_hangs(there: There) -> None:
    made = asyncio.create_task(there.tools.perform(a_tool(), there.call(do="hang"), yes))
    await until(lambda: there.count("entered") == 1)
    pid = there.pid
    made.cancel()
    began = time.monotonic()
    there.pool.close()
    assert time.monotonic() - began < 1.5
    assert not alive(pid)
    there.release.touch()
    assert there.count("happened") == 0


async def test_a_target_that_is_no_data_cannot_go_there(there: There) -> None:
    call = replace(there.call(), target={"thing": object()})
    with pytest.raises(TypeError, match="cannot go to a worker process"):
        await there.tools.perform(a_tool(), call, yes)
