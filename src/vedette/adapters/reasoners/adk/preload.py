"""Does once what a worker's first turn would do first, so that whoever is forked has done it.

Imports are the half of it. The other half are the schemas that pydantic makes of a class when that
is first used: so an agent's request is made here and Gemini's client asks it, of nobody.
"""

from __future__ import annotations

import asyncio
import importlib
from contextlib import aclosing

import httpx
from google.genai import Client, types

from vedette.adapters.reasoners.adk.reasoner import import_adk
from vedette.config.agent_file import ToolFile

import_adk()
for _module in (
    "vedette.adapters.reasoners.adk.root_agent",
    # What Google's client, and httpx on asyncio, import when they are first used.
    "google.genai.client", "google.auth.aio.credentials", "httpcore", "anyio._backends._asyncio",
    "anyio.streams.tls", "yaml",
):  # fmt: skip
    importlib.import_module(_module)

_TOOL = ToolFile(
    name="note.write", verb="write", resource="note", args={"text": "string"}, sinks=[],
    settles="none",
)  # fmt: skip
_CALL = {"functionCall": {"name": "note_write", "args": {"text": "seen"}}}
_ANSWER = {
    "candidates": [{"content": {"role": "model", "parts": [_CALL]}, "finishReason": "STOP"}],
    "usageMetadata": {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2},
}


async def _ask_nobody() -> None:
    """Make an agent's request, and have Gemini's client read the answer above to it."""
    from google.adk.agents.llm_agent import LlmAgent
    from google.adk.models.google_llm import Gemini

    from vedette.adapters.reasoners.adk.answer import read_answer
    from vedette.adapters.reasoners.adk.model_request import make_request
    from vedette.adapters.reasoners.adk.tools import DeclaredTool

    tool = DeclaredTool(_TOOL, "Writes a note.")
    agent = LlmAgent(name="agent", instruction=lambda _context: "Write a note.", tools=[tool])
    request = await make_request(agent, "gemini", [tool.name])
    contents = [types.Content(role="user", parts=[types.Part(text="There is a note.")])]
    transport = httpx.MockTransport(lambda _request: httpx.Response(200, json=_ANSWER))
    async with httpx.AsyncClient(transport=transport) as nobody:
        options = types.HttpOptions(
            base_url="http://nobody.invalid", httpx_async_client=nobody,
            client_args={"verify": False}, async_client_args={"ssl": False},
        )  # fmt: skip
        client = Client(vertexai=False, api_key="none", http_options=options)
        llm = Gemini(model="gemini", client=client)
        async with aclosing(llm.generate_content_async(request.put(contents))) as responses:
            async for response in responses:
                read_answer(response)


asyncio.run(_ask_nobody())
