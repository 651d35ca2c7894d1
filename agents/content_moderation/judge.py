"""Judges a comment by reviewed examples and by what it says, and proposes what follows."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from vedette.judging import Briefing, Judgement, Memory, Proposal, Ref
from vedette.judging import Judge as BaseJudge
from vedette.judging.examples import (
    LAMBDA,
    LAMBDA_CORRECTED,
    Example,
    ExampleBank,
    Near,
)
from vedette.judging.features import TEXT_LIMIT
from vedette.judging.normaliser import Normaliser
from vedette.judging.side_features import Extra
from vedette.judging.text import fold
from vedette.judging.word_groups import vocabulary

from .reading import Reading, read
from .weighing import GRAVE, Weights, strong_words, weigh

COMMENT = Ref("/event/id")
ONCALL = Ref("/registry/contacts/oncall")
ENDPOINT = Ref("/registry/webhooks/oncall")

# A case that a person should see never reads surer than this, whatever the examples say.
_UNSURE = 0.7
_ENGLISH = 0.2  # share of common words below which a comment is in a language nobody taught it
_GRAVE = ("self_harm", "threat")
_NEVER_HIDDEN = frozenset({"self_harm", "unsure"})
_LABELS = ("harassment", "hate", "insult", "ok", "private_data", "self_harm", "spam", "threat")
# How much what speaks for a label counts in the kernel, beside the words (which count 1).
_WEIGHT = 1.0


class Verdict(NamedTuple):
    """What a comment is: `why` names what speaks for it, `doubts` why a person should look."""

    label: str
    confidence: float
    score: float
    scores: tuple[tuple[str, float], ...]
    nearest: tuple[Near, ...]
    why: tuple[str, ...]
    doubts: tuple[str, ...]
    grave: tuple[str, ...]


class Judge(BaseJudge):
    """Stateless: a comment is judged by its own words, the charter and the lessons.

    One bank of reviewed examples compares both how a comment is worded and what speaks for each
    label in it, and calibrates itself on the examples with each left out in turn.
    """

    def __init__(self, charter: Mapping[str, Any], lessons: Sequence[Memory]) -> None:
        super().__init__(charter, lessons)
        self._rules = {one.id: one for one in lessons if one.kind == "procedure"}
        taught = [one for one in lessons if one.kind == "example" and one.label]
        # What disguise is meant to hide, and the words that comments here are made of.
        self._normalise = Normaliser((*vocabulary(), *_words(one.text for one in taught)))
        examples = [
            Example(
                one.id,
                one.label,
                self._read(one.text).own,
                LAMBDA_CORRECTED if one.trust == "learned" else LAMBDA,
                {"amounts": weigh(self._read(one.text)).amounts},
            )
            for one in taught
            if one.label
        ]
        self._bank = (
            ExampleBank(examples, charter.get("about"), extra=Extra(_amounts, _WEIGHT))
            if examples
            else None
        )
        self._shares = _shares(self._bank) if self._bank else {}
        self._far = _far(self._bank) if self._bank else 0.0

    def judge(self, seen: Any, briefing: Briefing) -> Judgement:
        """Say what the comment or the appeal is, and what should be done."""
        data = briefing.event.data if isinstance(briefing.event.data, Mapping) else {}
        text = data.get("text")
        if not isinstance(text, str):
            return Judgement("unreadable", 1.0, detail={"why": "data has no text"})
        if briefing.event.type == "comment.appealed":
            return self._appealed(data, text)
        found = self.verdict(text)
        proposals = self._proposals(found, text)
        detail = {**facts_of(found), "scores": dict(found.scores)}
        return Judgement(found.label, found.confidence, proposals, found.score, detail=detail)

    def _read(self, text: str) -> Reading:
        return read(text, self._normalise)

    def verdict(self, text: str) -> Verdict:
        """Say what a comment is. Without examples everything is for a person."""
        reading = self._read(text)
        weights = weigh(reading)
        grave = tuple(one for one in _GRAVE if weights.amounts.get(one, 0.0) >= GRAVE)
        if self._bank is None:
            return Verdict("unsure", 0.0, 0.0, (), (), weights.why, ("no examples",), grave)
        found = self._bank.predict(reading.own, facts={"amounts": weights.amounts})
        doubts = _doubts(reading, weights, found.label)
        if found.label == "ok" and found.similarity < self._far:
            doubts += ("unlike anything that it was taught",)
        return Verdict(
            found.label,
            min(found.confidence, self._shares[found.label], _UNSURE if doubts else 1.0),
            found.scores[0][1],
            tuple((label, round(score, 4)) for label, score in found.scores),
            found.nearest,
            weights.why,
            doubts,
            grave,
        )

    def _proposals(self, found: Verdict, text: str) -> tuple[Proposal, ...]:
        """Return what the label calls for. What may not wait is put to a person in any case."""
        proposals = []
        rule = self._rule(found.label)
        why = f"{found.label}: {'; '.join(found.why) or 'by the nearest examples'}"[:300]
        if found.label == "ok":
            proposals.append(self._decide("comment.approve", "approved", found, text, why))
        elif rule is not None and not _NEVER_HIDDEN.intersection((found.label, *found.grave)):
            proposals.append(self._decide("comment.hide", "hidden", found, text, why))
        grave = found.label if found.label in _GRAVE else next(iter(found.grave), None)
        if grave is None and (found.label == "unsure" or (found.label != "ok" and rule is None)):
            # No examples, or no house rule that it breaks: nothing is hidden without a reason.
            proposals.append(self._escalate(found.label, found, text, why))
        elif grave is not None:
            proposals.append(self._escalate(grave, found, text, why))
            summary = f"A comment may be a case of {grave.replace('_', ' ')}: please look now."
            proposals.append(
                Proposal(
                    "comment.alert",
                    {"comment": COMMENT, "label": grave, "summary": summary, "endpoint": ENDPOINT},
                    why,
                    found.confidence,
                )
            )
        return tuple(proposals)

    def _decide(self, tool: str, decision: str, found: Verdict, text: str, why: str) -> Proposal:
        args = {
            "comment": COMMENT,
            "ground": Ref(f"/charter/grounds/{found.label}"),
            "text": text,
            "statement": self._statement(decision, found.label, facts_of(found)),
        }
        return Proposal(tool, args, why, found.confidence)

    def _escalate(self, label: str, found: Verdict, text: str, why: str) -> Proposal:
        args = {
            "comment": COMMENT,
            "to": ONCALL,
            "label": label,
            "text": text,
            "statement": self._statement("put before a person", label, facts_of(found)),
        }
        return Proposal("comment.escalate", args, why, found.confidence)

    def _appealed(self, data: Mapping[str, Any], text: str) -> Judgement:
        """Ask a person: restored or upheld? What the agent thinks of it decides nothing."""
        judged = data.get("comment_text")
        both = {
            "appeal": COMMENT,
            "ground": Ref("/charter/grounds/appeal"),
            "comment_text": judged if isinstance(judged, str) else "(the event does not hold it)",
            "appeal_text": text,
        }
        now = self.verdict(judged) if isinstance(judged, str) else None
        facts = {"judged_again": now.label} if now else {}
        proposals = tuple(
            Proposal(
                tool,
                {**both, "statement": self._statement(outcome, "appeal", facts)},
                f"the author appeals; approve this one if the comment is to be {outcome}",
            )
            for tool, outcome in (
                ("comment.restore", "shown again"),
                ("comment.uphold", "left hidden"),
            )
        )
        return Judgement("appeal", 1.0, proposals, detail={"comment": data.get("comment"), **facts})

    def _rule(self, label: str) -> Memory | None:
        """Return the house rule behind a label; None if no reviewed memory says it (any more)."""
        return self._rules.get(str(self.charter.get("rules", {}).get(label, "")))

    def _statement(self, decision: str, label: str, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Return the statement of reasons, in the order of Article 17 (3) of Regulation 2022/2065.

        The tool adds who decided and the digest of the text, the engine's run and effect.
        """
        rule = self._rule(label)
        return {
            "version": 1,
            "decision": decision,
            "where_and_how_long": "on every page, until a person decides otherwise",
            "facts": dict(facts),
            "noticed_by": "the author's appeal" if label == "appeal" else "our own reading",
            "read_by": "automated means",
            "illegal_content": "not claimed",
            "rule": rule.cite() if rule else "",
            "rule_text": " ".join(rule.text.split()) if rule else "",
            "redress": " ".join(str(self.charter.get("appeal", "")).split()),
        }


def facts_of(found: Verdict) -> dict[str, Any]:
    """Return what a verdict rests on, as people read it: no raw scores, no text."""
    return {
        "label": found.label,
        "confidence_milli": int(found.confidence * 1000),
        "why": list(found.why),
        "doubts": list(found.doubts),
        "nearest": [
            {"example": near.id, "label": near.label, "similarity": f"{near.similarity:.3f}"}
            for near in found.nearest
        ],
    }


def _words(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        yield from re.findall(r"[a-z']{2,}", fold(text))


def _amounts(text: str, facts: Mapping[str, Any]) -> list[float]:
    """Return what speaks for each label, as the bank compares it."""
    amounts = facts.get("amounts")
    found = weigh(read(text)).amounts if amounts is None else amounts
    return [float(found.get(label, 0.0)) for label in _LABELS]


def _shares(bank: ExampleBank) -> dict[str, float]:
    """Return by label how often it was right of examples that were left out (Laplace's rule).

    The bank's own confidence is right over all labels together. What is ok for want of anything
    against it is wrong more often than a threat is, and must not borrow from it.
    """
    right, said = Counter[str](), Counter[str]()
    for found, example in zip(bank.left_out(), bank.examples, strict=False):
        said[found.label] += 1
        right[found.label] += found.label == example.label
    return {label: (right[label] + 1) / (said[label] + 2) for label in bank.labels}


def _far(bank: ExampleBank) -> float:
    """Return the likeness to its nearest below which one example in ten is: so far off is strange.

    The examples say how sure a verdict is among comments of their kind, and nothing of others.
    """
    nearest = sorted(found.similarity for found in bank.left_out())
    return nearest[len(nearest) // 10]


def _doubts(reading: Reading, weights: Weights, label: str) -> tuple[str, ...]:
    """Return why a person should look, however sure the examples are."""
    found = []
    if reading.words < 2:
        found.append("hardly a word")
    elif reading.english < _ENGLISH:
        found.append("a language that nobody taught it")
    if reading.quotes and not reading.rejects:
        found.append("quotes an offence without rejecting it")
    if label == "ok" and reading.orders:
        found.append("speaks to whoever judges it")
    if label == "ok" and (strong := strong_words(reading)):
        found.append(f"strong words: {', '.join(strong)}")
    if label == "ok" and len(reading.raw) > TEXT_LIMIT:
        found.append("longer than what was compared with the examples")
    against = [one for one, amount in weights.amounts.items() if one != label and amount >= GRAVE]
    if label == "ok" and against:
        found.append(f"something speaks for {', '.join(sorted(against))}")
    return tuple(found)
