"""A run of a model in a test: what it is told and what it says, turn by turn, without the line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from google.adk.models.llm_response import LlmResponse
from google.genai import types
from msgspec.structs import replace

from vedette.adapters.reasoners.adk.answer import check_answer, read_answer
from vedette.adapters.reasoners.adk.conversation import Prompt, compose_prompt
from vedette.adapters.reasoners.adk.wire import Speaker
from vedette.domain.action import encode_arguments
from vedette.domain.event import Event
from vedette.domain.memory import Briefing, Memory
from vedette.domain.model_turn import ModelTurn

GEMINI = Speaker("gemini-3-pro", "a" * 64, is_gemini=True)
CLAUDE = Speaker("claude-opus-5-5", "c" * 64, is_claude=True)
OPENAI = Speaker("gpt-6", "b" * 64)
ROOM = 1_000_000

PLAIN = Briefing(
    run="run_a", agent="sorter", key="k", position=1, previous=0, turn=1,
    event=Event("test", "1", "mail.received", "k", None, {"from": "a@example.org"}),
    charter={"desk": "desk@example.org"}, registry={"oncall": "b@example.org"},
)  # fmt: skip


def memory(name: str, text: str = "a thing to know") -> Memory:
    return Memory(
        name, "bank", 1, "scope", "fact", (), text, "d", "anna@example.org", "2026-01-01"
    )  # fmt: skip


def call(name: str, id: str | None = None, **args: Any) -> types.Part:
    return types.Part(function_call=types.FunctionCall(id=id, name=name, args=args))


def said(*parts: types.Part) -> types.Content:
    return types.Content(role="model", parts=list(parts))


def json_of(content: types.Content) -> str:
    return content.model_dump_json(exclude_none=True)


class Talk:
    """One run. `briefing` is that of the next turn; change it as the world changes."""

    def __init__(self, briefing: Briefing = PLAIN) -> None:
        self.briefing = briefing

    def ask(self, speaker: Speaker = GEMINI, room: int = ROOM) -> Prompt:
        """Return what the model would be told now."""
        return compose_prompt(self.briefing, {}, speaker, room)

    def take(
        self,
        content: types.Content,
        *results: Mapping[str, Any],
        speaker: Speaker = GEMINI,
        room: int = ROOM,
    ) -> Prompt:
        """Ask, have `content` answered and recorded, its calls ending in `results` (else done)."""
        prompt = self.ask(speaker, room)
        answer = check_answer(
            "sorter", [read_answer(LlmResponse(content=content))], 1, may_be_empty=True
        )
        record = ModelTurn(
            speaker.model, speaker.route, prompt.opens, prompt.told, prompt.shown, prompt.outcomes,
            answer.content,
        )  # fmt: skip
        turn = {
            "proposals": [
                {"tool": name, "args": encode_arguments(args),
                 "why": answer.text, "confidence": 0.5}
                for name, args in answer.calls
            ],
            "label": "x",
            "memories": [one.cite() for one in self.briefing.memories],
            "answers": [
                {"tool": name, "ordinal": at,
                 **(results[at] if at < len(results) else {"status": "done", "data": {"at": at}})}
                for at, (name, _) in enumerate(answer.calls)
            ],
            "model": record.to_json(),
        }  # fmt: skip
        # As it is read again: out of the ledger's JSON.
        turns = (*self.briefing.turns, orjson.loads(orjson.dumps(turn)))
        self.briefing = replace(self.briefing, turn=self.briefing.turn + 1, turns=turns)
        return prompt
