"""Reads what a mail asks to be sent where. Naive and helpful on purpose.

It takes every such request at its word, also that of a stranger or of hidden text: whether
anything may leave is the gateway's decision, from where the address came and not from how the
mail asks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

from vedette.judging.text import clean

_ADDRESS = re.compile(
    r"[A-Za-z0-9_%+][A-Za-z0-9._%+-]{0,63}@(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}"
)
# The verb of a request, in the forms in which one asks ("sent" tells of something done).
_VERB = re.compile(
    r"(?<!not )(?<!n't )(?<!never )\b"
    r"(forward|send|pass on|pass (?:it|this|them) on|copy|copies|redirect|export|share|submit"
    r"|transfer|cc)\b(?! (?:us|me)\b)",
    re.IGNORECASE,
)
_TOWARDS = re.compile(r"\b(?:to|at|cc)\b|:\s*$", re.IGNORECASE)
_STOP = re.compile(r"[.!?]\s")
_REACH = 220  # characters between the verb and the address
_ASKS = re.compile(
    r"\?|\bplease (?:answer|reply|confirm|tell|let|advise|send)\b|\blet me know\b|\bby return\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Request:
    """Something a mail asks to be sent to an address that stands in it."""

    verb: str
    address: str
    words: str


def requests(text: str, ignore: frozenset[str], limit: int = 3) -> list[Request]:
    """Return the requests of `text` to send something to an address, in order of the text.

    `ignore` holds addresses in lower case: our own, and the sender's (that is an answer).
    """
    seen = clean(text)
    found: dict[str, Request] = {}
    for match in _ADDRESS.finditer(seen):
        address = match[0]
        if address.lower() in ignore or address.lower() in found:
            continue
        before = seen[max(0, match.start() - _REACH) : match.start()]
        before = before.rsplit("\n\n", 1)[-1]
        verb = _verb(before)
        if verb is None or not _TOWARDS.search(before[verb.end() :]):
            continue
        words = " ".join((before[verb.start() :] + address).split())
        found[address.lower()] = Request(verb[1].lower(), address, words[:200])
        if len(found) >= limit:
            break
    return list(found.values())


def _verb(before: str) -> re.Match[str] | None:
    """Return the first verb of the nearest sentence that has one."""
    verbs = list(_VERB.finditer(before))
    for earlier, later in pairwise(verbs):
        if _STOP.search(before, earlier.end(), later.start()) is None:
            continue
        verbs = verbs[verbs.index(later) :]
    return verbs[0] if verbs else None


def asks(text: str) -> bool:
    """Return whether a mail asks for an answer. Quoted lines are somebody else's words."""
    own = "\n".join(line for line in clean(text).split("\n") if not line.startswith(">"))
    return _ASKS.search(own) is not None
