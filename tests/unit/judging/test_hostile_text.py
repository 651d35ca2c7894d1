"""No text costs much more than a plain one of its length, whoever wrote it."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable

import pytest

from vedette.judging import word_groups
from vedette.judging.mail_features import mail_features
from vedette.judging.normaliser import Normaliser
from vedette.judging.text import clean

SIZE = 20_000
# Half a second where a plain text of this length takes 8 to 20 ms on the same machine; what was
# quadratic here took from 2.6 to 52 s.
LIMIT_S = 0.5
PLAIN = "The harbour opens at nine and we will send the papers to you, please let me know. "
UNITS = [
    *("1 a ", "1.a.", "1a", ".", "@.", "a@.", "*", "*a*b* ", "a\u0301", "\u0323\u0301"),
    *("\U0001f468\u200d", "x", "7", "\n", " \n", '"', ">\n", "&#1", "1!|0", "a-", "a b ", "_a"),
    *("\ufdfa", "aabbccdd ", "ab*c1#de ", "{ ", "On ", "www.", "555-", "\u1100"),
]


def _random(alphabet: str, least: int, most: int) -> str:
    rng = random.Random(1)
    letters = rng.choices(alphabet, k=SIZE)
    at = rng.randint(least, most)
    while at < SIZE:
        letters[at] = " "
        at += rng.randint(least, most) + 1
    return "".join(letters)


FAMILY = [
    *((unit * SIZE)[:SIZE] for unit in UNITS),
    "x" + "." * (SIZE - 2) + "x",
    "7" * (SIZE - 1) + "!",
    "you " * (SIZE // 8) + "idiot " * (SIZE // 12),
    *(_random("1!|0643abe", least, least + 8) for least in (1, 5, 16, 60)),
    *(_random("ab*#c1", least, least + 8) for least in (5, 16)),
]


def _worst(judge: Callable[[str], object], texts: list[str], least_s: float = 0.02) -> float:
    """Return how many times the CPU of a plain text the dearest of `texts` takes.

    A plain text takes 20 ms; one that is measured as less than `least_s` counts as that.
    """
    plain = (PLAIN * SIZE)[: len(texts[0])]
    took = []
    for text in (plain, *texts):
        began = time.process_time()
        judge(text)
        took.append(time.process_time() - began)
    return max(took[1:]) / max(took[0], least_s)


def _mail(text: str) -> object:
    return mail_features(text, {"text": text, "subject": text, "from": text, "message_id": text})


@pytest.fixture(scope="module")
def normaliser() -> Normaliser:
    return Normaliser((*word_groups.vocabulary(), *re.findall("[a-z]+", PLAIN.lower())))


def test_hostile_text_is_normalised_in_time(normaliser: Normaliser) -> None:
    assert _worst(normaliser, FAMILY) < LIMIT_S / 0.02


@pytest.mark.parametrize("judge", [_mail, word_groups.features, clean])
def test_hostile_text_is_weighed_in_time(judge: Callable[[str], object]) -> None:
    assert _worst(judge, FAMILY) < LIMIT_S / 0.02


def test_what_is_quadratic_would_be_found() -> None:
    assert _worst(re.compile(r"[\w.+-]+@").findall, ["7" * (SIZE // 3)], 0.001) > LIMIT_S / 0.02


def test_a_threat_behind_padding_is_still_read(normaliser: Normaliser) -> None:
    assert "kill you" in normaliser("1 a " * 700 + "!!! k1ll y0u")
    assert "kill you" in normaliser(_random("1!|0643abe", 5, 8)[:3_000] + " k1ll y0u")
    assert "idiot-" in normaliser("1d10t-" * 40)
    assert normaliser("k 1 1 l y o u") == "kill you"


def test_the_cache_does_not_change_the_answer(normaliser: Normaliser) -> None:
    text = _random("abs*#c1", 4, 7)[:4_000]
    cold = Normaliser((*word_groups.vocabulary(), *re.findall("[a-z]+", PLAIN.lower())))
    for word in reversed(text.split()):
        normaliser(word)
    assert normaliser(text) == cold(text)
