"""What a comment says beside its likeness to examples: how much speaks for each label, and why.

Amounts are added to the scores of the example bank, which run from 0 to 1. They are few, written
down here and shown with every verdict; the calibration takes them in (`judge.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from .reading import Reading

_LINK = re.compile(r"https?://|www\.|\b[a-z0-9-]{1,63}\.(?:com|net|org|info|biz|example|xyz|top)\b")
_OFFERS = re.compile(
    r"\b(?:free (?:shipping|spins|trial)|click|guaranteed|crypto|bitcoin|loans?|casino|followers"
    r"|vouchers?|pills online|prescription|earn|cheap|best price|special offer|discount code"
    r"|my profile|check out|replica|trading robot|seo|singles|broker|winner|have won"
    r"|insurance deals|experience needed)\b"
)
_CALLS_UP = re.compile(
    r"\b(?:everybody|everyone|all of you|let us all|let's all|please all)"
    r"\b[^.!?]{0,60}\b(?:write|report|message|call|go to|give|post|ring|follow|film)\b"
    r"|\bwho has (?:pictures|photos) of (?:the|her|him|them)\b"
    r"|\bso that (?:all|everyone) can laugh\b"
)
_PURSUES = re.compile(
    r"\b(?:follow (?:him|her|them)|film (?:him|her|them)|until (?:she|he|they|you) (?:cr\w+|leaves?"
    r"|lose|answers?|shuts?|do|quits?|gets? banned)|every (?:single )?day until|shall not stop"
    r"|not stop until|keep (?:on|after|asking)|forty (?:more )?(?:messages|times)|cannot ignore me"
    r"|wait for you after|send me a (?:private )?picture|nobody wants you|never come back"
    r"|sweetheart|darling)\b"
)
_PHONE = re.compile(r"(?<![\w.])(?:\+\d{1,3}[ -]?)?\(?0?\d{3,5}\)?[ -]?\d{3}[ -]?\d{3,4}(?![\w])")
_MAIL = re.compile(r"[a-z0-9._%+-]{1,64}@[a-z0-9.-]{1,100}\.[a-z]{2,24}", re.I)
_PLACE = re.compile(
    r"\b(?:flat )?\d{1,4},? (?:[a-z]+ ){0,3}(?:lane|road|street|steps|avenue|close|terrace|row"
    r"|square|hill)\b|\b(?:lane|road|street|steps|avenue) \d{1,4}\b",
    re.I,
)
_ACCOUNT = re.compile(r"\b[a-z]{2}\d{2}(?: ?[a-z0-9]{4}){3,7}\b", re.I)
_LIVES = re.compile(r"\b(?:lives? (?:at|above|in)|passport|number plate|home address|private)\b")
# Whom an insult hits, beside whoever is addressed.
_PERSON = re.compile(
    r"\b(?:skipper|captain|crew|guide|owner|manager|staff|desk|woman|man|girl|boy|guests?|tourists?"
    r"|he|she|they|him|her|them|people|du|dein|sie|mother)\b"
)
_THREAT_EMOJI = re.compile("[\U0001f52a\U0001f5e1\U0001f4a3\U0001f52b\u2694\U0001f480]")

# Said of things as often as of people.
_MILD = frozenset(
    ("stupid", "useless", "foolish", "ugly", "disgusting", "dumb", "pathetic", "worthless", "crap")
)
# From here on somebody has to look at once, whatever the label says.
GRAVE = 0.4


class Weights(NamedTuple):
    """What speaks for each label, and the words and patterns that say so."""

    amounts: Mapping[str, float]
    why: tuple[str, ...]


def weigh(reading: Reading) -> Weights:
    """Return what speaks for each label."""
    own, amounts, why = reading.own, dict[str, float](), list[str]()

    def add(label: str, amount: float, reason: str) -> None:
        if amount > 0:
            amounts[label] = round(min(0.8, amounts.get(label, 0.0) + amount), 4)
            why.append(reason)

    insults = reading.weight("insult")
    if insults:
        aimed = max(reading.near("second", "insult"), _aimed(reading))
        add("insult", 0.45 * aimed + 0.1 * min(insults, 2.0), _terms(reading, "insult"))
    add("threat", 0.6 * min(1.0, reading.weight("threat")), _terms(reading, "threat"))
    add("threat", 0.25 * reading.near("second", "harm"), _terms(reading, "harm"))
    add("threat", 0.3 * reading.near("first", "weapon"), _terms(reading, "weapon"))
    add("threat", 0.3 * bool(_THREAT_EMOJI.search(reading.raw)), "a weapon as a picture")
    add("hate", 0.5 * reading.near("group", "dehumanising"), _terms(reading, "dehumanising"))
    add("hate", 0.45 * reading.near("group", "removal", 60), _terms(reading, "removal"))
    add("self_harm", 0.6 * min(1.0, reading.weight("self_harm")), _terms(reading, "self_harm"))
    add("harassment", 0.35 * bool(found := _CALLS_UP.search(own)), _said(found))
    add("harassment", 0.3 * bool(found := _PURSUES.search(own)), _said(found))
    _weigh_contact(reading, add)
    if not any(amount >= 0.15 for amount in amounts.values()):
        add("ok", 0.25, "nothing that speaks against it")
    if reading.quotes and reading.rejects:
        add("ok", 0.3, "quotes an offence and rejects it")
    elif reading.quotes and reading.weight("fiction"):
        add("ok", 0.2, "quotes a story")
    return Weights(amounts, tuple(dict.fromkeys(why)))


def strong_words(reading: Reading) -> list[str]:
    """Return words that somebody should look at, whatever they were said of.

    What one also calls an engine or the weather is none of them, nor what the author rejects.
    """
    return sorted(
        {
            term.words
            for term, weight in zip(reading.terms, reading.weights, strict=True)
            if weight > 0
            and (
                term.group in ("sexual", "gore", "weapon", "dehumanising")
                or (term.group == "insult" and term.words not in _MILD)
            )
        }
    )


def _weigh_contact(reading: Reading, add: object) -> None:
    """Weigh what leads away from the page: offers, links, and data of people."""
    assert callable(add)
    own, raw = reading.own, reading.raw
    offers = {match[0] for match in _OFFERS.finditer(own)}
    link = _LINK.search(own)
    if offers:
        share = 0.2 * min(2, len(offers)) + (0.25 if link else 0.0)
        add("spam", share, f"offers: {', '.join(sorted(offers))}")
    elif link:
        add("spam", 0.1, "a link")
    for name, pattern in (("telephone number", _PHONE), ("mail address", _MAIL)):
        add("private_data", 0.55 * bool(pattern.search(raw)), f"a {name}")
    add("private_data", 0.5 * bool(_ACCOUNT.search(raw)), "an account")
    add("private_data", 0.45 * bool(_PLACE.search(raw)), "an address")
    add("private_data", 0.2 * bool(found := _LIVES.search(own)), _said(found))


def _aimed(reading: Reading) -> float:
    """Return the greatest weight of an insult with a person within a few words."""
    found = 0.0
    for term, weight in zip(reading.terms, reading.weights, strict=True):
        if term.group == "insult":
            around = reading.text[max(0, term.start - 40) : term.end + 25]
            found = max(found, weight * bool(_PERSON.search(around)))
    return found


def _terms(reading: Reading, group: str) -> str:
    words = {term.words for term in reading.terms if term.group == group}
    return f"{group}: {', '.join(sorted(words))}"


def _said(found: re.Match[str] | None) -> str:
    return f"says: {found[0]}" if found else ""
