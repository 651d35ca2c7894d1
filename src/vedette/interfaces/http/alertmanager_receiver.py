"""Alerts: `POST /v1/alertmanager/NAME` takes what an Alertmanager sends to a webhook receiver.

https://prometheus.io/docs/alerting/latest/configuration/#webhook_config, version 4 of its payload.
Each alert and each change of its state is one event: `alert.firing` or `alert.resolved`, whose id
is made of fingerprint, startsAt and status. So a notification that Alertmanager repeats, or sends
for another alert of the group, is known.

The request must show the token that the source's table refers to. What the Alertmanager sees: 200
after the commit; 401 without that token, 404 for a name that is not declared, 400 with the reason
for another shape, 413 for too much. 503 with Retry-After while the fleet has more than it can hold
or its store is away: Alertmanager sends again after a 5xx, and after nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from hmac import compare_digest
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from vedette.domain.base.canonical import sha256_hex, short_id
from vedette.domain.base.clock import from_iso, iso
from vedette.domain.base.errors import BadEvent, Temporary
from vedette.domain.cloudevents import load_json
from vedette.domain.event import VOUCH_LEVELS, Event
from vedette.domain.ports.sources import Intake
from vedette.interfaces.http.request_drain import drain_request

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    from vedette.app.composition_root import App

VERSION = "4"
STATES = ("firing", "resolved")


class AlertEndpoint(Struct, frozen=True):
    """One Alertmanager's endpoint. `token_digest` is the SHA-256 of the token, in hexadecimal."""

    name: str
    token_digest: str
    vouches: str = "envelope"

    @classmethod
    def of(cls, name: str, token: str, vouches: str = "envelope") -> AlertEndpoint:
        """Return the endpoint that a token opens."""
        return cls(name, sha256_hex(token.encode()), vouches)


class AlertLimits(Struct, frozen=True):
    """What may be here of Alertmanagers at a time."""

    max_body_bytes: int = 4 << 20
    max_alerts: int = 1000
    max_waiting: int = 32
    read_seconds: float = 10.0
    wait_seconds: float = 5.0
    retry_after_seconds: int = 5


class _Refusal(Exception):
    def __init__(self, status: int, code: str, what: str, mend: str | None = None) -> None:
        super().__init__(what)
        self.status = status
        self.error = {"code": code, "what": what, "where": None, "mend": mend}


def alert_routes(app: App) -> list[Route]:
    """Return the HTTP route of a fleet's Alertmanagers; none if it declares none.

    Raises BadFleet if a token is not there.
    """
    from vedette.adapters.alertmanager.config import AlertmanagerFile

    plans = [plan for plan in app.settings.sources if isinstance(plan, AlertmanagerFile)]
    endpoints = [AlertEndpoint.of(plan.name, plan.token(), plan.vouches) for plan in plans]
    return routes(app.intake, endpoints) if endpoints else []


def routes(
    intake: Intake, endpoints: Sequence[AlertEndpoint], limits: AlertLimits | None = None
) -> list[Route]:
    """Return the HTTP route that takes Alertmanagers' alerts through `endpoints`."""
    from starlette.routing import Route

    alerts = _AlertReceiver(intake, endpoints, limits or AlertLimits())
    return [Route("/v1/alertmanager/{name}", alerts.post, methods=["POST"])]


class _AlertReceiver:
    def __init__(
        self, intake: Intake, endpoints: Sequence[AlertEndpoint], limits: AlertLimits
    ) -> None:
        self._intake = intake
        self._endpoints = {endpoint.name: endpoint for endpoint in endpoints}
        self._limits = limits
        self._waiting = 0

    async def post(self, request: Request) -> Response:
        """Take one notification."""
        from starlette.responses import JSONResponse

        try:
            endpoint = self._find_endpoint(request)
            if self._waiting >= self._limits.max_waiting:
                raise _Refusal(503, "overloaded", f"{self._waiting} notifications wait")
            self._waiting += 1
            try:
                events = _parse_events(
                    endpoint, await self._read_body(request), self._limits.max_alerts
                )
                counts = await self._accept(events)
            finally:
                self._waiting -= 1
        except _Refusal as refusal:
            await drain_request(request, self._limits.max_body_bytes, 1.0)
            headers = {"Connection": "close"}
            if refusal.status == 503:
                headers["Retry-After"] = str(self._limits.retry_after_seconds)
            if refusal.status == 401:
                headers["WWW-Authenticate"] = "Bearer"
            return JSONResponse({"error": refusal.error}, refusal.status, headers)
        return JSONResponse(counts, 200)

    def _find_endpoint(self, request: Request) -> AlertEndpoint:
        """Return the endpoint that the request's token opens; without one nobody learns a name."""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        digest = sha256_hex(token.strip().encode("utf-8", "surrogateescape"))
        opened: list[AlertEndpoint] = []
        for endpoint in self._endpoints.values():  # all of them, so that the time tells nothing
            if compare_digest(digest, endpoint.token_digest) and scheme.lower() == "bearer":
                opened.append(endpoint)
        if not opened:
            mend = "set authorization of the receiver's http_config to the token of vedette.toml"
            raise _Refusal(401, "no-sender", "the request has no token that we know", mend)
        for endpoint in opened:
            if endpoint.name == request.path_params["name"]:
                return endpoint
        mend = "mend the URL of the receiver"
        raise _Refusal(404, "no-source", "no such Alertmanager for this token", mend)

    async def _read_body(self, request: Request) -> bytes:
        from starlette.requests import ClientDisconnect

        body, limit = bytearray(), self._limits.max_body_bytes
        try:
            async with asyncio.timeout(self._limits.read_seconds):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > limit:
                        mend = "set max_alerts of the receiver"
                        raise _Refusal(413, "too-large", f"more than {limit} bytes", mend)
        except (TimeoutError, ClientDisconnect) as error:
            # 5xx, as it is the only answer after which it comes again.
            raise _Refusal(503, "too-slow", "the body did not come in time") from error
        return bytes(body)

    async def _accept(self, events: list[Event]) -> dict[str, int]:
        try:
            async with asyncio.timeout(self._limits.wait_seconds):
                receipts = await self._intake.accept(events)
        except TimeoutError as error:
            # It may be on its way into the store: then it comes again, as a duplicate.
            what = "the fleet has more than it can hold"
            raise _Refusal(503, "overloaded", what) from error
        except Temporary as error:
            raise _Refusal(503, error.code, error.what) from error
        counts = dict.fromkeys(("accepted", "duplicate", "refused"), 0)
        for receipt in receipts:
            counts[receipt.status] += 1
        return counts


def _parse_events(endpoint: AlertEndpoint, body: bytes, max_alerts: int) -> list[Event]:
    """Return the events of a notification, all of them or none. Raises _Refusal."""
    try:
        payload = load_json(body)
    except BadEvent as error:
        raise _Refusal(400, "bad-alert", error.what, error.mend) from error
    if not isinstance(payload, dict) or payload.get("version") != VERSION:
        found = payload.get("version") if isinstance(payload, dict) else None
        what = f"the payload has version {str(found)[:20]!r}, and not {VERSION!r}"
        raise _Refusal(400, "bad-alert", what, "send what a webhook receiver of Alertmanager sends")
    alerts = payload.get("alerts")
    if not isinstance(alerts, list):
        raise _Refusal(400, "bad-alert", "the payload has no list of alerts", "send alerts")
    if len(alerts) > max_alerts:
        mend = "set max_alerts of the receiver"
        raise _Refusal(
            413, "too-large", f"{len(alerts)} alerts at once, the limit is {max_alerts}", mend
        )
    around = {
        key: payload.get(key) for key in ("receiver", "groupKey", "groupLabels", "externalURL")
    }
    return [
        _parse_event(endpoint, alert, around, f"alerts[{at}]") for at, alert in enumerate(alerts)
    ]


def _parse_event(
    endpoint: AlertEndpoint, alert: Any, group_fields: Mapping[str, Any], where: str
) -> Event:
    """Return the event of one alert. Raises _Refusal, naming the field."""

    def refuse_field(field: str, what: str) -> _Refusal:
        mend = "send what a webhook receiver of Alertmanager sends"
        return _Refusal(400, "bad-alert", f"{where}.{field} {what}", mend)

    if not isinstance(alert, dict):
        raise _Refusal(400, "bad-alert", f"{where} is no object", "send one object per alert")
    status, print_ = alert.get("status"), alert.get("fingerprint")
    labels, starts = alert.get("labels"), alert.get("startsAt")
    if status not in STATES:
        raise refuse_field("status", f"is none of {', '.join(STATES)}")
    if not isinstance(print_, str) or not print_.isalnum() or len(print_) > 64:
        raise refuse_field("fingerprint", "is missing or no fingerprint")
    for name in ("labels", "annotations"):
        found = alert.get(name, {})
        if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
            raise refuse_field(name, "is no mapping of texts")
    at = alert.get("endsAt") if status == "resolved" else starts
    instants = {"startsAt": starts, "endsAt": at} if status == "resolved" else {"startsAt": starts}
    for name, text in instants.items():
        try:
            if from_iso(text if isinstance(text, str) else "") < 0:
                raise ValueError("before 1970")
        except ValueError as error:
            raise refuse_field(name, "is no instant") from error
    name = labels.get("alertname", "") if isinstance(labels, dict) else ""
    fields = ("status", "labels", "annotations", "startsAt", "endsAt", "generatorURL")
    return Event(
        f"alertmanager:{endpoint.name}",
        short_id("alert", print_, iso(from_iso(str(starts))), status),
        f"alert.{status}",
        f"{print_}/{name[:200]}",
        iso(from_iso(str(at))),
        {field: alert.get(field) for field in fields}
        | {"fingerprint": print_}
        | dict(group_fields),
        vouched=VOUCH_LEVELS[endpoint.vouches],
    )
