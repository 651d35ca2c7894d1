"""The turns of a run as they were recorded, as its reasoner may be told of them again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from vedette.domain.cascade import describe_opinion
from vedette.domain.notes import decode_notes
from vedette.domain.run import ActionRow
from vedette.engine.tool_calls import coarse_answer, coarse_answers

_TOLD = ("proposals", "label", "memories", "model")


class ToldTurns(NamedTuple):
    """What a reasoner is told of a run's earlier turns, as a briefing has it.

    `opinion` is of a judge that deferred (empty: none did), `notes` what the last turn left.
    """

    opinion: Mapping[str, Any]
    turns: tuple[Mapping[str, Any], ...]
    notes: Any


NO_TURNS = ToldTurns({}, (), None)


def retell_turns(
    turns: Sequence[Mapping[str, Any]], actions: Sequence[ActionRow], *, to_judge: bool
) -> ToldTurns:
    """Return a run's recorded turns with coarse answers, labelled, and what a deferred one says.

    A judge is told of every proposal, in order, and by which reference it may point at what came
    of it; a model is told that where its words are put together.
    """
    opinion: dict[str, Any] = {}
    told: list[dict[str, Any]] = []
    for turn in turns:
        if turn.get("deferred"):
            opinion = describe_opinion(turn)
            continue
        of_turn = _answers_of(turn, actions) if to_judge else coarse_answers(actions, turn["turn"])
        answers = list(of_turn)
        told.append({**{name: turn[name] for name in _TOLD if name in turn}, "answers": answers})
    notes = turns[-1].get("notes")
    return ToldTurns(opinion, tuple(told), None if notes is None else decode_notes(notes))


def _answers_of(
    turn: Mapping[str, Any], actions: Sequence[ActionRow]
) -> Iterator[Mapping[str, Any]]:
    """Yield what came of each proposal of a turn; `actions` are those of the whole run."""
    rows = {row.ordinal: row for row in actions if row.turn == turn["turn"]}
    answered = [row.id for row in actions if row.answer is not None]
    for ordinal, proposal in enumerate(turn["proposals"]):
        row = rows.get(ordinal)
        # What was no action (no such tool, argument or reference) has no row.
        answer = {"status": "refused"} if row is None else coarse_answer(row)
        if row is not None and row.id in answered and answer["status"] == "done":
            answer["ref"] = f"/outcome/{answered.index(row.id)}"
        yield {"tool": proposal["tool"], "ordinal": ordinal, **answer}
