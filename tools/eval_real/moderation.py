"""OpenAI's moderation samples: stratified five-fold, area under precision-recall per category."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tools.eval_real.measures import average_precision, coverage, interval
from tools.eval_real.run_baseline import run_baseline
from tools.eval_real.sources import moderation

from vedette.judging.binary_classifier import NO, YES, BinaryClassifier
from vedette.judging.calibration import expected_error
from vedette.judging.examples import Example
from vedette.judging.side_features import Extra
from vedette.judging.word_groups import features

Floats = npt.NDArray[np.float64]
_CATEGORIES = ("S", "H", "V", "HR")
_FOLDS = 5
LAM = 0.3  # categories overlap and texts are long: each example is doubted
GUESSED = 0.3  # what an unknown label counts, as a negative
WEIGHT = 0.1  # of the word groups in the kernel, where equal words count 1
_ANCHOR = "published, on other rows: OpenAI .970 .797 .737 .619, Perspective .871 .691 .520 .390"

# As the project's study measured it on the same texts; not run again in this command.
_NAMED = "named baseline: TF-IDF and a frozen small encoder, mean AUPRC 0.558"


def run(data: Path, quick: bool) -> list[str]:
    """Return the printed lines; no text of the data is among them."""
    rows = moderation(data / "openai-moderation")
    if len(rows) < 50:
        return ["openai-moderation: skipped, no such folder under the data (or nothing in it)"]
    texts = [str(row["prompt"]) for row in rows]
    found: dict[str, dict[str, Floats]] = {"ours": {}, "base": {}}
    costs: list[float] = []
    lines = [f"openai-moderation: {len(rows)} texts, {_FOLDS}-fold; {_ANCHOR}", f"  {_NAMED}"]
    errors: list[str] = []
    for name in _CATEGORIES:
        label = np.array([_known(row.get(name)) for row in rows])
        scores, chances, cost = _ours(texts, label)
        costs.append(cost)
        found["ours"][name], found["base"][name] = scores, _baseline(texts, label)
        seen = label >= 0
        sure = np.maximum(chances, 1 - chances)[seen]
        right = (chances[seen] > 0.5) == (label[seen] == 1)
        error = expected_error(sure.tolist(), right.tolist())
        errors.append(f"{name} {error:.3f} / {100 * coverage(sure, right, 0.98):.0f} %")
    labels = {name: np.array([_known(row.get(name)) for row in rows]) for name in _CATEGORIES}
    for title, key in (("TF-IDF + LR", "base"), ("ours", "ours")):
        each = [_precision(found[key][name], labels[name]) for name in _CATEGORIES]
        shown = " ".join(f"{name} {one:.3f}" for name, one in zip(_CATEGORIES, each, strict=True))
        lines.append(f"  {title:20s} AUPRC {shown}; mean {np.mean(each):.3f}")

    def gain(cases: npt.NDArray[np.int64]) -> float:
        parts = [
            _precision(found["ours"][name][cases], labels[name][cases])
            - _precision(found["base"][name][cases], labels[name][cases])
            for name in _CATEGORIES
        ]
        return float(np.mean(parts))

    low, high = interval(gain, len(rows), 100 if quick else 400)
    lines.append(
        f"  ours - baseline      {gain(np.arange(len(rows))):+.3f} [{low:+.3f}, {high:+.3f}]"
    )
    lines.append("  ECE / decided at 98 % accuracy: " + ", ".join(errors))
    lines.append(f"  {sum(costs) / len(costs):.2f} ms CPU per text and category")
    return lines


def _known(value: Any) -> int:
    return -1 if value is None else int(value)


def _precision(scores: Floats, label: npt.NDArray[np.int64]) -> float:
    seen = label >= 0
    return average_precision(scores[seen], label[seen] == 1)


def _folds(label: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the fold of each row, each kind of label spread evenly."""
    random = np.random.default_rng(5)
    fold = np.zeros(label.size, dtype=np.int64)
    for kind in (-1, 0, 1):
        rows = random.permutation(np.flatnonzero(label == kind))
        fold[rows] = np.arange(rows.size) % _FOLDS
    return fold


def _ours(texts: Sequence[str], label: npt.NDArray[np.int64]) -> tuple[Floats, Floats, float]:
    """Judge each fold by a bank of the others. Unknown labels are doubtful negatives."""
    fold = _folds(label)
    scores, chances = np.zeros(label.size), np.zeros(label.size)
    spent = 0.0
    for number in range(_FOLDS):
        train, test = _where(fold != number), _where(fold == number)
        bank = _bank([(texts[i], int(label[i])) for i in train])
        start = time.process_time()
        for i in test:
            chances[i], scores[i] = bank.chance(texts[i])
        spent += time.process_time() - start
    return scores, chances, 1000 * spent / label.size


def _where(chosen: npt.NDArray[np.bool_]) -> list[int]:
    return [int(i) for i in np.flatnonzero(chosen)]


def _bank(rows: Sequence[tuple[str, int]]) -> BinaryClassifier:
    examples = [
        Example(str(i), YES if label == 1 else NO, text, LAM if label >= 0 else LAM / GUESSED)
        for i, (text, label) in enumerate(rows)
    ]
    guessed = frozenset(str(i) for i, (_, label) in enumerate(rows) if label < 0)
    extra = Extra(lambda text, facts: features(text), WEIGHT)
    return BinaryClassifier(examples, extra=extra, balance=True, curve=0.0, unsure=guessed)


def _baseline(texts: Sequence[str], label: npt.NDArray[np.int64]) -> Floats:
    fold = _folds(label)
    scores = np.zeros(label.size)
    for number in range(_FOLDS):
        train = _where((fold != number) & (label >= 0))
        test = _where(fold == number)
        values, _ = run_baseline(
            "lr-characters-balanced",
            [texts[i] for i in train],
            ["b" if label[i] else "a" for i in train],
            [texts[i] for i in test],
        )
        scores[test] = values
    return scores
