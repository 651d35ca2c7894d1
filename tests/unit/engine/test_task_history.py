"""What a task's next turn is told of those before it, and when a new context is to begin."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from tests.model_turns import PLAIN, memory

from vedette.domain.action import encode_arguments
from vedette.domain.base.canonical import canonical_json, normalize_json
from vedette.domain.effect import Outcome
from vedette.domain.hand_off import TURNS_ALONE, TURNS_BESIDE_WORDS
from vedette.domain.memory import Briefing
from vedette.domain.model_turn import HAND_OFF, ModelTurn
from vedette.domain.run import ActionRow
from vedette.domain.tool import Tool
from vedette.domain.work_tools import HAND_OFF_TOOL, WORK_TOOLS
from vedette.engine.task_history import TaskHistory
from vedette.engine.tool_calls import answer_bytes

WORDS = {"decisions": ["d"], "artefacts": [], "open_questions": [], "next_step": "go on"}
NOTE = Tool("note.add", "add", "note", {"text": "string"}, (), "transactional", "add")
TOOLS = {**WORK_TOOLS, NOTE.name: NOTE}
TASK = {"goal": "Do it.", "conditions": [], "items": {"of": 0}}


def said(opens: str = "", asks: str = "") -> dict[str, Any]:
    return ModelTurn("m", "r", opens, "", (), "", "{}", asks).to_json()


class Run:
    """A task's run: its recorded turns and its actions."""

    def __init__(self) -> None:
        self.history = TaskHistory()
        self.actions: list[ActionRow] = []
        self.briefing = replace(PLAIN, task=TASK)
        self.turn = 0

    def take(
        self, tool: str = "note.add", outcome: Outcome | None = None, **given: Any
    ) -> Briefing:
        """Record a turn with one proposal, of which the outcome came; return the next briefing."""
        self.turn += 1
        args = given.pop("args", {"text": "x"})
        memories = [one.cite() for one in self.briefing.memories]
        model = said(given.get("opens", ""), given.get("asks", ""))
        proposal = {"tool": tool, "args": encode_arguments(args), "why": "", "confidence": "1"}
        turn = {
            "turn": self.turn, "label": "", "memories": memories, "proposals": [proposal],
            "detail": {"tokens": {"input_tokens": 70}}, "model": model,
        }  # fmt: skip
        if given.get("opens"):
            turn |= self.history.told_by(ModelTurn("m", "r", given["opens"], "", (), "", "{}"))
        self.history.add(turn)
        done = outcome or Outcome("done", {"rows": [{"n": self.turn}]})
        self.actions.append(
            ActionRow(
                f"act_{self.turn}",
                "run_a",
                self.turn,
                0,
                "sorter",
                tool,
                "d",
                b"{}",
                decided="permit",
                effect="done" if done.state == "done" else "failed",
                answer=answer_bytes(done),
            )
        )
        return self.brief()

    def brief(self) -> Briefing:
        """Return the briefing of the next turn."""
        return self.history.complete(self.briefing, self.actions, TOOLS, to_judge=False)

    def hand_off(self, outcome: Outcome | None = None, **given: Any) -> Briefing:
        return self.take(HAND_OFF_TOOL, outcome or Outcome("done"), asks=HAND_OFF, **given)


@pytest.fixture
def run() -> Run:
    made = Run()
    made.brief()
    made.take(opens="first")
    return made


def test_the_first_turn_is_told_of_no_hand_off() -> None:
    briefing = Run().brief()
    assert (briefing.turns, briefing.hand_off, briefing.context_ended) == ((), {}, False)


def test_turns_say_the_number_of_their_outcomes_whatever_lies_before(run: Run) -> None:
    for _ in range(4):
        run.take()
    run.hand_off(args=WORDS)
    briefing = run.take(opens="hand-off")
    (turn,) = briefing.turns
    assert turn["turn"] == 7
    assert turn["answers"][0]["outcome"] == 6
    assert turn["tokens"] == 70
    assert turn["row"] == {"n": 5}, "as the run had made of it before"
    assert "row" not in run.take().turns[1]


def test_a_hand_off_that_was_taken_begins_a_context(run: Run) -> None:
    for _ in range(20):
        run.take()
    briefing = run.hand_off(args=WORDS)
    assert briefing.context_ended
    told = briefing.hand_off
    assert (told["by"], told["turn"]) == ("model", 22)
    assert normalize_json(told["words"]) == {"turn": 22, **WORDS}
    assert [line["turn"] for line in told["last_turns"]] == list(range(15, 23))
    assert len(told["last_turns"]) == TURNS_BESIDE_WORDS
    assert told["last_turns"][0]["calls"] == [
        {"tool": "note.add", "status": "done", "ref": "ref:/outcome/14"}
    ]
    later = run.take(opens="hand-off")
    assert not later.context_ended
    assert later.turns[0]["briefed"] == {"task": TASK, "hand_off": told}, "so it can be told again"


def test_lines_go_on_over_contexts(run: Run) -> None:
    for _ in range(30):
        run.take()
    run.hand_off(args=WORDS)
    run.take(opens="hand-off")
    told = run.take().hand_off
    assert (told["by"], told["why"]) == ("engine", "reopened")
    assert told["words"]["next_step"] == "go on", "the last that was taken"
    lines = [line["turn"] for line in told["last_turns"]]
    assert lines == [*range(25, 33), 33, 34]
    assert len(lines) <= TURNS_ALONE


def test_who_gave_none_twice_has_the_engines(run: Run) -> None:
    assert not run.take(asks=HAND_OFF).context_ended, "it is asked once more"
    briefing = run.take(asks=HAND_OFF)
    assert briefing.context_ended
    assert (briefing.hand_off["by"], briefing.hand_off["why"]) == ("engine", "unanswered")


def test_one_that_drifts_is_not_told(run: Run) -> None:
    drifts = Outcome("failed", {"rules": ["drift.goal"], "texts": ["x"]}, error="drifts")
    briefing = run.hand_off(drifts, args=WORDS)
    assert briefing.context_ended
    assert (briefing.hand_off["why"], "words" in briefing.hand_off) == ("drift.goal", False)


def test_words_are_told_no_more_once_a_memory_before_them_may_not_be() -> None:
    """Neither those of this context nor those it was told; the lines have no words."""
    run = Run()
    run.briefing = replace(run.briefing, memories=(memory("m1"),))
    run.brief()
    run.take(opens="first")
    assert "words" in run.hand_off(args=WORDS).hand_off
    run.briefing = replace(run.briefing, memories=())
    briefing = run.brief()
    assert briefing.context_ended
    assert briefing.hand_off["why"] == "withdrawn"
    assert "words" not in briefing.hand_off
    assert "go on" not in canonical_json(briefing.hand_off).decode()


def test_of_the_task_a_turns_record_has_what_changed() -> None:
    run = Run()
    run.brief()
    first = ModelTurn("m", "r", "first", "", (), "", "{}")
    assert run.history.told_by(first) == {"briefed": {"task": TASK}}
    run.take(opens="first")
    assert run.history.told_by(replace(first, opens="")) == {}
    run.briefing = replace(run.briefing, task={**TASK, "items": {"of": 1}})
    run.brief()
    told = run.history.told_by(replace(first, opens=""))
    assert told == {"briefed": {"task": {"items": {"of": 1}}}}


def test_a_judge_that_deferred_has_its_opinion_told_in_every_context() -> None:
    run = Run()
    deferred = {"turn": 1, "deferred": True, "label": "sure?", "confidence": "0.1", "detail": {},
                "proposals": [], "memories": []}  # fmt: skip
    run.turn = 1
    run.history.load([deferred])
    run.take(opens="first")
    run.hand_off(args=WORDS)
    assert run.take(opens="hand-off").opinion["label"] == "sure?"


def test_a_context_ends_with_its_hand_off_and_with_no_other_turn() -> None:
    run = Run()
    run.take(opens="first")
    assert not run.history.ends_context(run.actions, "Do it.")
    run.hand_off(args=WORDS)
    assert run.history.ends_context(run.actions, "Do it.")
    run.take(opens="hand-off")
    assert not run.history.ends_context(run.actions, "Do it.")
