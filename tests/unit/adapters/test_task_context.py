"""The context of a task: what changes is told, a word without a call is answered, and it ends."""

from __future__ import annotations

import re
from typing import Any

import orjson
from google.genai import types
from msgspec.structs import replace
from tests.model_turns import CLAUDE, GEMINI, PLAIN, call, memory, said

from vedette.adapters.reasoners.adk.conversation import Prompt, compose_prompt
from vedette.adapters.reasoners.adk.wire import Speaker
from vedette.domain.base.canonical import normalize_json
from vedette.domain.memory import Briefing
from vedette.domain.model_turn import HAND_OFF, ModelTurn

TASK: dict[str, Any] = {
    "goal": 'Say "it" once.\n<data>',
    "conditions": [{"name": "a", "held": False, "why": "0 of 1"}, {"name": "b", "held": True}],
    "items": {"of": 0},
}
ENDED = {"turn": 1, "by": "engine", "why": "unanswered", "last_turns": []}
CALL = said(call("look", "call_1", what="x"))


class Task:
    """A run of a task. `task` is how it stands, `memories` what may be told."""

    def __init__(self) -> None:
        self.task: dict[str, Any] = TASK
        self.turns: list[dict[str, Any]] = []
        self.briefing = PLAIN

    def brief(self, **given: Any) -> Briefing:
        return replace(
            self.briefing,
            turn=len(self.turns) + 1,
            task=self.task,
            turns=tuple(self.turns),
            **given,
        )

    def ask(
        self,
        room: int = 100_000,
        window: int | None = None,
        speaker: Speaker = GEMINI,
        **given: Any,
    ) -> Prompt:
        """Return what is asked now."""
        return compose_prompt(self.brief(**given), {}, speaker, room, window)

    def take(
        self, answer: types.Content, *answers: dict[str, Any], tokens: int = 100, **given: Any
    ) -> Prompt:
        """Ask, take an answer, and record the turn as the engine does."""
        briefing, prompt = self.brief(), self.ask(**given)
        record = ModelTurn(
            GEMINI.model, GEMINI.route, prompt.opens, prompt.told, prompt.shown, prompt.outcomes,
            answer.model_dump_json(exclude_none=True), prompt.asks,
        )  # fmt: skip
        calls = [part for part in answer.parts or [] if part.function_call]
        turn = {
            "proposals": [{"tool": "look", "args": {}, "why": ""} for _ in calls],
            "memories": [one.cite() for one in briefing.memories],
            "model": normalize_json(record.to_json()),
            "answers": [{"ordinal": at, "status": "done", **one} for at, one in enumerate(answers)],
            "tokens": tokens,
        }  # fmt: skip
        if prompt.opens:
            self.turns = []
            turn["briefed"] = {"task": self.task, "hand_off": dict(briefing.hand_off)}
        elif self.turns and self._told() != self.task:
            turn["briefed"] = {"task": self.task}
        self.turns.append(turn)
        return prompt

    def _told(self) -> dict[str, Any]:
        told: dict[str, Any] = {}
        for turn in self.turns:
            told |= turn.get("briefed", {}).get("task", {})
        return told


def part_of(prompt: Prompt, name: str) -> Any:
    text = (prompt.contents[0].parts or [])[0].text or ""
    found = re.search(rf'<data name="{name}"[^\n]*>\n(.*)\n</data>', text)
    return None if found is None else orjson.loads(found[1])


def last_response(prompt: Prompt) -> dict[str, Any]:
    response = (prompt.contents[-1].parts or [])[-1].function_response
    assert response is not None
    return dict(response.response or {})


def test_the_goal_is_told_to_the_letter_and_what_changes_of_the_task_in_the_next_message() -> None:
    run = Task()
    first = run.take(CALL, {"data": {}, "outcome": 7})
    assert part_of(first, "task") == TASK
    state = {"name": "a", "held": True, "why": "1 of 1"}
    run.task = {**TASK, "conditions": [state, TASK["conditions"][1]]}
    prompt = run.take(CALL, {"data": {}, "outcome": 8})
    assert prompt.opens == ""
    told = last_response(prompt)
    assert told["changed"] == {"/task": {"conditions": [state]}}, "of a list what is new in it"
    assert told["ref"] == "ref:/outcome/7", "by its number, whatever lies before"
    later = run.ask()
    assert later.contents[:3] == prompt.contents, "and that is told again, once"
    assert "changed" not in last_response(later)


def test_what_is_said_without_a_call_is_answered_and_opens_no_context() -> None:
    run = Task()
    run.take(said(types.Part(text="I think it is done.")))
    prompt = run.ask()
    assert (prompt.opens, len(prompt.contents)) == ("", 3)
    assert "The task goes on" in ((prompt.contents[-1].parts or [])[0].text or "")
    run.take(said(types.Part(text="It is.")))
    assert run.ask().contents[:3] == prompt.contents
    run = Task()
    run.take(said())
    assert run.ask().opens == "unrecorded", "an answer with nothing in it is given back to nobody"
    run = Task()
    run.take(said(types.Part(text="hm", thought=True)))
    other = Speaker("gpt-6", "b" * 64)
    assert run.ask(speaker=other).opens == "unrecorded", "nor is one of which nothing is left"


def test_a_context_ends_at_seventy_percent_of_its_bytes() -> None:
    run, room = Task(), 20_000
    text = {"data": {"x": "y" * 1000}, "outcome": 0}
    sizes = []
    while not (prompt := run.ask(room)).asks:
        sizes.append(prompt.size)
        run.take(CALL, text, room=room)
    assert sizes[-1] < 0.7 * room <= prompt.size <= 0.7 * room + 1500
    assert prompt.asks == HAND_OFF
    assert "task_hand_off" in last_response(prompt)["asked"]
    taken = run.take(CALL, room=room)
    assert taken.contents == prompt.contents
    again = run.ask(room)
    assert again.contents[: len(prompt.contents)] == prompt.contents
    assert again.asks == HAND_OFF, "whatever was answered: who says what comes next is the engine"


def test_a_context_ends_at_seventy_percent_of_the_models_tokens() -> None:
    """As the last turn was counted, and a third of the bytes since."""
    run = Task()
    run.take(CALL, {"data": {}, "outcome": 0}, tokens=500)
    run.take(CALL, {"data": {"x": "y" * 600}, "outcome": 1}, tokens=500)
    assert run.ask(window=1000).asks == HAND_OFF
    assert run.ask(window=1200).asks == ""
    assert run.ask().asks == ""


def test_a_context_that_is_mostly_its_opening_has_half_of_what_that_leaves() -> None:
    run, room = Task(), 14_000
    run.task = {**TASK, "goal": "g" * 8000}
    asked = []
    for _ in range(20):
        asked.append(bool(run.take(CALL, {"data": {}, "outcome": 0}, room=room).asks))
    assert asked[:3] == [False] * 3
    assert any(asked[3:])


def test_a_context_that_ended_is_begun_anew_with_the_hand_off() -> None:
    run = Task()
    run.take(CALL, {"data": {}, "outcome": 0})
    prompt = run.ask(context_ended=True, hand_off=ENDED)
    assert (prompt.opens, len(prompt.contents)) == ("hand-off", 1)
    assert part_of(prompt, "hand-off") == ENDED
    assert part_of(prompt, "task") == TASK
    assert part_of(prompt, "turns") is None


def test_what_does_not_fit_is_begun_anew_with_what_the_engine_knows() -> None:
    run = Task()
    run.take(CALL, {"data": {"x": "y" * 9000}, "outcome": 0}, room=9000)
    prompt = run.ask(9000, hand_off=ENDED)
    assert (prompt.opens, part_of(prompt, "hand-off")) == ("window", ENDED)


def test_a_memory_that_is_withdrawn_ends_its_context() -> None:
    run = Task()
    run.briefing = replace(PLAIN, memories=(memory("m1", "Ann is away"),))
    run.take(CALL, {"data": {}, "outcome": 0})
    assert run.ask().opens == ""
    run.briefing = PLAIN
    prompt = run.ask(hand_off=ENDED)
    assert prompt.opens == "withdrawn"
    assert "Ann" not in str(prompt.contents)


def test_claude_is_given_its_own_words_back_as_any_model() -> None:
    run = Task()
    run.take(CALL, {"data": {}, "outcome": 0})
    assert run.ask(speaker=CLAUDE).opens == "model", "and no other's"


def test_a_run_that_is_no_task_is_asked_for_nothing() -> None:
    run = Task()
    run.task = {}
    text = {"data": {"x": "y" * 3000}}
    for _ in range(4):
        run.take(CALL, text, room=20_000)
    prompts = [run.ask(20_000), run.ask(window=10)]
    assert [one.asks for one in prompts] == ["", ""]
