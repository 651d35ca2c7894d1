"""The turns of a run as they were recorded, as its reasoner may be told of them again."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from vedette.domain.base.errors import Permanent
from vedette.domain.cascade import describe_opinion
from vedette.domain.done_condition import ACTIONS_OVER
from vedette.domain.notes import decode_notes
from vedette.domain.ports.ledger_reader import LedgerReader
from vedette.domain.ports.run_store import RunReader
from vedette.domain.row_proof import REFUSED_KIND, find_end_fault
from vedette.domain.run import ActionRow, Run
from vedette.domain.work_tools import FINISH_TOOL
from vedette.engine.services import Services
from vedette.engine.tool_calls import answer_data, coarse_answer, coarse_answers

# So many of its last turns a judge is told of a task. Replay tells the same.
JUDGE_TURNS = 16
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
    numbered = _number(actions, turns[0]["turn"]) if to_judge else {}
    for turn in turns:
        if turn.get("deferred"):
            opinion = describe_opinion(turn)
            continue
        of_turn = (
            _answers_of(turn, actions, numbered)
            if to_judge
            else coarse_answers(actions, turn["turn"])
        )
        answers = list(of_turn)
        told.append({**{name: turn[name] for name in _TOLD if name in turn}, "answers": answers})
    notes = turns[-1].get("notes")
    return ToldTurns(opinion, tuple(told), None if notes is None else decode_notes(notes))


def _number(
    actions: Sequence[ActionRow], first: int
) -> dict[tuple[int, int], tuple[ActionRow, int]]:
    """Return a run's actions from a turn on, by turn and ordinal, with how many before each were
    answered.
    """
    place = bisect_left(actions, first, key=lambda row: row.turn)
    found, answered = {}, sum(row.answer is not None for row in actions[:place])
    for row in actions[place:]:
        found[row.turn, row.ordinal] = (row, answered)
        answered += row.answer is not None
    return found


def _answers_of(
    turn: Mapping[str, Any],
    actions: Sequence[ActionRow],
    numbered: Mapping[tuple[int, int], tuple[ActionRow, int]],
) -> Iterator[Mapping[str, Any]]:
    """Yield what came of each proposal of a turn; `actions` are those of the whole run, `numbered`
    has each by turn and ordinal, with how many before it were answered.
    """
    repeated = {answer["ordinal"]: answer for answer in repeated_answers(turn, actions)}
    for ordinal, proposal in enumerate(turn["proposals"]):
        if ordinal in repeated:
            yield repeated[ordinal]
            continue
        row, number = numbered.get((turn["turn"], ordinal), (None, 0))
        # What was no action (no such tool, argument or reference) has no row.
        answer = {"status": "refused"} if row is None else coarse_answer(row)
        if row is not None and row.answer is not None and answer["status"] == "done":
            answer["ref"] = f"/outcome/{number}"
        yield {"tool": proposal["tool"], "ordinal": ordinal, **answer}


def retell_task_turns(
    turns: Sequence[Mapping[str, Any]], actions: Sequence[ActionRow], task: Mapping[str, Any]
) -> ToldTurns:
    """Return what a judge is told of the last turns of its task, `task` beside what that says.

    What lies before is for its notes, or for the tool that reads history.
    """
    turns = turns[-JUDGE_TURNS:]
    told = retell_turns(turns, actions, to_judge=True) if turns else NO_TURNS
    tell_unmet(told.turns, turns, task["conditions"])
    return told


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
                unmet = [one["name"] for one in conditions if not one["held"]]
                # What held it up is over by now, if it was another action of the turn.
                beside = [ACTIONS_OVER] if len(turn["answers"]) > 1 else []
                answer["unmet"] = unmet or beside


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


def read_turns(store: RunReader, run: Run) -> list[Mapping[str, Any]]:
    """Return the recorded turns of a run. Raises Permanent if they are not all there."""
    turns = store.turns(run.id)
    if len(turns) != run.turn:
        raise Permanent("what was thought in an earlier turn was erased, or edited")
    return turns


def find_history_fault(
    ledger: LedgerReader,
    run: str,
    turns: Sequence[Mapping[str, Any]],
    actions: Sequence[ActionRow],
) -> str | None:
    """Return what a run's rows say of how its actions ended that the ledger does not; None if they
    are so.

    Each proposal of the `turns`, as they are recorded, has its row, or an entry that refuses it.
    """
    ended = [row for row in actions if row.is_final or row.answer is not None]
    entries = ledger.proof_entries([row.id for row in ended]) if ended else {}
    for row in ended:
        fault = find_end_fault(row, entries[row.id])
        if fault is not None:
            return f"the row of {row.id} is not what the ledger says: {fault}"
    proposed = {
        (turn["turn"], ordinal)
        for turn in turns
        if not turn.get("deferred")
        for ordinal in range(len(turn["proposals"]))
    }
    missing = proposed - {(row.turn, row.ordinal) for row in actions}
    if missing:
        refused = (orjson.loads(raw) for _, raw, _ in ledger.run_entries(run, [REFUSED_KIND]))
        missing -= {(entry.get("turn"), entry.get("ordinal")) for entry in refused}
    for turn, ordinal in sorted(missing):
        return f"the row of proposal {ordinal} of turn {turn} is gone"
    return None


def verify_history(
    services: Services,
    run: Run,
    turns: Sequence[Mapping[str, Any]],
    actions: Sequence[ActionRow],
) -> None:
    """Let nothing count that was read back from the store and that the ledger does not say.

    What comes next is made of what came of earlier actions: briefings, origins, readers.
    Raises Permanent for what is not so.
    """
    fault = find_history_fault(services.store.ledger, run.id, turns, actions)
    if fault is not None:
        services.metrics.count("rows_refused", agent=run.agent, what="row")
        raise Permanent(fault)


def read_actions_anew(services: Services, run: Run, known: Sequence[ActionRow]) -> list[ActionRow]:
    """Return a run's actions as the store has them by now; those `known` to be over stay as known.

    Raises Permanent if one is gone, or over by its row alone.
    """
    rows = services.store.runs.actions(run.id)
    ended = {row.id: row for row in known if row.is_final}
    if gone := {row.id for row in known} - {row.id for row in rows}:
        raise Permanent(f"the row of {min(gone)} is gone")
    verify_history(services, run, (), [row for row in rows if row.id not in ended])
    return [ended.get(row.id, row) for row in rows]
