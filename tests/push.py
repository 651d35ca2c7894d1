"""Pub/Sub push for tests: an issuer with keys of its own, served over HTTP, and pushed messages."""

from __future__ import annotations

import asyncio
import functools
import hmac
import json
import socket
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from joserfc import jwt
from joserfc.jwk import RSAKey
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

AUDIENCE = "https://fleet.example/push"
ACCOUNT = "pusher@harbour.iam.gserviceaccount.com"
SUBSCRIPTION = "projects/harbour/subscriptions/metrics"


@functools.cache
def _key(kid: str) -> RSAKey:
    return RSAKey.generate_key(2048, {"kid": kid, "use": "sig", "alg": "RS256"})


class Issuer:
    """Signs tokens as an OpenID Connect provider does, and publishes its keys at `url`.

    `up` can be set to False: then its keys cannot be had.
    """

    def __init__(self, url: str = "") -> None:
        self.url = url
        self.up = True
        self.fetched = 0

    def app(self) -> Starlette:
        """Return what serves its discovery document and its keys."""

        async def discovery(request: Request) -> Response:
            fields = {"issuer": self.url, "jwks_uri": f"{self.url}/keys"}
            return JSONResponse(fields if self.up else {}, 200 if self.up else 503)

        async def keys(request: Request) -> Response:
            self.fetched += 1
            return JSONResponse({"keys": [_key("one").as_dict(private=False)]})

        return Starlette(
            routes=[Route("/.well-known/openid-configuration", discovery), Route("/keys", keys)]
        )

    def token(
        self, *, kid: str = "one", now_s: float | None = None, without: str = "", **claims: Any
    ) -> str:
        """Return a token as the broker has it signed; `claims` replace its own."""
        said = self.claims(now_s, **claims)
        said.pop(without, None)
        return jwt.encode({"alg": "RS256", "kid": kid}, said, _key(kid))

    def claims(self, now_s: float | None = None, **claims: Any) -> dict[str, Any]:
        """Return the claims of a good token, with those given in place of its own."""
        now = int(time.time() if now_s is None else now_s)
        return {
            "iss": self.url, "aud": AUDIENCE, "azp": "113", "sub": "113", "email": ACCOUNT,
            "email_verified": True, "iat": now, "exp": now + 3600, **claims,
        }  # fmt: skip

    def with_the_public_key_as_secret(self) -> str:
        """Return a token of algorithm HS256 whose secret is the published key, made by hand."""
        parts = ({"alg": "HS256", "kid": "one"}, self.claims())
        signed = ".".join(_b64url(json.dumps(part).encode()) for part in parts)
        secret = _key("one").as_pem(private=False)
        return f"{signed}.{_b64url(hmac.digest(secret, signed.encode(), 'sha256'))}"

    def unsigned(self) -> str:
        """Return a token of algorithm `none`."""
        parts = ({"alg": "none", "kid": "one"}, self.claims())
        return ".".join(_b64url(json.dumps(part).encode()) for part in parts) + "."


def _b64url(raw: bytes) -> str:
    return b64encode(raw, b"-_").decode().rstrip("=")


def wrapped(
    id: str = "1",
    data: Any = None,
    attributes: Mapping[str, str] | None = None,
    *,
    subscription: str = SUBSCRIPTION,
    published: str = "2026-03-01T06:00:00.123Z",
    **more: Any,
) -> dict[str, Any]:
    """Return a push request's body; `data` is bytes, or JSON to be."""
    raw = data if isinstance(data, bytes) else json.dumps(data).encode()
    message = {
        "messageId": id, "message_id": id, "publishTime": published, "publish_time": published,
        "data": b64encode(raw).decode(), "attributes": dict(attributes or {}), **more,
    }  # fmt: skip
    return {"message": message, "subscription": subscription}


def ce(id: str = "1", **more: str) -> dict[str, str]:
    """Return the attributes of a CloudEvent in binary content mode."""
    base = {"specversion": "1.0", "id": id, "source": "https://a.example/", "type": "ping", **more}
    return {f"ce-{name}": value for name, value in base.items()} | {
        "content-type": "application/json"
    }


@asynccontextmanager
async def serving(app: Starlette) -> AsyncIterator[str]:
    """Serve an application on a free loopback port; yields its address."""
    config = uvicorn.Config(app, lifespan="off", ws="none", log_config=None, access_log=False)
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        task = asyncio.create_task(server.serve(sockets=[listening]))
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            server.should_exit = server.force_exit = True
            await task


@asynccontextmanager
async def issuing() -> AsyncIterator[Issuer]:
    """Run an issuer."""
    issuer = Issuer()
    async with serving(issuer.app()) as url:
        issuer.url = url
        yield issuer
