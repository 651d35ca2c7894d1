"""Publisher to Pub/Sub: one call of a tool is one message, answered when the broker has it.

The message is a CloudEvent in binary content mode: `ce-` attributes, `content-type`, and the data
alone as its body. Its `ce-id` is the call's idempotency key, so a call that is repeated publishes
the same event again, and whoever knows events by source and id (a vedette does) has it once.
`vedettelineage` goes along, so that an agent's own messages never wake it.

The generated client is used, one request a message: the thread client of google-cloud-pubsub would
hold every answer back for its batch, retry behind our back for ten minutes, and go on after the
call's time is over. What is in hand is bounded in messages and bytes for all threads together; who
finds no room within the call's time did nothing and may come again.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from msgspec import Struct, field

from vedette.adapters.pubsub.client import topic_path
from vedette.domain.base import failpoint
from vedette.domain.effect import Call, Outcome

EMULATOR_HOST = "PUBSUB_EMULATOR_HOST"
_SERVICE = "pubsub.googleapis.com:443"

# https://cloud.google.com/pubsub/quotas#resource_limits: bytes of a message and of an attribute's
# value or an ordering key. A little is left for the request around it.
MAX_BYTES = 10_000_000
MAX_ATTRIBUTE_BYTES = 1024

# What may be in hand unless the target says otherwise.
MESSAGES, OCTETS = 1000, 10 << 20

# By which statuses the broker says that it took nothing and might later.
_RETRY_CODES = frozenset(
    {"RESOURCE_EXHAUSTED", "NOT_FOUND", "PERMISSION_DENIED", "UNAUTHENTICATED"}
)
_PERMANENT_CODES = frozenset({"INVALID_ARGUMENT", "OUT_OF_RANGE", "UNIMPLEMENTED"})


def publish(
    call: Call,
    data: Any,
    *,
    type: str,
    subject: str | None = None,
    source: str | None = None,
    ordering_key: str | None = None,
) -> Outcome:
    """Publish one event to the Pub/Sub target's topic (`project`, `topic`), in the call's time.

    `done` with the message's id; `failed` for what the broker will never take; `retry` if it took
    nothing and might later; `unknown` without an answer. With `ordered = true` in the target the
    ordering key is the one given, else the subject.
    """
    target = call.target
    try:
        message = _message(call, data, type, subject, source, ordering_key)
        topic = topic_path(_text(target, "project"), _text(target, "topic"))
    except ValueError as error:
        return Outcome("failed", error=str(error))
    end = time.monotonic() + call.timeout_us / 1e6
    octets = len(message["data"]) + sum(
        len(text.encode()) for item in message["attributes"].items() for text in item
    )
    flow = _flow(topic, target)
    with flow.reserve(octets, end) as fits:
        if not fits:
            return Outcome("retry", error=f"more is on its way to {topic} than may be")
        return _send(call, topic, message, end)


def _message(
    call: Call, data: Any, type: str, subject: str | None, source: str | None, key: str | None
) -> dict[str, Any]:
    """Return the message of an event. Raises ValueError for what no broker takes."""
    attributes = {
        "ce-specversion": "1.0",
        "ce-id": call.key,
        "ce-source": source or str(call.target.get("source") or f"agent:{call.agent}"),
        "ce-type": type,
        **{f"ce-{name}": value for name, value in call.labels.items()},
        "content-type": "application/json",
    }
    if subject:
        attributes["ce-subject"] = subject
    message: dict[str, Any] = {
        "data": json.dumps(data, ensure_ascii=False, sort_keys=True, allow_nan=False).encode(),
        "attributes": attributes,
    }
    ordering = (key or subject or "") if call.target.get("ordered") else ""
    if ordering:
        message["ordering_key"] = ordering
    for name, text in (*attributes.items(), ("ordering key", ordering)):
        if len(text.encode()) > MAX_ATTRIBUTE_BYTES:
            raise ValueError(f"{name} has more than {MAX_ATTRIBUTE_BYTES} bytes")
    if len(message["data"]) > MAX_BYTES:
        raise ValueError(f"the data has {len(message['data'])} bytes, Pub/Sub takes {MAX_BYTES}")
    return message


def _text(target: Mapping[str, Any], name: str) -> str:
    found = target.get(name)
    if not isinstance(found, str) or not found:
        raise ValueError(f"the target has no {name}")
    return found


def _send(call: Call, topic: str, message: Mapping[str, Any], end: float) -> Outcome:
    """Publish until `end` (monotonic seconds)."""
    from google.api_core.exceptions import GoogleAPICallError
    from google.auth.exceptions import GoogleAuthError

    # Where the gateway minted a token for this call, it is this call's alone.
    token = call.target.get("token")
    metadata = (("authorization", f"Bearer {token}"),) if token else ()
    try:
        client = _client(own_token=bool(token))
    except GoogleAuthError as error:
        # Credentials may yet come, as a metadata server that starts late; nothing was sent.
        return Outcome("retry", error=f"{topic}: no credentials for Pub/Sub: {error}"[:500])
    seconds = end - time.monotonic()
    if seconds <= 0:
        return Outcome("retry", error=f"{topic}: the call's time was over before it was sent")
    try:
        failpoint.hit_failpoint("publish:before")
        answer = client.publish(
            request={"topic": topic, "messages": [message]},
            retry=None,  # the engine tries again, and counts
            timeout=seconds,
            metadata=metadata,
        )
        failpoint.hit_failpoint("publish:after")
    except GoogleAPICallError as error:
        status = getattr(error.grpc_status_code, "name", "UNKNOWN")
        what = f"{topic}: {status}: {error.message}"[:500]
        if status in _PERMANENT_CODES:
            return Outcome("failed", error=what)
        return Outcome("retry" if status in _RETRY_CODES else "unknown", error=what)
    return Outcome("done", {"message": answer.message_ids[0], "id": call.key})


# --- the client, one for each process and address ------------------------------------------------

_clients: dict[tuple[int, str, bool], Any] = {}
_lock = threading.Lock()


def _client(*, own_token: bool) -> Any:
    """Return the client of this process; `own_token` is for calls that bring their own token."""
    host = os.environ.get(EMULATOR_HOST, "")
    # A forked process must not use its parent's channel.
    at = (os.getpid(), host, own_token)
    with _lock:
        if at not in _clients:
            _clients[at] = _connect(host, own_token)
        return _clients[at]


def _connect(emulator: str, own_token: bool) -> Any:
    import grpc  # type: ignore[import-untyped]
    from google.pubsub_v1.services.publisher import PublisherClient
    from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport

    if emulator:
        channel = grpc.insecure_channel(emulator)
    elif own_token:
        channel = grpc.secure_channel(_SERVICE, grpc.ssl_channel_credentials())
    else:
        return PublisherClient()  # application default credentials
    return PublisherClient(transport=PublisherGrpcTransport(channel=channel))


# --- what may be in hand -------------------------------------------------------------------------


class Flow(Struct):
    """Messages and bytes on their way to Pub/Sub at a time; one message always fits alone."""

    messages: int
    octets: int
    _held: list[int] = field(default_factory=lambda: [0, 0])
    _changed: threading.Condition = field(default_factory=threading.Condition)

    @contextmanager
    def reserve(self, octets: int, end: float) -> Iterator[bool]:
        """Hold room for one message; False if there is none before `end` (monotonic seconds)."""
        with self._changed:
            fits = self._changed.wait_for(
                lambda: self._has_room(octets), max(0.0, end - time.monotonic())
            )
            if fits:
                self._add(1, octets)
        try:
            yield fits
        finally:
            if fits:
                with self._changed:
                    self._add(-1, -octets)
                    self._changed.notify_all()

    def _has_room(self, octets: int) -> bool:
        messages, held = self._held
        return not messages or (messages < self.messages and held + octets <= self.octets)

    def _add(self, messages: int, octets: int) -> None:
        self._held[0] += messages
        self._held[1] += octets


_flows: dict[tuple[int, str], Flow] = {}


def _flow(topic: str, target: Mapping[str, Any]) -> Flow:
    at = (os.getpid(), topic)
    with _lock:
        if at not in _flows:
            messages = int(target.get("max_messages") or MESSAGES)
            _flows[at] = Flow(messages, int(target.get("max_bytes") or OCTETS))
        return _flows[at]
