"""Spam has a bar of its own, facts of a mail are read, and both agree before mail is moved."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from vedette.adapters.mail.parser import parse_mail
from vedette.judging.binary_classifier import NO, YES, BinaryClassifier, _fit
from vedette.judging.examples import Example
from vedette.judging.mail_features import mail_features
from vedette.judging.side_features import Extra
from vedette.judging.spam import SpamBank, mail_words

_HAM = "berth boat charter crew deposit harbour mooring repair tide week"
_JUNK = "bonus casino cheap click coins guaranteed offer pills prize winner"
HAM, JUNK = _HAM.split(), _JUNK.split()
BULK = (
    b"Received: from x (unknown [10.0.0.9]) by mx.example; Mon, 02 Mar 2026 13:05:11 +0000\r\n"
    b"From: GOOD NEWS <a81231@mail.example>\r\nReply-To: b@other.example\r\nTo: c@d.example\r\n"
    b"Subject: YOU WON   x77812\r\nDate: Tue, 03 Mar 2026 23:05:11 +0900\r\nX-Priority: 1\r\n"
    b"X-Mailer: Group Mail 3\r\nContent-Type: text/html; charset=iso-8859-1\r\n\r\n"
    b"<html><center><font color=#ff0000>WINNER</font><img src=a><form></form></center></html>\r\n"
)
LETTER = (
    b"Received: from a.example (a.example [192.0.2.4]) by mx.example; "
    b"Mon, 02 Mar 2026 13:05:11 +0000\r\nFrom: Ann <ann@a.example>\r\nTo: c@d.example\r\n"
    b"Subject: Re: berth\r\nDate: Mon, 02 Mar 2026 13:04:00 +0000\r\nIn-Reply-To: <1@d.example>\r\n"
    b"Message-ID: <2@a.example>\r\nUser-Agent: Mutt/2\r\n\r\n> a berth?\r\nYes.\r\n-- \r\nAnn\r\n"
)


def mails(count: int = 30) -> list[Example]:
    random = np.random.default_rng(3)
    return [
        Example(f"{label}{i}", label, " ".join(random.choice(words, 6)))
        for label, words in (("spam", JUNK), ("invoice", HAM), ("question", HAM))
        for i in range(count)
    ]


def data(text: str) -> dict[str, Any]:
    return {"subject": "", "text": text, "from": "a@b.example"}


def test_spam_is_above_the_bar_and_ham_below() -> None:
    bank = SpamBank(mails())
    spam = bank.chance(data("a casino bonus, guaranteed prize, click"))
    ham = bank.chance(data("a berth for our boat, one week, deposit"))
    assert spam.chance >= bank.bar > ham.chance
    # What shares words with both is for a person.
    assert bank.chance(data("an offer for the mooring")).chance < bank.bar


def test_the_bar_lies_above_the_ham_that_looks_worst() -> None:
    """Control: one reviewed ham that reads like spam lifts the bar for all."""
    plain = SpamBank(mails(12))
    odd = SpamBank(
        [*mails(12), Example("odd", "invoice", "winner of the casino prize: bonus offer")]
    )
    assert odd.bar > plain.bar


def test_one_kind_is_not_enough() -> None:
    with pytest.raises(ValueError, match="yes and of no"):
        SpamBank([Example("a", "spam", "x"), Example("b", "spam", "y")])


def test_make_tells_apart_what_words_do_not() -> None:
    bulk, letter = parse_mail(BULK), parse_mail(LETTER)
    same = "the same few words"
    examples = [
        Example(f"{label}{i}", label, f"{same} {i}", facts=facts)
        for label, facts in ((YES, bulk), (NO, letter))
        for i in range(6)
    ]
    bank = BinaryClassifier(examples, extra=Extra(mail_features, 0.25))
    assert bank.chance(same, bulk).chance > 0.7 > 0.3 > bank.chance(same, letter).chance
    blind = BinaryClassifier(examples)
    assert abs(blind.chance(same, bulk).score - blind.chance(same, letter).score) < 1e-9


def test_facts_of_a_mail() -> None:
    facts, letter = parse_mail(BULK)["facts"], parse_mail(LETTER)["facts"]
    assert facts["mailer"] == "bulk"
    assert (facts["html"], facts["html_share"]) == (1, 100)
    assert (facts["html_fonts"], facts["html_images"], facts["html_forms"]) == (1, 1, 1)
    assert (facts["zone_hours"], facts["skew_hours"], facts["priority"]) == (9, 25, 1)
    assert (facts["hops"], facts["bare_hops"], facts["answers"]) == (1, 1, 0)
    assert (letter["mailer"], letter["answers"], letter["html"]) == ("mutt", 1, 0)
    assert (letter["bare_hops"], letter["skew_hours"]) == (0, -1)


def test_headers_that_name_the_collection_are_no_facts() -> None:
    marked = b"List-Id: <x.example>\r\nX-Spam-Status: Yes\r\nDelivered-To: z@z.example\r\n" + LETTER
    assert parse_mail(marked)["facts"] == parse_mail(LETTER)["facts"]


def test_features_are_as_many_for_every_mail() -> None:
    known = mail_features("", parse_mail(BULK))
    bare = mail_features("only text", {})
    assert len(known) == len(bare) == 92
    assert all(math.isfinite(value) for value in known)
    assert sum(math.isnan(value) for value in bare) > 50
    assert mail_words({"text": "t"}) == "Subject: (no subject)\n\nt"


def test_the_curve_is_where_its_slope_is_level() -> None:
    random = np.random.default_rng(2)
    scores = random.normal(size=200)
    yes = random.random(200) < 1 / (1 + np.exp(-3 * scores))
    slope, level = _fit(scores, yes)
    chance = 1 / (1 + np.exp(-(slope * scores + level)))
    assert slope == pytest.approx(3, abs=1.2)
    assert float(chance.mean()) == pytest.approx(float(yes.mean()), abs=0.01)
