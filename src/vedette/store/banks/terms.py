"""The terms by which a memory bank indexes a text: words of any script, stemmed as English."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
import unicodedata
from collections.abc import Iterator
from functools import cache, lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from vedette.domain.base import machine
from vedette.domain.memory import Memory

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
    """Return the text by which a bank indexes a memory: its text, its label and its topics."""
    return " ".join((memory.text, memory.label or "", *memory.topics))


def words(text: str) -> Iterator[str]:
    """Yield a text's words for a bank's index; of scripts without spaces, pairs of characters."""
    plain = text if text.isascii() else unicodedata.normalize("NFKC", text)
    for found in _WORD.finditer(plain.casefold()):
        word = found[0]
        if not word.isascii() and _CJK.search(word):
            yield from (word[at : at + 2] for at in range(max(1, len(word) - 1)))
        else:
            yield word


def terms(text: str) -> Iterator[str]:
    """Yield the terms of a text as a bank's index lists them: stemmed words, repeats included."""
    return (_stem(word) for word in words(text) if len(word) < 64)


def query_terms(text: str) -> list[str]:
    """Return the first distinct terms of a bank's query; function words only if it has no other."""
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
    """Return the vendor's stemmer of English alone: with its package come 30 more (0.25 s)."""
    vendor = importlib.util.find_spec("snowballstemmer")
    if vendor is None:
        raise ModuleNotFoundError("snowballstemmer", name="snowballstemmer")
    package = f"{__name__}_vendor"
    if package not in sys.modules:
        # The vendor's modules under a package of ours, so that theirs is not run.
        bare = ModuleType(package)
        bare.__path__ = list(vendor.submodule_search_locations or ())
        sys.modules[package] = bare
    return importlib.import_module(f"{package}.english_stemmer").EnglishStemmer()


def stemmer_version() -> str:
    """Return the version of the banks' stemmer. Raises PackageNotFoundError if it is absent."""
    vendor = importlib.util.find_spec("snowballstemmer")
    for place in (vendor.submodule_search_locations or ()) if vendor else ():
        # Beside the package, as long as there is one; asking for it by name loads 40 modules.
        beside = list(Path(place).parent.glob("snowballstemmer-*.dist-info"))
        if len(beside) == 1:
            return beside[0].name.removesuffix(".dist-info").rpartition("-")[2]
    from importlib.metadata import version

    return version("snowballstemmer")


_STEMMER_LOCK = machine.Lock()


@lru_cache(maxsize=65536)
def _stem(word: str) -> str:
    with _STEMMER_LOCK:
        return str(_stemmer().stemWord(word))
