"""The example bank: a judge of texts that is nothing but reviewed examples.

A kernel machine over labelled texts (`ridge`) with the kernel

    k(x, x') = (exp(c l.l') - 1) / (exp(c) - 1) + w exp(-2 (1 - e.e')) + v exp(-|s - s'|^2 / 2)

where l are lexical features (`features`), e optional dense vectors of unit length and s optional
further facts, standardised, their squared distance as a mean over facts. Leave-one-out scores are
closed-form and are what the confidence is calibrated on. Adding, relabelling or removing one
example changes the judge at once, and equals building it anew with the same weights of features.
Scores run from 0 (like nothing here, or surely not) to 1 (as sure as the label's own examples).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field
from msgspec.structs import replace

from vedette.domain.base.dataclass_fields import DataclassFields
from vedette.domain.memory import Memory
from vedette.judging.calibration import (
    confidence_features,
    conformal_threshold,
    fit_logistic,
)
from vedette.judging.features import TEXT_LIMIT, Floats, Lexicon, Rows
from vedette.judging.kernel_svm import KernelSVM
from vedette.judging.side_features import Dense, Extra, Facts
from vedette.judging.text import fold

LAMBDA = 0.1
LAMBDA_CORRECTED = 0.05  # of an example that a person corrected: it is to be believed
CHANGEABLE_ROWS = 2_500  # above it one change costs as much as many: a bank is built anew
_FAMILIAR = 5  # nearest examples that say how familiar a text is
_STRANGE = 0.03  # of the examples are farther from the others than what is believed in full


class Example(Struct, frozen=True):
    """One labelled text of an example bank. `id` names it in explanations.

    `lam` is how much it may be doubted (`LAMBDA`); `facts` is what `Extra` reads beside the text.
    """

    __dataclass_fields__ = DataclassFields()

    id: str
    label: str
    text: str
    lam: float = LAMBDA
    facts: Mapping[str, Any] = field(default_factory=dict)


class Near(Struct, frozen=True):
    """An example near a text: its similarity 0..1 and its weight in the winning score."""

    __dataclass_fields__ = DataclassFields()

    id: str
    label: str
    similarity: float
    weight: float


class Prediction(Struct, frozen=True):
    """What an example bank says of a text: `scores` best first, `nearest` most similar first.

    `familiar` is best score + 2 x mean similarity of the five nearest: low for what belongs to no
    label (out of scope). It is compared, not read as a probability.
    """

    __dataclass_fields__ = DataclassFields()

    label: str
    confidence: float
    scores: tuple[tuple[str, float], ...]
    nearest: tuple[Near, ...]
    similarity: float
    familiar: float = 0.0


class ExampleBank:
    """Predicts a label from the most similar examples. Deterministic.

    `predict` may be called by many threads, but not while `add`, `relabel` or `remove` runs.
    """

    def __init__(
        self,
        examples: Sequence[Example],
        about: Mapping[str, str] | None = None,
        *,
        extra: Extra | None = None,
        dense: Dense | None = None,
        read: Callable[[str], str] = fold,
        balance: bool = False,
        curve: float = 1.0,
        limit: int = TEXT_LIMIT,
        lexicon: Lexicon | None = None,
    ) -> None:
        """Train on `examples` (cubic in their number; 1,000 take about half a second).

        `about` says in words what a label is for; it counts as one more example of the label,
        which helps most while examples are few, but the calibration rests on `examples` alone.
        `read` turns a text into what is compared (a normaliser may be put before `fold`).
        `balance` doubts examples of frequent labels more, so that a rare label is heard.
        `curve` c bends the lexical kernel; 0 leaves it straight, which suits paragraphs, pages and
        some thirty examples of a label and more (then with `lam` 0.25).
        `lexicon` holds weights of features learnt elsewhere; without it the examples tell them.
        Above 2,500 examples the bank is rebuilt, not changed one by one; 8,600 take 0.9 GB.
        Raises ValueError without examples.
        """
        if not examples:
            raise ValueError("an example bank needs examples")
        described = [Example(f"about:{k}", k, text) for k, text in sorted((about or {}).items())]
        self._description_ids = frozenset(example.id for example in described)
        self.examples: tuple[Example, ...] = (*_deduplicate(examples), *described)
        self.labels = tuple(sorted({example.label for example in self.examples}))
        self._balance, self._curve = balance, curve
        self.lexicon = lexicon or Lexicon((e.text for e in self.examples), read, limit)
        self._rows = Rows([self.lexicon.row(example.text) for example in self.examples])
        self._extra = extra
        self._facts = Facts(extra, ((e.text, e.facts) for e in self.examples)) if extra else None
        self._dense = dense
        self._vectors = dense.encode([e.text for e in self.examples]) if dense else None
        self._nearest: Floats
        self._ridge = self._fit()
        self._calibrate()

    @classmethod
    def of(
        cls, lessons: Sequence[Memory], about: Mapping[str, str] | None = None, **more: Any
    ) -> ExampleBank:
        """Build a bank of the memories that are labelled examples; `more` as for the bank."""
        return cls(
            [
                Example(
                    lesson.id,
                    lesson.label,
                    lesson.text,
                    LAMBDA_CORRECTED if lesson.trust == "learned" else LAMBDA,
                )
                for lesson in lessons
                if lesson.kind == "example" and lesson.label
            ],
            about,
            **more,
        )

    def predict(
        self,
        text: str,
        *,
        evidence: Mapping[str, float] | None = None,
        facts: Mapping[str, Any] | None = None,
        nearest: int = 3,
    ) -> Prediction:
        """Return the label of `text` with a calibrated confidence and what speaks for it.

        `evidence` is added to the score of a label: what is known of the case beside its text.
        `facts` is what `Extra` reads beside the text.
        """
        similar, kernel = self._kernel(text, facts or {})
        scores = kernel @ self._ridge.alpha
        for label, amount in (evidence or {}).items():
            if label in self.labels:
                scores[self.labels.index(label)] += amount
        order = np.argsort(-scores, kind="stable")
        best = int(order[0])
        close = np.argsort(-similar, kind="stable")[: max(nearest, _FAMILIAR)]
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
                    float(kernel[i] * self._ridge.alpha[i, best]),
                )
                for i in close[:nearest]
            ),
            similarity=top,
            familiar=float(scores[best]) + 2 * float(similar[close[:_FAMILIAR]].mean()),
        )

    def left_out(self) -> tuple[Prediction, ...]:
        """Return what the bank says of each example when that example is left out."""
        return tuple(
            Prediction(
                label=self.labels[int(np.argmax(row))],
                confidence=self._confidence(row, float(self._nearest[i])),
                scores=tuple(sorted(zip(self.labels, map(float, row), strict=True))),
                nearest=(),
                similarity=float(self._nearest[i]),
            )
            for i, row in enumerate(self._left_out_scores())
        )

    def bar(self, share: float) -> float | None:
        """Return the least confidence at which `share` of verdicts can be promised to be right.

        None if the examples are too few or too mixed for such a promise: then ask a person.
        """
        return conformal_threshold(*self._outcomes(), share)

    def _outcomes(self) -> tuple[list[float], list[bool]]:
        found = self.left_out()
        right = [a.label == b.label for a, b in zip(found, self.reviewed, strict=True)]
        return [row.confidence for row in found], right

    @property
    def reviewed(self) -> tuple[Example, ...]:
        """The examples but those that only describe a label; `left_out` is in their order."""
        return tuple(e for e in self.examples if e.id not in self._description_ids)

    # --- one example at a time -----------------------------------------------------------------

    def add(self, example: Example) -> None:
        """Take one more example in, at once. A text that is there with the label is skipped.

        Raises ValueError if the id is taken, or if the bank is too large to be changed.
        """
        self._check_size()
        if any(known.id == example.id for known in self.examples):
            raise ValueError(f"there is an example {example.id!r}: relabel or remove it")
        twin = fold(example.text)
        if any(k.label == example.label and fold(k.text) == twin for k in self.examples):
            return
        self._insert(example)
        self._refit()

    def relabel(self, name: str, label: str) -> None:
        """Give the example `name` another label; it now counts as corrected by a person."""
        self._check_size()
        place = self._index_of(name)
        self._insert(replace(self.examples[place], label=label, lam=LAMBDA_CORRECTED))
        self._delete(place)
        self._refit()

    def remove(self, name: str) -> None:
        """Take the example `name` out. Raises ValueError for an unknown or the last one."""
        self._check_size()
        place = self._index_of(name)
        if len(self.reviewed) == 1:
            raise ValueError("an example bank needs examples")
        self._delete(place)
        self._refit()

    def _insert(self, example: Example) -> None:
        similar, kernel = self._kernel(example.text, example.facts)
        itself = 1.0 + (self._extra.weight if self._extra else 0.0)
        itself += self._dense.weight if self._dense else 0.0
        self._rows.add(self.lexicon.row(example.text))
        if self._facts is not None:
            self._facts.add(self._facts.standardise(example.text, example.facts))
        if self._dense and self._vectors is not None:
            self._vectors = np.vstack((self._vectors, self._dense.encode([example.text])))
        self.examples = (*self.examples, example)
        self._ridge.add(kernel, itself, example.lam)
        self._nearest = np.append(np.maximum(self._nearest, similar), similar.max())

    def _delete(self, place: int) -> None:
        self._rows.remove(place)
        if self._facts is not None:
            self._facts.remove(place)
        if self._vectors is not None:
            self._vectors = np.delete(self._vectors, place, axis=0)
        self.examples = (*self.examples[:place], *self.examples[place + 1 :])
        self._ridge.remove(place)
        self._nearest = _nearest_similarity(self._rows.kernel())

    def _check_size(self) -> None:
        if len(self.examples) > CHANGEABLE_ROWS:
            raise ValueError(f"a bank of more than {CHANGEABLE_ROWS} examples is built anew")

    def _index_of(self, name: str) -> int:
        for place, example in enumerate(self.examples):
            if example.id == name:
                return place
        raise ValueError(f"there is no example {name!r}")

    # --- training ----------------------------------------------------------------------------

    def _fit(self) -> KernelSVM:
        kernel = self._rows.kernel()
        self._nearest = _nearest_similarity(kernel)
        _exponential_kernel(kernel, self._curve)
        if self._facts is not None:
            kernel += self._facts.kernel()
        if self._dense and self._vectors is not None:
            kernel += self._dense.weight * _gaussian_kernel(self._vectors @ self._vectors.T)
        lam = np.array([example.lam for example in self.examples])
        places = self._places()
        if self._balance:
            sizes = np.bincount(places)
            lam = lam * (len(self.labels) * sizes / sizes.sum())[places]
        return KernelSVM(kernel, lam, places, len(self.labels))

    def _refit(self) -> None:
        self.labels = tuple(sorted({example.label for example in self.examples}))
        self._ridge.fit(self._places(), len(self.labels))
        self._calibrate()

    def _places(self) -> npt.NDArray[np.int64]:
        place = {label: i for i, label in enumerate(self.labels)}
        return np.array([place[example.label] for example in self.examples])

    def _left_out_scores(self) -> Floats:
        found: Floats = self._ridge.left_out[self._calibration_rows()]
        return found

    def _calibration_rows(self) -> npt.NDArray[np.bool_]:
        """Return which rows the calibration rests on: all but those of `about`."""
        return np.array([example.id not in self._description_ids for example in self.examples])

    def _calibrate(self) -> None:
        scores = self._left_out_scores()
        places = self._places()[self._calibration_rows()]
        right = scores.argmax(axis=1) == places
        # What is far from every example is unlike all that the calibration was fitted on.
        near = np.clip(self._nearest[self._calibration_rows()], 0, 1)
        self._familiar_similarity = float(np.quantile(near, _STRANGE))
        self._map = fit_logistic(np.stack([confidence_features(row) for row in scores]), right)
        # Rule of succession: n examples without an error do not prove more than this.
        self._ceiling = (len(scores) + 1) / (len(scores) + 2)

    def _confidence(self, scores: Floats, similarity: float) -> float:
        logit = float(confidence_features(scores) @ self._map)
        sure = 1 / (1 + math.exp(-max(-30.0, min(30.0, logit))))
        if similarity < self._familiar_similarity:
            sure *= max(0.0, similarity) / self._familiar_similarity
        return min(sure, self._ceiling)

    def _kernel(self, text: str, facts: Mapping[str, Any]) -> tuple[Floats, Floats]:
        """Return the lexical similarity 0..1 and the kernel of a text with every example."""
        similar = self._rows.similar(self.lexicon.row(text))
        kernel = _exponential_kernel(similar.copy(), self._curve)
        if self._facts is not None:
            kernel += self._facts.similar(self._facts.standardise(text, facts))
        if self._dense and self._vectors is not None:
            kernel += self._dense.weight * _gaussian_kernel(
                self._vectors @ self._dense.encode([text])[0]
            )
        return similar, kernel


def _exponential_kernel(similar: npt.NDArray[Any], curve: float) -> npt.NDArray[Any]:
    """Turn cosines into the lexical kernel, in place: close texts count more than in proportion.

    It is 0 where nothing is shared: a bell curve is not, and drowns long texts in that level.
    """
    if curve:
        similar *= curve
        np.expm1(similar, out=similar)
        similar /= math.expm1(curve)
    return similar


def _gaussian_kernel(similar: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Turn cosines of dense vectors into the kernel exp(-2 (1 - cosine)), in place."""
    similar -= 1
    similar *= 2
    np.exp(similar, out=similar)
    return similar


def _nearest_similarity(kernel: npt.NDArray[Any]) -> Floats:
    """Return each row's similarity to the nearest other row (0 if there is none)."""
    if len(kernel) < 2:
        return np.zeros(len(kernel))
    diagonal = np.diag(kernel).copy()
    kernel[np.diag_indices(len(kernel))] = -1
    found: Floats = kernel.max(axis=1).astype(np.float64)
    kernel[np.diag_indices(len(kernel))] = diagonal
    return found


def _deduplicate(examples: Sequence[Example]) -> list[Example]:
    """Return the examples by id, each text once per label.

    A repeated example stays behind when its twin is left out, so that leave-one-out would prove
    nothing and the calibration would measure how well the bank knows its own texts.
    """
    found: dict[tuple[str, str], Example] = {}
    for example in sorted(examples, key=lambda example: (example.id, example.label)):
        found.setdefault((example.label, fold(example.text)), example)
    return list(found.values())
