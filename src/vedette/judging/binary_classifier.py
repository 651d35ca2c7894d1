"""A binary classifier with a calibrated chance: an example bank of two labels, one logistic curve.

The curve is fitted to the leave-one-out scores of the examples, with targets drawn in (Platt,
1999), so that a bank without an error never claims certainty.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from vedette.judging.examples import Example, ExampleBank
from vedette.judging.features import Lexicon
from vedette.judging.side_features import Extra
from vedette.judging.text import fold

YES, NO = "yes", "no"
_SLOPE = 5.0  # what the curve is drawn to while examples are few
_STRENGTH = 1e-3


class Chance(NamedTuple):
    """How likely a classifier's answer is yes, 0..1; `score` is what the chance was read from."""

    chance: float
    score: float


class BinaryClassifier:
    """Says how likely a text is of the kind that its `yes` examples are of."""

    def __init__(
        self,
        examples: Sequence[Example],
        *,
        extra: Extra | None = None,
        read: Callable[[str], str] = fold,
        balance: bool = False,
        curve: float = 1.0,
        unsure: frozenset[str] = frozenset(),
        lexicon: Lexicon | None = None,
    ) -> None:
        """Learn from examples labelled `yes` and `no`; the rest is as for `ExampleBank`.

        `unsure` are ids of examples whose label is a guess: learnt from, but not calibrated on.
        Raises ValueError where there is no example of one of the two.
        """
        if {example.label for example in examples} != {YES, NO}:
            raise ValueError("a yes-or-no bank needs examples of yes and of no")
        self._bank = ExampleBank(
            examples, extra=extra, read=read, balance=balance, curve=curve, lexicon=lexicon
        )
        self._no, self._yes = (self._bank.labels.index(label) for label in (NO, YES))
        left = [dict(row.scores) for row in self._bank.left_out()]
        sure = [example.id not in unsure for example in self._bank.reviewed]
        scores = np.array([row[YES] - row[NO] for row in left])[sure]
        self._is_yes = np.array([example.label == YES for example in self._bank.reviewed])[sure]
        self._slope, self._level = _fit(scores, self._is_yes)
        self._left_out_chances = [self._chance(float(score)) for score in scores]

    def chance(self, text: str, facts: Mapping[str, Any] | None = None) -> Chance:
        """Return how likely `text` is a yes; `facts` is what `Extra` reads beside it."""
        found = dict(self._bank.predict(text, facts=facts).scores)
        score = found[YES] - found[NO]
        return Chance(self._chance(score), score)

    def bar(self, spared: float) -> float:
        """Return the chance above which at most `1 - spared` of the `no` examples lie.

        One error more than was seen is counted where the examples are many enough to allow one.
        """
        no = np.sort(
            [one for one, yes in zip(self._left_out_chances, self._is_yes, strict=True) if not yes]
        )
        allowed = math.floor((1 - spared) * (no.size + 1))
        return float(no[max(0, no.size - max(1, allowed))])

    def _chance(self, score: float) -> float:
        return 1 / (1 + math.exp(-max(-30.0, min(30.0, self._slope * score + self._level))))


def _fit(scores: npt.NDArray[np.float64], yes: npt.NDArray[np.bool_]) -> tuple[float, float]:
    """Fit P(yes) = sigmoid(slope score + level) by Newton's method in short steps."""
    ups, downs = int(yes.sum()), int((~yes).sum())
    target = np.where(yes, (ups + 1) / (ups + 2), 1 / (downs + 2))
    slope, level = _SLOPE, 0.0
    for _ in range(200):
        chance = 1 / (1 + np.exp(-np.clip(slope * scores + level, -30, 30)))
        off, weight = chance - target, chance * (1 - chance) + 1e-9
        drawn = _STRENGTH * (slope - _SLOPE)
        gradient = np.array([float(off @ scores) + drawn, float(off.sum())])
        across = float(weight @ scores)
        inner = float(weight @ scores**2) + _STRENGTH
        step = np.linalg.solve(
            np.array([[inner, across], [across, float(weight.sum()) + 1e-9]]), gradient
        )
        step /= max(1.0, float(np.abs(step).max()))
        slope, level = slope - float(step[0]), level - float(step[1])
        if float(np.abs(step).max()) < 1e-9:
            break
    return slope, level
