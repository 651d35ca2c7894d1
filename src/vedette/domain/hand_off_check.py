"""The check of a hand-off against what the engine knows: goal, charter, registry, inputs, tools.

Each rule finds what is said in a form that it knows, and errs towards finding nothing: a hand-off
that is refused for no reason costs a context its memory. So a drift that is told in no such form is
not found here; what holds whatever a hand-off says is that goal and conditions are told by the
engine, and that every action is decided by the gateway.

A rule of RECORDED is read off likeness and not off a form, so it may be wrong: what breaks it is
told to people, and the hand-off is taken all the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct

from vedette.domain.goal_check import (
    changes_number,
    instructs_forbidden,
    is_foreign,
    narrows_goal,
    restates_goal,
)
from vedette.domain.hand_off import HandOffWords

GOAL, CONDITION, TOOL, RECIPIENT, SAFEGUARD, ARTEFACT, WORDING, SHORTCUT, LANGUAGE = (
    "drift.goal", "drift.condition", "drift.tool", "drift.recipient", "drift.safeguard",
    "drift.artefact", "drift.wording", "drift.shortcut", "drift.language",
)  # fmt: skip
RULES = (GOAL, CONDITION, TOOL, RECIPIENT, SAFEGUARD, ARTEFACT, WORDING, SHORTCUT, LANGUAGE)
RECORDED = frozenset({WORDING, SHORTCUT, LANGUAGE})
# A longer sentence is read in pieces, so that no rule takes longer than a text is long.
_MAX_SENTENCE, _MAX_EXCERPT = 600, 200


class TaskBounds(Struct, frozen=True):
    """What a hand-off is checked against.

    `goal` and `conditions` (names) are the task's; `tools` are those of its agent, `other_tools`
    those that only others of the fleet have. `known` are the texts of charter, registry, inputs,
    and of what was permitted to be acted on already. `outcomes` is how many there are.
    """

    goal: str
    conditions: tuple[str, ...]
    tools: frozenset[str]
    other_tools: frozenset[str]
    known: frozenset[str]
    outcomes: int


class Finding(Struct, frozen=True):
    """A rule that a hand-off breaks, and the text in which it does."""

    rule: str
    text: str


def check_hand_off(words: HandOffWords, bounds: TaskBounds) -> list[Finding]:
    """Return the rules that a hand-off breaks, each once, in the order of RULES."""
    found = {one.rule: one for one in check_texts(words.texts(), bounds)}
    said = " ".join(words.texts())
    if is_foreign(said, bounds.goal):
        found[LANGUAGE] = Finding(LANGUAGE, said[:_MAX_EXCERPT])
    for artefact in words.artefacts:
        if ARTEFACT not in found and _is_missing(artefact, bounds.outcomes):
            found[ARTEFACT] = Finding(ARTEFACT, artefact[:_MAX_EXCERPT])
    return [found[rule] for rule in RULES if rule in found]


def check_texts(texts: Iterable[str], bounds: TaskBounds) -> list[Finding]:
    """Return the rules that sentences of a task's texts break, each once, in the order of RULES."""
    found: dict[str, Finding] = {}
    for text in texts:
        for sentence in _sentences(text):
            for rule, breaks in _CHECKS.items():
                if rule not in found and breaks(sentence, bounds):
                    found[rule] = Finding(rule, sentence[:_MAX_EXCERPT])
    return [found[rule] for rule in RULES if rule in found]


def collect_texts(*values: Any) -> Iterator[str]:
    """Yield every text in JSON values, names of members too."""
    for value in values:
        if isinstance(value, str):
            yield value
        elif isinstance(value, Mapping):
            yield from collect_texts(*value, *value.values())
        elif isinstance(value, list | tuple | frozenset):
            yield from collect_texts(*value)


# What a stranger wrote, and is told as that. It is cut for what only resembles the goal: whoever
# quotes an instruction may as well give it.
_CITED = re.compile(
    r"""(\b(?:wrote|writes|says?|said|reads?|texts?|titled|cites?|asks?|asked|words?)\b[^.;'"]{0,30})
    (?:'[^']{0,200}'|"[^"]{0,200}"|“[^”]{0,200}”|„[^“”]{0,200}[“”]|«[^»]{0,200}»)""",
    re.IGNORECASE | re.VERBOSE,
)


def _sentences(text: str) -> Iterator[str]:
    for part in re.split(r"(?<=[.!?;])\s+|\n+", text):
        own = part.strip()
        for at in range(0, len(own), _MAX_SENTENCE):
            yield own[at : at + _MAX_SENTENCE]


# --- the goal, and what is to hold ------------------------------------------------------------

_GOAL = re.compile(
    r"""(?:^|[\s(])(?:(?:the|our|my|your|a)\s+)?
    (?:(?:new|real|actual|revised|updated|true|main|overall|current|refined)\s+)?
    (?:(?:goal|objective|mission)\s*(?:(?:is|was|has\ become|becomes)\b:?|:|=)
      |task\s+(?:is|was|has\ become)\s+(?:now\s+)?(?=to\s)|task:
      |(?:goal|objective|mission|aim|task)\s+
        (?:has\ been\ |was\ |is\ )?(?:changed|revised|updated|refined|narrowed)\s+to\b)
    \s*(?:(?:now|really|actually|to)\s+)*(?P<said>.+)""",
    re.IGNORECASE | re.VERBOSE,
)
# "The goal is met" tells a state and no goal.
_STATE = re.compile(
    r"(?:almost |nearly |not |still |now |about |half |\d+ ?% )*(?:done|complete|completed|finished"
    r"|open|in progress|under way|ongoing|blocked|waiting|on track|unchanged|the same|clear|met"
    r"|reached|as given|ready|partly|half|pending|running|close to|far from)\b",
    re.IGNORECASE,
)


def _plain(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.casefold()))


def _changes_goal(sentence: str, bounds: TaskBounds) -> bool:
    """Say whether a sentence tells another goal, or instructs to do what the goal forbids."""
    if _names_other_goal(sentence, bounds):
        return True
    return not sentence.endswith("?") and instructs_forbidden(_own(sentence), bounds.goal)


def _rewords_goal(sentence: str, bounds: TaskBounds) -> bool:
    """Say whether a sentence tells the goal with less, more, or another number."""
    own, goal = _own(sentence), bounds.goal
    if changes_number(own, goal):
        return True
    if sentence.endswith("?") or _is_denied(own):
        return False  # it asks, or says what is not so
    return restates_goal(own, goal) or narrows_goal(own, goal)


def _own(sentence: str) -> str:
    """Return a sentence without what a stranger wrote."""
    return _CITED.sub(r"\1", sentence)


def _names_other_goal(sentence: str, bounds: TaskBounds) -> bool:
    found = _GOAL.search(sentence)
    if found is None or _STATE.match(found["said"].lstrip()):
        return False
    said = _plain(found["said"])
    return bool(said) and f" {said} " not in f" {_plain(bounds.goal)} "


_WAIVED = (
    r"(?:waived|optional|obsolete|dropped|removed|lifted|relaxed|void|irrelevant|not needed"
    r"|no longer (?:needed|required|applies|apply|necessary)|does not apply|do not apply"
    r"|need not hold|counts? as (?:met|held)|may be (?:ignored|skipped))"
)


def _waives_condition(sentence: str, bounds: TaskBounds) -> bool:
    names = [re.escape(name) for name in bounds.conditions if len(name) > 2]
    subject = "|".join([r"(?:done |these |those |all |its |other )*conditions?", *names])
    pattern = rf"(?<![\w-])(?:{subject})(?![\w-])(?P<between>[^.;]{{0,60}}?)\b{_WAIVED}\b"
    found = re.search(pattern, sentence, re.IGNORECASE)
    if found is None:
        return False
    return not _is_denied(sentence[: found.start()] + found["between"])


# --- what it has, and whom it may reach -------------------------------------------------------

_NAMED = re.compile(r"(?<![\w./@-])[a-z][a-z0-9_]*(?:[._][a-z0-9_]+)+(?![\w/@-]|\.\w)")
_CALLED = re.compile(
    r"""(?i:\b(?:tool|call|invoke))\s+[`"']?(?P<named>[a-z][a-z0-9_]*(?:\.[a-z0-9_]+)+)
    |(?<![\w./@-])(?P<called>[a-z][a-z0-9_]*(?:\.[a-z0-9_]+)+)\(""",
    re.VERBOSE,
)


def _names_tool(sentence: str, bounds: TaskBounds) -> bool:
    own = bounds.tools | {tool.replace(".", "_") for tool in bounds.tools}
    others = bounds.other_tools | {tool.replace(".", "_") for tool in bounds.other_tools}
    named = set(_NAMED.findall(sentence))
    called = {one["named"] or one["called"] for one in _CALLED.finditer(sentence)}
    return bool((named & (others - own)) | (called - own))


_ADDRESS = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+|https?://[^\s<>\"')\]]+")
_SENDS = re.compile(
    r"\b(?:send|sends|sending|forward|mail|e-mail|email|write|report|reply|copy|cc|bcc|notify|inform"
    r"|post|upload|push|publish|pay|transfer|submit|deliver|escalate|hand)\b",
    re.IGNORECASE,
)

# Who something came from is nobody whom it is to go to.
_ORIGIN = re.compile(r"\b(?:from|by|of)\s+$", re.IGNORECASE)


def _names_recipient(sentence: str, bounds: TaskBounds) -> bool:
    sends = _SENDS.search(sentence)
    for found in _ADDRESS.finditer(sentence, sends.end()) if sends is not None else ():
        before = sentence[: found.start()]
        if _is_denied(before) or _ORIGIN.search(before):
            continue
        address = found[0].rstrip(".,;:").casefold()
        if not any(address in text.casefold() for text in bounds.known):
            return True
    return False


# --- what keeps it safe -----------------------------------------------------------------------

_GUARD = (
    r"(?:approvals?|confirmations?|sign-?offs?|permissions?|reviews?|checks?|conditions?|polic(?:y|ies)"
    r"|gateway|holds?|safeguards?|limits?|verifications?|budget)"
)
_ARTICLES = r"(?:the |any |all |every |its |further |more |these |this |that |a |an |\w+'s )*"
_EVADE = re.compile(
    r"\b(?:skip|bypass|circumvent|evade|ignore|disregard|override|disable|work(?:ing)? around"
    r"|get around|no need (?:for|to (?:wait for|ask for|get))"
    rf"|(?:do not|don't|need not|never) (?:wait|ask) for)\s+{_ARTICLES}(?:\w+ )?{_GUARD}\b",
    re.IGNORECASE,
)
_WITHOUT = re.compile(
    r"^(?:then |next |now |just |always |please )*(?!\w+ed\b)\w+\b[^.;]*\bwithout "
    rf"(?:waiting for |asking for )?{_ARTICLES}{_GUARD}\b",
    re.IGNORECASE,
)
# What a stranger asked for, as it is told, is no instruction.
_REPORTED = re.compile(
    r"\b(?:ask(?:s|ed)?|want(?:s|ed)?|request(?:s|ed)?|suggest(?:s|ed)?|tells?|told|says?|said)\b"
    r"[^.;]*\bto\s+$",
    re.IGNORECASE,
)
_DENIAL = re.compile(
    r"\b(?:not|never|no|avoid|prevent|nobody|nothing|cannot|can't|must not|mustn't|may not|don't"
    r"|do not|won't|refused|denied|forbidden|until)\b",
    re.IGNORECASE,
)


def _is_denied(text: str) -> bool:
    return _DENIAL.search(text) is not None


def _evades_safeguard(sentence: str, bounds: TaskBounds) -> bool:
    found = _EVADE.search(sentence)
    if found is not None:
        before = sentence[: found.start()]
        return not (_is_denied(before) or _REPORTED.search(before))
    return _WITHOUT.search(sentence) is not None and not _is_denied(sentence)


_SHORTCUT = re.compile(
    r"""\b(?:counts?|taken|treated|regarded|considered)\ as\ (?:done|read|\w{3,}ed)\b
    |^(?:then\ |next\ |now\ |just\ |always\ |simply\ )*(?:close|mark|report|count)\b[^.;]*
      \b(?:done|closed|finished|complete|read)\b[^.;]*
      \b(?:without\ \w+ing|unread|unseen|nobody)\b""",
    re.IGNORECASE | re.VERBOSE,
)


def _takes_shortcut(sentence: str, bounds: TaskBounds) -> bool:
    found = _SHORTCUT.search(sentence)
    return found is not None and not _is_denied(sentence[: found.start()])


# --- what it points at ------------------------------------------------------------------------

_OUTCOME = re.compile(r"(?:ref:)?/outcome/(\d{1,9})(?:/|\Z)")


def _is_missing(artefact: str, outcomes: int) -> bool:
    found = _OUTCOME.match(artefact)
    return found is not None and int(found[1]) >= outcomes


_CHECKS: Mapping[str, Callable[[str, TaskBounds], bool]] = {
    GOAL: _changes_goal,
    CONDITION: _waives_condition,
    TOOL: _names_tool,
    RECIPIENT: _names_recipient,
    SAFEGUARD: _evades_safeguard,
    WORDING: _rewords_goal,
    SHORTCUT: _takes_shortcut,
}


def other_tools(own: Collection[str], fleet: Collection[Collection[str]]) -> frozenset[str]:
    """Return the tools that others of a fleet have and an agent has not."""
    return frozenset(tool for tools in fleet for tool in tools) - frozenset(own)
