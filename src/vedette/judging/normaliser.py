"""A normaliser that knows words: disguised text as it was meant.

In order: what `clean` does (entities, invisible characters, NFKC); letters of other alphabets by
look or by name; accents; runs of single letters joined and cut into words again by a unigram
model; and then only words that are not in the vocabulary: unknown letters and `*` or `#` as wild
cards, digits and signs as letters in all readings, repeated letters as one or two, and inner
letters in another order. Where the vocabulary knows nothing better, a word stays as it is.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from itertools import islice, product

from vedette.judging.common_words import COMMON
from vedette.judging.confusables import latin
from vedette.judging.text import clean

_CACHE = 50_000
_READINGS = 96  # readings of one word that are looked up
_SPELLINGS = 160  # spellings with each repeated letter as one or two that are looked up
_HARD = 250  # disguised words of one text that are looked up in every way; the rest plainly
_LONGEST = 24  # letters of a word in the unigram model
_CHUNK = re.compile(r"\S+")
# What is no disguised word: links, addresses of people, marks of topics, numbers.
_PLAIN = re.compile(r"(?:https?://|www\.)\S+|[@#][\w.]+:?|[\d.,:/%-]+|\S+@\S+\.\w+", re.IGNORECASE)
# What a chunk that is longer than any word is made of.
_PIECES = re.compile(r"[-/'.,_]+|[^-/'.,_]+")
_LINKED = re.compile(r"https?://|www\.|[@#]", re.IGNORECASE)
_EDGES = re.compile(r"([\"'(\[{<.,;:?!~-]*)(.*?)([\"')\]}>.,;:?!~-]*)", re.DOTALL)
# Three single letters or more, with a blank or a mark between each: "h e l l o", "h.e.l.l.o".
_SPELLED = re.compile(r"(?<![^\W_])[^\W_](?:(?:[ ]{1,2}|[.\-_*·|/,]{1,2} ?)[^\W_](?![^\W_])){2,}")
_BETWEEN = re.compile(r"[\s.\-_*·|/,]+")
_LEET = {
    **{"0": "o", "1": "il", "2": "z", "3": "e", "4": "a", "5": "s", "6": "gb", "7": "t"},
    **{"8": "b", "9": "g", "@": "a", "$": "s", "!": "il", "|": "il", "+": "t", "€": "e"},
    **{"£": "l", "(": "c", "¢": "c", "¡": "i", "§": "s"},
}
_WILD = "*#"
_RUN = re.compile(r"(.)\1+")
# Letters that one sign may stand for are one letter in the bones of a word: i and l, b and g.
_BONES = str.maketrans(
    {
        **{sign: letters[0] for sign, letters in _LEET.items()},
        "l": "i",
        "£": "i",
        "b": "g",
        "8": "g",
    }
)


class Normaliser:
    """Turns disguised text into what a reader reads. Deterministic; its cache is bounded."""

    def __init__(self, vocabulary: Iterable[str], unknown: Collection[str] = ()) -> None:
        """Know the words of `vocabulary` (repeats say how common one is) and common English.

        `unknown` are letters to treat as never seen, whatever the tables say: for trials.
        """
        self._unknown_letters = frozenset(unknown)
        counts = Counter(word.casefold() for word in vocabulary)
        for place, word in enumerate(dict.fromkeys(COMMON)):
            counts[word] += max(1, 3_000 // (place + 3))
        self._counts = {word: n for word, n in counts.items() if len(word) <= _LONGEST}
        total = sum(self._counts.values())
        self._cost = {word: math.log(total / n) for word, n in self._counts.items()}
        self._unknown_cost = math.log(total) + 2.0
        self._longest = max(map(len, self._counts))
        self._by_scramble: dict[str, str] = {}
        self._by_length: dict[int, list[str]] = {}
        for word in sorted(self._counts, key=lambda word: (-self._counts[word], word)):
            self._by_length.setdefault(len(word), []).append(word)
            if len(word) > 3 and word.isalpha():
                self._by_scramble.setdefault(_key(word), word)
        self._by_skeleton: dict[str, list[str]] = {}
        for word in sorted(self._counts, key=lambda word: (-self._counts[word], word)):
            self._by_skeleton.setdefault(word.translate(_BONES), []).append(word)
        self._cache: dict[str, str] = {}

    @classmethod
    def of(cls, texts: Iterable[str], least: int = 1, unknown: Collection[str] = ()) -> Normaliser:
        """Return one that knows the words seen `least` times and more in `texts`."""
        counts = Counter(
            word for text in texts for word in re.findall(r"[^\W\d_]+", clean(text).casefold())
        )
        return cls(word for word, times in counts.items() if times >= least for _ in range(times))

    def __call__(self, text: str) -> str:
        """Return `text` in lower case with its words as they were meant."""
        text = clean(text)
        if not text.isascii():
            # Before the case is folded: a capital may look like another letter than its small one.
            foreign = {ord(char): self._letter(char) for char in set(text) if char >= "\x80"}
            text = text.translate(foreign)
        text = text.casefold()
        text = _SPELLED.sub(lambda match: self._rejoin_letters(match[0]), text)
        hard: set[str] = set()
        return _CHUNK.sub(lambda match: self._mend_bounded(match[0], hard), text)

    def _letter(self, char: str) -> str:
        """Return what a character beyond ASCII stands for; itself where nobody can tell."""
        if unicodedata.combining(char):
            return ""
        if char in self._unknown_letters:
            return char
        found = latin(char)
        if found is not None:
            return found
        bare = unicodedata.normalize("NFKD", char)[0]
        return bare if bare.isascii() else latin(bare) or char

    def _mend_bounded(self, chunk: str, hard: set[str]) -> str:
        """Mend a chunk at a cost that its writer cannot choose; `hard` holds what cost much so far.

        What counts is the text alone and not what is in the cache: the same text, the same answer.
        """
        if len(chunk) > _LONGEST * 3:
            if _LINKED.match(chunk):
                return chunk
            pieces = _PIECES.findall(chunk)
            return "".join(
                piece if len(piece) > _LONGEST * 3 else self._mend_bounded(piece, hard)
                for piece in pieces
            )
        if chunk.isalpha() and chunk.isascii():
            return self._chunk(chunk)
        if len(hard) >= _HARD and chunk not in hard:
            return chunk if _PLAIN.fullmatch(chunk) else self._leet(chunk) or chunk
        hard.add(chunk)
        return self._chunk(chunk)

    def _leet(self, word: str) -> str | None:
        """Return the most common word of which `word` is a reading, sign by sign; one look-up."""
        return next(
            (
                known
                for known in self._by_skeleton.get(word.translate(_BONES), ())
                if all(own in _LEET.get(sign, sign) for own, sign in zip(known, word, strict=True))
            ),
            None,
        )

    def _chunk(self, chunk: str) -> str:
        known = self._cache.get(chunk)
        if known is None:
            known = chunk if _PLAIN.fullmatch(chunk) else self._mend_chunk(chunk)
            if len(self._cache) >= _CACHE:
                self._cache.clear()
            self._cache[chunk] = known
        return known

    def _mend_chunk(self, chunk: str) -> str:
        edges = _EDGES.fullmatch(chunk)
        assert edges is not None  # every part of the pattern may be empty
        before, core, after = edges.groups()
        if not core or core in self._counts or core.isdigit():
            return chunk
        parts = re.split(r"([-/'.,]+)", core)
        if len(parts) > 1 and all(p in self._counts or not p.isalpha() for p in parts):
            return chunk
        found = self._word(core)
        if found is None and (before or after) and any(c in _LEET for c in before + after):
            # The mark at the edge may be a letter: "$illy", "idio+!".
            whole = self._word(chunk.strip("\"'()[]{}<>.,;:?~-"))
            if whole is not None:
                return whole
        if found is None and len(parts) > 1:
            found = "".join(self._word(p) or p if p[:1].isalnum() else p for p in parts)
        return before + (found if found is not None else core) + after

    def _word(self, word: str) -> str | None:
        """Return the word of the vocabulary that `word` is a disguise of, or None."""
        if word in self._counts:
            return word
        if len(word) < 3 or len(word) > _LONGEST * 3:
            return None
        if any(char in _WILD or char > "\x7f" for char in word):
            return self._match_wildcards(word) or self._match_wildcards(_RUN.sub(r"\1", word))
        readings = list(islice(_readings(word), _READINGS))
        best = self._best(readings)
        if best is None:
            spelled = (s for reading in readings[:8] for s in _spellings(reading))
            best = self._best(islice(spelled, _SPELLINGS))
        if best is None:
            for reading in readings:
                best = self._by_scramble.get(_key(reading)) if reading.isalpha() else None
                if best is not None:
                    break
        if best is None and readings[0] != word:
            mostly = len(word) > 3 and sum(char.isalpha() for char in word) * 2 >= len(word)
            plain = mostly and readings[0].isalpha() and not word[0].isdigit()
            return readings[0] if plain else None
        if best is None and readings[0].isalpha():
            shorter = re.sub(r"(.)\1{2,}", r"\1\1", readings[0])
            return shorter if shorter != word else None
        return best

    def _best(self, words: Iterable[str]) -> str | None:
        return max(
            (word for word in words if word in self._counts),
            key=lambda word: (self._counts[word], word),
            default=None,
        )

    def _match_wildcards(self, word: str) -> str | None:
        """Return the most common word of this length that fits around the wild cards."""
        if len(word) not in self._by_length:
            return None
        pattern = "".join(
            "." if char in _WILD or char > "\x7f" else f"[{re.escape(char + _LEET.get(char, ''))}]"
            for char in word
        )
        if pattern.count(".") * 2 > len(word) + 1:
            return None
        fits = re.compile(pattern)
        return next((w for w in self._by_length.get(len(word), ()) if fits.fullmatch(w)), None)

    def _rejoin_letters(self, run: str) -> str:
        """Cut a run of single letters into the likeliest words (Viterbi over unigrams)."""
        letters = _BETWEEN.sub("", run)
        if letters.isdigit():
            return run
        bones = "" if letters.isalpha() else letters.translate(_BONES)
        best: list[tuple[float, int]] = [(0.0, 0)]
        for end in range(1, len(letters) + 1):
            cheapest = (math.inf, 0)
            for start in range(max(0, end - self._longest), end):
                price = self._cost.get(letters[start:end])
                if price is None and bones and bones[start:end] in self._by_skeleton:
                    price = self._disguise_cost(letters[start:end])
                if price is None:
                    price = self._unknown_cost + 1.5 * (end - start)
                elif end - start == 1 and letters[start] not in "ai":
                    price += 2.0
                option = best[start][0] + price
                if option < cheapest[0]:
                    cheapest = (option, start)
            best.append(cheapest)
        words: list[str] = []
        end = len(letters)
        while end:
            start = best[end][1]
            words.append(letters[start:end])
            end = start
        return " ".join(reversed(words))

    def _disguise_cost(self, word: str) -> float | None:
        """Return what it costs to read `word` as one of the vocabulary, or None."""
        meant = self._leet(word) if not word.isalpha() else None
        return None if meant is None else self._cost[meant] + 1.0


def _readings(word: str) -> Iterator[str]:
    """Yield what a word with digits and signs may mean, the plainest reading first."""
    if not any(char in _LEET for char in word):
        yield word
        return
    for letters in product(*(_LEET.get(char, char) for char in word)):
        yield "".join(letters)


def _spellings(word: str) -> Iterator[str]:
    """Yield the word with each run of a letter as one or as two."""
    runs = [match[0] for match in re.finditer(r"(.)\1*", word)]
    options = [(run[0], run[0] * 2) if len(run) > 1 else (run,) for run in runs]
    for parts in islice(product(*options), 64):
        yield "".join(parts)


def _key(word: str) -> str:
    return word[0] + "".join(sorted(word[1:-1])) + word[-1]
