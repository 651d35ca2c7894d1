"""Windows are calendar windows in UTC; counts are sums over them."""

from __future__ import annotations

from contextlib import suppress

import pytest

from vedette.domain.base.errors import StoreFailed
from vedette.domain.budget import DAY_US, HOUR_US, MINUTE_US
from vedette.domain.spend import PermitCount, SpendCounters, window_end, window_start

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
    assert counts.totals("a", "actions", last)["minute"] == 3
    assert counts.totals("a", "actions", last + 1)["minute"] == 0
    counts.add("a", "actions", last + 1)
    assert counts.totals("a", "actions", last + 1)["minute"] == 1
    assert counts.totals("a", "actions", last + 1)["hour"] == 4
    assert counts.totals("a", "actions", NOON + DAY_US)["day"] == 0


def test_agents_and_units_are_counted_apart() -> None:
    counts = SpendCounters()
    counts.add("a", "actions", NOON, 2)
    counts.add("a", "model_calls", NOON, 5)
    assert counts.totals("a", "actions", NOON)["day"] == 2
    assert counts.totals("b", "actions", NOON)["day"] == 0


def test_giving_back_after_the_window_ended_takes_nothing_from_the_next() -> None:
    counts = SpendCounters()
    counts.add("a", "actions", NOON)
    counts.add("a", "actions", NOON + MINUTE_US)
    counts.refund("a", "actions", NOON)
    assert counts.totals("a", "actions", NOON + MINUTE_US)["minute"] == 1
    assert counts.totals("a", "actions", NOON + MINUTE_US)["hour"] == 1


def test_a_clock_that_steps_back_opens_no_limit() -> None:
    counts = SpendCounters()
    for _ in range(5):
        counts.add("a", "actions", NOON)
    counts.add("a", "actions", NOON - DAY_US)
    assert counts.totals("a", "actions", NOON - DAY_US) == {"minute": 6, "hour": 6, "day": 6}


def test_the_permits_of_a_step_that_did_not_stand_are_taken_back() -> None:
    counts = SpendCounters()
    counts.add("a", "actions", NOON, 2)
    with PermitCount(counts, "a") as kept:
        kept.remove(NOON)
        kept.add(NOON, is_new=False)
        kept.add(NOON + 1, is_new=True)
    assert (kept.new, counts.totals("a", "actions", NOON)["day"]) == (1, 3)
    with suppress(StoreFailed), PermitCount(counts, "a") as lost:
        lost.remove(NOON)
        lost.add(NOON + MINUTE_US, is_new=True)
        lost.add(NOON + MINUTE_US, is_new=True)
        raise StoreFailed("a test")
    assert counts.totals("a", "actions", NOON)["day"] == 3


def test_a_permit_that_is_given_again_counts_where_it_did_and_in_no_later_window() -> None:
    counts, later = SpendCounters(), NOON + MINUTE_US
    counts.add("a", "actions", NOON)
    counts.add("a", "actions", later)
    before = counts.totals("a", "actions", later)
    assert before == {"minute": 1, "hour": 2, "day": 2}
    with PermitCount(counts, "a") as kept:
        kept.remove(NOON)
        kept.add(NOON, is_new=False)
    assert counts.totals("a", "actions", later) == before
    for repeat in (True, False):
        with suppress(StoreFailed), PermitCount(counts, "a") as lost:
            lost.remove(NOON)
            if repeat:
                lost.add(NOON, is_new=False)
            raise StoreFailed("a test")
        assert counts.totals("a", "actions", later) == before
