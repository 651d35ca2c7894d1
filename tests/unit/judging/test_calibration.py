from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vedette.judging.calibration import Curve, expected_error, fit_curve
from vedette.judging.series import generate


def test_a_curve_is_read_between_and_beyond_its_points() -> None:
    curve = Curve(((1.0, 0.2), (3.0, 0.6), (4.0, 0.6)))
    assert [curve.at(score) for score in (0.0, 1.0, 2.0, 3.5, 9.0)] == [
        0.2,
        0.2,
        pytest.approx(0.4),
        pytest.approx(0.6),
        0.6,
    ]


@pytest.mark.parametrize(
    "points",
    [(), ((1.0, 1.2),), ((1.0, -0.1),), ((2.0, 0.1), (1.0, 0.2)), ((1.0, 0.5), (2.0, 0.4))],
)
def test_a_curve_that_falls_or_leaves_0_to_1_is_refused(
    points: tuple[tuple[float, float], ...],
) -> None:
    with pytest.raises(ValueError, match=r"point|probability"):
        Curve(points)


def test_a_charter_may_hold_numbers_or_their_text() -> None:
    assert Curve.read([["1.5", "0.25"], [2, 0.5]]) == Curve(((1.5, 0.25), (2.0, 0.5)))
    with pytest.raises(ValueError, match="pair"):
        Curve.read([["1.5"]])
    with pytest.raises(ValueError, match="pair"):
        Curve.read([["1.5", "high"]])


@settings(deadline=None)
@given(
    cases=st.lists(
        st.tuples(st.integers(0, 20).map(float), st.booleans()), min_size=1, max_size=80
    ),
    least=st.integers(1, 20),
)
def test_a_fit_never_falls_and_never_is_certain(
    cases: list[tuple[float, bool]], least: int
) -> None:
    curve = fit_curve([score for score, _ in cases], [right for _, right in cases], least=least)
    shares = [share for _, share in curve.points]
    assert all(left <= right for left, right in itertools.pairwise(shares))
    assert shares[0] > 0.0
    assert shares[-1] < 1.0


def test_the_order_of_cases_does_not_matter() -> None:
    draw = random.Random(1)
    cases = [(float(draw.randint(0, 30)), draw.random() < 0.5) for _ in range(200)]
    curves = set()
    for _ in range(4):
        draw.shuffle(cases)
        curves.add(fit_curve([s for s, _ in cases], [r for _, r in cases]))
    assert len(curves) == 1


def test_a_fit_is_calibrated_on_fresh_cases_and_a_lie_is_not() -> None:
    draw = random.Random(7)

    def cases(count: int) -> tuple[list[float], list[bool]]:
        scores = [draw.uniform(0, 10) for _ in range(count)]
        return scores, [draw.random() < score / 10 for score in scores]

    curve = fit_curve(*cases(4000))
    scores, right = cases(4000)
    assert expected_error([curve.at(score) for score in scores], right) < 0.03
    assert expected_error([0.99] * len(right), right) > 0.4


def test_nothing_to_fit_or_to_measure_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        fit_curve([], [])
    with pytest.raises(ValueError, match="at least one"):
        fit_curve([1.0], [True, False])
    with pytest.raises(ValueError, match="at least one"):
        expected_error([], [])


def test_series_are_seeded_and_hold_their_faults() -> None:
    plain = generate({"n": 50, "seed": 3, "base": 10})
    assert plain == generate({"n": 50, "seed": 3, "base": 10})
    assert plain != generate({"n": 50, "seed": 4, "base": 10})
    spec = {"n": 50, "seed": 3, "base": 10, "shift_at": 20, "shift_until": 30, "shift": 5}
    other_series = generate(spec)
    changed = [row for row in range(50) if other_series[row] != plain[row]]
    assert changed == list(range(20, 30))
    stuck = generate({"n": 50, "seed": 3, "base": 10, "flat_at": 20, "flat_until": 30})
    assert set(stuck[19:30]) == {plain[19]}
    assert stuck[30:] == plain[30:]
    spiked = generate({"n": 50, "seed": 3, "base": 10, "spike_at": 7, "spike": 4})
    assert [row for row in range(50) if spiked[row] != plain[row]] == [7]


@pytest.mark.parametrize("spec", [{}, {"n": 3, "shfit": 1}])
def test_a_series_that_is_not_understood_is_refused(spec: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="series"):
        generate(spec)
