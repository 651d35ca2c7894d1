"""The simulation's own parts: time, order, owners and threads, without an engine."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine
from typing import Any

import pytest
from tests.simulation.loop import BOOT_S, OWNER, Deadlock, Owner, SimLoop, current_loop
from tests.simulation.threads import (
    Condition,
    Event,
    Lock,
    Queue,
    RLock,
    Semaphore,
    Thread,
    ThreadPoolExecutor,
    Timer,
)


def run(coro: Coroutine[Any, Any, Any], loop: SimLoop | None = None, within_s: float = 1e4) -> Any:
    loop = loop or SimLoop(1)
    try:
        return loop.run(coro, within_s)
    finally:
        loop.close()


def test_time_jumps_and_passes_for_nobody_else() -> None:
    loop = SimLoop(1)

    async def day() -> float:
        await asyncio.sleep(86400)
        return loop.time()

    assert run(day(), loop, 1e5) == pytest.approx(BOOT_S + 86400, abs=0.01)


def test_what_is_ready_runs_in_the_order_it_came() -> None:
    seen: list[int] = []

    async def history() -> None:
        loop = asyncio.get_running_loop()
        for n in range(9):
            loop.call_soon(seen.append, n)
        loop.call_later(1, seen.append, 9)
        loop.call_later(1, seen.append, 10)
        await asyncio.sleep(2)

    run(history())
    assert seen == list(range(11))


def test_a_history_without_an_end_is_told() -> None:
    async def nobody() -> None:
        await asyncio.get_running_loop().create_future()

    async def ever() -> None:
        while True:  # noqa: ASYNC110
            await asyncio.sleep(1)

    with pytest.raises(Deadlock):
        run(nobody())
    with pytest.raises(TimeoutError):
        run(ever())


def test_what_a_callback_raises_is_kept() -> None:
    loop = SimLoop(1)

    def bad() -> None:
        raise ValueError("bad")

    async def history() -> None:
        asyncio.get_running_loop().call_soon(bad)
        await asyncio.sleep(1)

    run(history(), loop)
    assert [str(error) for error in loop.errors] == ["bad"]


def test_a_killed_owner_runs_no_finally_and_answers_nobody() -> None:
    loop, owner = SimLoop(1), Owner("a")
    seen: list[Any] = []

    async def work() -> None:
        try:
            while True:
                seen.append(loop.time())
                await asyncio.sleep(1)
        finally:
            if not loop.is_closed():
                seen.append(-1)

    async def history() -> int:
        loop.spawn(owner, work())
        await asyncio.sleep(2.5)
        loop.kill(owner)
        before = len(seen)
        await asyncio.sleep(10)
        assert len(seen) == before
        return before

    assert run(history(), loop) == 3
    assert -1 not in seen


@pytest.mark.parametrize("on_thread", [False, True])
def test_a_kill_from_inside_never_returns(on_thread: bool) -> None:
    loop, owner = SimLoop(1), Owner("a")
    seen: list[Any] = []

    def die() -> None:
        seen.append("before")
        loop.kill(owner)
        seen.append("after")

    async def work() -> None:
        if on_thread:
            await asyncio.to_thread(die)
        else:
            die()
        seen.append("went on")

    async def history() -> None:
        loop.spawn(owner, work())
        await asyncio.sleep(10)

    run(history(), loop)
    assert seen == ["before"]


def test_a_frozen_owner_goes_on_where_it_was() -> None:
    loop, owner = SimLoop(1), Owner("a")
    seen: list[Any] = []

    def beside() -> None:
        for _ in range(4):
            loop.pause(1)
            seen.append(("thread", round(loop.time() - BOOT_S)))

    async def work() -> None:
        Thread(target=beside).start()
        for _ in range(4):
            await asyncio.sleep(1)
            seen.append(("main", round(loop.time() - BOOT_S)))

    async def history() -> None:
        loop.spawn(owner, work())
        await asyncio.sleep(1.5)
        loop.freeze(owner)
        await asyncio.sleep(10)
        assert len(seen) == 2
        loop.thaw(owner)
        await asyncio.sleep(10)

    run(history(), loop)
    assert [when for _, when in seen] == [1, 1, 12, 12, 13, 13, 14, 14][: len(seen)]
    assert len(seen) == 8


def test_a_main_thread_that_waits_holds_up_its_own_engine_only() -> None:
    loop, one, two = SimLoop(1), Owner("one"), Owner("two")
    seen: list[tuple[str, int]] = []

    async def tick(name: str, pause: float) -> None:
        for _ in range(3):
            await asyncio.sleep(1)
            if pause:
                loop.pause(pause)
            assert asyncio.current_task() is not None
            seen.append((name, round(loop.time() - BOOT_S)))

    async def history() -> None:
        loop.spawn(one, tick("one", 5))
        loop.spawn(one, tick("beside", 0))
        loop.spawn(two, tick("two", 0))
        await asyncio.sleep(60)

    run(history(), loop)
    assert [when for name, when in seen if name == "two"] == [1, 2, 3]
    assert [when for name, when in seen if name == "one"] == [6, 12, 18]
    # The other task of the same engine comes to its turns only between the waits.
    assert [when for name, when in seen if name == "beside"] == [6, 12, 18]


def test_main_threads_may_wait_as_often_as_they_like() -> None:
    loop = SimLoop(1)
    owners = [Owner(f"w{n}") for n in range(3)]

    def deep(levels: int) -> None:
        if levels:
            deep(levels - 1)
        else:
            loop.pause(loop.some(0.001, 0.01))

    async def work() -> None:
        for _ in range(400):
            deep(200)
            await asyncio.sleep(0)

    async def history() -> None:
        await asyncio.gather(*(loop.spawn(owner, work()) for owner in owners))

    run(history(), loop)
    assert not loop.errors


def test_a_stalled_main_thread_leaves_its_other_threads_running() -> None:
    loop, owner = SimLoop(1), Owner("a")
    seen: list[Any] = []

    def beside() -> None:
        for _ in range(3):
            loop.pause(1)
            seen.append("thread")

    async def work() -> None:
        Thread(target=beside).start()
        await asyncio.sleep(1)
        seen.append("main")

    async def history() -> None:
        loop.spawn(owner, work())
        await asyncio.sleep(0.5)
        loop.stall(owner, 5)
        await asyncio.sleep(60)

    run(history(), loop)
    assert seen == ["thread", "thread", "thread", "main"]


def test_the_order_of_an_engine_s_callbacks_survives_a_wait() -> None:
    loop, owner = SimLoop(1), Owner("a")
    seen: list[Any] = []

    async def work() -> None:
        here = asyncio.get_running_loop()
        here.call_soon(seen.append, 1)
        here.call_soon(seen.append, 2)
        loop.pause(1)
        here.call_soon(seen.append, 3)

    async def history() -> None:
        loop.spawn(owner, work())
        await asyncio.sleep(5)

    run(history(), loop)
    assert seen == [1, 2, 3]


def test_nothing_in_the_world_may_wait() -> None:
    loop = SimLoop(1)

    async def history() -> None:
        loop.pause(1)

    with pytest.raises(LookupError):
        run(history(), loop)


def test_context_variables_are_their_own_thread_s() -> None:
    loop, owner = SimLoop(1), Owner("a")
    word = contextvars.ContextVar("word", default="")
    seen: list[str] = []

    def beside() -> None:
        seen.append(word.get())
        word.set("thread")
        loop.pause(1)
        seen.append(word.get())
        assert OWNER.get() is owner

    async def work() -> None:
        word.set("main")
        await asyncio.to_thread(beside)
        seen.append(word.get())

    run(_of(loop, owner, work()), loop)
    assert seen == ["main", "thread", "main"]


def test_a_thread_has_no_running_loop() -> None:
    loop, owner = SimLoop(1), Owner("a")
    seen: list[Any] = []

    def beside() -> None:
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()
        seen.append(1)

    async def work() -> None:
        await asyncio.to_thread(beside)
        assert asyncio.get_running_loop() is loop

    run(_of(loop, owner, work()), loop)
    assert seen == [1]


async def _of(loop: SimLoop, owner: Owner, coro: Coroutine[Any, Any, None]) -> None:
    await loop.spawn(owner, coro)


def _locks(seen: list[Any]) -> None:
    """Every kind of waiting, on threads of one owner."""
    loop_time = Queue[float]()
    lock, repeat, condition, flag = Lock(), RLock(), Condition(), Event()
    three = Semaphore(3)

    def holder(n: int) -> None:
        with lock:
            current_loop().pause(1)
            seen.append(("locked", n))
        with repeat, repeat:
            current_loop().pause(0.1)
        with three:
            current_loop().pause(0.1)
        with condition:
            if condition.wait(30):
                seen.append(("told", n))
        loop_time.put(current_loop().time())

    threads = [Thread(target=holder, args=(n,)) for n in range(5)]
    for thread in threads:
        thread.start()
    assert not flag.wait(8)
    assert lock.acquire(blocking=False)
    lock.release()
    with condition:
        condition.notify(2)
    current_loop().pause(1)
    with condition:
        condition.notify_all()
    for thread in threads:
        thread.join()
        assert not thread.is_alive()
    assert sum(loop_time.get() is not None for _ in threads) == 5
    assert loop_time.get(timeout=1) is None
    rung = Timer(1, seen.append, ["rung"])
    unrung = Timer(1, seen.append, ["never"])
    rung.start()
    unrung.start()
    unrung.cancel()
    pool = ThreadPoolExecutor(2)
    futures = [pool.submit(pow, n, 2) for n in range(4)]
    bad = pool.submit(pow, 0, -1)
    current_loop().pause(2)
    assert [each.result() for each in futures] == [0, 1, 4, 9]
    assert isinstance(bad.exception(), ZeroDivisionError)
    pool.shutdown(wait=False, cancel_futures=True)
    with pytest.raises(RuntimeError):
        pool.submit(pow, 1, 1)


def test_locks_and_what_waits_for_them() -> None:
    def history(seed: int) -> tuple[list[Any], float]:
        loop, owner = SimLoop(seed), Owner("a")
        seen: list[Any] = []

        async def work() -> None:
            await asyncio.to_thread(_locks, seen)

        run(_of(loop, owner, work()), loop)
        assert not loop.errors
        return seen, loop.time()

    seen, _ = history(1)
    assert sorted(n for what, n in seen[:5]) == [0, 1, 2, 3, 4]
    assert sum(one[0] == "told" for one in seen) == 5
    assert "rung" in seen
    assert "never" not in seen
    assert history(1) == history(1)
    assert history(1) != history(2)


def test_a_lock_of_the_dead_is_nobody_s() -> None:
    loop, owner = SimLoop(1), Owner("a")
    seen: list[Any] = []
    lock = Lock()

    def hold() -> None:
        with lock:
            loop.pause(100)
        seen.append("released")

    def want() -> None:
        with lock:
            seen.append("had it")

    async def work() -> None:
        Thread(target=hold).start()
        await asyncio.sleep(1)
        await asyncio.to_thread(want)

    async def history() -> None:
        loop.spawn(owner, work())
        await asyncio.sleep(2)
        loop.kill(owner)
        await asyncio.sleep(1000)

    run(history(), loop)
    assert seen == []
