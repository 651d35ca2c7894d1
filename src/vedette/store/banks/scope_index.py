"""What recall searches: the active memories of one scope, in memory, ranked as the file ranks them.

BM25 over plain postings (k1 = 1.2, b = 0.75), the formula of `statements.ranking_query`: Robertson
and Zaragoza, The Probabilistic Relevance Framework: BM25 and Beyond (2009), with idf and mean
length of this scope alone. Scores are rounded to nine digits, so that equal ones tie by id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import nlargest
from math import fsum, inf, log

from vedette.domain.memory import Memory

_ROUNDED = 9
# More than rounding can move a score.
_MARGIN = 1e-8


class ScopeIndex:
    """The postings of one scope's active memories.

    What holds at a moment (how many memories have not expired, how long they are in the mean, what
    a term weighs in each) is kept until the next memory expires or any changes.
    """

    __slots__ = (
        "_counts", "_from_us", "_live", "_mean", "_memories", "_postings", "_topics", "_until_us",
        "_weights", "size",
    )  # fmt: skip

    def __init__(self) -> None:
        self.size = 0  # postings that are held
        self._memories: dict[str, Memory] = {}
        self._counts: dict[str, Mapping[str, int]] = {}
        self._postings: dict[str, dict[str, int]] = {}
        self._live: dict[str, int] = {}
        self._mean = 0.0
        self._weights: dict[str, list[tuple[str, float]]] = {}
        self._topics: dict[tuple[str, ...], frozenset[str]] = {}
        self._from_us, self._until_us = inf, -inf

    def put(self, memory: Memory, counts: Mapping[str, int]) -> None:
        """Take up a memory with how often each term stands in it, in place of what had its id."""
        self.drop(memory.id)
        self._forget_moment()
        self._memories[memory.id] = memory
        self._counts[memory.id] = counts
        for term, count in counts.items():
            self._postings.setdefault(term, {})[memory.id] = count
        self.size += len(counts)

    def drop(self, id: str) -> None:
        """Let go of a memory, if it is here."""
        if self._memories.pop(id, None) is None:
            return
        self._forget_moment()
        counts = self._counts.pop(id)
        for term in counts:
            held = self._postings[term]
            del held[id]
            if not held:
                del self._postings[term]
        self.size -= len(counts)

    def _forget_moment(self) -> None:
        self._from_us, self._until_us = inf, -inf

    def search(
        self, wanted: Sequence[str], topics: Sequence[str], now_us: int, limit: int
    ) -> list[Memory]:
        """Return the memories that best match the terms; with `topics` only those that have one."""
        if not self._from_us <= now_us < self._until_us:
            self._set_moment(now_us)
        scores: dict[str, float] = {}
        for term in wanted:
            weights = self._weights.get(term)
            if weights is None:
                if term not in self._postings:
                    continue
                weights = self._weights[term] = self._weigh(term)
            for id, weight in weights:
                scores[id] = scores.get(id, 0.0) + weight
        if topics:
            about = self._about(tuple(topics))
            scores = {id: score for id, score in scores.items() if id in about}
        if len(scores) > limit:
            least = nlargest(limit, scores.values())[-1] - _MARGIN
            scores = {id: score for id, score in scores.items() if score >= least}
        ranked = sorted((-round(score, _ROUNDED), id) for id, score in scores.items())
        return [self._memories[id] for _, id in ranked[:limit]]

    def _set_moment(self, now_us: int) -> None:
        """Find out what holds now, and for how long."""
        ends = {id: memory.expires_us for id, memory in self._memories.items()}
        self._live = {
            id: sum(self._counts[id].values())
            for id, end in ends.items()
            if end == 0 or end > now_us
        }
        self._mean = fsum(self._live.values()) / len(self._live) if self._live else 0.0
        self._from_us = max((end for end in ends.values() if end and end <= now_us), default=-inf)
        self._until_us = min((end for end in ends.values() if end > now_us), default=inf)
        self._weights.clear()
        self._topics.clear()

    def _weigh(self, term: str) -> list[tuple[str, float]]:
        live, mean = self._live, self._mean
        held = [(id, tf) for id, tf in self._postings[term].items() if id in live]
        idf = log((len(live) - len(held) + 0.5) / (len(held) + 0.5) + 1.0)
        return [
            (id, idf * tf * 2.2 / (tf + 1.2 * (0.25 + 0.75 * live[id] / mean))) for id, tf in held
        ]

    def _about(self, topics: tuple[str, ...]) -> frozenset[str]:
        found = self._topics.get(topics)
        if found is None:
            wanted = set(topics)
            found = self._topics[topics] = frozenset(
                id for id in self._live if not wanted.isdisjoint(self._memories[id].topics)
            )
        return found
