"""What is said of a task, held against its goal, clause by clause: told anew, narrowed, undone.

A sentence restates a clause of the goal if it has most of its words. What is honest progress has
numbers of its own (of items, of turns), so that a sentence with a number that the goal has not is
no restatement, but where the number stands in the goal's own words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache

from msgspec import Struct

# So much of a clause's words has a sentence that restates it, in thousandths, and so many at least.
_SHARE_MILLI, _LEAST = 500, 3
_STOP_WORDS = (
    "a an the of in on at to for from by with and or is are was were be been it its this that "
    "these those there here then than as so if when where which who we i you they them our my your "
    "will would shall should can could may might must have has had do does did not no any "
    "after before until within above below"
)
_STOPS = frozenset(_STOP_WORDS.split())
_NARROWS = re.compile(
    r"\b(?:only|just|merely|mainly|mostly|primarily|at most|some|few|sample|rough|short|brief|quick"
    r"|main|major|large|larger|largest|big|biggest|important|severe|serious|significant|most)\b",
    re.IGNORECASE,
)
_NEGATES = re.compile(r"\b(?:do not|don't|never|must not|may not|cannot|without)\s+", re.IGNORECASE)
# "In short: …", "The job is to …": what comes after says what the task is.
_LEAD = re.compile(
    r"^(?!(?:next|then|now|open|question|ask|done|note|also)\b)(?:[\w'-]+\s+){0,5}?"
    r"(?:[\w'-]+:|(?:is|are|am|was|were|have|has|had|asked|told|meant|supposed|here|trying) to\b"
    r"|working on:?)\s+(?P<said>.+)",
    re.IGNORECASE,
)
_WAIVES = re.compile(
    r"\b(?:(?:is|are) (?:optional|unnecessary|superfluous|not needed|not necessary|not required)"
    r"|need not be \w+|(?:can|may|could) (?:also )?be (?:left out|omitted|skipped|ignored|dropped)"
    r"|can do without)\b",
    re.IGNORECASE,
)
_NUMBERS = re.compile(r"(?:(?P<before>[\w-]+)\s+)?(?P<number>\d[\d.,]*)\s+(?P<after>[^\W\d][\w-]*)")


class _Clause(Struct, frozen=True):
    """A clause of a goal, the words of it that count, and those that it forbids, in order."""

    text: str
    words: frozenset[str]
    forbids: tuple[str, ...]


class _Goal(Struct, frozen=True):
    """A goal read: its clauses, all its words in a row, its numbers, and those by what is around
    them.
    """

    clauses: tuple[_Clause, ...]
    plain: str
    numbers: frozenset[str]
    places: Mapping[tuple[str, str], frozenset[str]]
    is_foreign: bool


def restates_goal(sentence: str, goal: str) -> bool:
    """Say whether a sentence tells, as what the task is, something that is not its goal."""
    found = _LEAD.search(sentence)
    if found is None or _has_own_number(sentence, goal):
        return False
    said = _plain(found["said"])
    if not said or f" {said} " in _read_goal(goal).plain:
        return False
    return any(_is_restated(sentence, clause) for clause in _read_goal(goal).clauses)


def narrows_goal(sentence: str, goal: str) -> bool:
    """Say whether a sentence tells a clause of the goal with a word that leaves some of it out."""
    words = {one.casefold() for one in _NARROWS.findall(sentence)}
    if not words or _has_own_number(sentence, goal):
        return False
    return any(
        words - set(_plain(clause.text).split()) and _is_restated(sentence, clause)
        for clause in _read_goal(goal).clauses
    )


def changes_number(sentence: str, goal: str) -> bool:
    """Say whether a sentence has a number of the goal's between the same words, but another."""
    known = _read_goal(goal).places
    for one in _NUMBERS.finditer(sentence):
        expected = known.get(_place(one)) if one["before"] else None
        if expected and one["number"].rstrip(".,") not in expected:
            return True
    return False


def find_forbidden(sentence: str, goal: str) -> int | None:
    """Return where a sentence begins to say what the goal forbids; None if it does not.

    Whether it denies that itself is for the caller to see.
    """
    for clause in _read_goal(goal).clauses:
        if len(clause.forbids) >= 2:
            verb, thing = clause.forbids[:2]
            pattern = rf"\b{re.escape(verb)}\s+(?:\w+\s+){{0,2}}?{re.escape(thing)}\b"
            found = re.search(pattern, sentence, re.IGNORECASE)
            if found is not None:
                return found.start()
    return None


def waives_part(sentence: str, goal: str) -> bool:
    """Say whether a sentence says of something in the goal, and of no single item, that it is not
    needed.
    """
    if _WAIVES.search(sentence) is None or _has_own_number(sentence, goal):
        return False
    words = {word for clause in _read_goal(goal).clauses for word in clause.words if len(word) > 3}
    return bool(words & _content(sentence))


def _is_restated(sentence: str, clause: _Clause) -> bool:
    shared = len(_content(sentence) & clause.words)
    return shared >= _LEAST and shared * 1000 >= _SHARE_MILLI * len(clause.words)


@lru_cache(16)  # each sentence of a hand-off asks for the same goal
def _read_goal(goal: str) -> _Goal:
    places: dict[tuple[str, str], frozenset[str]] = {}
    for one in _NUMBERS.finditer(goal):
        known = places.get(_place(one), frozenset())
        places[_place(one)] = known | {one["number"].rstrip(".,")}
    numbers = frozenset(re.findall(r"\d+", goal))
    clauses = tuple(_read_clauses(goal))
    return _Goal(clauses, f" {_plain(goal)} ", numbers, places, _looks_foreign(goal))


def _read_clauses(goal: str) -> Iterator[_Clause]:
    for text in re.split(r"(?<=[.;!?])\s+|\n+", goal):
        negated = _NEGATES.search(text)
        after = () if negated is None else tuple(_words(text[negated.end() :]))
        yield _Clause(text, frozenset(map(_stem, _words(text))), after)


def _has_own_number(sentence: str, goal: str) -> bool:
    return not _read_goal(goal).numbers.issuperset(re.findall(r"\d+", sentence))


def _place(found: re.Match[str]) -> tuple[str, str]:
    return (found["before"] or "").casefold(), _stem(found["after"].casefold())


def _content(text: str) -> set[str]:
    return {_stem(word) for word in _words(text)}


def _words(text: str) -> list[str]:
    return [word for word in re.findall(r"[^\W\d_]+", text.casefold()) if word not in _STOPS]


def _stem(word: str) -> str:
    return word[:-1] if word.endswith("s") and len(word) > 3 else word


def _plain(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.casefold()))


# --- languages ------------------------------------------------------------------------------------

_ENGLISH_WORDS = (
    "the of and to in is are was were be it that this for with on as by not no from at which has "
    "have a an i next then"
)
# Words that a sentence of such a language hardly does without, and an English one does not have.
_FOREIGN_WORDS = (
    "der die das und ist nicht nur noch den dem ein eine mit wir zu auf le la les et est une des "
    "pour que qui dans nous ne pas el los las una por para con y es il lo gli che di per sono "
    "het een en van dat niet alleen nog zijn och att som inte bara ett av jest nie oraz tylko "
    "w z na se je pouze"
)
_ENGLISH, _FOREIGN = frozenset(_ENGLISH_WORDS.split()), frozenset(_FOREIGN_WORDS.split())
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|„[^“”]*[“”]|“[^”]*”|«[^»]*»")
_MOST_FOREIGN = 3


def is_foreign(sentence: str, goal: str) -> bool:
    """Say whether a sentence is in another language than an English goal: no rule can read it.

    What is quoted is a stranger's.
    """
    return not _read_goal(goal).is_foreign and _looks_foreign(_QUOTED.sub(" ", sentence))


def _looks_foreign(text: str) -> bool:
    if not text.isascii():
        letters = [one for one in text if one.isalpha()]
        if sum(ord(one) > 0x24F for one in letters) * 2 > len(letters) >= 8:
            return True  # of another script than Latin
    words = re.findall(r"[^\W\d_]+", text)
    # As they are written: in a name such a word is often large (Van den Berg).
    foreign = sum(word in _FOREIGN for word in words)
    return foreign >= _MOST_FOREIGN and foreign > sum(one.casefold() in _ENGLISH for one in words)
