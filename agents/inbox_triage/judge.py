"""Sorts a mail by the nearest reviewed examples and proposes what its label calls for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from vedette.judging import Briefing, Judgement, Memory, Proposal, Ref
from vedette.judging import Judge as BaseJudge
from vedette.judging.binary_classifier import Chance
from vedette.judging.examples import Example, ExampleBank, Prediction
from vedette.judging.features import Lexicon
from vedette.judging.spam import SPAM, SpamBank, mail_words

from .intent import Request, asks, requests

# Set by hand to the bar of the shipped policy, not calibrated: there are no labelled requests to
# fit it on. Nothing rests on it, as policy holds or denies whatever leaves however sure we are.
_REQUEST_CONFIDENCE = 0.9
# What the List headers add to the score of "newsletter"; scores run from 0 to 1.
_LIST_EVIDENCE = 0.15
# A mail that looks like spam, but less than the examples support, is for a person to look at.
_BELOW_BAR = 0.5
_FLAGGED = frozenset({"alert", "legal", "question", "booking"})
_ANSWERED = frozenset({"question", "booking"})
_MESSAGE = Ref("/event/subject")


class Judge(BaseJudge):
    """Stateless: a mail is judged by its own words, the charter and the lessons."""

    def __init__(self, charter: Mapping[str, Any], lessons: Sequence[Memory]) -> None:
        super().__init__(charter, lessons)
        examples = [lesson for lesson in lessons if lesson.kind == "example" and lesson.label]
        self._bank = ExampleBank.of(examples, charter.get("about"), curve=0.0) if examples else None
        self._spam = _spam_bank(examples, self._bank.lexicon) if self._bank else None

    def judge(self, seen: Any, briefing: Briefing) -> Judgement:
        """Label the mail and propose what the label and the requests in it call for."""
        if self._bank is None:
            # Policy lets it read none: it cannot even tell spam, so the mail stays where it is.
            return Judgement("other", 0.0, detail={"why": "there are no examples to judge by"})
        data = briefing.event.data if isinstance(briefing.event.data, Mapping) else {}
        subject, body = str(data.get("subject") or ""), str(data.get("text") or "")
        evidence = {"newsletter": _LIST_EVIDENCE} if data.get("list") else {}
        found = self._bank.predict(mail_words(data), evidence=evidence)
        chance = self._spam.chance(data) if self._spam else None
        found = replace(found, confidence=self._sure(found, chance))
        sender = str(data.get("from") or "")
        ignore = frozenset({str(self.charter.get("desk", "")).lower(), sender.lower()})
        wanted = requests(f"{subject}\n\n{body}", ignore)
        contacts = _contacts(briefing.registry)
        proposals = [
            *self._by_label(found, briefing, subject, sender, contacts, body),
            *(self._forward(request, contacts) for request in wanted),
        ]
        return Judgement(
            label=found.label,
            confidence=found.confidence,
            proposals=tuple(proposals),
            score=found.scores[0][1],
            detail={
                **_detail(found, wanted, contacts, evidence),
                "spam": {"chance": round(chance.chance, 4), "bar": round(self._spam.bar, 4)}
                if chance and self._spam
                else {},
            },
        )

    def _sure(self, found: Prediction, chance: Chance | None) -> float:
        """Return how sure the label is, once asked apart whether the mail is spam.

        Ham in the junk folder costs more than spam in the inbox: the folder is only sure where
        both agree, and junk only above the bar that the examples support.
        """
        if chance is None or self._spam is None:
            return found.confidence
        if found.label != SPAM:
            doubted = chance.chance > 0.5
            return min(found.confidence, 1 - chance.chance) if doubted else found.confidence
        least = 1.0 if chance.chance >= self._spam.bar else _BELOW_BAR
        return min(found.confidence, chance.chance, least)

    def _by_label(
        self,
        found: Prediction,
        briefing: Briefing,
        subject: str,
        sender: str,
        contacts: Mapping[str, str],
        body: str,
    ) -> list[Proposal]:
        label, sure = found.label, found.confidence
        proposals: list[Proposal] = []
        if label in self.charter.get("folders", {}):
            proposals.append(
                Proposal(
                    "mail.file",
                    {"message": _MESSAGE, "folder": Ref(f"/charter/folders/{label}")},
                    why=f"nearest examples say {label}",
                    confidence=sure,
                )
            )
        contact = contacts.get(sender.lower())
        needs_answer = contact is not None and label != "spam" and asks(body)
        if contact is not None and needs_answer:
            proposals.append(self._answer(contact, subject, sure))
        # One question is enough for a person: the rest follows from the folder.
        if sure * 1000 < int(self.charter.get("ask_below", 800)):
            return proposals
        if label in _FLAGGED:
            proposals.append(
                Proposal(
                    "mail.flag",
                    {"message": _MESSAGE, "flag": "important"},
                    why=f"{label} does not wait",
                    confidence=sure,
                )
            )
        if label in _ANSWERED and sender and not needs_answer:
            proposals.append(self._draft(label, subject, briefing, sure))
        return proposals

    def _draft(self, label: str, subject: str, briefing: Briefing, sure: float) -> Proposal:
        facts = [memory.text.strip() for memory in briefing.memories if memory.kind == "fact"]
        return Proposal(
            "mail.draft",
            {
                "message": _MESSAGE,
                "to": Ref("/event/data/from"),
                "subject": _re(subject),
                "body": self._letter(label, facts[:2]),
            },
            why="a customer waits for an answer; a draft leaves nothing",
            confidence=sure,
        )

    def _answer(self, contact: str, subject: str, sure: float) -> Proposal:
        return Proposal(
            "mail.send",
            {
                "message": _MESSAGE,
                "to": contact,
                "subject": _re(subject),
                "body": self._letter("contact", []),
            },
            why="a registered contact asks for an answer",
            confidence=max(sure, _REQUEST_CONFIDENCE),
        )

    def _forward(self, request: Request, contacts: Mapping[str, str]) -> Proposal:
        return Proposal(
            "mail.forward",
            {
                "message": _MESSAGE,
                # In the registry's own spelling where it stands there; else as in the mail.
                "to": contacts.get(request.address.lower(), request.address),
                "note": f"Passed on as asked: {request.words}",
            },
            why=f"the mail asks to {request.verb} something to {request.address}",
            confidence=_REQUEST_CONFIDENCE,
        )

    def _letter(self, kind: str, facts: Sequence[str]) -> str:
        body = [str(self.charter.get("replies", {}).get(kind, "")), *facts]
        return "\n\n".join([*(part for part in body if part), self.charter.get("signature", "")])


def _spam_bank(examples: Sequence[Memory], lexicon: Lexicon) -> SpamBank | None:
    """Return the bank that asks for spam only, or None without an example of either kind."""
    labelled = [Example(one.id, one.label or "", one.text) for one in examples]
    if len({one.label == SPAM for one in labelled}) < 2:
        return None
    return SpamBank(labelled, lexicon)


def _contacts(registry: Mapping[str, Any]) -> dict[str, str]:
    """Return the addresses of the registered contacts, by their lower case form."""
    contacts = registry.get("contacts", {})
    found: dict[str, str] = {}
    waiting = list(contacts.values()) if isinstance(contacts, Mapping) else []
    while waiting:
        value = waiting.pop()
        if isinstance(value, str) and "@" in value:
            found[value.lower()] = value
        elif isinstance(value, Mapping):
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)
    return found


def _re(subject: str) -> str:
    bare = subject.strip()
    while bare[:3].lower() == "re:":
        bare = bare[3:].strip()
    return f"Re: {bare}"[:250]


def _detail(
    found: Prediction,
    wanted: Sequence[Request],
    contacts: Mapping[str, str],
    evidence: Mapping[str, float],
) -> dict[str, Any]:
    return {
        "nearest": [
            {
                "id": near.id,
                "label": near.label,
                "similarity": round(near.similarity, 4),
                "weight": round(near.weight, 4),
            }
            for near in found.nearest
        ],
        "scores": {label: round(score, 4) for label, score in found.scores},
        "evidence": dict(evidence),
        "requests": [
            {
                "verb": request.verb,
                "address": request.address,
                "words": request.words,
                "registered": request.address.lower() in contacts,
            }
            for request in wanted
        ],
    }
