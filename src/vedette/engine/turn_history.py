"""The turns of a run as they were recorded, as its reasoner may be told of them again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vedette.domain.cascade import describe_opinion
from vedette.domain.run import ActionRow
from vedette.engine.tool_calls import coarse_answers

_TOLD = ("proposals", "label", "memories", "model")


def retell_turns(
    turns: Sequence[Mapping[str, Any]], actions: Sequence[ActionRow]
) -> tuple[dict[str, Any], tuple[dict[str, Any], ...]]:
    """Return the opinion of a judge that deferred (empty: none did), and the run's other turns with
    coarse answers, labelled.
    """
    opinion: dict[str, Any] = {}
    told: list[dict[str, Any]] = []
    for turn in turns:
        if turn.get("deferred"):
            opinion = describe_opinion(turn)
            continue
        answers = coarse_answers(actions, turn["turn"])
        told.append({**{name: turn[name] for name in _TOLD if name in turn}, "answers": answers})
    return opinion, tuple(told)
