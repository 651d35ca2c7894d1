"""The kernel machine against its own optimum, found slowly and by other means."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from vedette.judging import kernel_svm

Floats = npt.NDArray[np.float64]
LABELS, EACH, LAM = 12, 6, 0.25


def kernel(seed: int) -> tuple[Floats, npt.NDArray[np.int64]]:
    """Return cosines of rows that share most of what they say with rows of other labels."""
    random = np.random.default_rng(seed)
    places = np.repeat(np.arange(LABELS), EACH)
    rows = random.random((places.size, 60)) + 0.8 * random.random((LABELS, 60))[places]
    rows /= np.linalg.norm(rows, axis=1)[:, None]
    return rows @ rows.T, places


def optimum(similar: Floats, places: npt.NDArray[np.int64], label: int, level: float) -> Floats:
    """Return f of every row at the least squared hinge of one label, by Newton on active rows.

    The loss is a'Ka/2 + sum over rows of max(0, 1 - y f)^2 / (2 lam) with f = level + K a: at its
    least, rows beyond their target carry nothing and the others carry (y - f) / lam.
    """
    sign = np.where(places == label, 1.0, -1.0)
    active = np.ones(places.size, bool)
    for _ in range(100):
        at = np.flatnonzero(active)
        inner = similar[np.ix_(at, at)] + LAM * np.eye(at.size)
        solution = np.linalg.solve(inner, sign[at] - level)
        reached: Floats = level + similar[:, at] @ solution
        now = sign * reached < 1
        if (now == active).all():
            return reached
        active = now
    raise AssertionError("the active rows do not settle")


@pytest.mark.parametrize("seed", range(3))
def test_scores_are_those_of_the_squared_hinge_with_a_level_for_each_label(seed: int) -> None:
    """Control: with the level at 0, as if labels were as often given as not, they are others."""
    similar, places = kernel(seed)
    found = kernel_svm.KernelSVM(similar.copy(), np.full(places.size, LAM), places, LABELS)
    everywhere = np.linalg.solve(similar + LAM * np.eye(places.size), np.ones(places.size))
    explained = similar @ (2 * found.alpha - everywhere[:, None])
    for label in range(LABELS):
        level = 2 / LABELS - 1
        # alpha is that of targets from 0 to 1; what the level takes away is given back here.
        said = level + explained[:, label] - level * (similar @ everywhere)
        assert said == pytest.approx(optimum(similar, places, label, level), abs=0.02)
        assert said != pytest.approx(optimum(similar, places, label, 0.0), abs=0.02)
