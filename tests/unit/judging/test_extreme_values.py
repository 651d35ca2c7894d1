from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vedette.judging.extreme_values import (
    HORIZON,
    KEPT,
    OneSidedView,
    Tail,
    TwoSidedView,
    pack,
    unpack,
)


def counted(values: list[float], row: int) -> int:
    """How many of the last HORIZON values before a row are at least as large, by counting."""
    return sum(old >= values[row] for old in values[max(0, row - HORIZON) : row])


@settings(max_examples=80, deadline=None)
@given(values=st.lists(st.integers(-9, 9).map(float), max_size=60))
def test_a_short_past_is_ranked_exactly(values: list[float]) -> None:
    tail = Tail()
    assert [tail.observe(value, row) for row, value in enumerate(values)] == [
        counted(values, row) for row in range(len(values))
    ]


def test_a_long_past_is_ranked_exactly_in_the_tail_and_not_below_it() -> None:
    draw = random.Random(3)
    # Sixteenths are exact in float32.
    values = [draw.randrange(1 << 20) / 16 for _ in range(3000)]
    tail = Tail()
    for row, value in enumerate(values):
        rank, true = tail.observe(value, row), counted(values, row)
        assert rank == (true if true < KEPT else row) or (row < KEPT and rank == true)
    assert len(tail.values) == len(tail.rows) == KEPT
    assert list(tail.values) == sorted(values)[-KEPT:]


def test_what_is_older_than_the_horizon_is_let_go() -> None:
    tail = Tail()
    assert tail.observe(100.0, 0) == 0
    row = 1
    while row < HORIZON:
        tail.observe(float(row % 7), row)
        row += 1
    assert tail.observe(50.0, row) == 1
    for after in range(row + 1, row + 200):
        tail.observe(float(after % 7), after)
    assert 100.0 not in tail.values
    assert tail.observe(50.0, row + 200) == 1  # the other 50; the 100 does not count any more


def test_the_highest_value_ever_gives_a_bonus_by_how_far_it_goes_beyond() -> None:
    def surprise(value: float) -> float:
        view = OneSidedView()
        for row in range(500):
            view.observe(1.0 + row % 5, row)
        return view.observe(value, 500)[1]

    plain = math.log10(501)
    assert surprise(5.0) < plain
    assert surprise(5.5) == pytest.approx(plain + 4 * math.log10(1.1), abs=1e-6)
    assert surprise(50.0) == surprise(5000.0) == pytest.approx(plain + 1.0)


def test_both_ends_are_unusual() -> None:
    def rank(value: float) -> int:
        view = TwoSidedView()
        for row in range(100):
            view.observe(float(row), row)
        return view.observe(value, 100)[0]

    assert rank(-1.0) == rank(100.0) == 0
    assert rank(1.0) == rank(98.0) == 2 * 2 + 1
    assert rank(50.0) == 100


@settings(max_examples=40, deadline=None)
@given(values=st.lists(st.floats(-1e6, 1e6, width=32), max_size=40))
def test_a_tail_that_was_packed_is_the_same(values: list[float]) -> None:
    tail = Tail(8)
    for row, value in enumerate(values):
        tail.observe(value, row)
    repeat = Tail(8)
    blob = b"xx" + pack(tail)
    assert unpack(repeat, blob, 2, len(tail.values)) == len(blob)
    assert (repeat.values, repeat.rows) == (tail.values, tail.rows)
