"""The terms of a text: words of any script, stemmed as English."""

from __future__ import annotations

import re
import threading
import unicodedata
from collections.abc import Iterator
from functools import cache, lru_cache
from typing import Any

from vedette.memory import Memory

MAX_TERMS = 60  # distinct terms of a query that are looked up

# Function words say nothing of what a text is about; left out of queries they cost no recall.
_STOP_TEXT = (
    "a about after all also am an and any are as at be been but by can could did do does for from "
    "had has have he her him his how i if in into is it its just me more my no nor not of on or "
    "our out over she should so some than that the their them then there these they this those to "
    "too us very was we were what when where which while who why will with would you your"
)
_STOP = frozenset(_STOP_TEXT.split())
_WORD = re.compile(r"[^\W_]+")
_CJK = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af]")


def indexed_text(memory: Memory) -> str:
    """Return what of a memory is searched: its text, its label and its topics."""
    return " ".join((memory.text, memory.label or "", *memory.topics))


def words(text: str) -> Iterator[str]:
    """Yield the words of a text in any script; of scripts without spaces, pairs of characters."""
    plain = text if text.isascii() else unicodedata.normalize("NFKC", text)
    for found in _WORD.finditer(plain.casefold()):
        word = found[0]
        if not word.isascii() and _CJK.search(word):
            yield from (word[at : at + 2] for at in range(max(1, len(word) - 1)))
        else:
            yield word


def terms(text: str) -> Iterator[str]:
    """Yield the terms of a text as they are listed: stemmed words, repeats included."""
    return (_stem(word) for word in words(text) if len(word) < 64)


def query_terms(text: str) -> list[str]:
    """Return the first distinct terms of a query, without function words unless it has no other."""
    found: dict[str, None] = {}
    function: dict[str, None] = {}
    for word in words(text):
        if len(word) < 64:
            (function if word in _STOP else found).setdefault(_stem(word))
            if len(found) == MAX_TERMS:
                break
    return list(found or function)[:MAX_TERMS]


@cache
def _stemmer() -> Any:
    import snowballstemmer

    return snowballstemmer.stemmer("english")


_STEMMING = threading.Lock()


@lru_cache(maxsize=65536)
def _stem(word: str) -> str:
    with _STEMMING:
        return str(_stemmer().stemWord(word))
