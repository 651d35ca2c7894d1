"""A cascade: an agent's judge settles what it is sure of, and a model takes the rest.

Of the rest a judge says its opinion only. It is recorded as a turn that is deferred: none of its
proposals is put to the gateway, and the model is told of it as data. If the model is away for too
long, a person is shown the proposals instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from vedette.domain.action import Proposal, decode_arguments
from vedette.domain.agent import Cascade
from vedette.domain.base.canonical import normalized_json
from vedette.domain.base.errors import BadProposal, TurnLimit
from vedette.domain.ports.reasoner import ReasonerJudgement
from vedette.domain.tool import Tool

# Why a person is to decide what a judge deferred, whatever policy says.
PERSON = "cascade.person"
# What a model is told of an opinion at most: bytes of JSON, and parts of it.
MAX_OPINION = 4000
_MAX_LABEL, _MAX_NEAREST, _MAX_PROPOSALS = 80, 5, 8


def defer_unsure(cascade: Cascade, judgement: ReasonerJudgement) -> ReasonerJudgement:
    """Return a judge's judgement, deferred unless it is sure enough to settle its event.

    What is deferred remembers nothing either: its memories would be made of a guess. Raises
    TurnLimit for one that is not final: all later turns are the model's.
    """
    assert judgement.confidence is not None  # it was refused else (`handle.ask_reasoner`)
    if not judgement.final:
        what = "the judge of a cascade has one turn, and wanted another"
        raise TurnLimit(what, mend="return final judgements in judge.py, or leave the model out")
    if cascade.settles(judgement.confidence):
        return judgement
    return replace(judgement, deferred=True, candidates=())


def describe_opinion(turn: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a model is told of a judge's recorded turn: plain data, of bounded size.

    Of the judge's own detail the labels of the nearest examples, if it tells any. Arguments are
    left out where they are too long.
    """
    detail = turn["detail"] if isinstance(turn["detail"], Mapping) else {}
    nearest = detail.get("nearest")
    labels = [
        str(one["label"])[:_MAX_LABEL]
        for one in (nearest if isinstance(nearest, list) else ())
        if isinstance(one, Mapping) and one.get("label") is not None
    ]
    opinion = {
        "label": str(turn["label"])[:_MAX_LABEL],
        "confidence": turn["confidence"],
        "nearest": labels[:_MAX_NEAREST],
    }
    proposals = turn["proposals"][:_MAX_PROPOSALS]
    told = [{"tool": str(one["tool"])[:_MAX_LABEL], "args": one["args"]} for one in proposals]
    whole = {**opinion, "proposals": told}
    if len(normalized_json(whole)) <= MAX_OPINION:
        return whole
    return {**opinion, "proposals": [{"tool": one["tool"][:40]} for one in told], "cut": True}


def propose_to_person(
    turn: Mapping[str, Any], why: str, tools: Mapping[str, Tool]
) -> ReasonerJudgement:
    """Return the turn that puts a judge's recorded opinion to the gateway, for a person to decide.

    It has the judge's own confidence, below which it may not settle anything: whatever bar policy
    sets, a person decides (`PERSON`).
    """
    return ReasonerJudgement(
        label=turn["label"],
        confidence=float(turn["confidence"]),
        proposals=read_proposals(turn, tools),
        detail={"why": why},
        observed=False,
        asks=PERSON,
    )


def read_proposals(turn: Mapping[str, Any], tools: Mapping[str, Tool]) -> tuple[Proposal, ...]:
    """Return what a recorded turn proposed; a fraction is a number where the tool has one.

    One whose own confidence was none is sure of nothing.
    """
    return tuple(
        Proposal(
            one["tool"],
            _read_arguments(one["args"], tools.get(one["tool"])),
            one["why"],
            float(one["confidence"] or 0),
        )
        for one in turn["proposals"]
    )


def _read_arguments(encoded: Mapping[str, Any], tool: Tool | None) -> dict[str, Any]:
    try:
        return decode_arguments(encoded, tool)
    except BadProposal:
        return decode_arguments(encoded)  # too much to be walked: that is said where it is bound
