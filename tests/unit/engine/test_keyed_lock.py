"""Locks by name: alone, in the order of asking, and nothing kept of a name that nobody has."""

from __future__ import annotations

import asyncio

import pytest

from vedette.engine.key_state import KeyedLocks


class Users:
    """Users of one name, who let it go when they are told to; `had` is the order they had it in."""

    def __init__(self, locks: KeyedLocks) -> None:
        self.locks, self.had = locks, list[int]()
        self.go: dict[int, asyncio.Event] = {}
        self.tasks: dict[int, asyncio.Task[None]] = {}

    async def want(self, number: int) -> None:
        self.go[number] = asyncio.Event()
        self.tasks[number] = asyncio.create_task(self._use(number))
        await turns()

    async def _use(self, number: int) -> None:
        async with self.locks.lock("name"):
            self.had.append(number)
            await self.go[number].wait()

    async def let_go(self, number: int) -> None:
        self.go[number].set()
        await turns()


async def turns() -> None:
    for _ in range(4):
        await asyncio.sleep(0)


async def test_a_name_is_had_by_one_at_a_time_in_the_order_of_asking() -> None:
    users = Users(KeyedLocks())
    for number in (1, 2, 3):
        await users.want(number)
    assert users.had == [1]
    await users.let_go(2)
    assert users.had == [1]
    await users.let_go(1)
    assert users.had == [1, 2, 3]
    await users.let_go(3)
    assert "name" not in users.locks


async def test_names_are_nothing_to_one_another() -> None:
    locks = KeyedLocks()
    async with locks.lock("a"):
        assert "a" in locks
        async with locks.lock("b"):
            assert "b" in locks
        assert "b" not in locks


async def test_who_raises_lets_go() -> None:
    locks = KeyedLocks()
    with pytest.raises(ValueError, match="mine"):
        async with locks.lock("name"):
            raise ValueError("mine")
    assert "name" not in locks


async def test_who_no_longer_waits_is_passed_over() -> None:
    users = Users(KeyedLocks())
    for number in (1, 2, 3):
        await users.want(number)
    users.tasks[2].cancel()
    await turns()
    await users.let_go(1)
    assert users.had == [1, 3]
    await users.let_go(3)
    assert "name" not in users.locks


@pytest.mark.parametrize("others", [(), (3,)])
async def test_who_goes_in_the_moment_it_is_handed_the_name_hands_it_on(
    others: tuple[int, ...],
) -> None:
    users = Users(KeyedLocks())
    for number in (1, 2, *others):
        await users.want(number)
    users.go[1].set()
    await asyncio.sleep(0)
    # It was handed over in this very turn, and who has it now has not woken yet.
    assert users.tasks[1].done()
    assert users.had == [1]
    users.tasks[2].cancel()
    await turns()
    assert users.had == [1, *others]
    for number in others:
        await users.let_go(number)
    assert "name" not in users.locks


async def test_a_waiter_that_is_closed_leaves_the_line() -> None:
    locks = KeyedLocks()
    await locks.acquire("a")
    waiting = locks.acquire("a")
    waiting.send(None)
    waiting.close()
    locks.release("a")
    assert "a" not in locks
