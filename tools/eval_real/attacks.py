"""The six disguises of the obfuscation part: each word of three letters and more is attacked."""

from __future__ import annotations

import random
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256

from vedette.judging.confusables import LOOKALIKES

_WORD = re.compile(r"[A-Za-z]{3,}")
_LEET = {"a": "4@", "e": "3", "i": "1!", "o": "0", "s": "5$", "t": "7", "b": "8", "g": "9"}
_ZERO_WIDTH = "\u200b\u200c\u200d\u2060\ufeff"
_SCRIPTS = ("CYRILLIC", "GREEK", "ARMENIAN", "CHEROKEE", "LISU", "COPTIC", "CANADIAN", "LATIN")

_NAMED = re.compile(
    rf"(?:{'|'.join(_SCRIPTS)})(?: SMALL| CAPITAL)?(?: LETTER| SYLLABICS)(?: SMALL| CAPITAL)*"
    r" ([A-Z])(?: WITH (?:STROKE|HOOK|TAIL|TOPBAR|FLOURISH|CURL|NOTCH|DIAGONAL STROKE))?"
)

Attack = Callable[[str, random.Random], str]


def leet(word: str, draw: random.Random) -> str:
    """Digits and signs for letters."""
    return "".join(draw.choice(_LEET[c.lower()]) if c.lower() in _LEET else c for c in word)


def zero_width(word: str, draw: random.Random) -> str:
    """A character that is not drawn between all letters."""
    return draw.choice(_ZERO_WIDTH).join(word)


def spaced(word: str, draw: random.Random) -> str:
    """A blank or a dot between all letters."""
    return draw.choice(" .").join(word)


def repeated(word: str, draw: random.Random) -> str:
    """One letter, and in long words two, three to five times."""
    letters = list(word)
    for place in draw.sample(range(len(word)), 1 + (len(word) > 5)):
        letters[place] *= draw.randint(3, 5)
    return "".join(letters)


def swapped(word: str, draw: random.Random) -> str:
    """Two neighbouring inner letters change places."""
    if len(word) < 4:
        return word
    place = draw.randint(1, len(word) - 3)
    return word[:place] + word[place + 1] + word[place] + word[place + 2 :]


def homoglyphs(table: Mapping[str, Sequence[str]]) -> Attack:
    """Return the attack by letters of other alphabets, on half of the letters of a word."""

    def attack(word: str, draw: random.Random) -> str:
        places = [i for i, char in enumerate(word) if char.lower() in table]
        chosen = set(draw.sample(places, (len(places) + 1) // 2))
        return "".join(
            draw.choice(table[c.lower()]) if i in chosen else c for i, c in enumerate(word)
        )

    return attack


def attackers_table() -> dict[str, list[str]]:
    """Return every lookalike of ours, and letters that Unicode names by the same Latin letter.

    The latter are of seven scripts, plain or with a stroke, hook or tail: what an attacker finds
    with a search. What plain decomposition undoes is no disguise and left out.
    """
    found: dict[str, list[str]] = {}
    for twin, letter in LOOKALIKES.items():
        found.setdefault(letter, []).append(twin)
    for code in range(0x80, 0x1FFFF):
        char = chr(code)
        match = _NAMED.fullmatch(unicodedata.name(char, ""))
        folded = unicodedata.normalize("NFKD", char)[0]
        if match and char not in LOOKALIKES and not folded.isascii():
            found.setdefault(match[1].lower(), []).append(char)
    return found


def hidden_half() -> dict[str, list[str]]:
    """Return half of the attacker's table, drawn by digest: what the defender is not told."""
    halves = {
        letter: [char for char in twins if sha256(char.encode()).digest()[0] % 2]
        for letter, twins in attackers_table().items()
    }
    return {letter: twins for letter, twins in halves.items() if twins}


ATTACKS: dict[str, Attack] = {
    "leet": leet,
    "homoglyphs": homoglyphs(attackers_table()),
    "hidden homoglyphs": homoglyphs(hidden_half()),
    "zero-width": zero_width,
    "spaced or dotted": spaced,
    "repeated letters": repeated,
    "swapped letters": swapped,
}


def disguise(text: str, attack: Attack, seed: int) -> str:
    """Return `text` with every word of three letters and more attacked; links stay."""
    draw = random.Random(seed)  # noqa: S311  (a seeded test load, not a secret)
    return _WORD.sub(lambda match: attack(match[0], draw), text)
