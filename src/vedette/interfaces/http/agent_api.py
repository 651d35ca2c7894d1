"""The agents' API: an agent of this fleet whose client is elsewhere calls its tools over HTTP.

GET  /v1/agent/tools               the tools that policy grants it now
POST /v1/agent/calls               {tool, args, key}: what came of it, or that it is held
GET  /v1/agent/calls/ID?wait_s=N   what came of it since
POST /access/v1/evaluation         what policy would decide now (AuthZEN 1.0); nothing is done
GET  /v1/agent/openapi.json        all of this, for programs
POST /mcp                          the same for clients that speak MCP (`mcp_server`)

Each asks for `Authorization: Bearer TOKEN` of the agent (`agent_tokens`), but for the last. Errors
are {"error": {code, what, where, mend}} with 400 (not as asked), 401 (no token that is good), 403
(another subject or Origin), 404 (no such call of yours), 408 (too slow), 409 (the key of another
call, or of one that was erased), 413 (too large), 429 (too many) or 503 (not now: the same may be
sent again).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from vedette.app.remote_workers import build_tokens
from vedette.domain.agent import Agent
from vedette.domain.base.errors import (
    BadCommand,
    BadProposal,
    Forbidden,
    Unavailable,
    VedetteError,
)
from vedette.domain.client_call import ClientCall
from vedette.domain.cloudevents import load_json
from vedette.interfaces.http.agent_openapi import build_openapi
from vedette.interfaces.http.agent_requests import read_body, while_connected
from vedette.interfaces.http.agent_responses import error_response, json_response
from vedette.interfaces.http.agent_tokens import AgentTokens
from vedette.interfaces.http.hosts import AllowedHosts
from vedette.interfaces.http.mcp_server import McpServer
from vedette.interfaces.http.request_drain import drain_request
from vedette.operations.agent_calls import MAX_WAIT_S, AgentCalls, evaluated_resource

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    from vedette.app.composition_root import App

# What a body has beside its arguments.
_ROOM_BYTES = 8_192
_MAX_REQUEST_ID_CHARS = 200

Answer = Mapping[str, Any]


def routes(app: App) -> list[Route]:
    """Return the agents' API of an opened fleet that serves agents."""
    settings = app.settings
    calls = AgentCalls(
        app.services, app.intake, window_us=settings.call_window_us,
        per_minute=settings.calls_per_minute, most_open=settings.open_calls,
    )  # fmt: skip
    hosts = AllowedHosts(app.settings.hosts)
    tokens = AgentTokens(
        app.settings.served_agents, calls, build_tokens(app.settings, app.services.clock.now_us),
        app.metrics, hosts,
    )  # fmt: skip
    most = app.settings.max_event_bytes + _ROOM_BYTES
    api = AgentApi(calls, tokens, hosts, max_body_bytes=most)
    return [*api.routes(), McpServer(calls, tokens, max_body_bytes=most).route()]


class AgentApi:
    """The agents' API: who comes, what is asked, the answer."""

    def __init__(
        self, calls: AgentCalls, tokens: AgentTokens, hosts: AllowedHosts, *, max_body_bytes: int
    ) -> None:
        self._calls, self._tokens, self._hosts = calls, tokens, hosts
        self._max_body_bytes = max_body_bytes

    def routes(self) -> list[Route]:
        """Return the routes."""
        from starlette.routing import Route

        return [
            Route("/v1/agent/openapi.json", self.openapi, methods=["GET"]),
            Route("/v1/agent/tools", self.tools, methods=["GET"]),
            Route("/v1/agent/calls", self.call, methods=["POST"]),
            Route("/v1/agent/calls/{id}", self.outcome, methods=["GET"]),
            Route("/access/v1/evaluation", self.evaluate, methods=["POST"]),
        ]

    async def openapi(self, request: Request) -> Response:
        """Describe all of this. It says nothing of this fleet, and asks for no token."""
        return self._hosts.refusal(request) or json_response(200, build_openapi())

    async def tools(self, request: Request) -> Response:
        """List the tools that policy grants the agent now."""
        return await self._answer(request, self._list_tools)

    async def call(self, request: Request) -> Response:
        """Call a tool of the agent."""
        return await self._answer(request, self._call)

    async def outcome(self, request: Request) -> Response:
        """Tell what came of a call of the agent."""
        return await self._answer(request, self._outcome)

    async def evaluate(self, request: Request) -> Response:
        """Tell what policy would decide now."""
        response = await self._answer(request, self._evaluate)
        if name := request.headers.get("x-request-id", "")[:_MAX_REQUEST_ID_CHARS]:
            response.headers["X-Request-ID"] = name  # AuthZEN 1.0, 10.1.3
        return response

    # --- who --------------------------------------------------------------------------------

    async def _answer(
        self, request: Request, work: Callable[[Request, Agent], Awaitable[Answer]]
    ) -> Response:
        try:
            async with self._tokens.admit(request.headers) as agent:
                return json_response(200, await work(request, agent))
        except VedetteError as error:
            # What of its body is still to come is read for a moment, so that it reads this.
            await drain_request(request, self._max_body_bytes, 1.0)
            return error_response(error)
        except asyncio.CancelledError:
            # The run ends, and the server waits for it no longer; the same may be sent again.
            return error_response(Unavailable("the fleet ends", mend="send it when it is back"))

    async def _read_object(self, request: Request, *, needed: str, known: str) -> dict[str, Any]:
        """Read a JSON object with these keys (of words). Raises BadCommand."""
        found = load_json(await read_body(request, self._max_body_bytes))
        keys = known.split()
        if not isinstance(found, dict):
            raise BadCommand("the body is no JSON object", mend=f"send {', '.join(keys)}")
        odd = sorted(set(found) - set(keys))
        missing = [name for name in needed.split() if name not in found]
        if odd or missing:
            what = f"{odd[0]!r} is not known" if odd else f"{missing[0]!r} is missing"
            raise BadCommand(what, mend=f"send {', '.join(keys)}")
        return found

    # --- what -------------------------------------------------------------------------------

    async def _list_tools(self, request: Request, agent: Agent) -> Answer:
        return {"agent": agent.identity.spiffe_id, "tools": self._calls.tools(agent)}

    async def _call(self, request: Request, agent: Agent) -> Answer:
        given = await self._read_object(request, needed="tool", known="tool args key")
        call = ClientCall.of(given["tool"], given.get("args"), given.get("key"))
        return await while_connected(request.receive, self._calls.call(agent, call))

    async def _outcome(self, request: Request, agent: Agent) -> Answer:
        wait_s = _read_wait(request.query_params.get("wait_s", "0"))
        work = self._calls.outcome(agent, request.path_params["id"], wait_s)
        return await while_connected(request.receive, work)

    async def _evaluate(self, request: Request, agent: Agent) -> Answer:
        given = await self._read_object(
            request, needed="subject action resource", known="subject action resource context"
        )
        subject, action, resource = (
            _part(given, name) for name in ("subject", "action", "resource")
        )
        if subject.get("type") != "agent" or subject.get("id") not in (
            agent.name, agent.identity.spiffe_id,
        ):  # fmt: skip
            raise Forbidden("the subject is not who asks", mend="ask for yourself: type agent")
        tool = agent.tools.get(str(action.get("name")))
        reason: dict[str, Any]
        if tool is None:
            reason = {"outcome": "deny", "reason": "no-such-tool"}
        elif {name: resource.get(name) for name in ("type", "id")} != evaluated_resource(
            agent, tool
        ):
            reason = {"outcome": "deny", "reason": "another-resource"}
        else:
            call = ClientCall.of(action["name"], resource.get("properties"), None)
            try:
                reason = self._calls.evaluate(agent, call)
            except BadProposal as error:
                reason = {"outcome": "deny", "reason": error.code, "why": error.what}
        return {"decision": reason["outcome"] == "permit", "context": reason}


def _part(given: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = given[name]
    if not isinstance(found, dict):
        raise BadCommand(f"{name} is an object")
    return found


def _read_wait(text: str) -> float:
    if not (text.isascii() and text.isdecimal() and len(text) < 9):
        raise BadCommand("wait_s is a whole number of seconds", mend=f"0 to {MAX_WAIT_S:.0f}")
    return float(text)
