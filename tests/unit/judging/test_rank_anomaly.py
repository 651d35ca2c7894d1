from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vedette.judging.alarm_policy import FORGET, RAISE, AlarmThreshold
from vedette.judging.hourly_profile import HOURS, Hours, hour_of
from vedette.judging.rank_anomaly import CALM_ROWS, PAUSE, THRESHOLD, VIEWS, WARM_UP, Ranks, Reading
from vedette.judging.series import generate


def readings(values: list[float]) -> list[Reading]:
    state = Ranks()
    return [state.observe(value) for value in values]


def slow_steps(values: list[float]) -> list[int]:
    """The ranks of `step` by counting, with no sorted array and no tail."""
    steps = [0.0] + [abs(b - a) for a, b in itertools.pairwise(values)]
    return [sum(old >= step for old in steps[:row]) for row, step in enumerate(steps)]


# Quarters and small integers are exact in float32, so that ranks can be compared exactly.
exact = st.integers(-400, 400).map(lambda n: n / 4)


@settings(max_examples=60, deadline=None)
@given(values=st.lists(exact, min_size=1, max_size=80), cut=st.integers(0, 79))
def test_dump_and_load_at_any_row_goes_on_bit_equal(values: list[float], cut: int) -> None:
    whole = Ranks()
    expected = [whole.observe(value, row % HOURS) for row, value in enumerate(values)]
    state = Ranks()
    got = []
    for row, value in enumerate(values):
        if row == cut:
            blob = state.dump()
            state = Ranks.load(blob)
            assert state.dump() == blob
        got.append(state.observe(value, row % HOURS))
    assert got == expected
    assert state.dump() == whole.dump()


@settings(max_examples=4, deadline=None)
@given(seed=st.integers(1, 9999), cuts=st.lists(st.integers(0, 1500), min_size=1, max_size=3))
def test_dump_and_load_with_full_tails(seed: int, cuts: list[int]) -> None:
    values = generate(
        {"n": 1500, "seed": seed, "base": 50, "noise": 2, "shift_at": 1200, "shift": 9}
    )
    whole, state = Ranks(), Ranks()
    for row, value in enumerate(values):
        if row in cuts:
            state = Ranks.load(state.dump())
        assert state.observe(value, row // 60 % HOURS) == whole.observe(value, row // 60 % HOURS)
    assert len(state.dump()) < 20_000


def test_a_state_does_not_grow_without_end() -> None:
    state = Ranks()
    for row in range(4000):
        state.observe(math.sin(row) * row, row % HOURS)
        if row == 2000:
            first_size = len(state.dump())
    assert len(state.dump()) == first_size


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
    assert [reading.ranks[2] for reading in readings(values)] == slow_steps(values)


def test_a_shift_rings_once_and_noise_does_not() -> None:
    quiet = generate({"n": 1100, "seed": 6, "base": 20})
    shifted = generate({"n": 1100, "seed": 6, "base": 20, "shift_at": 1000, "shift": 25})
    assert not any(reading.alarm for reading in readings(quiet))
    rung = [row for row, reading in enumerate(readings(shifted)) if reading.alarm]
    assert rung[0] == 1000
    assert len(rung) < 4


def test_no_alarm_while_warming_up() -> None:
    spec = {"n": WARM_UP + 1, "seed": 6, "base": 20, "spike": 1e6}
    last = readings(generate(spec | {"spike_at": WARM_UP - 1}))[WARM_UP - 1]
    assert last.score >= THRESHOLD
    assert last.score > last.peak
    assert not last.alarm
    assert readings(generate(spec | {"spike_at": WARM_UP}))[WARM_UP].alarm


def test_an_alarm_beats_every_score_of_the_pause() -> None:
    values = generate({"n": 1300, "seed": 6, "base": 20, "spike_at": 1000, "spike": 60})
    values[1050] += 50
    seen = readings(values)
    assert seen[1000].alarm
    assert seen[1050].score >= THRESHOLD
    assert not seen[1050].alarm
    for row, reading in enumerate(seen[1:], 1):
        before = [other.score for other in seen[max(0, row - PAUSE) : row]]
        assert reading.peak == max(before)
        calm = [other.score for other in seen[max(0, row + 1 - CALM_ROWS) : row + 1]]
        assert reading.calm_peak == max(calm)


def test_a_constant_series_scores_nothing_until_it_moves() -> None:
    seen = readings([7.0] * 300 + [7.5])
    assert max(reading.score for reading in seen[:-1]) == 0.0
    assert seen[-1].alarm


def test_a_stuck_sensor_is_seen_by_its_spread() -> None:
    values = generate({"n": 1100, "seed": 3, "base": 20, "flat_at": 1000})
    rung = [reading for reading in readings(values) if reading.alarm]
    assert rung
    top = max(range(len(VIEWS)), key=lambda view: rung[0].surprises[view])
    assert VIEWS[top] == "spread"


def test_scale_and_origin_hardly_matter() -> None:
    values = generate({"n": 700, "seed": 9, "base": 0, "shift_at": 650, "shift": 30})
    plain = readings(values)
    scaled = readings([value * 1024.0 + 2.0**30 for value in values])
    assert [row for row, r in enumerate(plain) if r.alarm] == [
        row for row, r in enumerate(scaled) if r.alarm
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


# --- hours --------------------------------------------------------------------------------------


def daily(row: int) -> tuple[float, int]:
    """A series of one row in ten minutes that is high from 9 to 17 o'clock."""
    hour = row // 6 % HOURS
    noise = ((row * 7919) % 101 - 50) / 50
    return (60.0 if 9 <= hour < 17 else 20.0) + noise, hour


def test_what_is_usual_by_day_rings_at_night_where_rows_say_their_hour() -> None:
    def night(timed: bool) -> Reading:
        state = Ranks()
        for row in range(6 * HOURS * 10):
            value, hour = daily(row)
            state.observe(value, hour if timed else None)
        last = [state.observe(20.0, hour if timed else None) for hour in (0, 0, 1, 1)]
        return [*last, state.observe(60.0, 2 if timed else None)][-1]

    timed, plain = night(True), night(False)
    assert timed.surprises[1] > 2.5
    assert timed.score > plain.score
    assert plain.surprises[1] == plain.compared[1] == 0


def test_rows_without_an_hour_are_judged_as_if_there_were_no_such_view() -> None:
    values = generate({"n": 300, "seed": 5, "spike_at": 280, "spike": 30})
    plain = readings(values)
    assert all(r.values[1] == r.ranks[1] == r.surprises[1] == 0 for r in plain)
    assert plain[280].alarm


def test_an_hour_is_believed_from_its_third_value_on() -> None:
    hours = Hours()
    assert hours.distance(3, 10.0) is None
    assert hours.distance(3, 12.0) is None
    assert hours.distance(3, 14.0) == 3.0
    assert hours.distance(4, 14.0) is None


@pytest.mark.parametrize(
    ("time", "hour"),
    [
        ("2026-03-02T18:20:00Z", 18),
        ("2026-03-02T18:20:00+02:00", 16),
        ("2026-03-02 00:05:00", 0),
        ("1969-12-31T23:00:00Z", 23),
        ("yesterday", None),
        ("", None),
        (None, None),
    ],
)
def test_the_hour_of_an_instant_is_that_of_utc(time: str | None, hour: int | None) -> None:
    assert hour_of(time) == hour


# --- patience -----------------------------------------------------------------------------------


def test_a_series_that_rings_often_has_to_ring_louder() -> None:
    values = generate({"n": 1500, "seed": 6})
    for number, row in enumerate(range(1000, 1500, 101)):
        values[row] += 12.0 * 2**number
    rung = [reading for reading in readings(values) if reading.alarm]
    needed = [reading.needed for reading in rung]
    assert len(needed) > 3
    assert needed[0] == THRESHOLD
    assert needed == sorted(needed)
    assert needed[-1] > THRESHOLD + 0.5


def test_what_raised_the_threshold_is_forgotten() -> None:
    patience = AlarmThreshold()
    assert patience.observe(9.0, 0.0, WARM_UP + 1, THRESHOLD)
    assert patience.required_score(THRESHOLD) == THRESHOLD
    low = THRESHOLD + 0.5 * RAISE
    assert not patience.observe(low, 0.0, WARM_UP + 2, THRESHOLD)
    rows = int(FORGET)
    for row in range(rows):
        patience.observe(0.0, 0.0, WARM_UP + 3 + row, THRESHOLD)
    assert patience.required_score(THRESHOLD) - THRESHOLD == pytest.approx(RAISE / math.e, rel=0.01)
    assert patience.observe(low, 0.0, WARM_UP + 3 + rows, THRESHOLD)


def test_the_last_alarm_is_known_for_as_long_as_the_pause() -> None:
    patience = AlarmThreshold()
    assert patience.last_alarm_score(WARM_UP) == 0.0
    assert patience.observe(9.0, 0.0, WARM_UP + 1, THRESHOLD)
    assert (
        patience.last_alarm_score(WARM_UP + 1) == patience.last_alarm_score(WARM_UP + PAUSE) == 9.0
    )
    assert patience.last_alarm_score(WARM_UP + 1 + PAUSE) == 0.0
