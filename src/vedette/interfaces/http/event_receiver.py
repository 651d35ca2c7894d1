"""HTTP ingest: `POST /v1/events` takes CloudEvents and answers when they are durable."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from hmac import compare_digest
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import asdict

from vedette.config.reserved_names import ENGINE_ATTRIBUTES, reserved_attribute
from vedette.domain import cloudevents
from vedette.domain.base.canonical import sha256_hex
from vedette.domain.base.errors import BadEvent, BadFleet, Temporary
from vedette.domain.event import VOUCH_LEVELS, Event, check_event
from vedette.domain.ports.sources import Intake
from vedette.interfaces.http.hosts import WRONG_HOST, WRONG_HOST_MEND, WRONG_HOST_TEXT, AllowedHosts
from vedette.interfaces.http.request_drain import drain_request

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

MIN_TOKEN = 16

# Of a body that was refused this many times the limit is still read, and dropped.
DRAIN_FACTOR = 4


def token_digest(token: str, where: str) -> str:
    """Return what is kept of a bearer token. Raises BadFleet if anyone could guess it."""
    if len(token.strip()) < MIN_TOKEN:
        raise BadFleet(
            f"the token has fewer than {MIN_TOKEN} characters",
            where=where,
            mend='make one: python -c "import secrets; print(secrets.token_urlsafe(32))"',
        )
    return sha256_hex(token.strip().encode())


class Sender(Struct, frozen=True):
    """Who may send over HTTP with a token: its SHA-256 alone is kept. `prefix` starts its sources.

    A token must be random (`secrets.token_urlsafe(32)`): a plain digest does not protect words.
    End a prefix that is a URL with a slash, or another host's name may begin with it.
    """

    name: str
    token_digest: str
    prefix: str | None = None
    vouches: str = "envelope"

    @classmethod
    def of(
        cls, name: str, token: str, prefix: str | None = None, vouches: str = "envelope"
    ) -> Sender:
        """Make a sender of the token itself. Raises BadFleet if anyone could guess it."""
        return cls(name, token_digest(token, f"sender {name!r}"), prefix, vouches)


class IngestLimits(Struct, frozen=True):
    """What one HTTP request may hold, how many wait at a time, and whether anybody may send.

    Events of nobody in particular (`anonymous`) are vouched for in no attribute.
    """

    max_body_bytes: int = 4_194_304
    max_event_bytes: int = 262_144
    max_events: int = 1000
    max_waiting: int = 64
    read_seconds: float = 10.0
    retry_after_seconds: int = 1
    anonymous: bool = False
    hosts: AllowedHosts | None = None


class _Refusal(Exception):
    """The request ends here, with this status and error object."""

    def __init__(
        self,
        status: int,
        code: str,
        what: str,
        *,
        mend: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(what)
        self.status = status
        self.error: dict[str, str | None]
        self.error = {"code": code, "what": what, "where": None, "mend": mend}
        self.headers = headers or {}


def routes(intake: Intake, senders: Sequence[Sender], limits: IngestLimits) -> list[Route]:
    """Return the HTTP routes of the ingest.

    202 with a receipt for each event, after the commit. 400 bad event, 401 no sender, 403 a source
    or an attribute that is not the sender's, 408 body too slow, 413 too large, 415 no CloudEvent,
    421 another host named without a token, 503 try later: then nothing of the request was accepted,
    or (503) all of it may have been and may be sent again.
    """
    from starlette.routing import Route

    ingest = _EventReceiver(intake, senders, limits)
    return [Route("/v1/events", ingest.post, methods=["POST"])]


class _EventReceiver:
    def __init__(self, intake: Intake, senders: Sequence[Sender], limits: IngestLimits) -> None:
        self._intake = intake
        self._senders = tuple(senders)
        self._limits = limits
        self._waiting = 0

    async def post(self, request: Request) -> Response:
        from starlette.responses import JSONResponse

        if self._waiting >= self._limits.max_waiting:
            return self._refusal_response(
                self._unavailable("overloaded", f"{self._waiting} requests wait")
            )
        self._waiting += 1
        try:
            receipts = await self._accept(request)
        except _Refusal as refusal:
            most = DRAIN_FACTOR * self._limits.max_body_bytes
            await drain_request(request, most, self._limits.read_seconds)
            return self._refusal_response(refusal)
        except BadEvent as error:
            return JSONResponse({"error": error.to_json()}, 400)
        except asyncio.CancelledError:
            # The run ends, and the server waits for it no longer; whoever sent it sends it again.
            return self._refusal_response(self._unavailable("ending", "the fleet ends"))
        finally:
            self._waiting -= 1
        return JSONResponse({"receipts": receipts}, 202)

    def _refusal_response(self, refusal: _Refusal) -> Response:
        from starlette.responses import JSONResponse

        # A server that keeps the connection would go on reading a body that has no end.
        close = {"Connection": "close"}
        return JSONResponse({"error": refusal.error}, refusal.status, close | refusal.headers)

    async def _accept(self, request: Request) -> list[dict[str, Any]]:
        headers = request.headers.items()
        sender = self._find_sender(request.headers.get("authorization"))
        hosts = self._limits.hosts
        if sender is None and hosts is not None and not hosts.is_request_allowed(request):
            # Nothing else keeps a web page from sending events through a browser on this machine.
            raise _Refusal(421, WRONG_HOST, WRONG_HOST_TEXT, mend=WRONG_HOST_MEND)
        if "content-encoding" in request.headers or cloudevents.content_mode(headers) is None:
            mend = (
                f"send {cloudevents.STRUCTURED} or {cloudevents.BATCH} in UTF-8, "
                "or the attributes as ce-* headers; not compressed"
            )
            raise _Refusal(415, "not-a-cloudevent", "no CloudEvents content type", mend=mend)
        body = await self._read_body(request)
        vouched = VOUCH_LEVELS[sender.vouches if sender else "none"]
        events = cloudevents.parse_message(headers, body, vouched=vouched)
        if len(events) > self._limits.max_events:
            raise self._too_large(f"{len(events)} events in one batch", self._limits.max_events)
        for at, event in enumerate(events):
            self._check_event(event, sender, f"events[{at}]")
        try:
            receipts = await self._intake.accept(events)
        except Temporary as error:
            raise self._unavailable(error.code, error.what) from error
        return [asdict(receipt) for receipt in receipts]

    def _find_sender(self, authorization: str | None) -> Sender | None:
        scheme, _, token = (authorization or "").partition(" ")
        digest = sha256_hex(token.strip().encode("utf-8", "surrogateescape"))
        found: Sender | None = None
        for sender in self._senders:  # all of them, so that the time tells nothing
            if compare_digest(digest, sender.token_digest) and scheme.lower() == "bearer":
                found = sender
        if found is None and not self._limits.anonymous:
            raise _Refusal(
                401,
                "no-sender",
                "the request has no token, or one we do not know",
                mend="send Authorization: Bearer TOKEN of a sender in vedette.toml",
                headers={"WWW-Authenticate": "Bearer"},
            )
        return found

    def _check_event(self, event: Event, sender: Sender | None, where: str) -> None:
        try:
            check_event(event, max_bytes=self._limits.max_event_bytes)
        except BadEvent as error:
            raise BadEvent(error.what, where=where, mend=error.mend) from error
        prefix = sender.prefix if sender else None
        own = bool(prefix) and event.source.startswith(prefix or "")
        # Not even with a prefix that says so: what an adapter vouches for is not a sender's to say.
        claimed = reserved_attribute(event)
        refusal = None
        if claimed in ENGINE_ATTRIBUTES:
            what = f"attribute {claimed!r} is the engine's own"
            refusal = _Refusal(403, "not-your-attribute", what, mend="leave it out")
        elif claimed or not (own or self._is_free_source(event.source, prefix)):
            refusal = _Refusal(
                403,
                "not-your-source",
                f"source {event.source!r} and type {event.type!r} are not this sender's",
                mend=f"begin the source with {prefix!r}" if prefix else "use a source of your own",
            )
        if refusal is not None:
            refusal.error["where"] = where
            raise refusal

    def _is_free_source(self, source: str, prefix: str | None) -> bool:
        """Say whether a sender may use a source that does not begin with its `prefix`."""
        theirs = tuple(other.prefix for other in self._senders if other.prefix)
        return not prefix and not source.startswith(theirs)

    async def _read_body(self, request: Request) -> bytes:
        """Read the body, and no more of it than the limit."""
        from starlette.requests import ClientDisconnect

        limit = self._limits.max_body_bytes
        announced = request.headers.get("content-length", "")
        if announced.isdecimal() and int(announced) > limit:
            raise self._too_large(f"a body of {announced} bytes", limit)
        body = bytearray()
        try:
            async with asyncio.timeout(self._limits.read_seconds):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > limit:
                        raise self._too_large(f"a body of more than {limit} bytes", limit)
        except (TimeoutError, ClientDisconnect) as error:
            mend = "send the whole body, and faster"
            raise _Refusal(408, "too-slow", "the body did not come in time", mend=mend) from error
        return bytes(body)

    def _too_large(self, what: str, limit: int) -> _Refusal:
        return _Refusal(413, "too-large", f"{what}, the limit is {limit}", mend="send less at once")

    def _unavailable(self, code: str, what: str) -> _Refusal:
        headers = {"Retry-After": str(self._limits.retry_after_seconds)}
        return _Refusal(503, code, what, mend="send the same again later", headers=headers)
