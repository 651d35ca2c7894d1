"""The example bank: a judge of texts that is nothing but reviewed examples.

Exact kernel ridge regression over labelled texts with a lexical kernel,

    k(x, x') = (w . w' + c . c') / 2
    alpha = (K + lam I)^-1 Y,   score(x) = k(x) alpha,
    leave-one-out score of example i:  Y_i - alpha_i / ((K + lam I)^-1)_ii

where w are the word 1-2-grams and c the character 3-5-grams inside words, each with weight
(1 + log tf) idf and unit length (Rasmussen and Williams 2006, section 5.4.2 for the closed form).
The leave-one-out rows cost nothing more and are what the confidence is calibrated on.
Adding, changing or removing one example changes the judge at once.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from zlib import crc32

import numpy as np
import numpy.typing as npt

from vedette.judging.text import fold, tokens
from vedette.memory import Memory

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

TEXT_LIMIT = 3_000  # characters of a text that are looked at
_BUCKETS = 1 << 18  # hashed features per block; collisions are few and harmless at this size
_LAMBDA = 0.1
_WORD_CACHE = 50_000
# Prior of the calibration: weights are drawn to it while examples are few. With the scores of
# a ridge (0..1) as input it says: half sure at 0.35, sure above 0.7.
_PRIOR = np.array([-3.0, 6.0, 3.0, 2.0])
_PRIOR_STRENGTH = 0.3


@dataclass(frozen=True, slots=True)
class Example:
    """One labelled text. `id` names it in explanations."""

    id: str
    label: str
    text: str


@dataclass(frozen=True, slots=True)
class Near:
    """An example near a text: its similarity 0..1 and its weight in the winning score."""

    id: str
    label: str
    similarity: float
    weight: float


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the bank says: `scores` best first, `nearest` most similar first."""

    label: str
    confidence: float
    scores: tuple[tuple[str, float], ...]
    nearest: tuple[Near, ...]
    similarity: float


class ExampleBank:
    """Predicts a label from the most similar examples. Deterministic; thread-safe once built."""

    def __init__(self, examples: Sequence[Example], about: Mapping[str, str] | None = None) -> None:
        """Train on `examples` (cubic in their number; 1,000 take about half a second).

        `about` says in words what a label is for; it counts as one more example of the label,
        which helps most while examples are few, but the calibration rests on `examples` alone.
        Raises ValueError without examples.
        """
        if not examples:
            raise ValueError("an example bank needs examples")
        described = [Example(f"about:{k}", k, text) for k, text in sorted((about or {}).items())]
        real = _distinct(examples)
        # The real examples come first: rows up to `_real` are what is calibrated on.
        self.examples = (*real, *described)
        self._real = len(real)
        self.labels = tuple(sorted({example.label for example in self.examples}))
        self._words: dict[str, array[int]] = {}
        rows = [self._counts(example.text) for example in self.examples]
        self._fit_idf(rows)
        self._index([self._weigh(row) for row in rows])
        kernel = np.stack([self._similar(self._weigh(row)) for row in rows])
        self._fit(kernel)

    @classmethod
    def of(cls, lessons: Sequence[Memory], about: Mapping[str, str] | None = None) -> ExampleBank:
        """Build a bank of the memories that are labelled examples."""
        return cls(
            [
                Example(lesson.id, lesson.label, lesson.text)
                for lesson in lessons
                if lesson.kind == "example" and lesson.label
            ],
            about,
        )

    def predict(
        self, text: str, *, evidence: Mapping[str, float] | None = None, nearest: int = 3
    ) -> Prediction:
        """Return the label of `text` with a calibrated confidence and what speaks for it.

        `evidence` is added to the score of a label: what is known of the case beside its text.
        """
        similar = self._similar(self._weigh(self._counts(text)))
        scores = similar @ self._alpha
        for label, amount in (evidence or {}).items():
            if label in self.labels:
                scores[self.labels.index(label)] += amount
        order = np.argsort(-scores, kind="stable")
        best = int(order[0])
        close = np.argsort(-similar, kind="stable")[:nearest]
        top = float(similar[close[0]])
        return Prediction(
            label=self.labels[best],
            confidence=self._confidence(scores, top),
            scores=tuple((self.labels[i], float(scores[i])) for i in order[:3]),
            nearest=tuple(
                Near(
                    self.examples[i].id,
                    self.examples[i].label,
                    float(similar[i]),
                    float(similar[i] * self._alpha[i, best]),
                )
                for i in close
            ),
            similarity=top,
        )

    def left_out(self) -> tuple[Prediction, ...]:
        """Return what the bank says of each example when that example is left out."""
        return tuple(
            Prediction(
                label=self.labels[int(np.argmax(row))],
                confidence=self._confidence(row, float(self._loo_similar[i])),
                scores=tuple(sorted(zip(self.labels, map(float, row), strict=True))),
                nearest=(),
                similarity=float(self._loo_similar[i]),
            )
            for i, row in enumerate(self._loo[: self._real])
        )

    # --- training ----------------------------------------------------------------------------

    def _fit_idf(self, rows: Sequence[tuple[Ints, Ints]]) -> None:
        self._idf: list[Floats] = []
        for block in (0, 1):
            seen: Ints = np.zeros(_BUCKETS, dtype=np.int64)
            for row in rows:
                seen[np.unique(row[block])] += 1
            self._idf.append(np.log((len(rows) + 1) / (seen + 1)) + 1)

    def _index(self, rows: Sequence[tuple[tuple[Ints, Floats], ...]]) -> None:
        """Lay the examples out by feature, so that a text costs only the features it has."""
        self._start: list[Ints] = []
        self._rows: list[Ints] = []
        self._values: list[Floats] = []
        for block in (0, 1):
            features = np.concatenate([row[block][0] for row in rows])
            values = np.concatenate([row[block][1] for row in rows])
            owner = np.repeat(np.arange(len(rows)), [row[block][0].size for row in rows])
            order = np.argsort(features, kind="stable")
            self._rows.append(owner[order])
            self._values.append(values[order])
            ends = np.cumsum(np.bincount(features, minlength=_BUCKETS))
            self._start.append(np.concatenate([np.zeros(1, dtype=np.int64), ends]))

    def _fit(self, kernel: Floats) -> None:
        size = len(self.examples)
        place = {label: i for i, label in enumerate(self.labels)}
        labels = np.array([place[example.label] for example in self.examples])
        target = np.zeros((size, len(self.labels)))
        target[np.arange(size), labels] = 1.0
        inverse = np.linalg.inv(kernel + _LAMBDA * np.eye(size))
        self._alpha: Floats = inverse @ target
        self._loo: Floats = target - self._alpha / np.diag(inverse)[:, None]
        others = kernel - 2 * np.eye(size)
        self._loo_similar: Floats = others.max(axis=1) if size > 1 else np.zeros(1)
        right = (self._loo.argmax(axis=1) == labels)[: self._real]
        # What is far from every example is unlike all that the calibration was fitted on.
        self._near = float(np.quantile(np.clip(self._loo_similar[: self._real], 0, 1), 0.1))
        self._map = _logistic(np.stack([_facts(row) for row in self._loo[: self._real]]), right)
        # Rule of succession: n examples without an error do not prove more than this.
        self._ceiling = (self._real + 1) / (self._real + 2)

    def _confidence(self, scores: Floats, similarity: float) -> float:
        logit = float(_facts(scores) @ self._map)
        sure = 1 / (1 + math.exp(-max(-30.0, min(30.0, logit))))
        if similarity < self._near:
            sure *= max(0.0, similarity) / self._near
        return min(sure, self._ceiling)

    # --- features ----------------------------------------------------------------------------

    def _counts(self, text: str) -> tuple[Ints, Ints]:
        """Return the hashed word and character features of a text, repeats included."""
        words = tokens(fold(text[: TEXT_LIMIT * 2])[:TEXT_LIMIT])
        grams = [_bucket(word) for word in words]
        grams.extend(_bucket(f"{left} {right}") for left, right in pairwise(words))
        characters = array("q")
        for word, times in Counter(words).items():
            characters.extend(self._characters(word) * times)
        return np.array(grams, dtype=np.int64), np.array(characters, dtype=np.int64)

    def _characters(self, word: str) -> array[int]:
        known = self._words.get(word)
        if known is None:
            inner = f" {word} "
            known = array(
                "q",
                (
                    _bucket(inner[at : at + length])
                    for length in (3, 4, 5)
                    for at in range(len(inner) - length + 1)
                ),
            )
            if len(self._words) < _WORD_CACHE:
                self._words[word] = known
        return known

    def _weigh(self, counts: tuple[Ints, Ints]) -> tuple[tuple[Ints, Floats], ...]:
        blocks = []
        for block, features in enumerate(counts):
            found, times = np.unique(features, return_counts=True)
            weights = (1 + np.log(times)) * self._idf[block][found]
            length = float(np.sqrt(weights @ weights))
            blocks.append((found, weights / length if length else weights))
        return tuple(blocks)

    def _similar(self, blocks: tuple[tuple[Ints, Floats], ...]) -> Floats:
        """Return k(x, example) for every example, 0..1."""
        total = np.zeros(len(self.examples))
        for block, (features, weights) in enumerate(blocks):
            start = self._start[block]
            first, count = start[features], start[features + 1] - start[features]
            wanted = count > 0
            first, count, weights = first[wanted], count[wanted], weights[wanted]
            if not count.size:
                continue
            offsets = np.repeat(first - np.cumsum(count) + count, count)
            at = offsets + np.arange(int(count.sum()))
            parts = self._values[block][at] * np.repeat(weights, count)
            total += np.bincount(self._rows[block][at], weights=parts, minlength=total.size)
        return total / 2


def _distinct(examples: Sequence[Example]) -> list[Example]:
    """Return the examples by id, each text once per label.

    A repeated example stays behind when its twin is left out, so that leave-one-out would prove
    nothing and the calibration would measure how well the bank knows its own texts.
    """
    found: dict[tuple[str, str], Example] = {}
    for example in sorted(examples, key=lambda example: (example.id, example.label)):
        found.setdefault((example.label, fold(example.text)), example)
    return list(found.values())


def _bucket(feature: str) -> int:
    return crc32(feature.encode("utf-8", "surrogatepass")) & (_BUCKETS - 1)


def _facts(scores: Floats) -> Floats:
    """Return what the confidence is read from: 1, top score, margin, square root of margin."""
    ordered = np.sort(scores)[::-1]
    top = float(ordered[0])
    margin = top - float(ordered[1]) if ordered.size > 1 else top
    return np.array([1.0, top, margin, math.sqrt(max(0.0, margin))])


def _logistic(facts: Floats, right: npt.NDArray[np.bool_]) -> Floats:
    """Fit P(right) = sigmoid(facts . w) by damped Newton, drawn to the prior weights.

    The loss is strictly convex, but a full Newton step can overshoot and then diverge to a map
    that is sure of everything: a step counts only if the loss falls (Armijo's rule). Raises
    ArithmeticError should it not settle, since a wrong map is worse than none.
    """
    outcome = right.astype(np.float64)

    def loss(weights: Floats) -> float:
        logits = facts @ weights
        drawn = weights - _PRIOR
        fit = float(np.sum(np.logaddexp(0.0, logits) - outcome * logits))
        return fit + _PRIOR_STRENGTH / 2 * float(drawn @ drawn)

    weights = _PRIOR.copy()
    for _ in range(100):
        chance = 1 / (1 + np.exp(-np.clip(facts @ weights, -500, 500)))
        gradient = facts.T @ (chance - outcome) + _PRIOR_STRENGTH * (weights - _PRIOR)
        if float(np.abs(gradient).max()) < 1e-7:
            return weights
        curvature = (facts * (chance * (1 - chance))[:, None]).T @ facts
        step = np.linalg.solve(curvature + _PRIOR_STRENGTH * np.eye(weights.size), gradient)
        now, slope, share = loss(weights), float(gradient @ step), 1.0
        # Below this the loss cannot tell two points apart, and Newton is in its quadratic end.
        while slope > 1e-10 and loss(weights - share * step) > now - 1e-4 * share * slope:
            share /= 2
        weights = weights - share * step
    raise ArithmeticError("the calibration of the example bank does not settle")
