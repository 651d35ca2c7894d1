"""The server of a fleet's HTTP: ingest, agents' calls, /metrics, /healthz, /readyz."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from vedette.domain.base.connections import BACKLOG
from vedette.domain.base.errors import BadFleet
from vedette.interfaces.http import operator_api
from vedette.interfaces.http.alertmanager_receiver import alert_routes
from vedette.interfaces.http.bundle_server import bundle_routes
from vedette.interfaces.http.event_receiver import IngestLimits, Sender, routes
from vedette.interfaces.http.hosts import AllowedHosts
from vedette.interfaces.http.pubsub_receiver import push_routes
from vedette.interfaces.http.uvicorn_server import serve

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    from vedette.app.composition_root import App


def build_application(app: App) -> Starlette:
    """Return the ASGI application of one opened fleet."""
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse, PlainTextResponse
    from starlette.responses import Response as Answer
    from starlette.routing import Route

    hosts = AllowedHosts(app.settings.hosts)

    async def metrics(request: Request) -> Response:
        if (refusal := hosts.refusal(request)) is not None:
            return refusal
        body, content_type = app.metrics.scrape()
        return Answer(body, media_type=content_type)

    async def healthz(request: Request) -> Response:
        return hosts.refusal(request) or PlainTextResponse("alive\n")

    async def readyz(request: Request) -> Response:
        """Ready means: the last commit stood, a policy is live, and what may go on does."""
        if (refusal := hosts.refusal(request)) is not None:
            return refusal
        why = []
        if not app.store.steps.is_ready:
            why.append(f"store: {app.store.writer.failure}")
        if app.services.gateway.policy_rev == 0:
            why.append("policy: no revision is live")
        why += app.watchdog.problems
        return JSONResponse({"ready": not why, "why": why}, 503 if why else 200)

    senders = [
        Sender.of(sender.name, sender.token(), sender.prefix, sender.vouches)
        for sender in app.settings.senders
    ]
    limits = IngestLimits(
        max_event_bytes=app.settings.max_event_bytes,
        anonymous=app.settings.anonymous,
        hosts=hosts,
    )
    return Starlette(
        routes=[
            *routes(app.intake, senders, limits),
            *bundle_routes(app),
            *push_routes(app),
            *alert_routes(app),
            *operator_api.routes(app),
            *_agent_routes(app),
            Route("/metrics", metrics),
            Route("/healthz", healthz),
            Route("/readyz", readyz),
        ]
    )


def _agent_routes(app: App) -> list[Route]:
    if not app.settings.served_agents:
        return []
    # What it is made of is loaded by fleets that serve agents alone.
    from vedette.interfaces.http import agent_api

    return agent_api.routes(app)


# How long answers that are on their way may take when the fleet ends.
_CLOSE_GRACE_S = 1.0


@asynccontextmanager
async def serve_http(
    app: App, supervise: Callable[[asyncio.Task[None]], None] | None = None
) -> AsyncIterator[str | None]:
    """Serve HTTP for as long as the context lasts; yields the address, None if none is configured.

    `supervise` is given the server's task. Raises BadFleet if the port is taken and no other may be
    used.
    """
    if app.settings.http is None:
        yield None
        return
    import uvicorn

    from vedette.interfaces.http.deadlines import build_protocol

    bound = _bind(*app.settings.http, fallback=app.settings.http_fallback)
    config = uvicorn.Config(
        build_application(app), http=build_protocol(app.connections), ws="none", lifespan="off",
        log_config=None, access_log=False, backlog=BACKLOG,
    )  # fmt: skip
    host, port = bound.getsockname()[:2]
    try:
        async with serve(config, bound, "http server", supervise, grace_s=_CLOSE_GRACE_S):
            try:
                yield f"http://{host}:{port}"
            finally:
                if app.rollout.distributor is not None:
                    app.rollout.distributor.close()  # answers that are held back go out now
    finally:
        bound.close()


def _bind(host: str, port: int, *, fallback: bool) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With its protocol named: asyncio turns Nagle off only then, and each answer is two writes.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except OSError as error:
        if not fallback:
            bound.close()
            raise BadFleet(
                f"cannot serve on {host}:{port}: {error.strerror}",
                where="vedette.toml: serve.http",
                mend="choose another port, or port 0 for any free one",
                code="port-taken" if error.errno == errno.EADDRINUSE else None,
            ) from error
        bound.bind((host, 0))
    return bound
