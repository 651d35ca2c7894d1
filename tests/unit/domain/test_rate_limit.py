"""Ceilings: windows slide, and each agent has its own."""

from __future__ import annotations

from vedette.domain.budget import HOUR_US, MINUTE_US
from vedette.domain.rate_limit import RateCounters, RateLimits


def test_errors_within_an_hour_reach_the_ceiling() -> None:
    tallies, three = RateCounters(), RateLimits(errors_per_hour=3)
    assert [tallies.count_error("a", three, at) is None for at in (0, 1, 2)] == [True, True, False]
    assert tallies.count_error("b", three, 2) is None
    assert tallies.count_error("a", three, HOUR_US + 2) is None, (
        "those of an hour ago are forgotten"
    )


def test_an_effect_that_would_be_one_too_many_is_refused_and_not_counted() -> None:
    tallies, two = RateCounters(), RateLimits(effects_per_minute=2)
    rows = [tallies.count_effect("a", two, at) for at in (0, 1, 2, 3)]
    assert [why is None for why in rows] == [True, True, False, False]
    assert rows[2] == "2 effects within a minute"
    assert tallies.count_effect("a", two, MINUTE_US + 1) is None
    assert tallies.count_effect("a", two, MINUTE_US + 2) is None
    assert tallies.count_effect("a", two, MINUTE_US + 3) is not None


def test_no_ceiling_counts_nothing_and_a_resumed_agent_starts_anew() -> None:
    tallies, none = RateCounters(), RateLimits(errors_per_hour=None, effects_per_minute=None)
    assert all(tallies.count_error("a", none, at) is None for at in range(1000))
    assert all(tallies.count_effect("a", none, at) is None for at in range(1000))
    one = RateLimits(errors_per_hour=2)
    tallies.count_error("a", one, 0)
    tallies.reset("a")
    assert tallies.count_error("a", one, 1) is None
