"""Turns: what one agent takes leaves turns for the others."""

from __future__ import annotations

from collections import Counter

import pytest

from vedette.engine.scheduler.fair_queue import FairScheduler

LATER = 10_000_000


def drain(turns: FairScheduler[str], most: int, now_us: int = LATER) -> list[str]:
    """Take as many turns as there are, each handed back at once."""
    found: list[str] = []
    while len(found) < most and (turn := turns.pop_next(now_us)) is not None:
        found.append(turn[0])
        turns.release_handler(turn[0])
    return found


def test_agents_take_turns_however_much_one_of_them_wants() -> None:
    turns: FairScheduler[str] = FairScheduler(8, shared_limit=2)
    for number in range(100):
        turns.enqueue("storm", str(number), 0)
    for number in range(3):
        turns.enqueue("quiet", str(number), 0)
    order = drain(turns, 1000)
    assert order[:6].count("quiet") == 3
    assert len(order) == 103


def test_what_costs_more_has_fewer_turns() -> None:
    turns: FairScheduler[str] = FairScheduler(8, shared_limit=8)
    for _ in range(40):
        turns.enqueue("a", "big", 0, 4)
        turns.enqueue("b", "small", 0)
    assert Counter(drain(turns, 25)) == {"a": 5, "b": 20}


def test_handlers_of_one_agent_are_bounded_and_more_so_beside_a_light_one() -> None:
    turns: FairScheduler[str] = FairScheduler(16, shared_limit=3)
    for number in range(100):
        turns.enqueue("storm", str(number), 0)
    count = 0
    while turns.pop_next(LATER) is not None:
        count += 1
    assert count == 12, "three quarters, and no more"
    turns.enqueue("quiet", "q", LATER)
    for _ in range(10):
        turns.release_handler("storm")
    # Two are left; with one more that is three.
    assert {turns.pop_next(LATER), turns.pop_next(LATER)} == {("quiet", "q"), ("storm", "12")}
    assert turns.pop_next(LATER) is None
    assert turns.pop_next(2 * LATER) is not None, "nobody was heard of for long"


def test_one_that_wants_much_bars_nobody() -> None:
    turns: FairScheduler[str] = FairScheduler(16, shared_limit=3)
    for number in range(100):
        turns.enqueue("one", str(number), number)
        turns.enqueue("two", str(number), number)
    # Both were light at first; later neither is, and they share the handlers.
    assert len({turns.pop_next(LATER) for _ in range(24)}) == 24
    assert turns.pop_next(LATER) is None


@pytest.mark.parametrize("wanted", [1, 5])
def test_nothing_is_lost_and_nothing_comes_twice(wanted: int) -> None:
    turns: FairScheduler[int] = FairScheduler(2, shared_limit=1)
    for number in range(60):
        turns.enqueue(f"agent {number % wanted}", number, 0, 1 + number % 3)
    seen: list[int] = []
    while (turn := turns.pop_next(LATER)) is not None:
        seen.append(turn[1])
        turns.release_handler(turn[0])
    assert sorted(seen) == list(range(60))


def test_a_handler_that_waits_for_long_takes_no_turn_of_its_agent() -> None:
    """Beside a light agent a heavy one has few handlers; one that waits counts as none of them."""
    turns: FairScheduler[str] = FairScheduler(16, shared_limit=3)
    turns.enqueue("light", "l", 0)
    for number in range(30):
        turns.enqueue("heavy", f"h{number}", 0)
    assert turns.pop_next(1) == ("light", "l")
    turns.release_handler("light")
    agents = [turns.pop_next(1) for _ in range(4)]
    assert [found is not None for found in agents] == [True, True, True, False]
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


def test_one_that_hangs_bars_nobody() -> None:
    """While a light agent is being handled a heavy one has one handler; not while it waits."""
    turns: FairScheduler[str] = FairScheduler(32, shared_limit=3)
    turns.enqueue("hangs", "h", 0)
    for number in range(30):
        turns.enqueue("heavy", f"h{number}", 0)
    found = [turns.pop_next(1) for _ in range(3)]
    assert [one[0] for one in found if one is not None] == ["hangs", "heavy"]
    turns.mark_slow("hangs")
    assert [turns.pop_next(1) is not None for _ in range(3)] == [True, True, False]
    turns.release_handler("hangs", was_slow=True)
    turns.enqueue("light", "l", 1)
    for _ in range(3):
        turns.release_handler("heavy")
    found = [turns.pop_next(1) for _ in range(3)]
    assert [one and one[0] for one in found] == ["heavy", "light", None], "at work, it bars"


def test_what_waits_makes_nobody_heavy() -> None:
    turns: FairScheduler[str] = FairScheduler(64, shared_limit=6)
    for number in range(20):
        turns.enqueue("waits", f"w{number}", 0)
        assert turns.pop_next(1) is not None
        turns.mark_slow("waits")
    turns.enqueue("light", "l", 1)
    assert turns.pop_next(1) == ("light", "l")
    turns.enqueue("waits", "a", 1)
    turns.enqueue("waits", "b", 1)
    assert [turns.pop_next(1) for _ in range(2)] == [("waits", "a"), ("waits", "b")]


def test_who_has_much_waiting_bars_nobody_by_what_it_begins() -> None:
    """An agent with many slow calls on their way begins another now and then: it is not light."""
    turns: FairScheduler[str] = FairScheduler(64, shared_limit=6)
    for number in range(20):
        turns.enqueue("steady", f"s{number}", 0)
        assert turns.pop_next(1) is not None
        turns.mark_slow("steady")
    for number in range(30):
        turns.enqueue("heavy", f"h{number}", 2_000_000)
    turns.enqueue("steady", "one more", 2_000_000)
    found = [turns.pop_next(2_000_001) for _ in range(8)]
    assert [one[0] for one in found if one is not None].count("heavy") > 1
