"""The local API: commands over a Unix socket that only the fleet's owner can open.

Who gives a command is what the kernel says of the peer; nothing in a request can change it.

POST /v1/commands/VERB  {"command_id"?, "reason"?, "args"?} -> 200 {"result": …}
GET  /v1/health         -> 200 {"fleet", "pid", "ready"}
GET  /v1/status         -> 200 {"result": …}
GET  /v1/changes?after=SEQ[&topics=a,b] -> 200 {"result": {"items", "head", "gap"}}
Errors are {"error": {code, what, where, mend}} with 400 (not as asked), 403 (not you), 404 (no
such verb), 409 (done before under this command_id) or 503 (not now).
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from vedette.domain.base.connections import BACKLOG, ConnectionLimiter
from vedette.domain.base.errors import (
    AlreadyDone,
    BadCommand,
    Forbidden,
    StoreBusy,
    Temporary,
    VedetteError,
)
from vedette.domain.base.fleet_clock import describe_jump
from vedette.domain.identity import Principal
from vedette.interfaces.http.ancestry import refuse_descendant
from vedette.interfaces.http.command_dispatch import VERBS, dispatch
from vedette.interfaces.http.refusal import RefusedConnections
from vedette.interfaces.http.unix_socket import find_person, open_socket, peer_uid, remove_socket
from vedette.interfaces.http.uvicorn_server import serve
from vedette.operations.commands import Commands, Order

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    from vedette.app.workers import Containment

MAX_BODY_BYTES = 8 << 20
_MAX_CONNECTIONS = 64
PEER_UID = "peer_uid"


class OpenFleet(Protocol):
    """What the local API needs of an opened fleet (see `vedette.app.composition_root.App`)."""

    @property
    def commands(self) -> Commands: ...

    @property
    def containment(self) -> Containment | None: ...


def routes(
    commands: Commands,
    *,
    health: Callable[[], Mapping[str, Any]] = dict,
    status: Callable[[], Mapping[str, Any]] = dict,
    owner_uid: int | None = None,
) -> list[Route]:
    """Return the local API's routes. Only `owner_uid` (default: this process) and root may pass."""
    from starlette.routing import Route

    api = _LocalApi(commands, health, status, os.geteuid() if owner_uid is None else owner_uid)
    return [
        Route("/v1/commands/{verb}", api.command, methods=["POST"]),
        Route("/v1/health", api.health, methods=["GET"]),
        Route("/v1/status", api.status, methods=["GET"]),
        Route("/v1/changes", api.changes, methods=["GET"]),
    ]


class _LocalApi:
    def __init__(
        self,
        commands: Commands,
        health: Callable[[], Mapping[str, Any]],
        status: Callable[[], Mapping[str, Any]],
        owner_uid: int,
    ) -> None:
        self._commands = commands
        self._health = health
        self._status = status
        self._owner_uid = owner_uid

    def _person(self, request: Request) -> Principal:
        uid = getattr(request.state, PEER_UID, None)
        if uid is None:
            raise Forbidden("who you are cannot be told")
        if uid not in (self._owner_uid, 0):
            raise Forbidden(f"{find_person(uid)} does not own this fleet", mend="ask its owner")
        return find_person(uid)

    async def command(self, request: Request) -> Response:
        return await self._answer(request, self._command)

    async def health(self, request: Request) -> Response:
        async def read_health(_request: Request) -> Mapping[str, Any]:
            return self._health()

        return await self._answer(request, read_health, wrap=False)

    async def status(self, request: Request) -> Response:
        async def read_status(_request: Request) -> Mapping[str, Any]:
            return self._status()

        return await self._answer(request, read_status)

    async def changes(self, request: Request) -> Response:
        async def read_changes(request: Request) -> Mapping[str, Any]:
            from vedette.ledger.history.changes import list_ledger_changes

            params = request.query_params
            after, topics = params.get("after", ""), params.get("topics")
            if not (after.isascii() and after.isdigit() and len(after) < 19):
                raise BadCommand("after is a place in the ledger", mend="take `head` of an answer")
            wanted = None if topics is None else frozenset(topics.split(","))
            return list_ledger_changes(self._commands.services.store.ledger, int(after), wanted)

        return await self._answer(request, read_changes)

    async def _answer(self, request: Request, work: Any, *, wrap: bool = True) -> Response:
        from starlette.responses import Response

        status, value = 200, None
        try:
            self._person(request)
            value = await work(request)
            answer: Any = {"result": value} if wrap else value
        except VedetteError as error:
            status, answer = http_status(error), {"error": error.to_json()}
        except NoSuchVerb as error:
            status, answer = 404, {"error": error.error}
        body = json.dumps(answer, default=str, ensure_ascii=False).encode("utf-8", "replace")
        return Response(body, status, media_type="application/json")

    async def _command(self, request: Request) -> Mapping[str, Any]:
        verb = request.path_params["verb"]
        if verb not in VERBS:
            raise NoSuchVerb(verb)
        document = await read_order(request)
        order = Order(self._person(request), document["reason"], document["command_id"])
        # The work goes on if the client hangs up: half a command is worse than an unread answer.
        return await asyncio.shield(dispatch(self._commands, verb, order, document["args"]))


class NoSuchVerb(Exception):
    """The local API's error for a verb that there is not; `error` is the error object."""

    def __init__(self, verb: str) -> None:
        super().__init__(verb)
        mend = f"there are: {', '.join(VERBS)}"
        self.error = {
            "code": "no-such-verb", "what": f"no verb {verb!r}", "where": None, "mend": mend,
        }  # fmt: skip


async def read_order(request: Request) -> dict[str, Any]:
    """Read an order out of an HTTP request: command_id, reason and args. Raises BadCommand."""
    raw = bytearray()
    async for chunk in request.stream():
        raw += chunk
        if len(raw) > MAX_BODY_BYTES:
            raise BadCommand(f"more than {MAX_BODY_BYTES} bytes", mend="send less at once")
    try:
        document = json.loads(raw) if raw else {}
    except (ValueError, RecursionError) as error:
        raise BadCommand(f"the request is not JSON: {error}") from error
    if not isinstance(document, dict) or not set(document) <= {"command_id", "reason", "args"}:
        raise BadCommand("a command is an object of command_id, reason and args")
    reason, command_id, args = (
        document.get("reason"),
        document.get("command_id"),
        document.get("args"),
    )
    if not isinstance(reason, str | None) or not isinstance(command_id, str | None):
        raise BadCommand("command_id and reason are texts")
    if not isinstance(args, dict | None):
        raise BadCommand("args is an object")
    if command_id is not None and not 1 <= len(command_id) <= 200:
        raise BadCommand("command_id has 1 to 200 characters")
    return {"reason": reason or "", "command_id": command_id, "args": args or {}}


def http_status(error: VedetteError) -> int:
    """Return the HTTP status of an error."""
    if isinstance(error, AlreadyDone):
        return 409
    if isinstance(error, Forbidden):
        return 403
    return 503 if isinstance(error, Temporary | StoreBusy) else 400


@asynccontextmanager
async def serve_local(
    app: OpenFleet, state: Path, supervise: Callable[[asyncio.Task[None]], None] | None = None
) -> AsyncIterator[Path]:
    """Serve the local API of an opened fleet in its state folder for as long as the block runs.

    Yields the socket's path; `supervise` is given the server's task. Raises Unavailable if it
    cannot listen.
    """
    from starlette.applications import Starlette

    api = Starlette(
        routes=routes(app.commands, health=lambda: _health(app), status=lambda: _status(app))
    )
    async with _serve(api, state, supervise) as path:
        yield path


def _health(app: OpenFleet) -> dict[str, Any]:
    services = app.commands.services
    return {
        "fleet": services.fleet.name,
        "pid": os.getpid(),
        "ready": services.store.steps.is_ready,
    }


def _status(app: OpenFleet) -> dict[str, Any]:
    contained = app.containment
    box = None if contained is None else contained.to_json()
    return {**live_status(app.commands), "box": box}


def live_status(commands: Commands) -> dict[str, Any]:
    """Return the local API's status of the runner: what is live, stopped, left alone."""
    services = commands.services
    live = commands.rollout.live
    return {
        "fleet": services.fleet.name,
        "agents": sorted(services.fleet.agents),
        "pid": os.getpid(),
        "policy": {"revision": live.number, "digest": live.digest},
        "changed_on_disk": [
            one.to_json()
            for one in (commands.releases.changed_agents() if commands.releases else ())
        ],
        "canaries": commands.canaries.to_json() if commands.canaries else [],
        "engine": {
            "name": services.gateway.engine.name,
            "why": commands.rollout.engine_reason,
        },
        "residuals": commands.rollout.residuals.state,
        "second": services.gateway.second_opinion.name
        if services.gateway.second_opinion is not None
        else None,
        "stopped": [f"{scope}:{name}" for scope, name in services.stops.list_scopes()],
        "unrecorded": [f"{scope}:{name}" for scope, name in services.stops.unrecorded],
        "store": {"ready": services.store.steps.is_ready},
        "clock": None if services.clock.jump is None else describe_jump(services.clock.jump),
        "until": {
            f"{stop.scope}:{stop.name}": stop.until_us for stop in services.stops.timed_stops
        },
        "targets": [
            {
                "target": breaker.target,
                "state": breaker.state,
                "why": breaker.why,
                "retry_us": breaker.retry_us,
                "waiting": services.parked_runs.count_waiting(breaker.target),
            }
            for breaker in services.breakers.list_tripped()
        ],
    }


@asynccontextmanager
async def _serve(
    api: Any, state: Path, supervise: Callable[[asyncio.Task[None]], None] | None
) -> AsyncIterator[Path]:
    import uvicorn

    opened, path = open_socket(state)
    refusals = RefusedConnections()
    config = uvicorn.Config(
        api,
        http=_build_protocol(refusals),
        ws="none",
        lifespan="off",
        loop="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=5,
        backlog=BACKLOG,
    )
    try:
        async with serve(config, opened, "local API", supervise):
            yield path
    finally:
        refusals.close()
        opened.close()
        remove_socket(state, path)


def _build_protocol(refusals: RefusedConnections) -> type[asyncio.Protocol]:
    """Return uvicorn's HTTP protocol with the peer's user id put into each request's state.

    Whom the fleet started, or of whom that cannot be told, is refused before it takes a place.
    """
    from vedette.interfaces.http.deadlines import build_protocol

    # Apart from the network's: whoever takes all of that room leaves this.
    base: Any = build_protocol(ConnectionLimiter(_MAX_CONNECTIONS))

    class PeerProtocol(base):  # type: ignore[misc]
        def connection_made(self, transport: asyncio.Transport) -> None:
            connection: socket.socket = transport.get_extra_info("socket")
            try:
                refuse_descendant(connection)
                uid = peer_uid(connection)
            except Forbidden as error:
                refusals.reject(transport, error)
                return
            own: Any = self
            own.app_state = {**own.app_state, PEER_UID: uid}
            super().connection_made(transport)

    return PeerProtocol
