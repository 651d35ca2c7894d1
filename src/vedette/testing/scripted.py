"""A model and a reasoner that follow a script, for tests and rehearsals without a model's key.

`ScriptedModel` speaks through ADK's own Runner (see `vedette.adapters.reasoners.adk.reasoner`).
`ScriptedReasoner` fits the Reasoner port itself and needs no ADK.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import orjson
from msgspec import Struct, field
from msgspec.structs import replace

from vedette.domain.memory import Briefing
from vedette.domain.ports.reasoner import ReasonerJudgement, StatelessReasoner

if TYPE_CHECKING:
    from vedette.adapters.reasoners.adk.tools import FunctionModel, ModelReply, ModelRequest

_TOLD_TURNS = re.compile(r'^<data name="turns" [^>]*>\n(.*)\n</data>$', re.MULTILINE)


class ToolCall(Struct, frozen=True):
    """A tool call of a test's script: the tool as declared (`mail.file`), and its arguments.

    A reference is written as a model writes it: `ref:/event/data/from`.
    """

    tool: str
    args: Mapping[str, Any] = field(default_factory=dict)


class Hang:
    """A scripted answer that never comes."""


# One turn of a script: a text, calls (and texts) together, an error to raise, or no answer.
ScriptEntry = str | ToolCall | Sequence["str | ToolCall"] | Exception | type[Hang]


class RecordedPrompt(Struct, frozen=True):
    """What the scripted model was asked, as plain data.

    `turn` counts from 0, turns that a first message only tells of too. `texts` are the user's
    texts, `calls` the model's own earlier calls `(function, args)` as they are given back, and
    `answers` what it was told of them, oldest first.
    """

    turn: int
    instruction: str
    functions: Mapping[str, str]
    texts: tuple[str, ...]
    calls: tuple[tuple[str, Mapping[str, Any]], ...]
    answers: tuple[Mapping[str, Any], ...]


class ScriptedModel:
    """Plays a script through ADK, one entry per turn; after the last it says "done".

    Which turn it is shows in what it is asked, as with any model: asked again after a crash, it
    answers the same turn again. With `reword` (names of arguments) it never says the same twice:
    every text given bare in one of these arguments ends in another number each time it is asked,
    counting on from `prompts_before`, which a test that starts anew after a crash sets higher.
    Hand `model_for` to AdkReasoner. `prompts` holds all that it was asked.
    """

    def __init__(
        self,
        script: Sequence[ScriptEntry] | Callable[[RecordedPrompt], ScriptEntry],
        *,
        reword: Sequence[str] = (),
        prompts_before: int = 0,
    ) -> None:
        self.prompts: list[RecordedPrompt] = []
        self._script = script
        self._reword = frozenset(reword)
        self._prompts_before = prompts_before

    def model_for(self, agent: str) -> FunctionModel:
        """Return this script as a model for ADK. Imports ADK."""
        from vedette.adapters.reasoners.adk.tools import FunctionModel

        return FunctionModel(model=f"scripted-{agent}", answer=self._answer)

    async def _answer(self, request: ModelRequest) -> ModelReply:
        prompt = _parse_prompt(request)
        self.prompts.append(prompt)
        number = self._prompts_before + len(self.prompts)
        if callable(self._script):
            line = self._script(prompt)
        else:
            line = self._script[prompt.turn] if prompt.turn < len(self._script) else "done"
        if line is Hang:
            await asyncio.Event().wait()
        if isinstance(line, Exception):
            raise line
        assert not isinstance(line, type)
        return self._build_reply([line] if isinstance(line, str | ToolCall) else line, number)

    def _build_reply(self, said: Sequence[str | ToolCall], number: int) -> ModelReply:
        from vedette.adapters.reasoners.adk.tools import ModelReply, function_name

        texts = [part for part in said if isinstance(part, str)]
        calls = tuple(
            (function_name(part.tool), self._reword_args(part.args, number))
            for part in said
            if isinstance(part, ToolCall)
        )
        return ModelReply("\n".join(texts), calls)

    def _reword_args(self, args: Mapping[str, Any], number: int) -> dict[str, Any]:
        return {
            name: f"{value} ({number})"
            if name in self._reword and isinstance(value, str) and not value.startswith("ref:/")
            else value
            for name, value in args.items()
        }


def _parse_prompt(request: ModelRequest) -> RecordedPrompt:
    parts = [(content.get("role"), part) for content in request.contents
             for part in content.get("parts", [])]  # fmt: skip
    calls = [part["function_call"] for _, part in parts if "function_call" in part]
    answers = [part["function_response"] for _, part in parts if "function_response" in part]
    texts = tuple(part["text"] for role, part in parts if role == "user" and "text" in part)
    told = sum(len(orjson.loads(found)) for text in texts for found in _TOLD_TURNS.findall(text))
    return RecordedPrompt(
        turn=told + sum(content.get("role") == "model" for content in request.contents),
        instruction=request.instruction,
        functions=request.functions,
        texts=texts,
        calls=tuple((call["name"], call.get("args", {})) for call in calls),
        answers=tuple(answer.get("response", {}) for answer in answers),
    )


Plan = Sequence[ReasonerJudgement | Callable[[Briefing], ReasonerJudgement]]


class ScriptedReasoner(StatelessReasoner):
    """Answers by script turn n of every run with entry n; after the last, with nothing more.

    `plans` is one plan for all agents, or one for each by name. `briefings` holds what it saw. A
    thought of the plan that says nothing of its confidence is certain: a script is no guess.
    """

    def __init__(self, plans: Plan | Mapping[str, Plan]) -> None:
        self.briefings: list[Briefing] = []
        self.forgotten_keys: list[tuple[str, str]] = []
        self._plans = plans

    async def reason(self, briefing: Briefing) -> ReasonerJudgement:
        """Return what the plan has for this turn."""
        self.briefings.append(briefing)
        plans = self._plans
        plan = plans.get(briefing.agent, ()) if isinstance(plans, Mapping) else plans
        if briefing.turn > len(plan):
            return ReasonerJudgement(label="done", confidence=1.0, final=True)
        entry = plan[briefing.turn - 1]
        judgement = entry if isinstance(entry, ReasonerJudgement) else entry(briefing)
        return judgement if judgement.confidence is not None else replace(judgement, confidence=1.0)

    def drop_state(self, agent: str, key: str) -> None:
        """Note that the line dropped the state of a key."""
        self.forgotten_keys.append((agent, key))
