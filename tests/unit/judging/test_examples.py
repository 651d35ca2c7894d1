"""The example bank: kernel ridge with closed-form leave-one-out and calibrated confidence."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from vedette.judging.calibration import (
    PRIOR,
    PRIOR_STRENGTH,
    confidence_features,
    fit_logistic,
)
from vedette.judging.examples import Example, ExampleBank

LINES = """
invoice amount due payment VAT account bank transfer overdue total receipt
booking charter boat week reserve skipper dates deposit crew weekend free people
alert failed check critical host threshold backup disk alarm sensor warning down
"""
WORDS = {line.split()[0]: line.split()[1:] for line in LINES.strip().split("\n")}


def examples(each: int = 8) -> list[Example]:
    random = np.random.default_rng(5)
    return [
        Example(f"{label}-{i}", label, " ".join(random.choice(words, 7)))
        for label, words in WORDS.items()
        for i in range(each)
    ]


def test_labels_nearest_and_confidence() -> None:
    bank = ExampleBank(examples())
    found = bank.predict("a payment is overdue, amount and VAT by bank transfer")
    assert found.label == "invoice"
    assert found.confidence > 0.8
    assert found.scores[0][0] == "invoice"
    assert all(near.label == "invoice" for near in found.nearest)
    assert found.nearest[0].similarity == found.similarity
    assert sum(near.weight for near in found.nearest) > 0


@pytest.mark.parametrize(
    "text",
    ["", "zxqv wkrj pltm", "Der Töpferofen des Museums wird gebrannt", "\u0416\u0416 \u05d0"],
)
def test_far_away_texts_get_low_confidence(text: str) -> None:
    assert ExampleBank(examples()).predict(text).confidence < 0.5


def test_confidence_never_exceeds_what_the_examples_prove() -> None:
    bank = ExampleBank(examples())
    sure = max(bank.predict(example.text).confidence for example in bank.examples)
    assert sure <= (len(bank.examples) + 1) / (len(bank.examples) + 2)


def test_hardly_an_example_is_held_to_be_strange() -> None:
    """What the calibration was fitted on is believed as it says, all but the farthest of it.

    Control: they are the farthest ones that are believed less, and there are some.
    """
    bank = ExampleBank(examples(40))
    scores = [[score for _, score in row.scores] for row in bank.left_out()]
    facts = np.stack([confidence_features(np.array(row)) for row in scores])
    right = [
        row.label == one.label for row, one in zip(bank.left_out(), bank.reviewed, strict=True)
    ]
    said = 1 / (1 + np.exp(-facts @ fit_logistic(facts, np.array(right))))
    ceiling = (len(right) + 1) / (len(right) + 2)
    found = np.array([row.confidence for row in bank.left_out()])
    doubted = found < np.minimum(said, ceiling) - 1e-9
    assert 0 < doubted.mean() <= 0.04
    similar = np.array([row.similarity for row in bank.left_out()])
    assert similar[doubted].max() <= similar[~doubted].min()


def test_closed_form_leave_one_out_equals_leaving_out() -> None:
    """The idf is fitted on all texts, so it is held fixed for the comparison."""
    bank = ExampleBank(examples(4))
    for example, left in zip(bank.reviewed, bank.left_out(), strict=True):
        others = [one for one in bank.reviewed if one.id != example.id]
        prediction = ExampleBank(others, lexicon=bank.lexicon).predict(example.text)
        closed = dict(left.scores)
        # Exact but for what the hinge moves: the others' targets may settle elsewhere by a little.
        for label, score in prediction.scores:
            assert score == pytest.approx(closed[label], abs=0.03)


def test_left_out_covers_the_examples_but_not_the_descriptions() -> None:
    about = {"invoice": "something to pay", "booking": "a boat", "alert": "a machine reports"}
    bank = ExampleBank(examples(), about)
    assert len(bank.left_out()) == len(examples())
    assert {example.id for example in bank.examples} >= {"about:alert", "invoice-0"}


def share_right(bank: ExampleBank) -> float:
    found = zip(bank.left_out(), bank.examples, strict=True)
    return float(np.mean([row.label == example.label for row, example in found]))


def mean_confidence(bank: ExampleBank) -> float:
    return float(np.mean([row.confidence for row in bank.left_out()]))


@pytest.mark.parametrize("seed", range(20))
def test_calibration_follows_noise(seed: int) -> None:
    """Control: with labels at random the same texts must not be called certain.

    A Newton step without a line search diverges here and is 0.96 sure of what is mostly wrong.
    """
    random = np.random.default_rng(seed)
    names = list(WORDS)
    noisy = ExampleBank([Example(e.id, names[int(random.integers(3))], e.text) for e in examples()])
    assert share_right(noisy) < 0.7
    assert mean_confidence(noisy) < share_right(noisy) + 0.15


def test_calibration_follows_order() -> None:
    clean = ExampleBank(examples())
    assert share_right(clean) > 0.95
    assert mean_confidence(clean) > 0.8


@pytest.mark.parametrize("right", [0.0, 0.05, 0.5, 0.95, 1.0])
@pytest.mark.parametrize("rows", [1, 3, 24, 500])
def test_the_calibration_settles_where_its_loss_is_least(rows: int, right: float) -> None:
    random = np.random.default_rng(rows)
    facts = np.stack([confidence_features(random.normal(0.2, 0.3, 4)) for _ in range(rows)])
    outcome = random.random(rows) < right
    weights = fit_logistic(facts, outcome)

    def loss(at: npt.NDArray[np.float64]) -> float:
        drawn = at - PRIOR
        fit = np.sum(np.logaddexp(0.0, facts @ at) - outcome * (facts @ at))
        return float(fit + PRIOR_STRENGTH / 2 * drawn @ drawn)

    for _ in range(50):
        assert loss(weights) <= loss(weights + random.normal(0, 0.1, 4))


def test_evidence_moves_a_score_and_unknown_labels_are_ignored() -> None:
    bank = ExampleBank(examples())
    text = "boat"
    plain = dict(bank.predict(text).scores)
    scores = dict(bank.predict(text, evidence={"alert": 0.5, "nothing": 9.0}).scores)
    assert scores["alert"] == pytest.approx(plain["alert"] + 0.5)
    assert scores["booking"] == pytest.approx(plain["booking"])


def test_deterministic_in_order_and_repetition() -> None:
    first = ExampleBank(examples())
    second = ExampleBank(list(reversed(examples())))
    for text in ("overdue invoice", "a boat for a week", "disk failed", "x"):
        assert first.predict(text) == second.predict(text) == first.predict(text)


def test_a_repeated_example_counts_once() -> None:
    """Twins make leave-one-out look perfect and every other text look far away."""
    once, text = ExampleBank(examples()), "a payment is overdue, amount by bank transfer"
    copies = [Example(f"z-{e.id}", e.label, f" {e.text.upper()}\n") for e in examples()]
    for repeat in (examples() * 2, examples() + copies):
        twice = ExampleBank(repeat)
        assert twice.examples == once.examples
        assert twice.predict(text) == once.predict(text)


def test_long_texts_are_cut_and_one_label_is_enough() -> None:
    bank = ExampleBank([Example("a", "only", "a text")])
    assert bank.predict("word " * 100_000).label == "only"
    assert len(bank.lexicon.words) < 10


def test_no_examples_is_refused() -> None:
    with pytest.raises(ValueError, match="needs examples"):
        ExampleBank([])
