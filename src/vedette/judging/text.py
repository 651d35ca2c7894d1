"""Text as people read it, made comparable: one plain normaliser for all text judges.

What a reader does not see (zero-width and format characters, the script a letter is borrowed
from, accents, case) must not decide what a judge thinks. The order follows the project's study of
obfuscated text: unescape, drop format characters, NFKC, confusables, strip marks.
"""

from __future__ import annotations

import re
import unicodedata
from html import unescape

# Format characters, variation selectors and fillers: drawn as nothing (Unicode category Cf, and
# those of Lo and Mn that are blank). Tag characters hide whole sentences.
_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
_ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[a-zA-Z]{2,12});")
# Marks piled upon one letter: Unicode puts them in order in a time that is quadratic.
_MARKS = (
    "[\u0300-\u036f\u0483-\u0487\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u1ab0-\u1aff\u1dc0-\u1dff"
    "\u20d0-\u20f0\ufe20-\ufe2f]"
)
_PILED = re.compile(f"({_MARKS}{{16}}){_MARKS}+")
_SPACES = re.compile(r"\s+")
_MARK = re.compile("[\u0300-\u036f]")

# Letters of other scripts that are drawn like Latin ones (a hand-picked part of Unicode's
# confusables table: Cyrillic, Greek, Armenian and Latin extensions in common use for disguise).
_LATIN_LOOKALIKES = {
    "a": "аɑα",
    "b": "Ьв",
    "c": "сϲᴄ",
    "d": "ԁɗ",
    "e": "еєεҽ",
    "f": "ƒ",
    "g": "ɡց",
    "h": "һհ",
    "i": "іıιɪ",
    "j": "јϳ",
    "k": "кκ",
    "l": "ӏⅼ",
    "m": "мⅿ",
    "n": "пոη",
    "o": "оοօσᴏ",
    "p": "рρ",
    "q": "ԛզ",
    "r": "гᴦ",
    "s": "ѕꜱ",
    "t": "тτ",
    "u": "υսᴜ",
    "v": "ѵνᴠ",
    "w": "ѡԝա",
    "x": "хχ",
    "y": "уүγ",
    "z": "ᴢ",
    "'": "’‘ʼʹ`´",
    '"': "“”„«»",
    "-": "‐‑‒–—−",
}
_CONFUSABLE = {ord(twin): letter for letter, twins in _LATIN_LOOKALIKES.items() for twin in twins}

# A word, a number, or one of the marks that say something about a mail (money, shouting).
_TOKEN = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)?|\d+|[!?%$£€@#]")
_LINK = re.compile(r"(?:https?://|www\.)[^\s<>\"')\]]+")
_HOST = re.compile(r"(?:https?://)?(?:www\.)?([^/:?#\s@]+)")


def clean(text: str) -> str:
    """Return `text` as a judge reads it: no entities, no invisible characters, NFKC. Case stays."""
    if "&" in text:
        text = _ENTITY.sub(lambda match: unescape(match[0]), text)
    if text.isascii():
        return text
    return unicodedata.normalize("NFKC", _PILED.sub(r"\1", _INVISIBLE.sub("", text)))


def fold(text: str) -> str:
    """Return `text` for judges: `clean`, lower case, no accents, lookalikes as Latin letters.

    White space becomes single spaces. Two texts that look alike to a reader fold to one string.
    """
    text = clean(text).casefold()
    if not text.isascii():
        text = unicodedata.normalize("NFKD", text.translate(_CONFUSABLE))
        text = _MARK.sub("", text)
    return _SPACES.sub(" ", text).strip()


def tokens(folded: str) -> list[str]:
    """Return the words and telling marks of a folded text, in order.

    Numbers of three digits and more are one token `000`: amounts and ids differ from mail to mail
    and mean the same. A link is the one token `link:HOST`.
    """
    found: list[str] = []
    at = 0
    for link in _LINK.finditer(folded):
        found.extend(_plain_tokens(folded[at : link.start()]))
        host = _HOST.match(link[0])
        found.append("link:" + (host[1][:80] if host else ""))
        at = link.end()
    found.extend(_plain_tokens(folded[at:]))
    return found


def _plain_tokens(text: str) -> list[str]:
    return [
        "000" if len(token) > 2 and token.isdigit() else token[:40]
        for token in _TOKEN.findall(text)
    ]
