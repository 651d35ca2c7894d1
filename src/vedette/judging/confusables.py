"""Confusables: letters of other alphabets by the Latin one they are drawn like, or named after.

Two sources: the project's own small tables of what looks alike, and the letters' names in Python's
Unicode data ("LATIN SMALL LETTER A WITH HOOK" is an a, "LATIN LETTER SMALL CAPITAL R" an r).
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

# Drawn alike, one string of twins per letter: Cyrillic, Greek, Armenian, Cherokee, Lisu, Coptic,
# Georgian, Latin extensions. Written by look.
_TWINS = {
    "a": "аɑαАΑᎪꓮⲁⲀ",
    "b": "ЬвВΒᏴꓐƄᖯⲂ",
    "c": "сϲᴄСϹᏟꓚⲥⲤ",
    "d": "ԁɗᎠꓓᗞժ",
    "e": "еєεҽЕΕᎬꓰⲈℯ",
    "f": "ƒϝꓝᖴ",
    "g": "ɡցᏀꓖԌ",
    "h": "һհНΗᎻꓧⲎ",
    "i": "іıιɪІΙꓲⲒӀ",
    "j": "јϳЈᎫꓙյ",
    "k": "кκКΚᏦꓗⲔ",
    "l": "ӏⅼᏞꓡⳐ",
    "m": "мⅿМΜᎷꓟⲘ",
    "n": "пոηΝꓠⲚ",
    "o": "оοօσᴏОΟꓳⲟⲞ",
    "p": "рρРΡᏢꓑⲣⲢ",
    "q": "ԛզ",
    "r": "гᴦᎡꓣᖇ",
    "s": "ѕꜱЅᏚꓢ",
    "t": "тτТΤᎢꓔⲦ",
    "u": "υսᴜꓴ",
    "v": "ѵνᴠᏙꓦѴ",
    "w": "ѡԝաᎳꓪԜ",
    "x": "хχХΧꓫⲬ",
    "y": "уүγУΥҮꓬⲨ",
    "z": "ᴢΖᏃꓜⲌ",
}
LOOKALIKES = {twin: letter for letter, twins in _TWINS.items() for twin in twins}

_NAMED = re.compile(
    r"(?:LATIN|MODIFIER|FULLWIDTH LATIN)(?: SMALL| CAPITAL)? LETTER"
    r"(?: SMALL)?(?: CAPITAL| REVERSED| TURNED| OPEN| SIDEWAYS| DOTLESS| INSULAR)* ([A-Z])\b"
)
_SPECIAL = {
    "ALPHA": "a",
    "ESH": "s",
    "ENG": "n",
    "EZH": "z",
    "SCHWA": "e",
    "IOTA": "i",
    "UPSILON": "u",
    "GAMMA": "y",
}
_NAMED_SPECIAL = re.compile(r"LATIN (?:SMALL|CAPITAL) LETTER ([A-Z]+)\b")


@lru_cache(maxsize=4096)
def latin(letter: str) -> str | None:
    """Return the Latin letter (a to z) that `letter` stands for, or None if nobody can tell."""
    known = LOOKALIKES.get(letter)
    if known is not None:
        return known
    name = unicodedata.name(letter, "")
    found = _NAMED.match(name)
    if found:
        return found[1].lower()
    special = _NAMED_SPECIAL.match(name)
    return _SPECIAL.get(special[1]) if special else None
