"""Windows are calendar windows in UTC; counts are sums over them."""

from __future__ import annotations

import pytest

from vedette.domain.budget import (
    DAY_US,
    HOUR_US,
    MINUTE_US,
    SpendCounters,
    window_end,
    window_start,
)

NOON = 1_780_056_000_000_000 - 1_780_056_000_000_000 % DAY_US + 12 * HOUR_US


@pytest.mark.parametrize("length", [MINUTE_US, HOUR_US, DAY_US])
def test_a_window_holds_its_start_and_not_its_end(length: int) -> None:
    for now in (NOON, NOON + 1, NOON + length - 1):
        assert window_start(now, length) <= now < window_end(now, length)
    assert window_start(window_end(NOON, length), length) == window_end(NOON, length)


def test_counts_begin_anew_with_each_window() -> None:
    counts = SpendCounters()
    for at in range(3):
        counts.add("a", "actions", NOON + at)
    last = NOON + MINUTE_US - 1
    assert counts.total("a", "actions", last, MINUTE_US) == 3
    assert counts.total("a", "actions", last + 1, MINUTE_US) == 0
    counts.add("a", "actions", last + 1)
    assert counts.total("a", "actions", last + 1, MINUTE_US) == 1
    assert counts.total("a", "actions", last + 1, HOUR_US) == 4
    assert counts.total("a", "actions", NOON + DAY_US, DAY_US) == 0


def test_agents_and_units_are_counted_apart() -> None:
    counts = SpendCounters()
    counts.add("a", "actions", NOON, 2)
    counts.add("a", "model_calls", NOON, 5)
    assert counts.total("a", "actions", NOON, DAY_US) == 2
    assert counts.total("b", "actions", NOON, DAY_US) == 0


def test_giving_back_after_the_window_ended_takes_nothing_from_the_next() -> None:
    counts = SpendCounters()
    counts.add("a", "actions", NOON)
    counts.add("a", "actions", NOON + MINUTE_US)
    counts.refund("a", "actions", NOON)
    assert counts.total("a", "actions", NOON + MINUTE_US, MINUTE_US) == 1
    assert counts.total("a", "actions", NOON + MINUTE_US, HOUR_US) == 1


def test_a_clock_that_steps_back_opens_no_limit() -> None:
    counts = SpendCounters()
    for _ in range(5):
        counts.add("a", "actions", NOON)
    counts.add("a", "actions", NOON - DAY_US)
    for length in (MINUTE_US, HOUR_US, DAY_US):
        assert counts.total("a", "actions", NOON - DAY_US, length) == 6
