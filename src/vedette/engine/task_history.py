"""The turns of a task that its next turn is told of, and what a new context begins with.

A task may have a thousand turns: of those before its model's last context nothing is read, told or
kept here. What a context began with stands in its first turn.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import orjson
from msgspec import Struct, field
from msgspec.structs import replace

from vedette.domain.action import decode_arguments
from vedette.domain.cascade import describe_opinion
from vedette.domain.hand_off import (
    REOPENED,
    TURNS_ALONE,
    TURNS_BESIDE_WORDS,
    UNANSWERED,
    WITHDRAWN,
    HandOff,
    HandOffWords,
    read_hand_off,
    read_words,
)
from vedette.domain.memory import Briefing
from vedette.domain.model_turn import HAND_OFF, ModelTurn
from vedette.domain.run import ActionRow, Step
from vedette.domain.work_tools import HAND_OFF_TOOL
from vedette.engine.action_history import ActionHistory
from vedette.engine.tool_calls import answer_data, coarse_answer
from vedette.engine.turn_history import repeated_answers, retell_task_turns, tell_unmet

# How often a model is asked for a hand-off.
_TRIES = 2
_TOLD = ("turn", "proposals", "label", "memories", "model", "briefed")
_MAX_NAME = 80

Turn = Mapping[str, Any]


class TaskHistory(Struct):
    """The recorded turns since a task's last context began (all, if none did), oldest first.

    `told` is what the last of them was told of the task, `opinion` that of a judge that deferred.
    `task` and `hand_off` are what the turn that is being taken was briefed with.
    """

    turns: list[Turn] = field(default_factory=list)
    told: dict[str, Any] = field(default_factory=dict)
    opinion: dict[str, Any] = field(default_factory=dict)
    task: Mapping[str, Any] = field(default_factory=dict)
    hand_off: Mapping[str, Any] = field(default_factory=dict)

    def load(self, turns: Iterable[Turn]) -> None:
        """Take in a run's recorded turns, oldest first."""
        for turn in turns:
            self.add(turn)

    def add(self, turn: Turn) -> None:
        """Take in the next turn, as its record has it."""
        if turn.get("deferred"):
            self.opinion = describe_opinion(turn)
            return
        if _opens(turn):
            self.turns.clear()
            self.told = {}
        self.turns.append(turn)
        self.told |= told_of_task(turn)

    def add_step(self, step: Step) -> None:
        """Take in the turn of a step that was committed."""
        for draft in step.drafts:
            if draft.kind == "turn.reasoned" and draft.body is not None:
                self.add(orjson.loads(draft.body.data))

    # --- what a turn is briefed with --------------------------------------------------------

    def complete(
        self,
        briefing: Briefing,
        actions: Sequence[ActionRow],
        past: ActionHistory,
        *,
        to_judge: bool,
    ) -> Briefing:
        """Return a briefing of a task with its turns, and what a context begun now is told.

        A judge has no context: it is told of its last turns, and of what it noted in the last.
        """
        if to_judge:
            self.task = briefing.task
            seen = retell_task_turns(self.turns, actions, briefing.task)
            return replace(briefing, turns=seen.turns, notes=seen.notes)
        memories = {one.cite() for one in briefing.memories}
        is_withdrawn = any(not memories.issuperset(turn["memories"]) for turn in self.turns)
        hand_off, has_ended = self._describe_hand_off(actions, past, is_withdrawn)
        self.task, self.hand_off = briefing.task, {} if hand_off is None else hand_off.to_json()
        return replace(
            briefing,
            turns=self._retell(actions, past),
            opinion=self.opinion,
            hand_off=self.hand_off,
            context_ended=has_ended,
        )

    def _retell(
        self, actions: Sequence[ActionRow], past: ActionHistory
    ) -> tuple[dict[str, Any], ...]:
        """Return the turns as a briefing has them, with coarse answers that say their number.

        The first has the row, too, as the run's tools had made of it before.
        """
        first = int(self.turns[0]["turn"]) if self.turns else 0
        answers = _answers_since(actions, past, first)
        told = [
            {
                **{name: turn[name] for name in _TOLD if name in turn},
                **_counted(turn),
                "answers": [*answers.get(turn["turn"], []), *repeated_answers(turn, actions)],
            }
            for turn in self.turns
        ]
        tell_unmet(told, self.turns, self.task["conditions"])
        row = _row_before(past, first)
        if told and row is not None:
            told[0]["row"] = row
        return tuple(told)

    def _describe_hand_off(
        self, actions: Sequence[ActionRow], past: ActionHistory, is_withdrawn: bool
    ) -> tuple[HandOff | None, bool]:
        """Return what a context begun now is told of those before it, and whether one has to begin.

        With `is_withdrawn` no words are told: they may be made of a memory that may not be.
        """
        if not self.turns:
            return None, False
        last = self.turns[-1]
        earlier = read_hand_off(self.turns[0].get("briefed", {}).get("hand_off", {}))
        words = None if earlier is None else earlier.words
        asked = [turn for turn in self.turns[-_TRIES:] if _asks(turn)] if _asks(last) else []
        said, refused = _find_words(last, actions) if asked else (None, "")
        why = refused or (UNANSWERED if len(asked) == _TRIES else REOPENED)
        has_ended = bool(said or refused or len(asked) == _TRIES)
        if is_withdrawn:
            said, words, why = None, None, WITHDRAWN
        most = TURNS_BESIDE_WORDS if said else TURNS_ALONE
        lines = self._lines(actions, past, earlier, most)
        turn = int(last["turn"])
        if said is not None:
            return HandOff(turn, "model", words=said, last_turns=lines), has_ended
        return HandOff(turn, "engine", why, words, lines), has_ended

    def _lines(
        self,
        actions: Sequence[ActionRow],
        past: ActionHistory,
        earlier: HandOff | None,
        most: int,
    ) -> tuple[Mapping[str, Any], ...]:
        turns = self.turns[-most:]
        answers = _answers_since(actions, past, int(turns[0]["turn"]))
        lines = [tell_in_line(turn, answers.get(turn["turn"], [])) for turn in turns]
        before = () if earlier is None else earlier.last_turns
        return tuple([*before, *lines][-most:])

    def told_by(self, said: ModelTurn | None) -> dict[str, Any]:
        """Return what a turn's record has of what it was told: what began its model's context, or
        its run (a judge's: `said` is None), or changed.
        """
        if not self.turns or (said is not None and said.opens):
            hand_off = {"hand_off": self.hand_off} if self.hand_off else {}
            return {"briefed": {"task": self.task, **hand_off}}
        changed = {name: one for name, one in self.task.items() if self.told.get(name) != one}
        return {"briefed": {"task": changed}} if changed else {}


def read_told_task(turns: Iterable[Turn]) -> dict[str, Any]:
    """Return what the last of these turns was told of its task, from the first of a context on."""
    told: dict[str, Any] = {}
    for turn in turns:
        told |= told_of_task(turn)
    return told


def told_of_task(turn: Turn) -> Mapping[str, Any]:
    """Return what a turn was told of its task that the one before was not."""
    told: Mapping[str, Any] = turn.get("briefed", {}).get("task", {})
    return told


def tell_in_line(turn: Turn, answers: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a turn in a line: which tools were called, and what came of it."""
    by_ordinal = {answer["ordinal"]: answer for answer in answers}
    calls = []
    for ordinal, proposal in enumerate(turn["proposals"]):
        answer = by_ordinal.get(ordinal, {"status": "refused"})
        ref = {"ref": f"ref:/outcome/{answer['outcome']}"} if "outcome" in answer else {}
        calls.append({"tool": proposal["tool"][:_MAX_NAME], "status": answer["status"], **ref})
    return {"turn": turn["turn"], "calls": calls}


def number_answers(
    actions: Sequence[ActionRow], past: ActionHistory, first: int
) -> Iterator[tuple[ActionRow, int | None]]:
    """Yield a run's actions from a turn on, with the number of their outcome, as references have
    it; None: not done.
    """
    place = min(bisect_left(actions, first, key=lambda row: row.turn), past.count)
    at = past.number_from(place)
    for row in islice(actions, place, None):
        if row.turn >= first:
            yield row, at if row.effect == "done" else None
        at += row.answer is not None


def _answers_since(
    actions: Sequence[ActionRow], past: ActionHistory, first: int
) -> dict[int, list[dict[str, Any]]]:
    """Return what a briefing says of the actions from a turn on, by turn."""
    found: dict[int, list[dict[str, Any]]] = {}
    for row, at in number_answers(actions, past, first):
        number = {} if at is None else {"outcome": at}
        answer = {"tool": row.tool, "ordinal": row.ordinal, **coarse_answer(row), **number}
        found.setdefault(row.turn, []).append(answer)
    return found


def _row_before(past: ActionHistory, first: int) -> Mapping[str, Any] | None:
    for row in reversed(past.wrote):
        if row.turn < first:
            rows = answer_data(row).get("rows")
            if rows:
                written: Mapping[str, Any] = rows[-1]
                return written
    return None


def _opens(turn: Turn) -> bool:
    return bool(turn.get("model", {}).get("opens"))


def _asks(turn: Turn) -> bool:
    return bool(turn.get("model", {}).get("asks") == HAND_OFF)


def _counted(turn: Turn) -> dict[str, Any]:
    """Return the tokens that a turn's request had, if its provider counted them."""
    tokens = turn.get("detail", {}).get("tokens", {})
    return {"tokens": tokens["input_tokens"]} if "input_tokens" in tokens else {}


def _find_words(turn: Turn, actions: Sequence[ActionRow]) -> tuple[HandOffWords | None, str]:
    """Return the hand-off of a turn that was asked for it, or the rule that it broke."""
    number = int(turn["turn"])
    for row in reversed(actions):
        if row.turn != number:
            break
        if row.tool == HAND_OFF_TOOL and row.effect == "done":
            given = turn["proposals"][row.ordinal]["args"]
            return read_words(number, decode_arguments(given)), ""
        if row.tool == HAND_OFF_TOOL and row.effect == "failed":
            return None, next(iter(answer_data(row).get("rules", ())), UNANSWERED)
    return None, ""
