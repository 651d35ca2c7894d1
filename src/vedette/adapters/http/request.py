"""One HTTP request to a target, on one connection of its own. Synchronous, for a thread.

The connection goes to an address that was looked at: private addresses only where the target says
so, those that clouds serve credentials from never.
"""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

from vedette.adapters import http_client
from vedette.adapters.http.template import Request
from vedette.adapters.http_client import NoResponse, Response, SendFailure
from vedette.domain.base import machine
from vedette.domain.base.addresses import refusal_reason
from vedette.domain.base.errors import Unavailable
from vedette.domain.base.urls import is_loopback

__all__ = [
    "NoResponse",
    "Response",
    "SendFailure",
    "credential_headers",
    "open_connection",
    "parse_endpoint",
    "probe_endpoint",
    "send_request",
]

MAX_BODY_BYTES = 64 << 10  # of an answer's body that are kept
_PROBE_S = 5.0


class Endpoint(Struct, frozen=True):
    """Where an HTTP target is; `prefix` is the path of its base_url, without the last slash."""

    secure: bool
    host: str
    port: int
    prefix: str
    private: bool
    ca_file: str | None


def parse_endpoint(target: Mapping[str, Any]) -> Endpoint:
    """Return where an HTTP target is, as its base_url says. Raises SendFailure."""
    try:
        parts = urlsplit(str(target.get("base_url", "")))
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise SendFailure(f"base_url of the target is no URL: {error}", transient=False) from error
    if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment:
        raise SendFailure("base_url of the target is no URL of a server", transient=False)
    secure = parts.scheme == "https"
    return Endpoint(
        secure, host, port or (443 if secure else 80), parts.path.rstrip("/"),
        target.get("private") is True, target.get("ca_file"),
    )  # fmt: skip


def credential_headers(target: Mapping[str, Any], endpoint: Endpoint) -> dict[str, str]:
    """Return the headers that show an HTTP target its credential. Raises SendFailure."""
    found = http_client.token_headers(target)
    if found and not endpoint.secure and not is_loopback(endpoint.host):
        raise SendFailure("a token is not sent over plain HTTP: write https", transient=False)
    return found


def send_request(
    endpoint: Endpoint,
    request: Request,
    headers: Mapping[str, str],
    deadline: float,
    may_send: Callable[[socket.socket], bool],
) -> Response | None:
    """Send an HTTP tool's request, return the answer; None if `may_send` said no just before.

    `deadline` is when it has to be over, by the monotonic clock. Raises NotSent, NoAnswer.
    """
    given = {**request.headers, **headers, "Accept": "application/json"}
    body = b""
    if request.has_body:
        body = json.dumps(request.body, ensure_ascii=False).encode()
        given["Content-Type"] = "application/json"
    with closing(open_connection(endpoint, deadline)) as sock:
        if not may_send(sock):
            return None
        try:
            return http_client.exchange(
                sock, http_client.authority(endpoint.host, endpoint.port, secure=endpoint.secure),
                request.method, endpoint.prefix + request.target, given, body,
                deadline=deadline, max_bytes=MAX_BODY_BYTES,
            )  # fmt: skip
        except ValueError as error:
            raise SendFailure(str(error)) from error


def open_connection(endpoint: Endpoint, deadline: float) -> socket.socket:
    """Return a connection to an HTTP target, in TLS where its URL says so. Raises SendFailure."""
    try:
        tls = ssl.create_default_context(cafile=endpoint.ca_file) if endpoint.secure else None
        return http_client.connect(
            endpoint.host, endpoint.port, deadline, tls,
            refusal_reason=lambda address: refusal_reason(address, private=endpoint.private),
        )  # fmt: skip
    except (OSError, ValueError) as error:
        raise SendFailure(
            f"no connection to {endpoint.host}:{endpoint.port}: {error}"[:300]
        ) from error


def probe_endpoint(target: Mapping[str, Any]) -> str:
    """Connect to an HTTP target, TLS included, and send nothing. Raises Unavailable."""
    try:
        endpoint = parse_endpoint(target)
        open_connection(endpoint, machine.monotonic_s() + _PROBE_S).close()
    except SendFailure as error:
        raise Unavailable(str(error), mend="see base_url in vedette.toml") from error
    return f"{endpoint.host}:{endpoint.port} takes connections; nothing was sent"
