"""A server that answers as Google's metadata server, IAM Credentials API and key endpoint do.

Not Google: it follows their documentation as far as vedette uses them.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

import orjson
from aiohttp import web
from joserfc.jwk import RSAKey
from joserfc.jws import serialize_compact
from tests.remote import FLEET, now_us

from vedette.adapters.identity.google import GoogleTokens, IamCredentials, MetadataServer
from vedette.adapters.identity.jwt import Jwks, Verifier
from vedette.adapters.identity.spiffe import Issuer

PATTERN = "{agent}@proj.iam.gserviceaccount.com"
HOUR_US = 3_600_000_000
ISSUER = "https://accounts.google.com"
OWN = "gateway@proj.iam.gserviceaccount.com"
MASTER = "ya29.own-access-token"


@cache
def _key() -> RSAKey:
    return RSAKey.generate_key(2048)


class FakeGoogle:
    """What was asked of it is in `asked`; `status` makes it refuse, `flavored` be no Google."""

    def __init__(self) -> None:
        self.keys = {"g1": _key()}
        self.asked: list[tuple[str, str, Any]] = []
        self.minted: list[str] = []
        self.status = 200
        self.flavored = True
        self.own = OWN
        self.base = ""

    @property
    def host(self) -> str:
        return self.base.removeprefix("http://")

    def token(
        self, email: str, audience: str, *, kid: str = "g1", key: RSAKey | None = None, **more: Any
    ) -> str:
        """Return an ID token as Google makes them; a claim given as None is left out."""
        now = int(time.time())
        claims = {
            "iss": ISSUER, "sub": "1045", "aud": audience, "azp": "1045", "iat": now,
            "exp": now + 3600, "email": email, "email_verified": True, **more,
        }  # fmt: skip
        claims = {name: value for name, value in claims.items() if value is not None}
        header = {"alg": "RS256", "kid": kid, "typ": "JWT"}
        return serialize_compact(
            header, orjson.dumps(claims), key or self.keys[kid], algorithms=["RS256"]
        )

    async def _certs(self, request: web.Request) -> web.Response:
        self.asked.append(("certs", "", None))
        if self.status != 200:
            return web.Response(status=self.status)
        keys = [
            {**key.as_dict(private=False), "kid": kid, "use": "sig", "alg": "RS256"}
            for kid, key in self.keys.items()
        ]
        return web.json_response({"keys": keys})

    async def _metadata(self, request: web.Request) -> web.Response:
        if request.headers.get("Metadata-Flavor") != "Google":
            return web.Response(status=403)
        what = request.match_info["what"]
        self.asked.append((what, "", dict(request.query)))
        headers = {"Metadata-Flavor": "Google"} if self.flavored else {}
        if self.status != 200:
            return web.Response(status=self.status, headers=headers)
        if what == "token":
            fields = {"access_token": MASTER, "expires_in": 3599, "token_type": "Bearer"}
            return web.json_response(fields, headers=headers)
        return web.Response(text=self.token(self.own, request.query["audience"]), headers=headers)

    async def _mint(self, request: web.Request) -> web.Response:
        account, _, method = request.match_info["what"].partition(":")
        body = orjson.loads(await request.read())
        self.asked.append((method, account, body))
        if self.status != 200:
            return web.json_response({"error": {"message": "secret words"}}, status=self.status)
        if request.headers.get("Authorization") != f"Bearer {MASTER}":
            return web.Response(status=401)
        if method == "generateIdToken":
            return web.json_response({"token": self.token(account, body["audience"])})
        token = f"ya29.{account.partition('@')[0]}-{len(self.minted)}"
        self.minted.append(token)
        end = datetime.now(UTC) + timedelta(seconds=int(body["lifetime"][:-1]))
        return web.json_response({"accessToken": token, "expireTime": end.isoformat()})


@asynccontextmanager
async def fake_google() -> AsyncIterator[FakeGoogle]:
    """Serve on a free port of this machine."""
    fake = FakeGoogle()
    app = web.Application()
    app.router.add_get("/certs", fake._certs)
    place = "/computeMetadata/v1/instance/service-accounts/default/{what}"
    app.router.add_get(place, fake._metadata)
    app.router.add_post("/v1/projects/-/serviceAccounts/{what}", fake._mint)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    fake.base = f"http://127.0.0.1:{port}"
    try:
        yield fake
    finally:
        await runner.cleanup()


def google_tokens(google: FakeGoogle, issuer: Issuer) -> GoogleTokens:
    """Wire Google's side as a gateway does, with its addresses on this machine."""
    broker = IamCredentials(MetadataServer(google.host), base=google.base)
    tokens = GoogleTokens(
        FLEET, PATTERN, broker, audience=issuer.audience, check_agent=issuer.check_agent
    )
    tokens.verifier = Verifier(
        keys=Jwks(f"{google.base}/certs", now_us=now_us), issuer=ISSUER,
        audience=issuer.audience, now_us=now_us, algorithms=("RS256",), max_life_us=HOUR_US,
        required=("exp", "iat", "aud", "sub", "email"), check_revocation=tokens.check_revocation,
    )  # fmt: skip
    return tokens
