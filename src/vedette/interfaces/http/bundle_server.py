"""`GET /v1/bundles/FLEET.tar.gz`: the live policy as a signed archive, as an OPA server polls it.

OPA's bundle protocol (its documentation, "Bundles" and "Management APIs"): an ETag that comes back
in If-None-Match; 304 while it holds; and long polling, where `Prefer: wait=N` lets us answer late,
which we offer by the content type. So a server that polls has a new revision a moment after it is
live. What it gets is signed: give the server `policy.pub` of the state folder to verify it with.

A policy is code and no secret, but it says what the fleet minds. So without a token it is served on
the loopback only.
"""

from __future__ import annotations

import asyncio
import re
from hmac import compare_digest
from typing import TYPE_CHECKING

from msgspec import Struct

from vedette.domain.base.canonical import sha256_hex
from vedette.domain.base.errors import BadFleet
from vedette.domain.base.urls import is_loopback
from vedette.policy.distribution import BundleDistributor

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    from vedette.app.composition_root import App

# By this content type OPA knows that we answer late when asked to; by any other that we do not,
# and then it polls at its interval.
CONTENT_TYPE = "application/vnd.openpolicyagent.bundles"
PLAIN_TYPE = "application/gzip"
MIN_TOKEN = 16
# No answer is held back for longer, and of so many readers only.
MAX_WAIT_S = 300
MAX_WAITING = 256

_WAIT_PATTERN = re.compile(r"(?:^|[;,\s])wait=(\d{1,6})(?:$|[;,\s])")


class BundleAccess(Struct):
    """Who may GET the bundle: on loopback anybody, unless there is a token; else its holders."""

    token_digest: str | None
    loopback: bool

    @classmethod
    def of(cls, token: str | None, host: str) -> BundleAccess:
        """Return the readers of what is served at a host. Raises BadFleet for a weak token."""
        if token is not None and len(token) < MIN_TOKEN:
            raise BadFleet(
                f"the token has fewer than {MIN_TOKEN} characters",
                where="vedette.toml: policy.bundle_token_env",
                mend='make one: python -c "import secrets; print(secrets.token_urlsafe(32))"',
            )
        return cls(sha256_hex(token.encode()) if token else None, is_loopback(host.strip("[]")))

    def refusal(self, peer: str | None, authorization: str) -> tuple[int, str] | None:
        """Return status and reason for a reader who is refused; None for one who may read."""
        if self.token_digest is None:
            if self.loopback and is_loopback(peer or ""):
                return None
            return 403, "bundles are served off the loopback only with a token (bundle_token_env)"
        kind, _, token = authorization.partition(" ")
        if kind.lower() != "bearer":
            return 401, "send the readers' token: Authorization: Bearer TOKEN"
        if not compare_digest(sha256_hex(token.strip().encode()), self.token_digest):
            return 401, "this token is not the readers'"
        return None


def bundle_routes(app: App) -> list[Route]:
    """Return the fleet's bundle's HTTP route. Raises BadFleet for a token that is not there."""
    from vedette.app.policy_publication import bundle_name
    from vedette.config.secret_reference import read_secret

    distributor = app.rollout.distributor
    if distributor is None or app.settings.http is None:
        return []
    plan = app.settings.deployment.policy
    table = {
        "token_env": plan.bundle_token_env,
        "token_file": plan.bundle_token_file,
        "token_secret": plan.bundle_token_secret,
    }
    token = read_secret(table, "token", where="vedette.toml: policy.bundle")
    readers = BundleAccess.of(token, app.settings.http[0])
    return routes(distributor, readers, bundle_name(app.settings.fleet))


def routes(distributor: BundleDistributor, access: BundleAccess, name: str) -> list[Route]:
    """Return the HTTP route of one bundle.

    200 with the archive, 304 if the reader has it (late, if it asks us to wait and there is room),
    401 or 403 who may not read, 503 while the live revision has no signed archive.
    """
    from starlette.routing import Route

    bundles = _BundleServer(distributor, access)
    return [Route(f"/v1/bundles/{name}", bundles.get, methods=["GET"])]


class _BundleServer:
    def __init__(self, distributor: BundleDistributor, access: BundleAccess) -> None:
        self._distributor = distributor
        self._access = access
        self._waiting = 0

    async def get(self, request: Request) -> Response:
        from starlette.responses import JSONResponse

        peer = request.client.host if request.client else None
        refused = self._access.refusal(peer, request.headers.get("authorization", ""))
        if refused is not None:
            status, what = refused
            headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
            code = "forbidden" if status == 403 else "unauthorised"
            error = {"code": code, "what": what, "where": None, "mend": None}
            return JSONResponse({"error": error}, status, headers)
        has = request.headers.get("if-none-match", "")
        wait_s = _parse_wait(request.headers.get("prefer", ""))
        can_wait = self._waiting < MAX_WAITING
        if wait_s and can_wait and self._is_current(has):
            self._waiting += 1
            try:
                await self._wait_for_change(request, wait_s)
            finally:
                self._waiting -= 1
        return self._build_response(has, can_wait=can_wait and not self._distributor.is_closing)

    async def _wait_for_change(self, request: Request, within_s: float) -> None:
        """Return when there is another archive, after a while, or when the reader hangs up."""
        waits = {
            asyncio.ensure_future(self._distributor.wait_for_change(within_s)),
            asyncio.ensure_future(_wait_for_disconnect(request)),
        }
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    def _etag(self) -> str | None:
        live = self._distributor.live
        return f'"{live.digest}"' if live is not None else None

    def _is_current(self, etags: str) -> bool:
        etag = self._etag()
        return etag is not None and etag in [each.strip() for each in etags.split(",")]

    def _build_response(self, etags: str, *, can_wait: bool) -> Response:
        """Answer; `can_wait` says whether a reader may count on our answering late.

        One who was told so and is answered at once asks again at once, without end.
        """
        from starlette.responses import JSONResponse, Response

        live, etag = self._distributor.live, self._etag()
        if live is None or etag is None:
            error = {
                "code": "unavailable",
                "what": "the live revision has no signed archive here",
                "where": None,
                "mend": "see `vedette policy status`",
            }
            return JSONResponse({"error": error}, 503, {"Retry-After": "5"})
        headers = {
            "Content-Type": CONTENT_TYPE if can_wait else PLAIN_TYPE,
            "ETag": etag,
            "Cache-Control": "no-cache",
            "Vedette-Revision": f"{live.number} {live.bundle}",
        }
        if self._is_current(etags):
            return Response(None, 304, headers)
        return Response(live.raw, 200, headers)


async def _wait_for_disconnect(request: Request) -> None:
    """Return when a reader has hung up. A GET has no body that could come before."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _parse_wait(prefer: str) -> int:
    """Return for how many seconds a reader wants its answer held back; 0 for not at all."""
    found = _WAIT_PATTERN.search(prefer)
    return min(int(found[1]), MAX_WAIT_S) if found else 0
