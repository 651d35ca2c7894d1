"""What a document says, by plain rules: its kind, its themes, what can be counted or compared.

Every rule's words stand in the charter. What is kept of a document is small, as the judge carries
it through the turns of a whole week, and every text in it is one that stands in the document: a
report can quote it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from vedette.judging.text import fold

_QUOTE = 140  # characters
_SENTENCE = re.compile(r"(?:[^.!?\n]|[.!?](?!\s|$))+[.!?]*")
_PLACE = re.compile(r"\b([A-D])(\d{1,2})\b")
_HEAD = re.compile(r"(From|Date|Subject): (.*)")
# Who tells a reader to do something is heard as a document, and told as one.
_ORDER = re.compile(
    r"\b(?:agent|assistant|reader|you)\b[^.!?]*\b(?:must|shall|have to)\b[^.!?]*"
    r"\b(?:ignore|send|forward|mark|write|delete)\b"
)


class Reader:
    """Reads documents by the words of a charter."""

    def __init__(self, charter: Mapping[str, Any]) -> None:
        self._themes = {id: _any_of(one["words"]) for id, one in charter["themes"].items()}
        self._trouble = _any_of(charter["trouble"])
        self._mended = _any_of(charter["mended"])
        self._kinds = {kind: _any_of(words) for kind, words in charter["kinds"].items()}
        self._agreed = tuple(charter["agreed"])
        self._counted = tuple(charter["counted"])

    def read(self, text: str) -> dict[str, Any]:
        """Return what a document says; a part that it says nothing of is left out.

        `kind`, `date`, `subject`; `same`: a digest of what it says, alike for two that say the
        same; `themes`: theme -> [quote, place, mended]; `values`: name -> quote; `order`: a quote.
        """
        head, body = _split(text)
        found: dict[str, Any] = {
            "kind": self._find_kind(fold(f"{head.get('Subject', '')}\n{body}")),
            "date": head.get("Date", "")[:16],
            "subject": head.get("Subject", "")[:_QUOTE],
            "same": hashlib.sha256(" ".join(fold(body).split()).encode()).hexdigest()[:12],
        }
        return {**found, **self.read_part(body, _place(head.get("Subject", "")))}

    def read_part(self, text: str, place: str = "") -> dict[str, Any]:
        """Return what a part of a document says of themes, values and orders.

        `place` is where a sentence is about that names none.
        """
        found: dict[str, Any] = {}
        for sentence in _sentences(text):
            folded = fold(sentence)
            for theme, words in self._themes.items():
                troubled = self._trouble.search(folded)
                mended = self._mended.search(folded)
                if (troubled or mended) and words.search(folded):
                    known = found.setdefault("themes", {}).setdefault(
                        theme, [sentence[:_QUOTE], _place(sentence) or place, False]
                    )
                    known[2] = known[2] or bool(mended)
            if "order" not in found and _ORDER.search(folded):
                found["order"] = sentence[:_QUOTE]
        for line in text.splitlines():
            name = line.partition(":")[0]
            if name in self._agreed or name in self._counted:
                found.setdefault("values", {}).setdefault(name, line.strip()[:_QUOTE])
        return found

    def _find_kind(self, folded: str) -> str:
        kinds = (kind for kind, words in self._kinds.items() if words.search(folded))
        return next(kinds, "other")


def merge(found: Mapping[str, Any], part: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is known of a document after one more part of it."""
    both = {**part, **found}
    for name in ("themes", "values"):
        if name in part and name in found:
            both[name] = {**part[name], **found[name]}
    return both


def value_of(quote: str) -> str:
    """Return the value of a line `name: value`."""
    return quote.partition(":")[2].strip().rstrip(".")


def _split(text: str) -> tuple[dict[str, str], str]:
    lines = text.splitlines()
    head: dict[str, str] = {}
    while lines and (found := _HEAD.fullmatch(lines[0])):
        head.setdefault(found[1], found[2])
        lines.pop(0)
    return head, "\n".join(lines)


def _sentences(text: str) -> Iterator[str]:
    for found in _SENTENCE.finditer(text):
        if sentence := found[0].strip():
            yield sentence


def _place(sentence: str) -> str:
    found = _PLACE.search(sentence)
    return f"{found[1]}{int(found[2]):02}" if found else ""


def _any_of(words: Iterable[str]) -> re.Pattern[str]:
    each = "|".join(re.escape(fold(word)) for word in words)
    return re.compile(rf"\b(?:{each})")
