"""An agent of the OpenAI Agents SDK, whose tools are this fleet's, over MCP.

    VEDETTE_URL=http://127.0.0.1:8088 VEDETTE_TOKEN=… python openai_agent.py

In an environment of its own: openai-agents wants openai>=3, Google's ADK openai<3.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from typing import Any

from agents import Agent, Model, ModelResponse, Runner, Usage, set_tracing_disabled
from agents.mcp import MCPServerStreamableHttp
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)
from script import next_call


class ScriptedModel(Model):
    """A model that says what the script says; put your provider's in its place."""

    async def get_response(self, system_instructions: Any, input: Any, *_: Any, **__: Any) -> Any:
        """Return the next call, or the last answer as the end."""
        items = [] if isinstance(input, str) else [one for one in input if isinstance(one, dict)]
        outputs = [one["output"] for one in items if one.get("type") == "function_call_output"]
        answers = [_text(output) for output in outputs]
        for answer in answers[-1:]:
            print(answer, flush=True)
        call = next_call(answers)
        output: Any
        if call is None:
            text = ResponseOutputText(type="output_text", text="published", annotations=[])
            output = ResponseOutputMessage(
                id="m", type="message", role="assistant", status="completed", content=[text]
            )
        else:
            output = ResponseFunctionToolCall(
                type="function_call", call_id=f"c{len(answers)}", name=call[0],
                arguments=json.dumps(call[1]),
            )  # fmt: skip
        return ModelResponse(output=[output], usage=Usage(), response_id=None)

    def stream_response(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
        """Refuse: nothing here streams."""
        raise NotImplementedError


def _text(output: Any) -> str:
    """Return the text of a tool's answer, in which form the SDK keeps it."""
    if isinstance(output, list):
        return "".join(str(part.get("text", "")) for part in output)
    value = json.loads(output)
    return value["text"] if isinstance(value, dict) and set(value) >= {"type", "text"} else output


async def main() -> None:
    """Let the agent work until the page is published; print what each tool answered."""
    set_tracing_disabled(True)
    params: Any = {
        "url": os.environ["VEDETTE_URL"].rstrip("/") + "/mcp",
        "headers": {"Authorization": f"Bearer {os.environ['VEDETTE_TOKEN']}"},
        "timeout": 60,
    }
    # Its own default ends a request after 5 s; an outcome is waited for up to 10 here.
    async with MCPServerStreamableHttp(params, client_session_timeout_seconds=60) as fleet:
        print("tools:", ", ".join(tool.name for tool in await fleet.list_tools()), flush=True)
        agent = Agent(name="scribe", model=ScriptedModel(), mcp_servers=[fleet])
        await Runner.run(agent, "Note that the Petrel arrived, and publish it.", max_turns=200)


if __name__ == "__main__":
    asyncio.run(main())
