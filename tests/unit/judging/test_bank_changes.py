"""One example more, less or otherwise: the changed bank equals one built anew."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vedette.judging.examples import CHANGEABLE_ROWS, Example, ExampleBank
from vedette.judging.features import Lexicon, Rows
from vedette.judging.kernel_svm import invert
from vedette.judging.side_features import Dense, Extra, Facts

LINE = "berth boat bill crew date deposit fuel invoice pay skipper tax week"
WORDS = LINE.split()
LABELS = ("bill", "charter", "other")


def texts(seed: int, count: int) -> list[str]:
    random = np.random.default_rng(seed)
    return [" ".join(random.choice(WORDS, 5)) + f" n{i}" for i in range(count)]


def examples(seed: int, count: int) -> list[Example]:
    random = np.random.default_rng(seed + 1)
    names = [*LABELS, *random.choice(LABELS, count)]
    return [Example(f"e{i:02}", names[i], text) for i, text in enumerate(texts(seed, count))]


def same(one: ExampleBank, other: ExampleBank, questions: Sequence[str]) -> None:
    for text in questions:
        left, right = one.predict(text), other.predict(text)
        assert dict(left.scores) == pytest.approx(dict(right.scores), abs=1e-6)
        assert left.confidence == pytest.approx(right.confidence, abs=1e-6)
        assert left.similarity == pytest.approx(right.similarity, abs=1e-6)


@settings(deadline=None, max_examples=12)
@given(
    st.integers(0, 10_000),
    st.lists(st.tuples(st.sampled_from(["add", "remove", "relabel"]), st.integers(0, 99))),
)
def test_changes_equal_a_bank_built_anew(seed: int, steps: list[tuple[str, int]]) -> None:
    start, more = examples(seed, 8), examples(seed + 7, 30)
    bank = ExampleBank(start)
    for number, (step, place) in enumerate(steps[:6]):
        now = bank.reviewed
        if step == "add":
            bank.add(Example(f"m{number}", more[place % 30].label, more[place % 30].text + " more"))
        elif step == "relabel":
            bank.relabel(now[place % len(now)].id, LABELS[place % 3])
        elif len(now) > 2:
            bank.remove(now[place % len(now)].id)
    anew = ExampleBank(bank.reviewed, lexicon=bank.lexicon)
    same(bank, anew, texts(seed + 3, 4))


def test_a_correction_counts_at_once_and_only_where_it_belongs() -> None:
    bank = ExampleBank(examples(1, 20))
    text = bank.reviewed[5].text
    before = bank.predict(text).label
    wanted = next(label for label in LABELS if label != before)
    bank.relabel(bank.reviewed[5].id, wanted)
    assert bank.predict(text).label == wanted
    # Control: the bank says the old label again when the correction is taken back.
    bank.relabel(next(e.id for e in bank.reviewed if e.text == text), before)
    assert bank.predict(text).label == before


def test_a_new_label_can_be_taught() -> None:
    bank = ExampleBank(examples(1, 9))
    bank.add(Example("new", "recruiting", "an application for a vacancy, references enclosed"))
    assert "recruiting" in bank.labels
    assert bank.predict("an application, references enclosed").label == "recruiting"


def test_wrong_changes_are_refused() -> None:
    bank = ExampleBank([Example("a", "x", "one text")])
    with pytest.raises(ValueError, match="needs examples"):
        bank.remove("a")
    with pytest.raises(ValueError, match="no example 'b'"):
        bank.relabel("b", "y")
    with pytest.raises(ValueError, match="there is an example 'a'"):
        bank.add(Example("a", "x", "another text"))
    bank.examples = bank.examples * (CHANGEABLE_ROWS + 1)
    with pytest.raises(ValueError, match="built anew"):
        bank.add(Example("c", "x", "another text"))


@pytest.mark.parametrize("size", [1, 2, 383, 385, 900])
def test_invert_by_halves(size: int) -> None:
    random = np.random.default_rng(size)
    wide = random.normal(size=(size, 40))
    matrix = wide @ wide.T / 40 + 0.1 * np.eye(size)
    inverse = matrix.copy()
    invert(inverse)
    np.testing.assert_allclose(inverse @ matrix, np.eye(size), atol=1e-8)


@pytest.mark.parametrize("count", [3, 300])
def test_the_kernel_of_all_is_the_similarity_of_each(count: int) -> None:
    said = texts(4, count)
    lexicon = Lexicon(said)
    rows = Rows([lexicon.row(text) for text in said])
    kernel = rows.kernel()
    for i in (0, count // 2, count - 1):
        np.testing.assert_allclose(rows.similar(lexicon.row(said[i])), kernel[i], atol=1e-9)
        assert kernel[i, i] == pytest.approx(1.0, abs=1e-6)


def test_unordered_pairs_see_what_stands_between() -> None:
    lexicon = Lexicon(["card arrival", "deposit week", "fuel tax"])
    rows = Rows([lexicon.row("my card has not arrived")])
    near = rows.similar(lexicon.row("arrived yet, the card?"))[0]
    assert near > rows.similar(lexicon.row("card of the boat"))[0] + 0.1


def test_facts_that_nobody_knows_tell_nothing_apart() -> None:
    nan = float("nan")
    extra = Extra(lambda text, facts: [float(len(text)), float(facts.get("hops", nan))])
    facts = Facts(extra, [("a", {}), ("long text", {})])
    known, unknown = facts.standardise("a", {"hops": 9}), facts.standardise("a", {})
    np.testing.assert_allclose(facts.similar(known), facts.similar(unknown))
    assert facts.similar(known)[0] > facts.similar(known)[1]


def test_an_encoder_is_one_more_kernel() -> None:
    """Two texts without a word in common are near where the vectors say so."""
    meaning = {"ship": 0, "vessel": 0, "cash": 1, "money": 1}

    def encode(said: Sequence[str]) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        return np.eye(2)[[meaning[text] for text in said]]

    pair = [Example("a", "sea", "ship"), Example("b", "bank", "cash")]
    bank = ExampleBank(pair, dense=Dense(encode))
    assert bank.predict("vessel").label == "sea"
    assert bank.predict("money").label == "bank"
    bank.add(Example("c", "bank", "vessel"))
    bank.remove("c")
    same(bank, ExampleBank(pair, dense=Dense(encode), lexicon=bank.lexicon), ["vessel", "money"])
    # Control: by words alone neither is like anything.
    assert ExampleBank(pair).predict("vessel").similarity == 0


def test_balance_lets_a_rare_label_be_heard() -> None:
    cases = [Example(f"n{i}", "no", f"the boat n{i} tide") for i in range(30)]
    cases.append(Example("y", "yes", "the boat tide alarm"))
    text = "the boat alarm"
    heard = dict(ExampleBank(cases, balance=True).predict(text).scores)
    plain = dict(ExampleBank(cases).predict(text).scores)
    assert heard["yes"] > plain["yes"] + 0.05
