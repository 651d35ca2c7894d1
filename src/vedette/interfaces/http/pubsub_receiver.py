"""Pub/Sub push: `POST /v1/pubsub/NAME` takes one message and answers when it is durable.

The request must carry the OIDC token that the broker signs for the subscription's service account
(https://cloud.google.com/pubsub/docs/authenticate-push-subscriptions): RS256 by a published key of
the issuer, for our audience, with that account's verified e-mail. The body is the wrapped message
(https://cloud.google.com/pubsub/docs/push), and must come from the subscription that is declared.

What the broker sees: 204 after the commit, also of a duplicate. 401 without such a token, 403 for
another account's or another subscription's, 404 for a name that is not declared, 400 for what is no
wrapped message. 429 while the line or this endpoint is full and 503 while store or keys are away,
both with Retry-After: nothing waits here for long, the broker keeps it and sends it again. A
message that is no event is recorded once and then over (204); where the subscription has a
dead-letter topic it is 422 instead, so that the broker counts its attempts and puts it there.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from msgspec import Struct

from vedette.domain.base.clock import from_iso
from vedette.domain.base.errors import BadEvent, Temporary
from vedette.domain.cloudevents import load_json
from vedette.domain.event import Event
from vedette.domain.ports.reasoner import Metrics
from vedette.domain.ports.sources import Intake, Receipt, Refused
from vedette.domain.ports.tokens import BadToken, Claims
from vedette.interfaces.http.request_drain import drain_request

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    from vedette.adapters.pubsub.config import PushFile
    from vedette.app.composition_root import App

# How many refused messages are remembered, so that each is recorded once.
_MAX_REMEMBERED = 4096
# What is still read of a request that was refused.
DRAIN_BYTES, DRAIN_S = 1 << 20, 1.0


class PushedMessage(Struct, frozen=True):
    """One message as Pub/Sub pushes it, wrapped. `published_us` is when the broker took it."""

    id: str
    data: bytes
    attributes: Mapping[str, str]
    ordering_key: str
    published_us: int


class PushEndpoint(Struct, frozen=True):
    """The endpoint of one push subscription, and what it may bring in.

    `subscription` is its full name, `service_account` the e-mail its token must have. `verify`
    checks a token and raises BadToken, or Unavailable while it cannot. `dead_letters` says that
    the broker has a place for what is no event.
    """

    name: str
    subscription: str
    service_account: str
    verify: Callable[[str], Awaitable[Claims]]
    decode: Callable[[PushedMessage], Event | Refused]
    dead_letters: bool = False


class PushLimits(Struct, frozen=True):
    """What may be pushed here at a time. A message has at most 10 MB, which is 13.4 MB in Base64.

    `max_waiting` and `max_waiting_bytes` are for those who have shown the broker's token. Whoever
    is refused may go on sending for a second, so that he reads why: `max_draining` of them.
    `verify_seconds` is for the token: the first one waits for the issuer's keys, and for what
    checks it to be loaded, and a start should cost no attempt.
    """

    max_body_bytes: int = 14 << 20
    max_waiting: int = 64
    max_waiting_bytes: int = 64 << 20
    max_draining: int = 64
    read_seconds: float = 10.0
    verify_seconds: float = 5.0
    wait_seconds: float = 1.0
    retry_after_seconds: int = 1


class _Refusal(Exception):
    """The request ends here, with this status; `outcome` is what it counts as."""

    def __init__(self, status: int, outcome: str, what: str) -> None:
        super().__init__(what)
        self.status, self.outcome, self.what = status, outcome, what


def push_routes(app: App) -> list[Route]:
    """Return the HTTP routes of a fleet's push subscriptions; none if it declares none."""
    from vedette.adapters.pubsub.config import PushFile

    plans = [plan for plan in app.settings.sources if isinstance(plan, PushFile)]
    return (
        routes(app.intake, [_build_endpoint(plan, app) for plan in plans], app.metrics)
        if plans
        else []
    )


def _build_endpoint(plan: PushFile, app: App) -> PushEndpoint:
    from vedette.adapters.identity.jwt import Jwks, Verifier
    from vedette.adapters.pubsub.client import subscription_path
    from vedette.adapters.pubsub.source_decoder import build_decoder
    from vedette.app.sources import source_context

    made, now_us = build_decoder(plan, source_context(app)), app.services.clock.now_us
    verifier = Verifier(
        keys=Jwks(issuer=plan.issuer, now_us=now_us),
        # Google's tokens have been signed under either spelling.
        issuer=(plan.issuer, plan.issuer.removeprefix("https://")),
        audience=plan.audience,
        now_us=now_us,
        algorithms=("RS256",),
    )
    return PushEndpoint(
        plan.name,
        subscription_path(plan.project, plan.subscription),
        plan.service_account,
        verifier.verify,
        lambda m: made.decode(m.id, m.data, m.attributes, m.ordering_key, m.published_us),
        dead_letters=plan.dead_letter_topic is not None,
    )


def routes(
    intake: Intake,
    endpoints: Sequence[PushEndpoint],
    metrics: Metrics,
    limits: PushLimits | None = None,
) -> list[Route]:
    """Return the HTTP route that takes what Pub/Sub pushes through `endpoints`."""
    from starlette.routing import Route

    push = _PushReceiver(intake, endpoints, metrics, limits or PushLimits())
    return [Route("/v1/pubsub/{name}", push.post, methods=["POST"])]


class _PushReceiver:
    def __init__(
        self,
        intake: Intake,
        endpoints: Sequence[PushEndpoint],
        metrics: Metrics,
        limits: PushLimits,
    ) -> None:
        self._intake = intake
        self._endpoints = {endpoint.name: endpoint for endpoint in endpoints}
        self._metrics = metrics
        self._limits = limits
        self._waiting = 0
        self._bytes = 0
        self._draining = 0
        self._verifications: set[asyncio.Future[Claims]] = set()
        self._refused_messages: OrderedDict[tuple[str, str], None] = OrderedDict()

    async def post(self, request: Request) -> Response:
        """Take one message."""
        from starlette.responses import JSONResponse, Response

        endpoint = self._endpoints.get(request.path_params["name"])
        if endpoint is None:
            return JSONResponse({"error": {"what": "no such push subscription"}}, 404)
        try:
            # Room is for those who may push, and only while they do: or strangers, who need not
            # even send what they announce, would keep the place of others.
            await self._authenticate(endpoint, request)
            with self._reserve_capacity(self._body_size(request)):
                return Response(status_code=await self._accept_message(endpoint, request))
        except _Refusal as refusal:
            self._metrics.count("push_requests", source=endpoint.name, outcome=refusal.outcome)
            return await self._answer(request, refusal)

    @contextmanager
    def _reserve_capacity(self, size: int) -> Iterator[None]:
        """Hold room for one request. Raises _Refusal if there is none."""
        self._waiting += 1
        self._bytes += size
        try:
            most = self._limits
            if self._waiting > most.max_waiting or self._bytes > most.max_waiting_bytes:
                raise _Refusal(429, "overloaded", "more is being pushed than is taken in at a time")
            yield
        finally:
            self._waiting -= 1
            self._bytes -= size

    def _body_size(self, request: Request) -> int:
        """Return how much room a request's body takes: all of it where that is not announced."""
        announced = request.headers.get("content-length", "")
        most = self._limits.max_body_bytes
        return min(int(announced), most) if announced.isdecimal() else most

    async def _answer(self, request: Request, refusal: _Refusal) -> Response:
        from starlette.responses import JSONResponse

        if self._draining < self._limits.max_draining:
            self._draining += 1
            try:
                await drain_request(request, DRAIN_BYTES, DRAIN_S)
            finally:
                self._draining -= 1
        headers = {"Connection": "close"}
        if refusal.status in (429, 503):
            headers["Retry-After"] = str(self._limits.retry_after_seconds)
        if refusal.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        body = {"error": {"code": refusal.outcome, "what": refusal.what}}
        return JSONResponse(body, refusal.status, headers)

    # --- who, what, and to whom -----------------------------------------------------------------

    async def _accept_message(self, endpoint: PushEndpoint, request: Request) -> int:
        pushed = _unwrap(endpoint, await self._read_body(request))
        key = (endpoint.name, pushed.id)
        if key in self._refused_messages:
            return self._refused_status(endpoint)
        try:
            delivery = endpoint.decode(pushed)
        except Temporary as error:
            raise _Refusal(503, "unavailable", error.what) from error
        receipt = await self._accept_delivery(delivery)
        self._metrics.count("push_requests", source=endpoint.name, outcome=receipt.status)
        if receipt.status != "refused":
            return 204
        self._refused_messages[key] = None
        if len(self._refused_messages) > _MAX_REMEMBERED:
            self._refused_messages.popitem(last=False)
        return self._refused_status(endpoint)

    def _refused_status(self, endpoint: PushEndpoint) -> int:
        """Return the answer to a message whose refusal is recorded."""
        return 422 if endpoint.dead_letters else 204

    async def _authenticate(self, endpoint: PushEndpoint, request: Request) -> None:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise _Refusal(401, "unauthorised", "the request has no bearer token")
        # The wait is bounded, and not the work: keys that took longer to fetch are there for the
        # next request.
        asking = asyncio.ensure_future(endpoint.verify(token.strip()))
        self._verifications.add(asking)
        asking.add_done_callback(self._forget_verification)
        try:
            async with asyncio.timeout(self._limits.verify_seconds):
                said = (await asyncio.shield(asking)).all
        except TimeoutError as error:
            raise _Refusal(503, "unavailable", "the issuer's keys do not come") from error
        except Temporary as error:
            raise _Refusal(503, "unavailable", error.what) from error
        except BadToken as error:
            raise _Refusal(401, "unauthorised", error.what) from error
        if said.get("email") != endpoint.service_account or said.get("email_verified") is not True:
            raise _Refusal(403, "forbidden", "the token is another account's")

    def _forget_verification(self, verification: asyncio.Future[Claims]) -> None:
        """Let go of a check; what it raised is told to whoever still waits for it."""
        self._verifications.discard(verification)
        if not verification.cancelled():
            verification.exception()

    async def _read_body(self, request: Request) -> bytes:
        from starlette.requests import ClientDisconnect

        limit = self._limits.max_body_bytes
        body = bytearray()
        try:
            async with asyncio.timeout(self._limits.read_seconds):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > limit:
                        raise _Refusal(413, "bad-request", f"more than {limit} bytes")
        except (TimeoutError, ClientDisconnect) as error:
            raise _Refusal(408, "bad-request", "the body did not come in time") from error
        return bytes(body)

    async def _accept_delivery(self, delivery: Event | Refused) -> Receipt:
        try:
            async with asyncio.timeout(self._limits.wait_seconds):
                (receipt,) = await self._intake.accept([delivery])
        except TimeoutError as error:
            # It may be on its way into the store: then it comes again, as a duplicate.
            raise _Refusal(429, "overloaded", "the fleet has more than it can hold") from error
        except Temporary as error:
            raise _Refusal(503, "unavailable", error.what) from error
        return receipt


def _unwrap(endpoint: PushEndpoint, body: bytes) -> PushedMessage:
    """Return the message of a wrapped push. Raises _Refusal."""
    try:
        document = load_json(body)
    except BadEvent as error:
        raise _Refusal(400, "bad-request", error.what) from error
    message = document.get("message") if isinstance(document, dict) else None
    if not isinstance(message, dict):
        raise _Refusal(400, "bad-request", "no wrapped Pub/Sub message; use payload wrapping")
    if document.get("subscription") != endpoint.subscription:
        raise _Refusal(403, "forbidden", "the message is another subscription's")
    attributes = message.get("attributes") or {}
    texts = isinstance(attributes, dict) and all(isinstance(v, str) for v in attributes.values())
    id, key = message.get("messageId"), message.get("orderingKey") or ""
    data, published = message.get("data") or "", message.get("publishTime") or ""
    if not (texts and all(isinstance(text, str) for text in (id, key, data, published)) and id):
        raise _Refusal(400, "bad-request", "the message has not the fields of one")
    try:
        raw, at_us = b64decode(data, validate=True), from_iso(published)
    except ValueError as error:
        raise _Refusal(400, "bad-request", "its data or its publishTime cannot be read") from error
    return PushedMessage(id, raw, attributes, key, at_us)
