"""The measures of eval-real, in numpy: accuracy by coverage, calibration, ranking, intervals."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


def coverage(confidence: Floats, right: Bools, share: float) -> float:
    """Return the largest share of cases, surest first, of which `share` are right."""
    order = np.argsort(-confidence, kind="stable")
    hits = np.cumsum(right[order]) / np.arange(1, right.size + 1)
    good = np.flatnonzero(hits >= share)
    return float(good[-1] + 1) / right.size if good.size else 0.0


def below_curve(scores: Floats, positive: Bools) -> float:
    """Return the area under the ROC curve: how often a positive scores above a negative."""
    order = np.argsort(scores, kind="stable")
    ordered = scores[order]
    ranks = np.empty(scores.size)
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    sizes = np.diff(np.r_[starts, scores.size])
    ranks[order] = np.repeat(starts + (sizes + 1) / 2, sizes)
    ups, downs = int(positive.sum()), int((~positive).sum())
    return float((ranks[positive].sum() - ups * (ups + 1) / 2) / (ups * downs))


def average_precision(scores: Floats, positive: Bools) -> float:
    """Return the area under the precision-recall curve by steps (ties share one step)."""
    order = np.argsort(-scores, kind="stable")
    hits = np.cumsum(positive[order])
    last = np.r_[scores[order][1:] != scores[order][:-1], True]
    ends = np.flatnonzero(last)
    found = hits[ends]
    gained = np.diff(np.r_[0, found])
    return float((found / (ends + 1) * gained).sum() / positive.sum())


def caught(scores: Floats, spam: Bools, lost: float) -> float:
    """Return the share of spam above the bar that loses at most `lost` of the ham."""
    ham = np.sort(scores[~spam])[::-1]
    bar = ham[int(lost * ham.size)]
    return float((scores[spam] > bar).mean())


def interval(
    measure: Callable[[npt.NDArray[np.int64]], float], count: int, draws: int = 400
) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of a measure over case numbers drawn with repeats."""
    random = np.random.default_rng(7)
    found = [measure(random.integers(count, size=count)) for _ in range(draws)]
    low, high = np.quantile(found, (0.025, 0.975))
    return float(low), float(high)
