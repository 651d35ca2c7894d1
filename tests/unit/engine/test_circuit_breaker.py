"""Breakers: when a target is left alone, and how it is found to be back."""

from __future__ import annotations

from vedette.domain.base.backoff import delay_us
from vedette.engine.circuit_breaker import Breaker, BreakerLimits, CircuitBreakers

SECOND = 1_000_000


def call(breaker: Breaker, ok: bool | None, now_us: int) -> bool:
    """Make one call; return whether it was let through."""
    leave = breaker.acquire(now_us)
    if leave is None:
        return False
    breaker.release(leave, ok, now_us)
    return True


def state(breaker: Breaker) -> str:
    return breaker.state


def opened(now_us: int = 0) -> Breaker:
    breaker = Breaker("world")
    for _ in range(5):
        assert call(breaker, False, now_us)
    return breaker


def test_it_opens_after_failures_in_a_row_and_lets_nothing_through() -> None:
    breaker = Breaker("world")
    for _ in range(4):
        call(breaker, False, 0)
    call(breaker, True, 0)
    for _ in range(4):
        call(breaker, False, 0)
    assert state(breaker) == "closed", "there was a success between them"
    call(breaker, False, 0)
    assert state(breaker) == "open"
    assert not call(breaker, True, 0)
    assert SECOND // 2 <= breaker.retry_us <= SECOND


def test_it_opens_when_half_of_many_failed() -> None:
    breaker = Breaker("world")
    for number in range(18):
        call(breaker, number % 2 == 0, number)
    assert state(breaker) == "closed", "not enough to tell"
    for number in range(4):
        call(breaker, number % 2 == 0, 100 + number)
    assert state(breaker) == "open"


def test_failures_of_long_ago_count_for_nothing() -> None:
    breaker = Breaker("world")
    for number in range(18):
        call(breaker, number % 2 == 0, number)
    for number in range(18):
        call(breaker, number % 2 == 0, 60 * SECOND + number)
    assert state(breaker) == "closed"


def test_one_trial_goes_through_and_closes_it() -> None:
    breaker = opened()
    at = breaker.retry_us
    assert not breaker.is_trial_due(at - 1)
    trial = breaker.acquire(at)
    assert trial == "trial"
    assert state(breaker) == "half-open"
    assert breaker.acquire(at) is None, "one at a time"
    assert breaker.release(trial, True, at)
    assert state(breaker) == "closed"
    assert breaker.open_count == 0


def test_each_trial_that_fails_doubles_the_wait_up_to_a_limit() -> None:
    breaker = opened()
    waits, now = [], 0
    for _ in range(12):
        now = breaker.retry_us
        assert call(breaker, False, now)
        waits.append(breaker.retry_us - now)
    assert all(wait <= 30 * SECOND for wait in waits)
    assert waits[3] > waits[0]
    assert waits[-1] >= 15 * SECOND


def test_a_trial_that_was_not_made_leaves_the_next_one_free() -> None:
    breaker = opened()
    at = breaker.retry_us
    assert call(breaker, None, at)
    assert state(breaker) == "half-open"
    assert call(breaker, True, at)
    assert state(breaker) == "closed"


def test_calls_from_before_it_opened_change_nothing() -> None:
    breaker = Breaker("world")
    calls = [breaker.acquire(0) for _ in range(3)]
    for _ in range(5):
        call(breaker, False, 0)
    before = breaker.retry_us
    for leave, ok in zip(calls, (True, False, None), strict=True):
        assert leave is not None
        assert not breaker.release(leave, ok, 5)
    assert (state(breaker), breaker.retry_us) == ("open", before)


def test_a_fleet_has_one_for_each_target() -> None:
    breakers = CircuitBreakers(BreakerLimits(in_a_row=1))
    call(breakers.for_target("a"), False, 0)
    call(breakers.for_target("b"), True, 0)
    assert [breaker.target for breaker in breakers.list_tripped()] == ["a"]
    assert breakers.for_target("a") is breakers.for_target("a")


def test_waits_are_spread_and_the_same_each_time() -> None:
    waits = [delay_us(3, first_us=100, last_us=10_000, seed=str(n)) for n in range(200)]
    repeat = [delay_us(3, first_us=100, last_us=10_000, seed=str(n)) for n in range(200)]
    assert waits == repeat
    assert min(waits) >= 400
    assert max(waits) <= 800
    assert len(set(waits)) > 100
    assert delay_us(1_000, first_us=100, last_us=10_000, seed="x") <= 10_000


def test_who_asks_to_be_left_alone_is_until_then() -> None:
    breaker = Breaker("model:fast")
    leave = breaker.acquire(0)
    assert leave is not None
    breaker.release(leave, False, 0, until_us=90_000_000, why="model-rate")
    assert (breaker.state, breaker.retry_us, breaker.why) == ("open", 90_000_000, "model-rate")
    assert breaker.acquire(89_999_999) is None
    assert breaker.acquire(90_000_000) == "trial"
    breaker.release("trial", True, 90_000_001)
    assert (breaker.state, breaker.why) == ("closed", "")


def test_what_a_call_of_before_was_asked_counts_while_it_is_open() -> None:
    breaker = Breaker("model:fast")
    assert (breaker.acquire(0), breaker.acquire(0)) == ("call", "call")
    breaker.release("call", False, 0, until_us=10_000_000)
    breaker.release("call", False, 0, until_us=30_000_000)
    assert breaker.retry_us == 30_000_000
