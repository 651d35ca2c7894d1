"""LangGraph's prebuilt agent, whose tools are this fleet's, over MCP.

    VEDETTE_URL=http://127.0.0.1:8088 VEDETTE_TOKEN=… python langgraph_agent.py

In an environment of its own: langchain-mcp-adapters wants mcp<2, the fleet's MCP server mcp>=2.3.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_mcp_adapters.client import MultiServerMCPClient
from langgraph.prebuilt import create_react_agent
from script import next_call


class ScriptedModel(BaseChatModel):
    """A model that says what the script says; put your provider's in its place."""

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **_: Any) -> ScriptedModel:
        """Take the tools; the script knows them."""
        return self

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        answers = [_text(one) for one in messages if isinstance(one, ToolMessage)]
        call = next_call(answers)
        calls = (
            [] if call is None else [{"name": call[0], "args": call[1], "id": str(len(answers))}]
        )
        message = AIMessage(content="" if calls else answers[-1], tool_calls=calls)
        return ChatResult(generations=[ChatGeneration(message=message)])


def _text(message: ToolMessage) -> str:
    if isinstance(message.content, str):
        return message.content
    return "".join(str(part.get("text", "")) for part in message.content if isinstance(part, dict))


async def main() -> None:
    """Let the agent work until the page is published; print what each tool answered."""
    server = {
        "transport": "streamable_http",
        "url": os.environ["VEDETTE_URL"].rstrip("/") + "/mcp",
        "headers": {"Authorization": f"Bearer {os.environ['VEDETTE_TOKEN']}"},
    }
    tools = await MultiServerMCPClient({"fleet": server}).get_tools()
    print("tools:", ", ".join(tool.name for tool in tools), flush=True)
    agent = create_react_agent(ScriptedModel(), tools)
    question = {"messages": [("user", "Note that the Petrel arrived, and publish the page.")]}
    async for state in agent.astream(question, {"recursion_limit": 200}, stream_mode="values"):
        last = state["messages"][-1]
        if isinstance(last, ToolMessage):
            print(_text(last), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
