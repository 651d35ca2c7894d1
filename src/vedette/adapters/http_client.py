"""The HTTP client of the engine: one request, on a connection of its own, over by one instant.

The connection is opened here: the host's name is resolved once, whoever asks may refuse what it
resolves to, and what was looked at is what is connected to, by TLS under the name of the URL.
httpcore, the transport of httpx, speaks HTTP/1.1 on it. It follows no redirect, asks no proxy,
unpacks no body and keeps no cookie, so none of that has to be switched off; every read and write
gets what is left of the time of the whole, so nobody holds a request by a byte now and then.

Two errors keep apart what must never be confused: after `SendFailure` nothing was sent, after
`NoResponse` nobody knows what the server did.
"""

from __future__ import annotations

import ipaddress
import socket
import ssl
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from typing import Any
from urllib.parse import urlsplit

import httpcore
from msgspec import Struct, field

from vedette.domain.base import machine
from vedette.domain.base.addresses import IpAddress
from vedette.domain.base.socket_linger import deliver_unsent, drop_unsent

# Of these a server may want to know that there is no body (RFC 9110, 8.6).
_BODY_METHODS = frozenset({"POST", "PUT", "PATCH"})


class SendFailure(Exception):
    """The HTTP client sent nothing. `transient`: it may be different the next time."""

    def __init__(self, what: str, *, transient: bool = True) -> None:
        super().__init__(what)
        self.transient = transient


class NoResponse(Exception):
    """The HTTP client sent something, and what came of it is not known."""


class Response(Struct, frozen=True):
    """A server's answer to the HTTP client: `headers` have lower-case names, `body` is as it came.

    `truncated` says that there was more of the body than is here, or that it broke off.
    """

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    truncated: bool = False


def request(
    method: str,
    url: str,
    headers: Mapping[str, str],
    body: bytes = b"",
    *,
    timeout_s: float,
    max_bytes: int,
    read_timeout_s: float | None = None,
    tls: ssl.SSLContext | None = None,
    may_send: Callable[[socket.socket], bool] = lambda line: True,
) -> Response:
    """Make an HTTP request of a server outside and return its answer, whatever the status. Blocks.

    All of it takes `timeout_s` at most, but for the name of the host; connecting, and each wait for
    more, `read_timeout_s`. Of the body `max_bytes` are kept. `tls` says whom to trust, by default
    whom the system trusts. `may_send` is asked with the connection just before the first byte.
    Raises NotSent, NoAnswer, and ValueError for what no request can be made of (then nothing was
    sent, and never will be).
    """
    now = machine.monotonic_s()
    deadline = now + timeout_s
    connect_end = deadline if read_timeout_s is None else min(deadline, now + read_timeout_s)
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    if not parts.hostname or not (secure or parts.scheme == "http"):
        raise ValueError("no URL of a server")
    port = parts.port or (443 if secure else 80)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if secure and tls is None:
        tls = ssl.create_default_context()
    with closing(connect(parts.hostname, port, connect_end, tls if secure else None)) as line:
        if not may_send(line):
            raise SendFailure("nobody waits for it any more")
        host = authority(parts.hostname, port, secure=secure)
        return exchange(
            line, host, method, target, headers, body,
            deadline=deadline, max_bytes=max_bytes, read_timeout_s=read_timeout_s,
        )  # fmt: skip


async def request_in_thread(
    method: str,
    url: str,
    headers: Mapping[str, str],
    body: bytes = b"",
    *,
    timeout_s: float,
    max_bytes: int,
) -> Response:
    """Make an HTTP client's request on a thread, whose connection ends with the event loop's task.

    Raises as `request` does, and TimeoutError after `timeout_s`, however long a name takes to be
    resolved: then nothing more is sent.
    """
    import asyncio

    lock, ended, opened = machine.Lock(), False, list[socket.socket]()

    def may_send(line: socket.socket) -> bool:
        with lock:
            opened.append(line)
            return not ended

    try:
        async with asyncio.timeout(timeout_s):
            return await asyncio.to_thread(
                request, method, url, headers, body,
                # The task is over first, and takes the connection along.
                timeout_s=timeout_s + 1.0, max_bytes=max_bytes, may_send=may_send,
            )  # fmt: skip
    finally:
        with lock:
            ended = True
            for line in opened:
                shut_down(line)


def connect(
    host: str,
    port: int,
    deadline: float,
    tls: ssl.SSLContext | None = None,
    *,
    refusal_reason: Callable[[IpAddress], str | None] = lambda address: None,
) -> socket.socket:
    """Return the HTTP client's connection to a host, secured by `tls` if that is given.

    `refusal_reason` says why an address is none to go to; one such address refuses the host.
    `deadline` is when it has to be there, by the monotonic clock. Raises NotSent, and UnicodeError
    for a host that is no name.
    """
    why = "it has no address"
    for address in _resolve_host(host, port, refusal_reason):
        try:
            sock = socket.create_connection((address, port), timeout=_remaining_s(deadline))
        except OSError as error:
            if machine.monotonic_s() >= deadline:
                raise SendFailure("the time was over before it was called") from error
            why = f"{type(error).__name__}: {error.strerror or error}"
            continue
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is None:
                return sock
            sock.settimeout(_remaining_s(deadline))
            return tls.wrap_socket(sock, server_hostname=host)
        except OSError as error:
            sock.close()
            why = f"{type(error).__name__}: {error}"
        except BaseException:
            sock.close()
            raise
    raise SendFailure(f"no connection to {host}:{port}: {why}"[:300])


def _resolve_host(
    host: str, port: int, refusal_reason: Callable[[IpAddress], str | None]
) -> tuple[str, ...]:
    """Return where a host is, if that is a place to go to."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise SendFailure(f"{host} cannot be resolved: {error}") from error
    found = tuple(dict.fromkeys(str(each[4][0]) for each in addresses))
    # All of them: a name that is half inside is not to be tried until it answers from there.
    for address in found:
        ip = ipaddress.ip_address(address.partition("%")[0])
        if (why := refusal_reason(ip)) is not None:
            raise SendFailure(f"{host} is at {ip}, {why}", transient=False)
    return found


def token_headers(target: Mapping[str, Any]) -> dict[str, str]:
    """Return the HTTP client's headers that show a server a target's token, which is in its table.

    The token stands in the header that `token_header` names, else it is a bearer's (RFC 6750).
    """
    token = target.get("token")
    if not token:
        return {}
    if named := target.get("token_header"):
        return {str(named): str(token)}
    return {"Authorization": f"Bearer {token}"}


def authority(host: str, port: int, *, secure: bool) -> str:
    """Return what the HTTP client's Host header says (RFC 9110, 7.2), or raise UnicodeError."""
    name = f"[{host.partition('%')[0]}]" if ":" in host else host.encode("idna").decode()
    return name if port == (443 if secure else 80) else f"{name}:{port}"


def exchange(
    sock: socket.socket,
    host: str,
    method: str,
    target: str,
    headers: Mapping[str, str],
    body: bytes,
    *,
    deadline: float,
    max_bytes: int,
    read_timeout_s: float | None = None,
) -> Response:
    """Put the HTTP client's request on a connection, of no use after, and return the answer.

    `target` is path and query. Bytes that have not arrived are dropped with the connection, unless
    the answer has come. Raises NotSent, NoAnswer, and ValueError for no line of HTTP.
    """
    sent_headers = {"Host": host, "Accept-Encoding": "identity", "Connection": "close", **headers}
    if body or method in _BODY_METHODS:
        sent_headers["Content-Length"] = str(len(body))
    # White space around a value is none of it (RFC 9110, 5.5).
    fields = [
        (name.encode(), value.strip(" \t").encode("latin-1"))
        for name, value in sent_headers.items()
    ]
    url = httpcore.URL(scheme=b"http", host=host.encode(), port=None, target=target.encode("ascii"))
    stream = _Stream(sock, deadline)
    try:
        drop_unsent(sock)
        message = httpcore.Request(method, url, headers=fields, content=body)
        if read_timeout_s is not None:
            message.extensions["timeout"] = {"read": read_timeout_s, "write": read_timeout_s}
        response = httpcore.HTTP11Connection(url.origin, stream).handle_request(message)
    except (OSError, httpcore.ProtocolError) as error:
        why = f"{type(error).__name__}: {error}"[:300]
        if stream.has_written:
            raise NoResponse(why) from error
        if isinstance(error, httpcore.LocalProtocolError):
            raise ValueError(why) from error
        raise SendFailure(why) from error
    deliver_unsent(sock)
    # What the server did is in its status, whatever becomes of the body.
    received, cut = bytearray(), False
    try:
        with closing(response):
            for part in response.iter_stream():
                received += part
                if cut := len(received) > max_bytes:
                    break
    except (OSError, httpcore.ProtocolError):
        cut = True
    response_headers = {
        name.decode("latin-1").lower(): text.decode("latin-1") for name, text in response.headers
    }
    return Response(response.status, response_headers, bytes(received[:max_bytes]), cut)


class _Stream(httpcore.NetworkStream):
    """A connection as httpcore takes it. `has_written`: bytes may have been sent.

    Its errors are OSErrors: httpcore passes over its own WriteError, and would take an answer to
    half a request.
    """

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self.has_written = False
        self._socket = sock
        self._deadline = deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        self._socket.settimeout(_remaining_s(self._deadline, timeout))
        return self._socket.recv(max_bytes)

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        rest = memoryview(buffer)
        while rest:
            self._socket.settimeout(_remaining_s(self._deadline, timeout))
            self.has_written = True
            rest = rest[self._socket.send(rest) :]

    def close(self) -> None:
        self._socket.close()

    def get_extra_info(self, info: str) -> None:
        return None


def shut_down(sock: socket.socket) -> None:
    """Shut down an HTTP client's connection under another thread, so that it waits no longer.

    Not by the TLS socket's own method: that forgets its keys under whoever is at it.
    """
    with suppress(OSError):
        socket.socket.shutdown(sock, socket.SHUT_RDWR)


def _remaining_s(deadline: float, limit: float | None = None) -> float:
    """Return the seconds that are left, at most `limit`. Raises TimeoutError if none are."""
    left = deadline - machine.monotonic_s()
    if left <= 0:
        raise TimeoutError("the time is over")
    return left if limit is None else min(left, limit)
