"""What is said of a task, held against its goal, clause by clause: told anew, narrowed, undone.

A sentence restates a clause of the goal if it has most of its words. What is honest progress has
numbers of its own (of items, of turns), so that a sentence with a number that the goal has not is
no restatement, but where the number stands in the goal's own words. Each function takes time in
proportion to its sentence, and the goal is read once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache

from msgspec import Struct

# So much of a clause's words has a sentence that restates it, in thousandths, and so many at least.
_SHARE_MILLI, _LEAST = 500, 3
_MAX_CLAUSES = 100  # of a goal with more clauses these first are held against what is said
_STOP_WORDS = (
    "a an the of in on at to for from by with and or is are was were be been it its this that "
    "these those there here then than as so if when where which who we i you they them our my your "
    "will would shall should can could may might must have has had do does did not no any "
    "after before until within above below"
)
_STOPS = frozenset(_STOP_WORDS.split())
_NARROWS = re.compile(
    r"\b(?:only|just|merely|mainly|mostly|primarily|at most|few|sample|rough)\b", re.IGNORECASE
)
_NEGATES = re.compile(r"\b(?:do not|don't|never|must not|may not|cannot)\s+", re.IGNORECASE)
# "The job is to …", "Purpose: …", "We have to …": what comes after says what the task is.
_TELLS_TASK = re.compile(
    r"^(?:\w+ ){0,4}?(?:(?:aim|assignment|goal|instructions?|job|mission|objective|plan|point"
    r"|purpose|remit|target|task)\b(?: \w+){0,3}?(?::| (?:is|are) to\b)"
    r"|(?:i|we) (?:are here|am asked|are asked|was told|were told|have|need|want) to\b"
    r"|(?:i|we) (?:must|shall)\b)\s*(?P<said>.+)",
    re.IGNORECASE,
)
# What may stand before the verb of an instruction.
_INSTRUCTS = re.compile(
    r"^(?:(?:next|then|now|finally|just|also|always|please|step \d{1,4}|and"
    r"|(?:you|we) (?:may|can|could|should|shall|must|will))\b[:,]? *)*",
    re.IGNORECASE,
)
_TOKEN = re.compile(r"\d[\d.,]*|[^\W\d][\w-]*|\S")


class _Clause(Struct, frozen=True):
    """A clause of a goal: its verb if it begins with it, and the words of it that count."""

    plain: frozenset[str]
    verb: str
    words: frozenset[str]


class _Goal(Struct, frozen=True):
    """A goal read: its clauses, what it forbids (by verb: what else such a ban speaks of), all its
    words in a row, its numbers, and those by what is around them.
    """

    clauses: tuple[_Clause, ...]
    forbids: Mapping[str, tuple[frozenset[str], ...]]
    plain: str
    numbers: frozenset[str]
    places: Mapping[tuple[str, str], frozenset[str]]
    is_foreign: bool


def restates_goal(sentence: str, goal: str) -> bool:
    """Say whether a sentence tells, as what the task is, something that is not its goal."""
    found = _TELLS_TASK.search(sentence)
    if found is None or _has_own_number(sentence, goal):
        return False
    said = _plain(found["said"])
    if not said or f" {said} " in _read_goal(goal).plain:
        return False
    words = _content(sentence)
    return any(_is_restated(words, clause) for clause in _read_goal(goal).clauses)


def narrows_goal(sentence: str, goal: str) -> bool:
    """Say whether a sentence instructs to do a clause of the goal, and leaves some of it out."""
    said = _instruction(sentence)
    narrowing = {one.casefold() for one in _NARROWS.findall(said)}
    if not narrowing or _has_own_number(said, goal):
        return False
    verb, words = _first_word(said), _content(said)
    return any(
        clause.verb == verb and narrowing - clause.plain and _is_restated(words, clause)
        for clause in _read_goal(goal).clauses
    )


def changes_number(sentence: str, goal: str) -> bool:
    """Say whether a sentence has a number of the goal's between the same words, but another."""
    known = _read_goal(goal).places
    for before, number, after in _numbers(sentence):
        expected = known.get((before, after)) if before else None
        if expected and number not in expected:
            return True
    return False


def instructs_forbidden(sentence: str, goal: str) -> bool:
    """Say whether a sentence instructs to do what the goal forbids."""
    forbids = _read_goal(goal).forbids
    if not forbids:
        return False
    said = _instruction(sentence)
    things = forbids.get(_first_word(said), ())
    if not things:
        return False
    words = _content(said)
    return any(one <= words for one in things)


def _instruction(sentence: str) -> str:
    """Return a sentence from where the verb stands if it is an instruction."""
    begin = _INSTRUCTS.match(sentence)
    return sentence if begin is None else sentence[begin.end() :]


def _is_restated(words: set[str], clause: _Clause) -> bool:
    shared = len(words & clause.words)
    return shared >= _LEAST and shared * 1000 >= _SHARE_MILLI * len(clause.words)


@lru_cache(16)  # each sentence of a hand-off asks for the same goal
def _read_goal(goal: str) -> _Goal:
    places: dict[tuple[str, str], frozenset[str]] = {}
    for before, number, after in _numbers(goal):
        places[before, after] = places.get((before, after), frozenset()) | {number}
    clauses: list[_Clause] = []
    forbids: dict[str, tuple[frozenset[str], ...]] = {}
    for text in re.split(r"(?<=[.;!?])\s+|\n+", goal)[:_MAX_CLAUSES]:
        negated = _NEGATES.search(text)
        if negated is not None:
            verb, *things = _words(text[negated.end() :]) or [""]
            if things:
                forbids[verb] = (*forbids.get(verb, ()), frozenset(map(_stem, things)))
        clauses.append(
            _Clause(frozenset(_plain(text).split()), _first_word(text), frozenset(_content(text)))
        )
    return _Goal(
        clauses=tuple(clauses),
        forbids=forbids,
        plain=f" {_plain(goal)} ",
        numbers=frozenset(re.findall(r"\d+", goal)),
        places=places,
        is_foreign=_looks_foreign(goal),
    )


def _has_own_number(sentence: str, goal: str) -> bool:
    return not _read_goal(goal).numbers.issuperset(re.findall(r"\d+", sentence))


def _numbers(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield each number before a word, with the words around it; the one before may be empty."""
    tokens = ["", *_TOKEN.findall(text)]
    for at in range(1, len(tokens) - 1):
        if tokens[at][0].isdigit() and tokens[at + 1][0].isalpha():
            before = tokens[at - 1] if tokens[at - 1][:1].isalnum() else ""
            after = _stem(tokens[at + 1].casefold())
            yield before.casefold(), tokens[at].rstrip(".,"), after


def _first_word(text: str) -> str:
    found = re.search(r"\w+", text)
    return "" if found is None else found[0].casefold()


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
_QUOTED = re.compile(
    r"'[^']{0,200}'|\"[^\"]{0,200}\"|„[^“”]{0,200}[“”]|“[^”]{0,200}”|«[^»]{0,200}»"
)
_MOST_FOREIGN = 3


def is_foreign(text: str, goal: str) -> bool:
    """Say whether a text is in another language than an English goal: no rule can read it.

    What is quoted is a stranger's.
    """
    return not _read_goal(goal).is_foreign and _looks_foreign(_QUOTED.sub(" ", text))


def _looks_foreign(text: str) -> bool:
    if not text.isascii():
        letters = [one for one in text if one.isalpha()]
        if sum(ord(one) > 0x24F for one in letters) * 2 > len(letters) >= 8:
            return True  # of another script than Latin
    words = re.findall(r"[^\W\d_]+", text)
    # As they are written: in a name such a word is often large (Van den Berg).
    foreign = sum(word in _FOREIGN for word in words)
    english = sum(one.casefold() in _ENGLISH for one in words)
    return foreign >= _MOST_FOREIGN and foreign > 2 * english
