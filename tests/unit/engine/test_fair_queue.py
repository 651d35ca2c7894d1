"""Room, credits and turns: what one agent takes leaves room, and turns, for the others."""

from __future__ import annotations

from collections import Counter

import pytest

from vedette.engine.scheduler.fair_queue import FairScheduler, IntakeCredits, MemoryQuota

LATER = 10_000_000


def fill(room: MemoryQuota, agent: str, octets: int = 0) -> int:
    """Take for an agent as long as it may; return how much."""
    taken = 0
    while room.has_room(agent):
        room.acquire(agent, octets)
        taken += 1
    return taken


def test_one_alone_takes_half_and_the_next_half_of_what_is_left() -> None:
    room = MemoryQuota(1024, 1 << 30)
    assert fill(room, "a") == 512
    assert fill(room, "b") == 256
    assert fill(room, "c") == 128
    assert room.events_of("a") == 512
    assert room.total == (896, 0)


def test_bytes_bound_it_as_events_do() -> None:
    room = MemoryQuota(1_000_000, 1000)
    assert fill(room, "a", octets=10) == 50
    assert room.has_room("b")


def test_everybody_may_have_a_few_however_full_it_is() -> None:
    room = MemoryQuota(1280, 1 << 30)
    for number in range(40):
        fill(room, f"greedy {number}")
    assert room.total[0] >= 1280
    assert fill(room, "late") == 10


def test_what_is_given_back_is_free_again() -> None:
    room = MemoryQuota(100, 1 << 30)
    fill(room, "a")
    for _ in range(50):
        room.release("a", 0)
    assert room.total == (0, 0)
    assert fill(room, "a") == 50


def test_credits_are_given_back_once_for_what_was_taken() -> None:
    credits = IntakeCredits(MemoryQuota(100, 10_000))
    credits.add_backlog("a", 3)
    credits.acquire("a", 7)
    credits.assign_to_run("new", "a", 7)
    for run in ("old 1", "old 2", "old 3", "old 4", "new"):
        credits.add_loaded(run, "a")
    # The fourth was not in the count of what the store had; the new one was taken before.
    assert credits.quota.total == (5, 7)
    for run in ("old 1", "old 2", "old 3", "old 4", "new", "new", "nobody"):
        credits.release_run(run, "a")
    assert credits.quota.total == (0, 0)


def test_a_stopped_agents_credits_are_given_back_and_not_twice() -> None:
    credits = IntakeCredits(MemoryQuota(100, 10_000))
    credits.add_backlog("a", 20)
    credits.acquire("a", 5)
    credits.assign_to_run("r", "a", 5)
    credits.acquire("b", 1)
    credits.release_agent("a")
    credits.release_run("r", "a")
    assert credits.quota.total == (1, 1)
    credits.release("b", 1)
    assert credits.quota.total == (0, 0)


def drain(turns: FairScheduler[str], most: int, now_us: int = LATER) -> list[str]:
    """Take as many turns as there are, each handed back at once."""
    found: list[str] = []
    while len(found) < most and (turn := turns.pop_next(now_us)) is not None:
        found.append(turn[0])
        turns.release_handler(turn[0])
    return found


def test_agents_take_turns_however_much_one_of_them_wants() -> None:
    turns: FairScheduler[str] = FairScheduler(8, shared_limit=2, cost=lambda what: 1)
    for number in range(100):
        turns.enqueue("storm", str(number), 0)
    for number in range(3):
        turns.enqueue("quiet", str(number), 0)
    order = drain(turns, 1000)
    assert order[:6].count("quiet") == 3
    assert len(order) == 103


def test_what_costs_more_has_fewer_turns() -> None:
    costs = {"big": 4, "small": 1}
    turns: FairScheduler[str] = FairScheduler(8, shared_limit=8, cost=costs.__getitem__)
    for _ in range(40):
        turns.enqueue("a", "big", 0)
        turns.enqueue("b", "small", 0)
    assert Counter(drain(turns, 25)) == {"a": 5, "b": 20}


def test_handlers_of_one_agent_are_bounded_and_more_so_beside_a_light_one() -> None:
    turns: FairScheduler[str] = FairScheduler(16, shared_limit=3, cost=lambda what: 1)
    for number in range(100):
        turns.enqueue("storm", str(number), 0)
    taken = 0
    while turns.pop_next(LATER) is not None:
        taken += 1
    assert taken == 12, "three quarters, and no more"
    turns.enqueue("quiet", "q", LATER)
    for _ in range(10):
        turns.release_handler("storm")
    # Two are left; with one more that is three.
    assert {turns.pop_next(LATER), turns.pop_next(LATER)} == {("quiet", "q"), ("storm", "12")}
    assert turns.pop_next(LATER) is None
    assert turns.pop_next(2 * LATER) is not None, "nobody was heard of for long"


def test_one_that_wants_much_bars_nobody() -> None:
    turns: FairScheduler[str] = FairScheduler(16, shared_limit=3, cost=lambda what: 1)
    for number in range(100):
        turns.enqueue("one", str(number), number)
        turns.enqueue("two", str(number), number)
    # Both were light at first; later neither is, and they share the handlers.
    assert len({turns.pop_next(LATER) for _ in range(24)}) == 24
    assert turns.pop_next(LATER) is None


@pytest.mark.parametrize("wanted", [1, 5])
def test_nothing_is_lost_and_nothing_comes_twice(wanted: int) -> None:
    turns: FairScheduler[int] = FairScheduler(2, shared_limit=1, cost=lambda what: 1 + what % 3)
    for number in range(60):
        turns.enqueue(f"agent {number % wanted}", number, 0)
    seen: list[int] = []
    while (turn := turns.pop_next(LATER)) is not None:
        seen.append(turn[1])
        turns.release_handler(turn[0])
    assert sorted(seen) == list(range(60))


def test_a_handler_that_waits_for_long_takes_no_turn_of_its_agent() -> None:
    """Beside a light agent a heavy one has few handlers; one that waits counts as none of them."""
    turns: FairScheduler[str] = FairScheduler(16, shared_limit=3, cost=lambda what: 1)
    turns.enqueue("light", "l", 0)
    for number in range(30):
        turns.enqueue("heavy", f"h{number}", 0)
    assert turns.pop_next(1) == ("light", "l")
    turns.release_handler("light")
    taken = [turns.pop_next(1) for _ in range(4)]
    assert [found is not None for found in taken] == [True, True, True, False]
    for _ in range(3):
        turns.mark_slow("heavy")
    assert [turns.pop_next(1) is not None for _ in range(4)] == [True, True, True, False]
    # It may never have more than one alone may.
    for _ in range(3):
        turns.mark_slow("heavy")
    assert [turns.pop_next(1) is not None for _ in range(4)] == [True, True, True, False]
    for _ in range(3):
        turns.mark_slow("heavy")
    # However many wait, it has no more than one agent alone may have: three quarters.
    assert [turns.pop_next(1) is not None for _ in range(4)] == [True, True, True, False]
    turns.mark_slow("heavy")
    assert turns.pop_next(1) is None
    turns.release_handler("heavy", was_slow=True)
    assert turns.pop_next(1) is not None
