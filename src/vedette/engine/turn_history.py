"""The turns of a run as they were recorded, as its reasoner may be told of them again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vedette.domain.base.errors import Permanent
from vedette.domain.cascade import describe_opinion
from vedette.domain.row_proof import find_outcome_fault
from vedette.domain.run import ActionRow
from vedette.domain.work_tools import FINISH_TOOL
from vedette.engine.services import Services
from vedette.engine.tool_calls import answer_data, coarse_answers

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


def tell_unmet(
    past: Sequence[Mapping[str, Any]],
    turns: Sequence[Mapping[str, Any]],
    now: Sequence[Mapping[str, Any]],
) -> None:
    """Say in the answers to a task's finish that was denied which conditions were not met after it.

    `now` are the conditions as the next turn is told of them.
    """
    recorded = [turn for turn in turns if not turn.get("deferred")]
    later = [*(turn.get("task", {}).get("conditions", ()) for turn in recorded[1:]), now]
    for turn, conditions in zip(past, later, strict=False):
        for answer in turn["answers"]:
            if answer["tool"] == FINISH_TOOL and answer["status"] == "not permitted":
                answer["unmet"] = [one["name"] for one in conditions if not one["held"]]


def repeated_answers(turn: Mapping[str, Any], actions: Sequence[ActionRow]) -> list[dict[str, Any]]:
    """Return what is told of proposals that were done before: what came of them then."""
    repeated = turn.get("task", {}).get("repeated", {})
    wanted = set(repeated.values())
    by_id = {row.id: row for row in actions if row.id in wanted} if repeated else {}
    return [
        {
            "tool": by_id[id].tool,
            "ordinal": int(ordinal),
            "status": "done before",
            "data": answer_data(by_id[id]),
        }
        for ordinal, id in repeated.items()
    ]


def verify_outcomes(services: Services, agent: str, actions: Sequence[ActionRow]) -> None:
    """Count nothing read back from the store that the ledger does not say.

    What comes next is made of what came of earlier actions: briefings, origins, readers.
    Raises Permanent for an ended effect whose row is not what its entries say.
    """
    ended = [row for row in actions if row.effect in ("done", "failed") or row.answer]
    entries = services.store.ledger.proof_entries([row.id for row in ended]) if ended else {}
    for row in ended:
        fault = find_outcome_fault(row, entries[row.id])
        if fault is not None:
            services.metrics.count("rows_refused", agent=agent, what="row")
            raise Permanent(f"the row of {row.id} is not what the ledger says: {fault}")
