"""Pub/Sub push: `POST /v1/pubsub/NAME` takes one message and answers when it is durable.

The request must carry the OIDC token that the broker signs for the subscription's service account
(https://cloud.google.com/pubsub/docs/authenticate-push-subscriptions): RS256 by a published key of
the issuer, for our audience, with that account's verified e-mail. The body is the wrapped message
(https://cloud.google.com/pubsub/docs/push), and must come from the subscription that is declared.

What the broker sees: 204 after the commit, also of a duplicate. 401 without such a token, 403 for
another account's or another subscription's, 404 for a name that is not declared, 400 for what is no
wrapped message. 429 while the line or this door is full and 503 while store or keys are away, both
with Retry-After: nothing waits here for long, the broker keeps it and sends it again. A message
that is no event is recorded once and then over (204); where the subscription has a dead-letter
topic it is 422 instead, so that the broker counts its attempts and puts it there.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from vedette.domain.base.clock import from_iso
from vedette.domain.base.dataclass import dataclass
from vedette.domain.base.errors import BadEvent, Temporary
from vedette.domain.cloudevents import load_json
from vedette.domain.event import Event
from vedette.domain.ports import Intake, Metrics, Receipt, Refused
from vedette.domain.ports.tokens import BadToken, Claims
from vedette.interfaces.http.request_drain import discard

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    from vedette.app.composition_root import App
    from vedette.config.deployment import PushPlan

# How many refused messages are remembered, so that each is recorded once.
_REMEMBERED = 4096
# What is still read of a request that was refused.
DRAINED_BYTES, DRAINED_S = 1 << 20, 1.0


@dataclass(frozen=True, slots=True)
class Pushed:
    """One message as the broker wraps it. `published_us` is when the broker took it."""

    id: str
    data: bytes
    attributes: Mapping[str, str]
    ordering_key: str
    published_us: int


@dataclass(frozen=True, slots=True)
class Door:
    """What one push subscription may bring in.

    `subscription` is its full name, `service_account` the e-mail its token must have. `verify`
    checks a token and raises BadToken, or Unavailable while it cannot. `dead_letters` says that
    the broker has a place for what is no event.
    """

    name: str
    subscription: str
    service_account: str
    verify: Callable[[str], Awaitable[Claims]]
    decode: Callable[[Pushed], Event | Refused]
    dead_letters: bool = False


@dataclass(frozen=True, slots=True)
class PushLimits:
    """What may be here at a time. A message has at most 10 MB, which is 13.4 MB in Base64.

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
    """Return the routes of a fleet's push subscriptions; none if it declares none."""
    from vedette.config.deployment import PushPlan

    plans = [plan for plan in app.settings.sources if isinstance(plan, PushPlan)]
    return routes(app.intake, [_door(plan, app) for plan in plans], app.metrics) if plans else []


def _door(plan: PushPlan, app: App) -> Door:
    from vedette.adapters.identity.jwt import Jwks, Verifier
    from vedette.adapters.pubsub.client import subscription_path
    from vedette.adapters.pubsub.source_decoder import decoder
    from vedette.app.sources import source_context

    made, now_us = decoder(plan, source_context(app)), app.line.clock.now_us
    verifier = Verifier(
        keys=Jwks(issuer=plan.issuer, now_us=now_us),
        # Google's tokens have been signed under either spelling.
        issuer=(plan.issuer, plan.issuer.removeprefix("https://")),
        audience=plan.audience,
        now_us=now_us,
        algorithms=("RS256",),
    )
    return Door(
        plan.name,
        subscription_path(plan.project, plan.subscription),
        plan.service_account,
        verifier.verify,
        lambda m: made.decode(m.id, m.data, m.attributes, m.ordering_key, m.published_us),
        dead_letters=plan.dead_letter_topic is not None,
    )


def routes(
    intake: Intake, doors: Sequence[Door], metrics: Metrics, limits: PushLimits | None = None
) -> list[Route]:
    """Return the route that takes what is pushed through `doors`."""
    from starlette.routing import Route

    push = _Push(intake, doors, metrics, limits or PushLimits())
    return [Route("/v1/pubsub/{name}", push.post, methods=["POST"])]


class _Push:
    def __init__(
        self, intake: Intake, doors: Sequence[Door], metrics: Metrics, limits: PushLimits
    ) -> None:
        self._intake = intake
        self._doors = {door.name: door for door in doors}
        self._metrics = metrics
        self._limits = limits
        self._waiting = 0
        self._bytes = 0
        self._draining = 0
        self._asking: set[asyncio.Future[Claims]] = set()
        self._refused: OrderedDict[tuple[str, str], None] = OrderedDict()

    async def post(self, request: Request) -> Response:
        """Take one message."""
        from starlette.responses import JSONResponse, Response

        door = self._doors.get(request.path_params["name"])
        if door is None:
            return JSONResponse({"error": {"what": "no such push subscription"}}, 404)
        try:
            # Room is for those who may push, and only while they do: or strangers, who need not
            # even send what they announce, would keep the door shut.
            await self._authenticate(door, request)
            with self._room(self._octets(request)):
                return Response(status_code=await self._take(door, request))
        except _Refusal as refusal:
            self._metrics.count("push_requests", source=door.name, outcome=refusal.outcome)
            return await self._answer(request, refusal)

    @contextmanager
    def _room(self, octets: int) -> Iterator[None]:
        """Hold room for one request. Raises _Refusal if there is none."""
        self._waiting += 1
        self._bytes += octets
        try:
            most = self._limits
            if self._waiting > most.max_waiting or self._bytes > most.max_waiting_bytes:
                raise _Refusal(429, "overloaded", "more is being pushed than is taken in at a time")
            yield
        finally:
            self._waiting -= 1
            self._bytes -= octets

    def _octets(self, request: Request) -> int:
        """Return how much room a request's body takes: all of it where that is not announced."""
        announced = request.headers.get("content-length", "")
        most = self._limits.max_body_bytes
        return min(int(announced), most) if announced.isdecimal() else most

    async def _answer(self, request: Request, refusal: _Refusal) -> Response:
        from starlette.responses import JSONResponse

        if self._draining < self._limits.max_draining:
            self._draining += 1
            try:
                await discard(request, DRAINED_BYTES, DRAINED_S)
            finally:
                self._draining -= 1
        headers = {"Connection": "close"}
        if refusal.status in (429, 503):
            headers["Retry-After"] = str(self._limits.retry_after_seconds)
        if refusal.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        told = {"error": {"code": refusal.outcome, "what": refusal.what}}
        return JSONResponse(told, refusal.status, headers)

    # --- who, what, and to whom -----------------------------------------------------------------

    async def _take(self, door: Door, request: Request) -> int:
        pushed = _unwrap(door, await self._body(request))
        key = (door.name, pushed.id)
        if key in self._refused:
            return self._over(door)
        try:
            delivery = door.decode(pushed)
        except Temporary as error:
            raise _Refusal(503, "unavailable", error.what) from error
        receipt = await self._accept(delivery)
        self._metrics.count("push_requests", source=door.name, outcome=receipt.status)
        if receipt.status != "refused":
            return 204
        self._refused[key] = None
        if len(self._refused) > _REMEMBERED:
            self._refused.popitem(last=False)
        return self._over(door)

    def _over(self, door: Door) -> int:
        """Return the answer to a message whose refusal is recorded."""
        return 422 if door.dead_letters else 204

    async def _authenticate(self, door: Door, request: Request) -> None:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise _Refusal(401, "unauthorised", "the request has no bearer token")
        # The wait is bounded, and not the work: keys that took longer to fetch are there for the
        # next request.
        asking = asyncio.ensure_future(door.verify(token.strip()))
        self._asking.add(asking)
        asking.add_done_callback(self._asked)
        try:
            async with asyncio.timeout(self._limits.verify_seconds):
                said = (await asyncio.shield(asking)).all
        except TimeoutError as error:
            raise _Refusal(503, "unavailable", "the issuer's keys do not come") from error
        except Temporary as error:
            raise _Refusal(503, "unavailable", error.what) from error
        except BadToken as error:
            raise _Refusal(401, "unauthorised", error.what) from error
        if said.get("email") != door.service_account or said.get("email_verified") is not True:
            raise _Refusal(403, "forbidden", "the token is another account's")

    def _asked(self, asking: asyncio.Future[Claims]) -> None:
        """Let go of a check; what it raised is told to whoever still waits for it."""
        self._asking.discard(asking)
        if not asking.cancelled():
            asking.exception()

    async def _body(self, request: Request) -> bytes:
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

    async def _accept(self, delivery: Event | Refused) -> Receipt:
        try:
            async with asyncio.timeout(self._limits.wait_seconds):
                (receipt,) = await self._intake.accept([delivery])
        except TimeoutError as error:
            # It may be on its way into the store: then it comes again, as a duplicate.
            raise _Refusal(429, "overloaded", "the fleet has more than it can hold") from error
        except Temporary as error:
            raise _Refusal(503, "unavailable", error.what) from error
        return receipt


def _unwrap(door: Door, body: bytes) -> Pushed:
    """Return the message of a wrapped push. Raises _Refusal."""
    try:
        told = load_json(body)
    except BadEvent as error:
        raise _Refusal(400, "bad-request", error.what) from error
    message = told.get("message") if isinstance(told, dict) else None
    if not isinstance(message, dict):
        raise _Refusal(400, "bad-request", "no wrapped Pub/Sub message; use payload wrapping")
    if told.get("subscription") != door.subscription:
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
    return Pushed(id, raw, attributes, key, at_us)
