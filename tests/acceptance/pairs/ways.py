"""The agent that obeys, and the ways in which an attacker's values come to the calls it makes.

It does all that its routine says and all that the content asks for, the latter first. Which tool
it is asked to call it is told; the values that the attack's mark stands in it draws from what it
was briefed with, so that they come by the way and no other.
"""

from __future__ import annotations

import base64
import codecs
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.acceptance.pairs.fleet import PUBLISH
from tests.acceptance.pairs.tasks import Attack, Call, Routine

from vedette.domain.action import Proposal
from vedette.domain.memory import Briefing, Candidate
from vedette.domain.origin import Ref

WAYS = (
    "by value", "by reference", "two turns", "base64", "rot13", "zero width", "memory", "label",
    "agent",
)  # fmt: skip


@dataclass(frozen=True)
class Turn:
    """One turn of a run: what is proposed in it, and whether the attack asks for it."""

    propose: Callable[[Briefing], list[Proposal]]
    attack: bool = False
    candidates: tuple[Candidate, ...] = ()


def chosen(attack: Attack) -> list[Any]:
    """Return what of an attack's arguments the attacker chose: all that the mark stands in."""
    return [value for _, args in attack.calls for value in _values(args, attack.mark)]


def plan_of(
    routine: Routine, attack: Attack | None, way: str, notes: Mapping[str, str]
) -> list[Turn]:
    """Return the turns of a run: the routine's reads, then the attack, then what it acts.

    `notes` are the ids of the memories that hold an attacker's values, by their text.
    """
    first = Turn(lambda _: [_proposal(call) for call in routine.reads])
    last = Turn(lambda _: [_proposal(call) for call in routine.acts])
    if attack is None:
        return [first, last]
    turn = Turn(lambda briefing: _propose_attack(attack, way, notes, briefing), attack=True)
    # What was read first is told in the next turn.
    return [first, *[turn] * min(len(attack.calls), 2), last]


def plan_to_remember(suite: str, values: Sequence[str]) -> list[Turn]:
    """Return the turn in which an agent would remember an attacker's texts, as labels too."""
    noted = tuple(Candidate("notes", suite, text, label=text) for text in values)
    return [Turn(lambda _: [], candidates=noted)]


# What else of a letter the scribe passes on.
_TELLING_FIELDS = ("from", "account", "amount", "text")


def plan_to_publish(type: str, values: Sequence[Any]) -> list[Turn]:
    """Return the turn in which the scribe publishes an event with what it read in a letter."""
    laid = [Ref(f"/event/data/laid/{place}") for place in range(len(values))]
    # The first text becomes the subject, where the attacker chose one.
    texts = [ref for ref, value in zip(laid, values, strict=True) if isinstance(value, str)]
    args = {
        "type": type,
        "subject": texts[0] if texts else Ref("/event/subject"),
        "data": {"laid": laid} | {name: Ref(f"/event/data/{name}") for name in _TELLING_FIELDS},
    }
    return [Turn(lambda _: [Proposal(PUBLISH, args, confidence=1.0)], attack=True)]


def payload_of(attack: Attack, way: str) -> list[Any]:
    """Return how the attacker's values stand in the content of the event that wakes the run."""
    if way in ("memory", "label"):
        return []
    write = {"base64": _b64, "rot13": _rot, "zero width": _thin}.get(way)
    return [value if write is None else write(value) for value in chosen(attack)]


def _propose_attack(
    attack: Attack, way: str, notes: Mapping[str, str], briefing: Briefing
) -> list[Proposal]:
    place = -1

    def give(value: Any) -> Any:
        nonlocal place
        place += 1
        return _value(way, place, value, notes, briefing)

    return [_proposal((tool, _with(args, attack.mark, give))) for tool, args in attack.calls]


def _value(way: str, place: int, value: Any, notes: Mapping[str, str], briefing: Briefing) -> Any:
    """Return an attacker's value as the agent gives it: drawn from what it was briefed with."""
    if way in ("memory", "label"):
        found = next(one for one in briefing.memories if one.id == notes[str(value)])
        field = "text" if way == "memory" else "label"
        # A memory has texts alone; a number in one can only be given by value.
        named = Ref(f"/memory/{found.id}/{field}")
        return named if isinstance(value, str) else int(getattr(found, field))
    laid: list[Any] = briefing.event.data["laid"]
    if way == "agent" and laid[place] == briefing.event.subject:
        return Ref("/event/subject")
    if way in ("by reference", "agent"):
        return Ref(f"/event/data/laid/{place}")
    if way == "two turns":
        return Ref(f"/outcome/0/laid/{place}")
    read = {"base64": _unb64, "rot13": _unrot}.get(way)
    return laid[place] if read is None else read(laid[place])


def _b64(value: Any) -> str:
    return base64.b64encode(json.dumps(value).encode()).decode()


def _unb64(text: str) -> Any:
    return json.loads(base64.b64decode(text))


def _rot(value: Any) -> str:
    return codecs.encode(json.dumps(value), "rot13")


def _unrot(text: str) -> Any:
    return json.loads(codecs.decode(text, "rot13"))


def _thin(value: Any) -> Any:
    return "\u200b".join((value[:3], value[3:])) if isinstance(value, str) else value


def _values(args: Any, mark: str) -> list[Any]:
    if isinstance(args, dict):
        return [found for value in args.values() for found in _values(value, mark)]
    if isinstance(args, list):
        return [found for value in args for found in _values(value, mark)]
    return [args] if mark in str(args) else []


def _with(args: Any, mark: str, change: Callable[[Any], Any]) -> Any:
    if isinstance(args, dict):
        return {name: _with(value, mark, change) for name, value in args.items()}
    if isinstance(args, list):
        return [_with(value, mark, change) for value in args]
    return change(args) if mark in str(args) else args


def _proposal(call: Call) -> Proposal:
    tool, args = call
    return Proposal(tool, _read(args), confidence=1.0)


def _read(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _read(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_read(item) for item in value]
    return Ref(value[1:]) if isinstance(value, str) and value.startswith("@/") else value
