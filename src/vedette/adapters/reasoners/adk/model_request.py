"""What ADK asks a model for an agent, but for the contents, which differ from turn to turn.

ADK makes it once for each agent and model, on an empty session: instruction, settings, declarations
and labels are the same in each turn. It names ADK, so a reasoner imports it when it asks.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import aclosing
from typing import Any

from google.adk.agents.llm_agent import LlmAgent
from google.adk.agents.run_config import RunConfig
from google.adk.apps import App
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from google.genai import types
from msgspec import Struct

from vedette.domain.base.errors import Permanent

_USER = "engine"


class AgentRequest(Struct, frozen=True):
    """An agent's request to a model, without contents; `size` is that of its JSON in bytes.

    With the contents' own size that is a bound on its tokens: a token stands for at least one byte
    of text (byte-level BPE and SentencePiece with byte fallback alike), and the request's JSON
    holds more of them than the text itself, which leaves room for the marks that a model's wire
    puts between its parts.
    """

    request: LlmRequest
    size: int

    @property
    def max_output(self) -> int | None:
        """Return the tokens that an answer may have, where the agent's settings say so."""
        return self.request.config.max_output_tokens

    def put(
        self, contents: list[types.Content], withheld: Callable[[str], bool] | None = None
    ) -> LlmRequest:
        """Return the request with contents, to be written into, as ADK's models do.

        Functions whose name is `withheld` are not offered.
        """
        made = self.request
        config, tools = made.config.model_copy(deep=True), dict(made.tools_dict)
        if withheld is not None:
            config.tools = _without(config.tools or [], withheld)
            tools = {name: tool for name, tool in tools.items() if not withheld(name)}
        return made.model_copy(
            update={
                "contents": contents,
                "config": config,
                "live_connect_config": made.live_connect_config.model_copy(deep=True),
                "tools_dict": tools,
            }
        )


def _without(tools: Sequence[Any], withheld: Callable[[str], bool]) -> list[Any]:
    """Return tools, which are checked by now, with the declarations that are left."""
    return [
        types.Tool(function_declarations=left)
        for tool in tools
        if (left := [one for one in tool.function_declarations if not withheld(str(one.name))])
    ]


class _RequestKeeper(BaseLlm):
    """A model that keeps what it is asked, as the last one in ADK's line."""

    kept: list[LlmRequest]

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        self.kept.append(llm_request)
        yield LlmResponse(content=types.Content(role="model", parts=[types.Part(text="kept")]))


async def make_request(agent: LlmAgent, model: str, functions: Collection[str]) -> AgentRequest:
    """Have ADK's Runner make the request of an agent to a model of a name; nobody is asked.

    Raises Permanent if it would offer the model anything but declared `functions`, or if ADK puts
    anything of the agent's own among the contents (an `instruction` beside `static_instruction`).
    """
    keeper = _RequestKeeper(model=model, kept=[])
    asking = agent.clone(update={"model": keeper})
    sessions = InMemorySessionService()
    await sessions.create_session(app_name=agent.name, user_id=_USER, session_id=_USER)
    app = App(name=agent.name, root_agent=asking)
    async with Runner(app=app, session_service=sessions) as runner:
        events = runner.run_async(
            user_id=_USER,
            session_id=_USER,
            new_message=types.Content(role="user", parts=[types.Part(text=_USER)]),
            run_config=RunConfig(max_llm_calls=1),
        )
        async with aclosing(events):
            async for _ in events:
                pass
    (request,) = keeper.kept
    if len(request.contents) != 1:
        raise Permanent("a part of its instruction would stand where the turn's contents are put")
    _check_offers(request, functions)
    text = request.model_dump_json(include={"config"}, exclude_none=True)
    return AgentRequest(request, len(text.encode()))


def _check_offers(request: LlmRequest, functions: Collection[str]) -> None:
    for tool in request.config.tools or []:
        declared = getattr(tool, "function_declarations", None) or []
        names = {declaration.name for declaration in declared}
        given = tool.model_dump(exclude_none=True) if isinstance(tool, types.Tool) else {}
        if set(given) != {"function_declarations"} or not names <= set(functions):
            raise Permanent("the model would have been offered tools that are not declared")
