"""Disguised words become what a reader reads; plain text stays as it is."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vedette.judging.common_words import COMMON
from vedette.judging.confusables import LOOKALIKES, latin
from vedette.judging.normaliser import Normaliser

KNOWN = ["harbour", "mooring", "worthless", "cancelled"]


@pytest.fixture(scope="module")
def normaliser() -> Normaliser:
    return Normaliser(KNOWN)


@pytest.mark.parametrize(
    ("disguised", "meant"),
    [
        ("w0rthl355 h@rbour", "worthless harbour"),
        ("$tupid mo0r1ng!", "stupid mooring!"),
        ("w\u200bo\u200brthless", "worthless"),
        ("wоrthlеss hаrbоur", "worthless harbour"),
        ("ＨＡＲＢＯＵＲ", "harbour"),
        ("ʜaʀbouʀ ɦarƀour", "harbour harbour"),
        ("Нarbour", "harbour"),
        ("wo⚬thless", "worthless"),
        ("h a r b o u r", "harbour"),
        ("h.a.r.b.o.u.r m-o-o-r-i-n-g", "harbour mooring"),
        ("s t u p i d h a r b o u r", "stupid harbour"),
        ("haaarbourrrr", "harbour"),
        ("sttttuuupid", "stupid"),
        ("wrothless habrour", "worthless harbour"),
        ("w*rthless h##bour", "worthless harbour"),
        ("harbóur &#104;arbour", "harbour harbour"),
        ("w0rrrth1esss", "worthless"),
    ],
)
def test_disguises(normaliser: Normaliser, disguised: str, meant: str) -> None:
    assert normaliser(disguised) == meant


@pytest.mark.parametrize(
    "plain",
    [
        "the first of 20 boats, 1st floor, at 14:30 on 3/4",
        "see https://example.test/a1b2 and @h4rbour or #w0rthless",
        "mail me: jo3@b04t.example",
        "an entirely unknown zyxwv stays",
        "usb 2.0, a4 paper, m25",
        "日本語",
    ],
)
def test_plain_text_stays(normaliser: Normaliser, plain: str) -> None:
    assert normaliser(plain) == plain


def test_what_the_vocabulary_lacks_is_not_invented() -> None:
    """Control: without the word there is nothing to mend it to."""
    assert Normaliser(["kestrelling"])("ksetrelling") == "kestrelling"
    assert Normaliser([])("ksetrelling") == "ksetrelling"


def test_letters_it_was_never_told_are_wild_cards(normaliser: Normaliser) -> None:
    blind = Normaliser(KNOWN, unknown=LOOKALIKES)
    assert blind("wоrthlеss") == "worthless" == normaliser("wоrthlеss")
    assert blind("аbсdе") != "abcde" == normaliser("аbсdе")


def test_letters_by_look_and_by_name() -> None:
    assert (latin("а"), latin("ʀ"), latin("ƈ"), latin("ɑ")) == ("a", "r", "c", "a")
    assert latin("日") is None
    assert all(len(letter) == 1 and letter.islower() for letter in LOOKALIKES.values())
    assert all(not twin.isascii() for twin in LOOKALIKES)


def test_common_words_are_words() -> None:
    assert len(set(COMMON)) > 700
    assert all(word.isalpha() and word.islower() for word in COMMON)


@settings(deadline=None, max_examples=25)
@given(st.text(max_size=120))
def test_never_raises_and_is_the_same_twice(text: str) -> None:
    one, other = Normaliser(KNOWN), Normaliser(KNOWN)
    assert one(text) == other(text) == one(text)


@settings(deadline=None, max_examples=20)
@given(st.lists(st.sampled_from([*KNOWN, *COMMON[:200]]), max_size=8))
def test_known_words_never_change(words: list[str]) -> None:
    text = " and ".join(word for word in words if len(word) > 1)
    assert Normaliser(KNOWN)(text) == text


def test_hostile_text_costs_little(normaliser: Normaliser) -> None:
    for text in ("1" * 4_000 + "a", "a." * 5_000, "@1$!" * 2_000, "ѻ" * 3_000, "* " * 3_000):
        assert isinstance(normaliser(text), str)
