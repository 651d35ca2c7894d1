"""The fleet as an MCP server: `/mcp`, streamable HTTP, for agents whose clients speak MCP.

tools/list is what policy grants the agent now, and `outcome`; a call is one of the agents' API.
Both eras of the protocol are spoken (2026-07-28, and those with `initialize`), without sessions:
each request stands by itself and carries the agent's token. There is no elicitation (who asks for
an approval would answer it), no sampling, no roots; nothing is asked of the client.

The official SDK is an extra, `vedette[mcp]`, and is loaded with the first request.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import vedette
from vedette.domain.agent import Agent
from vedette.domain.base.errors import BadFleet, Unavailable, VedetteError
from vedette.domain.client_call import ClientCall
from vedette.domain.cloudevents import load_json
from vedette.interfaces.http.agent_requests import read_body, while_connected
from vedette.interfaces.http.agent_responses import error_response
from vedette.interfaces.http.agent_tokens import AgentTokens
from vedette.interfaces.http.request_drain import drain_request
from vedette.operations.agent_calls import CALL_WAIT_S, MAX_WAIT_S, AgentCalls

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext
    from mcp.server.lowlevel.server import Server
    from mcp_types import CallToolRequestParams, CallToolResult, ListToolsResult, Tool
    from starlette.routing import Route
    from starlette.types import Message, Receive, Scope, Send

# In `_meta` of tools/call: calls with one key are one call (the prefix is ours, as MCP asks).
KEY_META = "vedette/key"
# The tool that is no agent's own.
OUTCOME = "outcome"
_AGENT = "vedette.agent"
_INSTRUCTIONS = """\
Each tool only proposes: policy decides whether it happens, and a person may have to approve. The
answer has a `status`. `done`: it happened. `denied`: it did not and will not. `refused`: the
arguments are wrong, `why` says how. `unknown`: it may have happened; look before you do it again,
or ask a person. `held` or `pending`: not yet; call `outcome` with the `call` of
the answer after `after_s` seconds, and do not call the tool again. The same call twice is one."""
_OUTCOME_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "call": {"type": "string", "description": "`call` of an earlier answer"},
        "wait_s": {"type": "integer", "minimum": 0, "maximum": int(MAX_WAIT_S)},
    },
    "required": ["call"],
    "additionalProperties": False,
}
_FAILURES = frozenset({"refused", "failed"})


def wire_name(tool: str) -> str:
    """Return the name of a tool on MCP's wire: what models take knows no dots."""
    return tool.replace(".", "_")


class McpServer:
    """The MCP server of a fleet's agents, an ASGI application of one path."""

    def __init__(self, calls: AgentCalls, tokens: AgentTokens, *, max_body_bytes: int) -> None:
        self._calls, self._tokens = calls, tokens
        self._max_body_bytes = max_body_bytes
        self._server: Server[Any] | None = None

    def route(self) -> Route:
        """Return its route. GET and DELETE, which sessions need, are answered 405."""
        from starlette.routing import Route

        return Route("/mcp", self, methods=["POST"])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request of an agent's client, in the name of the agent whose token it has."""
        from starlette.requests import Request

        request = Request(scope, receive)
        try:
            async with self._tokens.admit(request.headers) as agent:
                body = await read_body(request, self._max_body_bytes)
                load_json(body)  # as strict as the HTTP API, which the SDK's parser is not
                server = await self._load()
                work = self._serve(server, {**scope, _AGENT: agent}, body)
                for message in await while_connected(receive, work):
                    await send(message)
        except VedetteError as error:
            # What of its body is still to come is read for a moment, so that it reads this.
            await drain_request(request, self._max_body_bytes, 1.0)
            await error_response(error)(scope, receive, send)
        except asyncio.CancelledError:
            # The run ends, and the server waits for it no longer; the same may be sent again.
            ending = Unavailable("the fleet ends", mend="send it when it is back")
            await error_response(ending)(scope, receive, send)

    async def _load(self) -> Server[Any]:
        """Return the SDK's server, which is loaded and made the first time. Raises BadFleet."""
        if self._server is None:
            if find_spec("mcp") is None:
                what = "MCP is not served here: its SDK is not installed"
                raise BadFleet(what, where="/mcp", mend="install vedette[mcp]", code="no-mcp")
            await asyncio.to_thread(_preload)
            from mcp.server.lowlevel.server import Server

            self._server = Server(
                self._calls.fleet, version=vedette.__version__, instructions=_INSTRUCTIONS,
                on_list_tools=self._list_tools, on_call_tool=self._call_tool,
                get_tool_input_schema=lambda name: None,
            )  # fmt: skip
            # Its own traces: the ledger's are made from the ledger.
            self._server.middleware.clear()
        return self._server

    async def _serve(self, server: Server[Any], scope: Scope, body: bytes) -> list[Message]:
        """Return the answer to one request, with what lives as long as it does.

        With its answers in JSON the SDK does not listen for who hangs up: whoever awaits this does,
        and cancels it, as long as nothing was sent.
        """
        from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

        given: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
        answer: list[Message] = []

        async def receive() -> Message:
            return given.pop() if given else await asyncio.Future()

        async def send(message: Message) -> None:
            answer.append(message)

        manager = StreamableHTTPSessionManager(
            server, json_response=True, stateless=True, max_request_body_size=self._max_body_bytes
        )
        async with manager.run():
            await manager.handle_request(scope, receive, send)
        return answer

    # --- what is asked ----------------------------------------------------------------------

    async def _list_tools(self, context: ServerRequestContext[Any], params: Any) -> ListToolsResult:
        from mcp_types import ListToolsResult, Tool

        tools = [
            Tool(
                name=wire_name(one["name"]),
                description=one["description"],
                input_schema=one["input_schema"],
            )
            for one in self._calls.tools(_agent_of(context))
        ]
        # For this agent and no other, and no longer than until the policy changes.
        return ListToolsResult(tools=[*tools, _outcome_tool()], ttl_ms=0, cache_scope="private")

    async def _call_tool(
        self, context: ServerRequestContext[Any], params: CallToolRequestParams
    ) -> CallToolResult:
        agent, given = _agent_of(context), params.arguments or {}
        try:
            if params.name == OUTCOME:
                found = await self._ask_outcome(agent, given)
            else:
                names = {wire_name(name): name for name in agent.tools}
                meta: Mapping[str, Any] = {**(params.meta or {})}
                tool = names.get(params.name, params.name)
                call = ClientCall.of(tool, given, meta.get(KEY_META))
                found = await self._calls.call(agent, call)
        except VedetteError as error:
            return _result({"error": error.to_json()}, is_error=True)
        return _result(found, is_error=found["status"] in _FAILURES)

    async def _ask_outcome(self, agent: Agent, given: Mapping[str, Any]) -> Mapping[str, Any]:
        call, wait_s = given.get("call"), given.get("wait_s", CALL_WAIT_S)
        if not isinstance(call, str):
            call = ""  # of nobody, and so answered
        if isinstance(wait_s, bool) or not isinstance(wait_s, int | float):
            wait_s = CALL_WAIT_S
        return await self._calls.outcome(agent, call, wait_s)


def _agent_of(context: ServerRequestContext[Any]) -> Agent:
    """Return whose token the request of a handler carried."""
    assert context.request is not None
    agent = context.request.scope[_AGENT]
    assert isinstance(agent, Agent)
    return agent


def _outcome_tool() -> Tool:
    from mcp_types import Tool, ToolAnnotations

    return Tool(
        name=OUTCOME,
        description="Tell what came of an earlier call that was `held` or `pending`; waits up to "
        f"`wait_s` seconds ({CALL_WAIT_S:.0f} unless said).",
        input_schema=dict(_OUTCOME_SCHEMA),
        annotations=ToolAnnotations(read_only_hint=True),
    )


def _result(value: Mapping[str, Any], *, is_error: bool) -> CallToolResult:
    from mcp_types import CallToolResult, TextContent

    text = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace").decode()
    return CallToolResult(
        content=[TextContent(type="text", text=text)],
        structured_content=dict(value),
        is_error=is_error,
    )


def _preload() -> None:
    import mcp.server.lowlevel.server
    import mcp.server.streamable_http_manager  # noqa: F401
