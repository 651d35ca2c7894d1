"""The normaliser: what looks the same to a reader is the same to a judge."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vedette.judging.text import clean, fold, tokens


@pytest.mark.parametrize(
    "disguised",
    [
        "INVOICE overdue",
        "in\u200bvo\u00adice over\u2060due",
        "ｉｎｖｏｉｃｅ overdue",
        "іnvоісе оvеrduе",
        "ínvöice  \t overdüe",
        "invoice&nbsp;overdue",
        "&#105;nvoice overdue",
        "invoice\U000e0041\U000e0042 overdue",
        "\u202einvoice\u202c overdue",
    ],
)
def test_disguises_fold_to_one_text(disguised: str) -> None:
    assert fold(disguised) == "invoice overdue"


def test_different_words_stay_different() -> None:
    assert fold("invoice") != fold("invoke")
    assert fold("Straße") == "strasse"
    assert fold("日本") == "日本"


def test_clean_keeps_case_and_accents() -> None:
    assert clean("Café\u200b &amp; Bar") == "Café & Bar"
    assert clean("a & b &unknown c") == "a & b &unknown c"


def test_tokens() -> None:
    text = fold("Pay £1,214.77 NOW! See https://www.bank.example/x?y=1 or don't, call 0123")
    assert tokens(text) == [
        *("pay", "£", "1", "000", "77", "now", "!", "see"),
        *("link:bank.example", "or", "don't", "call", "000"),
    ]


@settings(deadline=None)
@given(st.text(max_size=200))
def test_folding_twice_changes_no_word_and_never_raises(text: str) -> None:
    once = fold(text)
    assert "  " not in once
    assert all(token.strip() for token in tokens(once))


@settings(deadline=None)
@given(st.text(alphabet="аеіорсух\u200b\u0301 abc&#;", max_size=80))
def test_invisible_characters_never_matter(text: str) -> None:
    assert fold(text.replace("\u200b", "")) == fold(text) or "&" in text
