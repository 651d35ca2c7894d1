"""Calibrated confidence: from a raw score to the probability of being right.

A curve is a few points, fitted offline and written down where it can be reviewed; at run time it
is only read. Of the cases judged at 0.9, nine in ten are to be right: `expected_error` says by how
much a curve misses that. A bank of examples fits its own map from what it says of each example
when that one is left out (`examples.ExampleBank`).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec import Struct

Floats = npt.NDArray[np.float64]

# Prior of the logistic map: weights are drawn to it while examples are few. With the scores of
# a bank (0..1) as input it says: half sure at 0.35, sure above 0.7.
PRIOR = np.array([-3.0, 6.0, 3.0, 2.0])
PRIOR_STRENGTH = 0.3


class Curve(Struct, frozen=True):
    """A calibration curve: non-decreasing, piecewise linear, flat beyond its ends.

    `points` are (score, probability), scores strictly growing. Raises ValueError if they are not,
    or if a probability is outside 0..1 or smaller than the one before.
    """

    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        if not self.points:
            raise ValueError("a calibration curve needs at least one point")
        last = None
        for score, probability in self.points:
            if not 0.0 <= probability <= 1.0:
                raise ValueError(f"probability {probability} at score {score} is not within 0..1")
            if last is not None and not (score > last[0] and probability >= last[1]):
                raise ValueError(f"point ({score}, {probability}) does not grow on {last}")
            last = (score, probability)

    @classmethod
    def read(cls, rows: Iterable[Sequence[object]]) -> Curve:
        """Return the curve of rows as a charter holds them: pairs of numbers or of their text.

        Raises ValueError naming the row that is no pair of numbers.
        """
        points = []
        for row in rows:
            try:
                score, probability = row
                points.append((float(str(score)), float(str(probability))))
            except (TypeError, ValueError) as error:
                raise ValueError(f"{row!r} is not a pair of score and probability") from error
        return cls(tuple(points))

    def at(self, score: float) -> float:
        """Return the probability of being right at this score."""
        points = self.points
        place = bisect_right(points, score, key=lambda point: point[0])
        if place == 0:
            return points[0][1]
        if place == len(points):
            return points[-1][1]
        (left, low), (right, high) = points[place - 1], points[place]
        return low + (high - low) * (score - left) / (right - left)


def fit_curve(scores: Sequence[float], right: Sequence[bool], *, least: int = 10) -> Curve:
    """Fit a curve to judged cases by pooling adjacent violators (Ayer and others, 1955).

    The curve is level over each group's scores and rises between groups. Groups of fewer than
    `least` cases are pooled with a neighbour, and each group's share of right cases is drawn
    towards one half by one case of each kind (Laplace), so that a handful of lucky cases never
    reads as certainty. Raises ValueError without cases or with unequal lengths.
    """
    if not scores or len(scores) != len(right):
        raise ValueError("a curve is fitted to as many verdicts as scores, and at least one")
    # Equal scores are one group from the start, or their order would matter.
    groups: list[_Group] = []
    for score, hit in sorted(zip(scores, map(int, right), strict=True)):
        case = _Group(1, hit, score, score)
        if groups and groups[-1].high == score:
            groups[-1] = groups[-1].with_next(case)
        else:
            groups.append(case)
    points: list[tuple[float, float]] = []
    for group in _pool_small(_pool_violators(groups), least):
        # Shrinking a small group may put it below its neighbour again.
        share = max((group.right + 1) / (group.cases + 2), points[-1][1] if points else 0.0)
        points.append((group.low, share))
        if group.high > group.low:
            points.append((group.high, share))
    return Curve(tuple(points))


def expected_error(confidences: Sequence[float], right: Sequence[bool], *, bins: int = 10) -> float:
    """Return the expected calibration error: the mean gap between confidence and share right.

    Cases are put into `bins` bins of equal width; each bin counts by its cases. 0 is perfect.
    """
    if not confidences or len(confidences) != len(right):
        raise ValueError("give as many verdicts as confidences, and at least one")
    sums = [[0.0, 0.0] for _ in range(bins)]
    for confidence, hit in zip(confidences, right, strict=True):
        cell = sums[min(bins - 1, max(0, int(confidence * bins)))]
        cell[0] += confidence
        cell[1] += float(hit)
    return sum(abs(said - was) for said, was in sums) / len(confidences)


def conformal_threshold(
    confidences: Sequence[float], right: Sequence[bool], share: float
) -> float | None:
    """Return the least confidence above which `share` of verdicts can be promised to be right.

    The promise counts one error more than was seen, (errors + 1) / (n + 1) <= 1 - share (the
    conformal rule): few cases cannot support a high promise, and then there is none: None.
    """
    best: float | None = None
    errors = 0
    ordered = sorted(zip(confidences, right, strict=True), reverse=True)
    for count, (confidence, hit) in enumerate(ordered, start=1):
        errors += not hit
        last = count == len(ordered) or ordered[count][0] < confidence
        if last and (errors + 1) / (count + 1) <= 1 - share + 1e-12:
            best = confidence
    return best


def confidence_features(scores: Floats) -> Floats:
    """Return what a bank's confidence is read from: 1, top score, margin, square root of margin."""
    ordered = np.sort(scores)[::-1]
    top = float(ordered[0])
    margin = top - float(ordered[1]) if ordered.size > 1 else top
    return np.array([1.0, top, margin, math.sqrt(max(0.0, margin))])


def fit_logistic(facts: Floats, right: npt.NDArray[np.bool_]) -> Floats:
    """Fit P(right) = sigmoid(facts . w) by damped Newton, drawn to the prior weights.

    The loss is strictly convex, but a full Newton step can overshoot and then diverge to a map
    that is sure of everything: a step counts only if the loss falls (Armijo's rule). Raises
    ArithmeticError should it not settle, since a wrong map is worse than none.
    """
    outcome = right.astype(np.float64)

    def loss(weights: Floats) -> float:
        logits = facts @ weights
        drawn = weights - PRIOR
        fit = float(np.sum(np.logaddexp(0.0, logits) - outcome * logits))
        return fit + PRIOR_STRENGTH / 2 * float(drawn @ drawn)

    weights = PRIOR.copy()
    for _ in range(100):
        chance = 1 / (1 + np.exp(-np.clip(facts @ weights, -500, 500)))
        gradient = facts.T @ (chance - outcome) + PRIOR_STRENGTH * (weights - PRIOR)
        if float(np.abs(gradient).max()) < 1e-7:
            return weights
        curvature = (facts * (chance * (1 - chance))[:, None]).T @ facts
        step = np.linalg.solve(curvature + PRIOR_STRENGTH * np.eye(weights.size), gradient)
        now, slope, share = loss(weights), float(gradient @ step), 1.0
        # Below this the loss cannot tell two points apart, and Newton is in its quadratic end.
        while slope > 1e-10 and loss(weights - share * step) > now - 1e-4 * share * slope:
            share /= 2
        weights = weights - share * step
    raise ArithmeticError("the calibration of the example bank does not settle")


class _Group(NamedTuple):
    """Cases of neighbouring scores, from `low` to `high`, that share one probability."""

    cases: int
    right: int
    low: float
    high: float

    def with_next(self, other: _Group) -> _Group:
        return _Group(self.cases + other.cases, self.right + other.right, self.low, other.high)


def _pool_violators(groups: Sequence[_Group]) -> list[_Group]:
    pooled: list[_Group] = []
    for group in groups:
        pooled.append(group)
        while len(pooled) > 1 and (
            pooled[-2].right * pooled[-1].cases >= pooled[-1].right * pooled[-2].cases
        ):
            last = pooled.pop()
            pooled[-1] = pooled[-1].with_next(last)
    return pooled


def _pool_small(groups: Sequence[_Group], least: int) -> list[_Group]:
    """Pool groups that are too small with the next one, the last with the one before."""
    pooled: list[_Group] = []
    for group in groups:
        if pooled and pooled[-1].cases < least:
            pooled[-1] = pooled[-1].with_next(group)
        else:
            pooled.append(group)
    if len(pooled) > 1 and pooled[-1].cases < least:
        last = pooled.pop()
        pooled[-1] = pooled[-1].with_next(last)
    return pooled
