"""Places for calls of a model: how many there may be, in flight and in any minute."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from vedette.domain.model import FailureKind, Model
from vedette.domain.model_turn import UNCHARGED, ModelAway, ModelUse, RequestRefused
from vedette.engine.circuit_breaker import Breaker
from vedette.engine.model_calls import ModelCall, ModelCalls

MINUTE = 60_000_000


def calls_of(**limits: Any) -> ModelCalls:
    return ModelCalls(Model("fast", **limits), Breaker("model:fast"))


def begin(calls: ModelCalls, now_us: int, tokens: int = 0) -> ModelCall:
    call = calls.begin(now_us, tokens)
    assert call is not None
    return call


def failed(kind: FailureKind, *, is_charged: bool = False) -> ModelAway:
    return ModelAway("away", kind, ModelUse(1) if is_charged else None)


def test_a_place_is_free_again_when_its_call_has_ended() -> None:
    calls = calls_of(calls_in_flight=2)
    first, _ = begin(calls, 0), begin(calls, 0)
    assert calls.begin(0, 0) is None
    assert calls.next_start_us(0) is None
    calls.end(first, 5)
    assert calls.next_start_us(5) == 5


def test_a_call_that_was_not_made_counts_for_nothing() -> None:
    calls = calls_of(calls_per_minute=1)
    calls.end(begin(calls, 0), 1, is_made=False)
    begin(calls, 2)
    assert calls.begin(3, 0) is None


def test_a_call_whose_answer_was_lost_counts_and_tells_nothing_of_its_provider() -> None:
    calls = calls_of(calls_per_minute=1)
    calls.end(begin(calls, 0), 1, failure=failed("key"))
    later = 10 * MINUTE
    calls.end(begin(calls, later), later, is_answered=False)
    assert calls.breaker.state != "closed", "a trial that was lost is none that succeeded"
    assert calls.in_flight == 0
    assert calls.next_start_us(later) == later + MINUTE


def test_a_call_that_takes_long_counts_for_one_minute_only() -> None:
    calls = calls_of(calls_per_minute=2, tokens_per_minute=100)
    slow, quick = begin(calls, 0, 40), begin(calls, 1, 40)
    calls.end(quick, 2, tokens=40)
    assert calls.next_start_us(3, 40) == MINUTE + 1, (
        "the slow one leaves its minute, not its tokens"
    )
    assert calls.next_start_us(MINUTE + 1, 40) == MINUTE + 1
    assert calls.next_start_us(2 * MINUTE, 61) is None, "its tokens are not known before it ends"
    calls.end(slow, 3 * MINUTE, tokens=10)
    assert calls.next_start_us(3 * MINUTE, 100) == 3 * MINUTE


def test_a_refusal_of_what_was_given_back_tells_nothing() -> None:
    calls = calls_of()
    refusal = RequestRefused("no", UNCHARGED)
    refusal.may_begin_anew = True
    for now in range(20):
        calls.end(begin(calls, now), now, failure=refusal)
    assert calls.begin(20, 0) is not None
    refusal.may_begin_anew = False
    for now in range(21, 26):
        calls.end(begin(calls, now), now, failure=refusal)
    assert calls.begin(26, 0) is None, "five in a row open the breaker"


def test_a_minute_is_any_minute() -> None:
    calls = calls_of(calls_per_minute=2)
    for now in (0, 59_000_000):
        calls.end(begin(calls, now), now)
    assert calls.next_start_us(59_500_000) == MINUTE
    calls.end(begin(calls, MINUTE), MINUTE)
    assert calls.next_start_us(MINUTE) == 59_000_000 + MINUTE


def test_tokens_count_as_what_a_call_may_take_until_it_is_known_what_it_took() -> None:
    calls = calls_of(tokens_per_minute=100)
    first = begin(calls, 0, 80)
    assert calls.begin(0, 30) is None
    assert calls.next_start_us(0) is None  # as the one that waits asks for
    calls.end(first, 1, tokens=10)
    second = begin(calls, 1, 80)
    calls.end(second, 2, failure=failed("timeout", is_charged=True))
    assert calls.begin(2, 30) is None
    assert calls.next_start_us(2, 10) == 2
    assert calls.next_start_us(2, 1000) == MINUTE + 1  # never more than there is


def test_a_failure_that_is_not_charged_took_nothing() -> None:
    calls = calls_of(tokens_per_minute=100)
    calls.end(begin(calls, 0, 100), 1, failure=failed("unavailable"))
    begin(calls, 1, 100)


def test_what_must_be_mended_is_left_alone_at_once() -> None:
    calls = calls_of()
    calls.end(begin(calls, 0), 0, failure=failed("key"))
    assert calls.is_away(0)
    assert calls.begin(299_999_999, 0) is None
    assert begin(calls, 300_000_000).leave == "trial"


@given(
    st.integers(1, 4),
    st.integers(1, 5),
    st.lists(st.tuples(st.integers(0, 20_000_000), st.integers(0, 40), st.booleans()), max_size=60),
)
def test_no_limit_is_ever_exceeded(
    in_flight: int, per_minute: int, steps: list[tuple[int, int, bool]]
) -> None:
    calls = calls_of(calls_in_flight=in_flight, calls_per_minute=per_minute, tokens_per_minute=100)
    now, running, begun = 0, list[ModelCall](), list[tuple[int, ModelCall]]()
    for wait_us, tokens, ends in steps:
        now += wait_us
        if ends and running:
            ended = running.pop(0)  # with no more than it was said to take
            calls.end(ended, now, tokens=min(ended.tokens, tokens))
        elif (call := calls.begin(now, tokens)) is not None:
            running.append(call)
            begun.append((now, call))
        assert calls.in_flight == len(running) <= in_flight
        within = [call for at_us, call in begun if at_us > now - MINUTE]
        assert len(within) <= per_minute
        assert sum(call.tokens for call in within) <= 100
