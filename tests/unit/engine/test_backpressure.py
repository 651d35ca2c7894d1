"""Memory and credits: what one agent takes leaves room for the others."""

from __future__ import annotations

from vedette.engine.scheduler.backpressure import IntakeCredits, Quota


def fill(room: Quota, agent: str, octets: int = 0) -> int:
    """Take for an agent as long as it may; return how much."""
    count = 0
    while room.has_room(agent):
        room.add(agent, octets)
        count += 1
    return count


def test_one_alone_takes_half_and_the_next_half_of_what_is_left() -> None:
    room = Quota(1024, 1 << 30)
    assert fill(room, "a") == 512
    assert fill(room, "b") == 256
    assert fill(room, "c") == 128
    assert room.events_of("a") == 512
    assert room.total == (896, 0)


def test_bytes_bound_it_as_events_do() -> None:
    room = Quota(1_000_000, 1000)
    assert fill(room, "a", octets=10) == 50
    assert room.has_room("b")


def test_everybody_may_have_a_few_however_full_it_is() -> None:
    room = Quota(1280, 1 << 30)
    for number in range(40):
        fill(room, f"greedy {number}")
    assert room.total[0] >= 1280
    assert fill(room, "late") == 10


def test_what_is_given_back_is_free_again() -> None:
    room = Quota(100, 1 << 30)
    fill(room, "a")
    for _ in range(50):
        room.add("a", 0, -1)
    assert room.total == (0, 0)
    assert fill(room, "a") == 50


def test_credits_are_given_back_once_for_what_was_taken() -> None:
    credits = IntakeCredits(100, 10_000)
    credits.add_backlog("a", 3)
    credits.add("a", 7)
    credits.assign_to_run("new", "a", 7)
    for run in ("old 1", "old 2", "old 3", "old 4", "new"):
        credits.add_loaded(run, "a")
    # The fourth was not in the count of what the store had; the new one was taken before.
    assert credits.total == (5, 7)
    for run in ("old 1", "old 2", "old 3", "old 4", "new", "new", "nobody"):
        credits.release_run(run, "a")
    assert credits.total == (0, 0)


def test_a_stopped_agents_credits_are_given_back_and_not_twice() -> None:
    credits = IntakeCredits(100, 10_000)
    credits.add_backlog("a", 20)
    credits.add("a", 5)
    credits.assign_to_run("r", "a", 5)
    credits.add("b", 1)
    credits.release_agent("a")
    credits.release_run("r", "a")
    assert credits.total == (1, 1)
    credits.add("b", -1, -1)
    assert credits.total == (0, 0)
