"""Lexical features of a text, hashed: what two texts share, for the kernels of the example bank.

Four blocks, each of (1 + log tf) idf weights and unit length:

    words       stems of words, and pairs of neighbours
    pairs       stems of content words, and unordered pairs of those in the first lines
    characters  character 2-5-grams inside words

Unordered pairs of content words ("card" with "arrive", whatever stands between them) say most of
what a short message asks for; they are worth more than anything else while examples are few.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations, pairwise
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt

from vedette.judging.text import fold, tokens

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Row = tuple[Ints, Floats]

TEXT_LIMIT = 3_000  # characters of a text that are looked at
BUCKETS = 1 << 18  # hashed features per block; collisions are few and harmless at this size
BLOCKS = 3
WIDTH = BLOCKS * BUCKETS
_MASK = BUCKETS - 1
_PAIRED = 20  # content words from the start of a text that are paired with one another
_WORD_CACHE = 50_000
_SUFFIXES = ("ing", "ed", "es", "s", "ly", "ment", "er")
# Words that say little on their own; negations and question words stay, they tell tasks apart.
_STOP_WORDS = """
i a an the is am are was were be been to of in on for and or as so me my we our us it its
it's this that these those do did does can could would will shall should may might you
your please with at from have has had there i'm i've i'd i'll he she they them their his
her
"""
_STOP = frozenset(_STOP_WORDS.split())


class Lexicon:
    """The weights of features, learnt from the texts it is made of and fixed from then on."""

    def __init__(
        self, texts: Iterable[str], read: Callable[[str], str] = fold, limit: int = TEXT_LIMIT
    ) -> None:
        """Learn how rare each feature is in `texts`.

        `read` turns a text into what is matched: `fold`, or `fold` after a normaliser. `limit` is
        how many characters are looked at.
        """
        self._read, self._limit = read, limit
        # Two banks with one lexicon ask for the same text in turn.
        self._last: tuple[str, Sequence[float], Row] | None = None
        self.words: dict[str, array[int]] = {}
        self._document_counts = np.zeros(WIDTH, dtype=np.int32)
        self._texts = 0
        for text in texts:
            self._texts += 1
            for block in self._counts(text):
                self._document_counts[np.unique(block)] += 1

    def row(self, text: str, share: Sequence[float] = (0.25, 0.25, 0.5)) -> Row:
        """Return the features of `text` and their weights; `share` is what each block counts.

        The dot product of two rows is the similarity of the texts, 0..1.
        """
        last = self._last
        if last is not None and last[0] == text and last[1] == share:
            return last[2]
        features: list[Ints] = []
        weights: list[Floats] = []
        for block, part in zip(self._counts(text), share, strict=True):
            found, times = np.unique(block, return_counts=True)
            rare = np.log((self._texts + 1) / (self._document_counts[found] + 1)) + 1
            weight: Floats = (1 + np.log(times)) * rare
            length = float(np.sqrt(weight @ weight))
            features.append(found)
            weights.append(weight * (part**0.5 / length) if length else weight)
        # As precise as rows are kept, or a text would be less like itself than its stored row.
        values = np.concatenate(weights).astype(np.float32).astype(np.float64)
        row = np.concatenate(features), values
        self._last = (text, share, row)
        return row

    def _counts(self, text: str) -> tuple[Ints, ...]:
        """Return the hashed features of each block, repeats included."""
        words = tokens(self._read(text[: self._limit * 2])[: self._limit])
        stems = [_stem(word) for word in words]
        grams = [*stems, *(f"{left} {right}" for left, right in pairwise(stems))]
        content = [stem for word, stem in zip(words, stems, strict=True) if word not in _STOP]
        near = list(dict.fromkeys(content))[:_PAIRED]
        content += [f"{left} {right}" for left, right in combinations(sorted(near), 2)]
        characters: array[int] = array("q")
        for word, times in Counter(words).items():
            characters.extend(self._characters(word) * times)
        return (
            _hash_features(grams, 0),
            _hash_features(content, BUCKETS),
            np.array(characters, dtype=np.int64) + 2 * BUCKETS,
        )

    def _characters(self, word: str) -> array[int]:
        known = self.words.get(word)
        if known is None:
            inner = f" {word} "
            known = array(
                "q",
                [
                    crc32(inner[at : at + length].encode("utf-8", "surrogatepass")) & _MASK
                    for length in (2, 3, 4, 5)
                    for at in range(len(inner) - length + 1)
                ],
            )
            if len(self.words) < _WORD_CACHE:
                self.words[word] = known
        return known


class Rows:
    """Sparse rows of features: similarities of one row to all, and of all to one another."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.features = np.concatenate([row[0] for row in rows]).astype(np.int32)
        self.values = np.concatenate([row[1] for row in rows]).astype(np.float32)
        self.starts = np.cumsum([0, *(row[0].size for row in rows)], dtype=np.int64)
        self._postings: tuple[npt.NDArray[Any], ...] | None = None

    def __len__(self) -> int:
        return int(self.starts.size - 1)

    def similar(self, row: Row) -> Floats:
        """Return the dot product of `row` with every row, float64 of shape (rows,)."""
        if self._postings is None:
            owner = np.repeat(np.arange(len(self), dtype=np.int32), np.diff(self.starts))
            order = np.argsort(self.features, kind="stable")
            self._postings = (self.features[order], owner[order], self.values[order])
        names, owners, values = self._postings
        sought = row[0].astype(np.int32)
        first = np.searchsorted(names, sought)
        count = np.searchsorted(names, sought, side="right") - first
        at = np.repeat(first - np.cumsum(count) + count, count) + np.arange(int(count.sum()))
        parts = values[at] * np.repeat(row[1], count)
        return np.bincount(owners[at], weights=parts, minlength=len(self)).astype(np.float64)

    def add(self, row: Row) -> None:
        """Put one more row behind the others."""
        self._postings = None
        self.features = np.concatenate((self.features, row[0].astype(np.int32)))
        self.values = np.concatenate((self.values, row[1].astype(np.float32)))
        self.starts = np.append(self.starts, self.features.size)

    def remove(self, place: int) -> None:
        """Take the row at `place` out; those behind it move up."""
        self._postings = None
        first, end = int(self.starts[place]), int(self.starts[place + 1])
        self.features = np.delete(self.features, slice(first, end))
        self.values = np.delete(self.values, slice(first, end))
        self.starts = np.delete(self.starts, place + 1)
        self.starts[place + 1 :] -= end - first

    def kernel(self) -> Floats:
        """Return the similarities of all rows to one another, float64 of shape (rows, rows).

        Features that many rows share are multiplied as a dense matrix; the others, nearly all of
        them, pair by pair, so that the cost follows what texts really share.
        """
        count = len(self)
        owner = np.repeat(np.arange(count), np.diff(self.starts))
        names, places = np.unique(self.features, return_inverse=True)
        spread = np.bincount(places)
        common = spread > max(8, count // 48)
        dense = np.zeros((count, int(common.sum())))
        column = np.cumsum(common) - 1
        often = common[places]
        dense[owner[often], column[places[often]]] = self.values[often]
        total: Floats = dense @ dense.T
        del dense, column, names
        _add_rare(total, owner[~often], places[~often], self.values[~often])
        return total


def _add_rare(total: Floats, owner: Ints, places: Ints, values: npt.NDArray[Any]) -> None:
    """Add the products of features that few rows have, a block of rows at a time."""
    count = total.shape[0]
    if not places.size:
        return
    order = np.argsort(places, kind="stable")
    by_feature, amounts = owner[order], values[order].astype(np.float64)
    sizes = np.bincount(places)
    first = np.cumsum(sizes) - sizes
    block = max(1, 2_000_000 // count)
    bounds = np.searchsorted(owner, np.arange(0, count + block, block))
    for number, (start, end) in enumerate(pairwise(bounds)):
        here = places[start:end]
        repeats = sizes[here]
        if not repeats.size:
            continue
        at = np.repeat(first[here] - np.cumsum(repeats) + repeats, repeats)
        at += np.arange(at.size)
        row = np.repeat(owner[start:end] - number * block, repeats)
        height = min(block, count - number * block)
        part = np.bincount(
            row * count + by_feature[at],
            weights=amounts[at] * np.repeat(values[start:end], repeats),
            minlength=height * count,
        )
        total[number * block : number * block + height] += part.reshape(height, count)


def _hash_features(features: Sequence[str], offset: int) -> Ints:
    found = [crc32(feature.encode("utf-8", "surrogatepass")) for feature in features]
    return (np.array(found, dtype=np.int64) & (BUCKETS - 1)) + offset


def _stem(word: str) -> str:
    """Return `word` without a common English ending; crude, and the same on both sides."""
    for suffix in _SUFFIXES:
        if word.endswith(suffix) and len(word) - len(suffix) >= 3:
            return word[: -len(suffix)]
    return word
