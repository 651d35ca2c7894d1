"""Reads a comment: its own words apart from the words that it quotes, and whom it speaks to."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf

from vedette.judging.text import clean, fold
from vedette.judging.word_groups import Term, find_terms

READ = 20_000  # characters of a comment that are read

_QUOTE = re.compile(r'"([^"]{2,600})"')
# Words of the author about somebody else's: rejected, or made one's own.
_REJECTS = re.compile(
    r"\b(?:not (?:fair|ok|okay|right|nice|funny|true|acceptable)|unfair|unacceptable"
    r"|out of order"
    r"|please (?:do not|don't|stop|remove|delete|mind)|could (?:people|everyone|you) please"
    r"|shame on|sad thing|nobody deserves|ignore (?:him|her|them|it|that)|reported (?:it|that|the)"
    r"|is wrong|was wrong|everyone is welcome|all are welcome|stop calling|no place here"
    r"|mind (?:their|your) (?:words|language)|disgraceful to|that is a threat|let us keep)\b"
)
_ENDORSES = re.compile(
    r"\b(?:(?:is|are|was|were|so) right about|i agree|well said|spot on|so true|true words"
    r"|as the saying goes|couldn't agree more|and that is what you are|applies to you)\b"
)
# A comment that speaks to whoever judges it. What it asks for decides nothing.
_ORDERS = re.compile(
    r"(?:^|[.!?\"]\s*)(?:(?:dear |note to (?:the )?)?(?:moderat\w+(?: bot| team)?|system"
    r"|assistant|admin|bot|ai)\s*[:,][^.!?]*[.!?]?)"
    r"|\b(?:ignore|forget|disregard) (?:all |the |your )?(?:previous |house )?"
    r"(?:rules|instructions)"
    r"|\b(?:mark|classify|label|rate) this (?:comment )?as (?:fine|ok|safe|harmless)"
    r"|\b(?:this|the) (?:author|user|comment) is (?:trusted|approved|whitelisted)"
)
_WORD = re.compile(r"[a-z']+")
_FIGURED = re.compile(r"\b[a-z]+[013457]+[a-z]+\b", re.IGNORECASE)
_ONE = re.compile(r"(?<![\w.,:/-])1(?![\w.,:/-])")
# The commonest English words: a comment with hardly any of them is in another language.
_COMMONEST = """
    a about after again all am an and any are as at back be because been before but by can could
    did do does down every for from get go had has have he her here him his how i if in into is
    it its just know last like me more my never next no not now of off on one only or our out
    over please said see she so some still than thank thanks that the their them then there they
    this to too trip up us very was we were what when where which who will with without would
    you your you're i'm it's don't again best check great cheap earn good lovely visit now free
"""
_COMMON = frozenset(_COMMONEST.split())
_GROUPS = frozenset({"insult", "threat", "dehumanising", "removal"})
_REACH = 70  # characters behind a reporting word that count as told by somebody else


@dataclass(frozen=True, slots=True)
class Reading:
    """A comment as it is judged.

    `text` is all of it as a reader sees it (normalised), `own` what is left without quotations and
    without what speaks to a moderator. `weights` says for each of `terms` how much it counts: 1 for
    the author's own words, less for somebody else's.
    """

    raw: str
    text: str
    own: str
    terms: tuple[Term, ...]
    weights: tuple[float, ...]
    quotes: bool
    rejects: bool
    orders: bool
    words: int
    english: float

    def weight(self, group: str) -> float:
        """Return how much of a group stands here, the author's own words in full."""
        return sum(
            weight
            for term, weight in zip(self.terms, self.weights, strict=True)
            if term.group == group
        )

    def near(self, left: str, right: str, reach: int = 40) -> float:
        """Return the greatest weight of a `right` that stands near a `left`; 0 if none does."""
        lefts = _Spans((one.start, one.end) for one in self.terms if one.group == left)
        return max(
            (
                weight
                for term, weight in zip(self.terms, self.weights, strict=True)
                if term.group == right and lefts.furthest(term.end + reach) >= term.start - reach
            ),
            default=0.0,
        )


class _Spans:
    """Stretches of a text, asked for by where they begin: a comment may have thousands."""

    def __init__(self, spans: Iterable[tuple[int, int]]) -> None:
        ordered = sorted(spans)
        self._starts = [start for start, _ in ordered]
        self._ends = list(accumulate((end for _, end in ordered), max))

    def furthest(self, at: int) -> float:
        """Return the greatest end of those that begin at `at` or before; -inf without any."""
        number = bisect_right(self._starts, at)
        return self._ends[number - 1] if number else -inf


def read(text: str, normalise: Callable[[str], str] = fold) -> Reading:
    """Read a comment; `normalise` makes disguised words plain again."""
    raw = text[:READ]
    folded = fold(normalise(_marked(raw)))[:READ]
    spans = [(match.start(1), match.end(1)) for match in _QUOTE.finditer(folded)]
    outside = _QUOTE.sub(" ", folded)
    if len(_WORD.findall(outside)) < 3:
        # The whole comment in quotation marks is its author's comment.
        spans, outside = [], folded
    rejects = _REJECTS.search(outside) is not None
    endorses = _ENDORSES.search(outside) is not None
    orders = _ORDERS.search(folded) is not None
    terms = find_terms(folded)
    reports = _report_flags(terms, spans, rejects)
    story = any(term.group == "fiction" for term in terms)
    share = 1.0 if endorses else 0.0 if rejects else 0.15 if story else 0.4
    own = _ORDERS.sub(" ", outside) if orders else outside
    words = _WORD.findall(folded)
    return Reading(
        raw=raw,
        text=folded,
        own=" ".join(own.split()) or folded,
        terms=tuple(terms),
        weights=tuple(share if other else 1.0 for other in reports),
        quotes=any(
            other and term.group in _GROUPS for term, other in zip(terms, reports, strict=True)
        ),
        rejects=rejects and not endorses,
        orders=orders,
        words=len(words),
        english=sum(word in _COMMON for word in words) / len(words) if words else 0.0,
    )


def _report_flags(
    terms: Sequence[Term], spans: Sequence[tuple[int, int]], rejects: bool
) -> list[bool]:
    """Say which terms are told of somebody else: in quotation marks, or reported and rejected.

    Without marks only a rejection tells a report from an insult with "said" in it.
    """
    quoted = _Spans(spans)
    reports = sorted(one.end for one in terms if one.group == "reporting") if rejects else []

    def reported(term: Term) -> bool:
        number = bisect_right(reports, term.start)
        return number > 0 and term.start - reports[number - 1] <= _REACH

    return [quoted.furthest(one.start) >= one.end or reported(one) for one in terms]


def _marked(raw: str) -> str:
    """Put quotation marks around quoted lines (`> …`), before line ends are folded away.

    Where figures stand for letters inside words, a figure one alone is an I.
    """
    lines = [
        f'"{line.lstrip()[1:].strip()}"' if line.lstrip().startswith(">") else line
        for line in clean(raw)[:READ].splitlines()
    ]
    text = "\n".join(lines)
    return _ONE.sub("I", text) if len(_FIGURED.findall(text)) > 1 else text
