from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vedette.judging.ranks import (
    CALM_ROWS,
    HISTORY,
    PAUSE,
    THRESHOLD,
    VIEWS,
    WARM_UP,
    Ranks,
    Reading,
)
from vedette.judging.series import generate


def readings(values: list[float]) -> list[Reading]:
    state = Ranks()
    return [state.observe(value) for value in values]


def slow_ranks(values: list[float]) -> list[tuple[int, int]]:
    """The ranks of `step` and `level` by counting, with no sorted array and no ring."""
    steps = [0.0] + [abs(b - a) for a, b in itertools.pairwise(values)]
    levels = []
    for row in range(len(values)):
        window = values[max(0, row - 11) : row + 1]
        levels.append(math.fsum(window) / len(window) - values[0])
    out = []
    for row in range(len(values)):
        old = slice(max(0, row - HISTORY), row)
        above = sum(value >= steps[row] for value in steps[old])
        high = sum(value >= levels[row] for value in levels[old])
        low = sum(value <= levels[row] for value in levels[old])
        out.append((above, min(row, HISTORY, 2 * min(high, low))))
    return out


# Quarters and small integers are exact in float32, so that ranks can be compared exactly.
exact = st.integers(-400, 400).map(lambda n: n / 4)


@settings(max_examples=60, deadline=None)
@given(values=st.lists(exact, min_size=1, max_size=80), cut=st.integers(0, 79))
def test_dump_and_load_at_any_row_goes_on_bit_equal(values: list[float], cut: int) -> None:
    whole = Ranks()
    expected = [whole.observe(value) for value in values]
    state = Ranks()
    got = []
    for row, value in enumerate(values):
        if row == cut:
            blob = state.dump()
            state = Ranks.load(blob)
            assert state.dump() == blob
        got.append(state.observe(value))
    assert got == expected
    assert state.dump() == whole.dump()


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(1, 9999), cuts=st.lists(st.integers(0, 5000), min_size=1, max_size=3))
def test_dump_and_load_with_a_full_history(seed: int, cuts: list[int]) -> None:
    values = generate(
        {"n": 5000, "seed": seed, "base": 50, "noise": 2, "shift_at": 4200, "shift": 9}
    )
    whole, state = Ranks(), Ranks()
    for row, value in enumerate(values):
        if row in cuts:
            state = Ranks.load(state.dump())
        assert state.observe(value) == whole.observe(value)
    assert len(state.dump()) < 70_000


@settings(max_examples=40, deadline=None)
@given(
    prefix=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=70),
    one=st.lists(st.floats(-1e6, 1e6), max_size=40),
    other=st.lists(st.floats(-1e6, 1e6), max_size=40),
)
def test_a_reading_never_depends_on_later_rows(
    prefix: list[float], one: list[float], other: list[float]
) -> None:
    count = len(prefix)
    assert readings(prefix + one)[:count] == readings(prefix + other)[:count] == readings(prefix)


def test_a_reading_does_depend_on_earlier_rows() -> None:
    assert readings([1.0, 2.0, 9.0])[-1] != readings([1.0, 8.0, 9.0])[-1]


@settings(max_examples=40, deadline=None)
@given(values=st.lists(st.integers(-32, 32).map(lambda n: n * 12.0), min_size=1, max_size=60))
def test_ranks_are_those_of_plain_counting(values: list[float]) -> None:
    got = [(reading.ranks[1], reading.ranks[2]) for reading in readings(values)]
    assert got == slow_ranks(values)


def test_old_values_leave_the_history() -> None:
    values = [float(n % 7) * 12.0 for n in range(HISTORY + 900)]
    values[100] = 1200.0
    seen = readings(values)
    assert seen[HISTORY].compared == (HISTORY, HISTORY, HISTORY, HISTORY - 59)
    assert seen[-1].compared == (HISTORY,) * 4
    expected = slow_ranks(values)
    for row in (HISTORY - 1, HISTORY, HISTORY + 99, HISTORY + 101, HISTORY + 899):
        assert (seen[row].ranks[1], seen[row].ranks[2]) == expected[row]


def test_a_shift_rings_once_and_noise_does_not() -> None:
    quiet = generate({"n": 1100, "seed": 6, "base": 20})
    shifted = generate({"n": 1100, "seed": 6, "base": 20, "shift_at": 1000, "shift": 25})
    assert not any(reading.alarm() for reading in readings(quiet))
    rung = [row for row, reading in enumerate(readings(shifted)) if reading.alarm()]
    assert rung[0] == 1000
    assert len(rung) < 4


def test_no_alarm_while_warming_up() -> None:
    spec = {"n": WARM_UP + 1, "seed": 6, "base": 20, "spike": 1e6}
    last = readings(generate(spec | {"spike_at": WARM_UP - 1}))[WARM_UP - 1]
    assert last.score >= THRESHOLD
    assert last.score > last.peak
    assert not last.alarm()
    assert readings(generate(spec | {"spike_at": WARM_UP}))[WARM_UP].alarm()


def test_an_alarm_beats_every_score_of_the_pause() -> None:
    values = generate({"n": 1300, "seed": 6, "base": 20, "spike_at": 1000, "spike": 60})
    values[1050] += 50
    seen = readings(values)
    assert seen[1000].alarm()
    assert seen[1050].score >= THRESHOLD
    assert not seen[1050].alarm()
    for row, reading in enumerate(seen[1:], 1):
        before = [other.score for other in seen[max(0, row - PAUSE) : row]]
        assert reading.peak == max(before)
        calm = [other.score for other in seen[max(0, row + 1 - CALM_ROWS) : row + 1]]
        assert reading.calm_peak == max(calm)


def test_a_constant_series_scores_nothing_until_it_moves() -> None:
    seen = readings([7.0] * 300 + [7.5])
    assert max(reading.score for reading in seen[:-1]) == 0.0
    assert seen[-1].alarm()


def test_a_stuck_sensor_is_seen_by_its_spread() -> None:
    values = generate({"n": 1100, "seed": 3, "base": 20, "flat_at": 1000})
    rung = [reading for reading in readings(values) if reading.alarm()]
    assert rung
    top = max(range(4), key=lambda view: rung[0].surprises[view])
    assert VIEWS[top] == "spread"


def test_scale_and_origin_hardly_matter() -> None:
    values = generate({"n": 700, "seed": 9, "base": 0, "shift_at": 650, "shift": 30})
    plain = readings(values)
    moved = readings([value * 1024.0 + 2.0**30 for value in values])
    assert [row for row, r in enumerate(plain) if r.alarm()] == [
        row for row, r in enumerate(moved) if r.alarm()
    ]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_refused(value: float) -> None:
    state = Ranks()
    state.observe(1.0)
    before = state.dump()
    with pytest.raises(ValueError, match="finite"):
        state.observe(value)
    assert state.dump() == before


def test_the_largest_floats_do_not_overflow() -> None:
    draw = random.Random(4)
    values = [draw.choice([-1, 1]) * 10.0 ** draw.randint(-308, 308) for _ in range(400)]
    for reading in readings(values):
        assert math.isfinite(reading.score)
        assert all(map(math.isfinite, reading.surprises))


@pytest.mark.parametrize("spoil", [lambda b: b"", lambda b: b"X" + b[1:], lambda b: b[:-1]])
def test_a_foreign_state_is_refused(spoil: object) -> None:
    state = Ranks()
    for value in (1.0, 2.0, 5.0):
        state.observe(value)
    assert callable(spoil)
    with pytest.raises(ValueError, match="rank state"):
        Ranks.load(spoil(state.dump()))
