"""What a document says, by plain rules: its kind, its themes, what can be counted or compared.

Every rule's words stand in the charter. What is kept of a document is small, as the judge carries
it through the turns of a whole week, and every text in it is one that stands in the document: a
report can quote it. Every search takes a time linear in the text.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from vedette.judging.text import fold

_QUOTE = 140  # characters
_PIECE = 1_000  # characters: a sentence that has more is read in pieces
# Of a theme, and of trouble that fits none: so many sentences of a paper.
_MOST = 3
_SENTENCE = re.compile(r"(?:[^.!?\n]|[.!?](?!\s|$))+[.!?]*")
_HEAD = re.compile(r"(From|Date|Subject): (.*)")
# Who tells a reader to do something is heard as a document, and told as one: a word of each, in
# this order.
_ORDER = tuple(
    re.compile(rf"\b(?:{words})\b")
    for words in (
        "agent|assistant|reader|you",
        "must|shall|have to",
        "ignore|send|forward|mark|write|delete",
    )
)
_NUMBER = re.compile(r"[0-9]+(?:[.,][0-9]+)?")

Found = dict[str, Any]


class Reader:
    """Reads documents by the words of a charter."""

    def __init__(self, charter: Mapping[str, Any]) -> None:
        self._themes = {id: _any_of(one["words"]) for id, one in charter["themes"].items()}
        self._trouble = _any_of(charter["trouble"])
        self._danger = _any_of(charter["danger"])
        self._mended = _any_of(charter["mended"])
        self._denied = _any_of(charter["denied"])
        self._kinds = {kind: _any_of(words) for kind, words in charter["kinds"].items()}
        self._values = (*charter["agreed"], *charter["counted"])
        self._place = re.compile(charter["place"])

    def read(self, text: str) -> Found:
        """Return what a document says; a part that it says nothing of is left out.

        `kind`, `date`, `from`; `first`: the line of its subject, or its first one; `same`: a digest
        of what it says, alike for two that say the same; `themes`: theme -> `trouble` and `mended`
        -> [quote, place] of each; `other`: quotes of trouble on no theme; `values`: name -> quote;
        `order`: a quote.
        """
        head, body = split(text)
        subject = head.get("Subject", "")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        titles = [line for line in lines[:3] if subject.strip() and line.startswith("Subject:")]
        found: Found = {
            "kind": self._find_kind(fold(f"{subject}\n{body}")),
            "date": head.get("Date", "")[:16],
            "from": head.get("From", "")[:60],
            "first": (titles or lines or [""])[0][:_QUOTE],
        }
        part = self.read_part(body, self._find_place(subject))
        if titles and not ("themes" in part or "other" in part):
            part = {**self.read_part(titles[0]), **part}
        return {**found, **part}

    def read_part(self, text: str, place: str = "") -> Found:
        """Return what a part of a document says of themes, values and orders, and its digest.

        `place` is where a sentence is about that names none.
        """
        found: Found = {"same": _digest(" ".join(fold(text).split()))}
        for piece in (piece for one in sentences(text) for piece in _pieces(one)):
            folded = fold(piece)
            state, at = self._find_state(folded)
            quote = _quote(piece, at)
            themes = [id for id, words in self._themes.items() if words.search(folded)]
            where = self._find_place(piece) or place
            for theme in themes if state else ():
                told = found.setdefault("themes", {}).setdefault(theme, {})
                _keep(told.setdefault(state, []), [quote, where])
            if not themes and state == "trouble":
                _keep(found.setdefault("other", []), quote)
            if "order" not in found and (ordered := _find_order(folded)) is not None:
                found["order"] = _quote(piece, ordered)
        for line in text.splitlines():
            name = line.partition(":")[0]
            if name in self._values:
                found.setdefault("values", {}).setdefault(name, line.strip()[:_QUOTE])
        return found

    def _find_state(self, folded: str) -> tuple[str, int]:
        """Return what a sentence tells of, `mended`, `trouble` or nothing, and where it does.

        What is not mended yet is trouble; of danger it is told whatever else a sentence says, but
        that there is none.
        """
        if mended := self._mended.search(folded):
            return "trouble" if self._denied.search(folded) else "mended", mended.start()
        found = self._trouble.search(folded) or self._danger.search(folded)
        if found is None:
            return "", 0
        before = folded[max(0, found.start() - 14) : found.start()].split()
        is_none = before[-2:-1] in (["nothing"], ["nobody"])
        return "" if is_none else "trouble", found.start()

    def _find_place(self, text: str) -> str:
        found = self._place.search(text)
        if found is None:
            return ""
        return re.sub(r"[0-9]+", lambda number: f"{int(number[0]):02}", found[0]).upper()

    def _find_kind(self, folded: str) -> str:
        kinds = (kind for kind, words in self._kinds.items() if words.search(folded))
        return next(kinds, "other")


def merge(found: Mapping[str, Any], part: Mapping[str, Any]) -> Found:
    """Return what is known of a document after one more part of it."""
    both: Found = {**part, **found, "same": _digest(found["same"] + part["same"])}
    if "values" in part:
        both["values"] = {**part["values"], **found.get("values", {})}
    if "other" in part:
        both["other"] = _join(found.get("other", []), part["other"])
    if "themes" in part:
        known = found.get("themes", {})
        both["themes"] = {
            theme: {
                state: _join(known.get(theme, {}).get(state, []), told)
                for state, told in {**known.get(theme, {}), **part["themes"].get(theme, {})}.items()
            }
            for theme in (*known, *(one for one in part["themes"] if one not in known))
        }
    return both


def value_of(quote: str) -> str:
    """Return the value of a line `name: value`."""
    return quote.partition(":")[2].strip().rstrip(".")


def count_of(quote: str) -> int | None:
    """Return the number of a line `name: number`; nothing if it is none of nine digits at most."""
    value = value_of(quote)
    return int(value) if value.isascii() and value.isdecimal() and len(value) < 10 else None


def agreed_value(quote: str, pattern: str) -> tuple[str, str] | None:
    """Return what a line says by the charter's pattern of it, and the same to compare.

    Nothing else of the line is a value: `2.4 m at low water` says 2.4 m, and so does `2.40 m`.
    """
    found = re.match(pattern, value_of(quote))
    if found is None:
        return None
    said = found[0]
    plain = _NUMBER.sub(lambda number: f"{float(number[0].replace(',', '.')):g}", fold(said))
    return said, "".join(plain.split())


def split(text: str) -> tuple[dict[str, str], str]:
    """Return a document's head, by name, and what follows it."""
    lines = text.splitlines()
    head: dict[str, str] = {}
    at = 0
    while at < len(lines) and (found := _HEAD.fullmatch(lines[at])):
        head.setdefault(found[1], found[2])
        at += 1
    return head, "\n".join(lines[at:])


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a text, none of which goes over a line."""
    for found in _SENTENCE.finditer(text):
        if sentence := found[0].strip():
            yield sentence


def _pieces(sentence: str) -> Iterator[str]:
    """Yield a sentence in pieces that end between words, if they can."""
    start = 0
    while len(sentence) - start > _PIECE:
        end = sentence.rfind(" ", start + 1, start + _PIECE)
        end = end if end > 0 else start + _PIECE
        yield sentence[start:end].strip()
        start = end
    yield sentence[start:].strip()


def _quote(piece: str, at: int) -> str:
    """Return the words around a place of a text that is about there: folding moves it little."""
    start = 0 if len(piece) <= _QUOTE else max(0, min(at - _QUOTE // 2, len(piece) - _QUOTE))
    begin = piece.find(" ", start, start + 20) + 1 if start else 0
    return piece[begin or start :][:_QUOTE].strip()


def _find_order(folded: str) -> int | None:
    at, begun = 0, None
    for words in _ORDER:
        found = words.search(folded, at)
        if found is None:
            return None
        at, begun = found.end(), found.start() if begun is None else begun
    return begun


def _keep(told: list[Any], one: Any) -> None:
    if one not in told and len(told) < _MOST:
        told.append(one)


def _join(known: list[Any], more: list[Any]) -> list[Any]:
    both = list(known)
    for one in more:
        _keep(both, one)
    return both


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _any_of(words: Iterable[str]) -> re.Pattern[str]:
    """Return what finds one of these words, whole, in the singular or the plural."""
    each = "|".join(re.escape(fold(word)) for word in words)
    return re.compile(rf"\b(?:{each})(?:s|'s)?\b")
