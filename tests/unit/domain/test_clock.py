"""ManualClock: who sleeps, who wakes, in which order."""

from __future__ import annotations

import asyncio
import time

import pytest

from vedette.domain.base.clock import (
    EARLIEST_US,
    LATEST_US,
    Clock,
    from_iso,
    instant_before,
    iso,
    local_time,
    utc_time,
)
from vedette.testing.clock import ManualClock, run_ready_tasks

T0 = 1_000_000


async def sleeper(clock: Clock, name: str, at_us: int, seen: list[tuple[str, int]]) -> None:
    await clock.sleep_until(at_us)
    seen.append((name, clock.now_us()))


async def test_sleepers_wake_in_the_order_of_their_instants_then_of_their_calls() -> None:
    clock = ManualClock(T0)
    seen: list[tuple[str, int]] = []
    async with asyncio.TaskGroup() as group:
        for name, at_us in (("late", T0 + 30), ("one", T0 + 10), ("two", T0 + 10)):
            group.create_task(sleeper(clock, name, at_us, seen))
        await run_ready_tasks()
        assert clock.sleepers == 3
        clock.advance(9)
        await run_ready_tasks()
        assert seen == []
        clock.advance(100)
    assert seen == [("one", T0 + 109), ("two", T0 + 109), ("late", T0 + 109)]


async def test_elapse_lets_each_wake_at_its_own_instant_and_sleep_again() -> None:
    clock = ManualClock(T0)
    seen: list[int] = []

    async def beat() -> None:
        for _ in range(3):
            await clock.sleep_until(clock.now_us() + 10)
            seen.append(clock.now_us())

    task = asyncio.create_task(beat())
    await clock.elapse(25)
    assert seen == [T0 + 10, T0 + 20]
    assert clock.now_us() == T0 + 25
    await clock.elapse(5)
    await task
    assert seen == [T0 + 10, T0 + 20, T0 + 30]


async def test_what_has_passed_is_not_slept_for() -> None:
    clock = ManualClock(T0)
    await clock.sleep_until(T0)
    await clock.sleep_until(T0 - 5)


async def test_a_cancelled_sleeper_is_forgotten() -> None:
    clock = ManualClock(T0)
    task = asyncio.create_task(clock.sleep_until(T0 + 10))
    await run_ready_tasks()
    task.cancel()
    await run_ready_tasks()
    assert clock.sleepers == 0
    await clock.elapse(20)
    assert clock.now_us() == T0 + 20


def test_the_wall_clock_may_be_set_and_the_monotonic_stays() -> None:
    clock = ManualClock(T0)
    clock.advance(5)
    clock.set_wall(3)
    assert (clock.now_us(), clock.monotonic_us()) == (3, 5)
    with pytest.raises(ValueError, match="does not go back"):
        clock.advance(-1)


async def test_who_sleeps_does_not_go_by_a_wall_clock_that_is_set() -> None:
    clock = ManualClock(T0)
    seen: list[tuple[str, int]] = []
    task = asyncio.create_task(sleeper(clock, "one", T0 + 10, seen))
    await run_ready_tasks()
    clock.set_wall(T0 + 1000)
    await run_ready_tasks()
    assert not seen
    clock.set_wall(T0 - 1000)
    clock.advance(10)
    await task
    assert seen == [("one", T0 - 990)]


def test_the_last_instant_of_the_calendar_is_told_in_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody may write it into an event; in Tokyo it is a day that no calendar here has."""
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        assert local_time(from_iso("2026-03-01T00:00:00Z")) == "2026-03-01 09:00:00+09:00"
        assert local_time(from_iso("9999-12-31T23:59:59Z")) == "9999-12-31T23:59:59Z"
    time.tzset()


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo", "America/New_York"])
def test_no_instant_is_too_far_for_its_reader(zone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setenv("TZ", zone)
        time.tzset()
        for at_us in (LATEST_US + 1, 10**18, 10**40):
            assert local_time(at_us) == utc_time(at_us) == "9999-12-31T23:59:59Z"
        for at_us in (EARLIEST_US - 1, -(10**18), -(10**40)):
            assert local_time(at_us) == utc_time(at_us) == "0001-01-01T00:00:00Z"
    time.tzset()


@pytest.mark.parametrize("text", ["9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+00:01"])
def test_what_could_not_be_written_is_not_read(text: str) -> None:
    with pytest.raises(ValueError, match="before the year 1 or after 9999"):
        from_iso(text)


def test_the_calendar_ends_are_read_and_written() -> None:
    for text in ("0001-01-01T00:00:00.000000Z", "9999-12-31T23:59:59.999999Z"):
        assert iso(from_iso(text)) == text
    assert (iso(EARLIEST_US), iso(LATEST_US)) == (
        "0001-01-01T00:00:00.000000Z", "9999-12-31T23:59:59.999999Z",
    )  # fmt: skip
    assert iso(from_iso("0870-03-01T06:00:00Z")) == "0870-03-01T06:00:00.000000Z"
    for at_us in (EARLIEST_US - 1, LATEST_US + 1, 10**40):
        with pytest.raises(ValueError, match=r"year|calendar"):
            iso(at_us)
    assert instant_before(5, 3) == 2
    assert instant_before(0, 10**30) == EARLIEST_US
