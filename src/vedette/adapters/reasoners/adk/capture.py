"""The first gate of a turn on ADK: what is asked, what was said, and that no tool runs.

This module imports ADK; the reasoner imports it once it needs that.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any

from google.adk.agents.callback_context import CallbackContext
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types
from msgspec import Struct

from vedette.adapters.reasoners.adk.answer import MAX_TOKENS, Answer, read_answer
from vedette.adapters.reasoners.adk.conversation import Prompt
from vedette.adapters.reasoners.adk.tools import PROPOSED
from vedette.domain.base.errors import Permanent

# Of a request, in bytes as JSON, where the agent's budget sets no limit: a third of them or a
# quarter are tokens, and no model that calls tools reads less at once.
WINDOW = 400_000
# What a provider may add to a request of its own, in tokens; and a model to what it may write.
_BESIDE = 4096


class ToolRequest(Struct, frozen=True):
    """One call that the model made: ADK's name for its tool, and its arguments."""

    function: str
    args: Mapping[str, Any]


class Capture(BasePlugin):
    """The ADK plugin of one turn: says what is asked, takes down what comes, lets no tool run.

    `compose` is given the room for contents, in bytes of JSON, and returns them; they are asked as
    they are, whatever ADK made of its session. `model_calls` counts what was asked of the model,
    `answers` are what it said, `requests` its calls. `refusal` says what was refused, should the
    request carry anything but declared functions, or more than its budget.
    """

    def __init__(
        self,
        functions: frozenset[str],
        compose: Callable[[int], Prompt],
        max_input: int | None = None,
    ) -> None:
        super().__init__(name="vedette_capture")
        self._functions = functions
        self._compose = compose
        self._max_input = max_input
        self.prompt: Prompt | None = None
        self.answers: list[Answer] = []
        self.requests: list[ToolRequest] = []
        self.model_calls = 0
        self._most_read = self._most_written = MAX_TOKENS
        self.refusal = ""

    async def before_model_callback(
        self, *, callback_context: CallbackContext, llm_request: LlmRequest
    ) -> LlmResponse | None:
        """Put the turn's contents in place and count the call; refuse what may not be asked."""
        for tool in llm_request.config.tools or []:
            declared = getattr(tool, "function_declarations", None) or []
            names = {declaration.name for declaration in declared}
            given = tool.model_dump(exclude_none=True) if isinstance(tool, types.Tool) else {}
            if set(given) != {"function_declarations"} or not names <= self._functions:
                self.refusal = "the model would have been offered tools that are not declared"
                raise Permanent(self.refusal)
        around = _config_size(llm_request)
        limit = self._max_input
        self.prompt = self._compose((WINDOW if limit is None else limit) - around)
        llm_request.contents = self.prompt.contents
        if limit is not None and (size := around + self.prompt.size) > limit:
            self.refusal = (
                f"what it would be asked may come to {size} tokens, its budget has {limit}"
            )
            raise Permanent(self.refusal)
        self._most_read = 2 * (around + self.prompt.size) + _BESIDE
        most = llm_request.config.max_output_tokens
        self._most_written = MAX_TOKENS if most is None else 2 * most + _BESIDE
        self.model_calls += 1
        return None

    def read_response(self, response: LlmResponse) -> LlmResponse:
        """Take down what the model said; return what ADK may have of it: nothing, if it is odd."""
        if response.partial:
            return response
        answer = read_answer(response, self._most_read, self._most_written)
        self.answers.append(answer)
        return LlmResponse(content=types.Content(role="model")) if answer.fault else response

    async def before_tool_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext
    ) -> dict[str, Any]:
        """Take down one call, declared or made up; ADK runs no tool and asks no more."""
        self.requests.append(ToolRequest(tool.name, tool_args))
        tool_context.actions.skip_summarization = True
        return dict(PROPOSED)


class ReadModel(BaseLlm):
    """ADK's model of one turn: asks another, whose answer is read before ADK makes anything of it.

    ADK gives ids to calls without one, and copies and traces what it is given, however much.
    """

    asked: BaseLlm
    capture: Capture

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Yield the answer of the model that is asked, as far as it is taken."""
        async with aclosing(self.asked.generate_content_async(llm_request, stream)) as responses:
            async for response in responses:
                yield self.capture.read_response(response)


def _config_size(request: LlmRequest) -> int:
    """Return the bytes of what goes around the contents of a request to ADK's model, as JSON.

    With the contents' own they are a bound on its tokens: a token stands for at least one byte of
    text (byte-level BPE and SentencePiece with byte fallback alike), and the request's JSON holds
    more of them than the text itself, which leaves room for the marks that a model's wire puts
    between its parts.
    """
    text = request.model_dump_json(include={"config"}, exclude_none=True)
    return len(text.encode())
