"""One HTTP request to a target, on one connection of its own. Synchronous, for a thread.

The name of the host is resolved here, once, and the connection goes to an address that was looked
at: private addresses only where the target says so, those that clouds serve credentials from
never. No proxy is asked and no redirect followed: request and credential go nowhere else.
"""

from __future__ import annotations

import http.client
import ipaddress
import json
import socket
import ssl
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import field
from typing import Any
from urllib.parse import urlsplit

from vedette import machine
from vedette.linger import deliver_unsent, drop_unsent
from vedette.load.http_template import Request
from vedette.quick_data import dataclass

MOST_BYTES = 64 << 10  # of an answer's body that are kept

# Where clouds answer a machine that asks for its own credentials, whoever has it ask.
_METADATA = frozenset({"100.100.100.200", "fd00:ec2::254", "fd20:ce::254", "168.63.129.16"})
# Neither is a place for a request, though the library calls them global (RFC 6890; RFC 3879).
_NOWHERE = (ipaddress.ip_network("192.0.0.0/24"), ipaddress.ip_network("fec0::/10"))
_NAT64 = ipaddress.ip_network("64:ff9b::/96")

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


class NotSent(Exception):
    """Nothing was sent. `passes`: it may be different the next time."""

    def __init__(self, what: str, *, passes: bool = True) -> None:
        super().__init__(what)
        self.passes = passes


class NoAnswer(Exception):
    """Something was sent, and what came of it is not known."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a target is. `prefix` is the path of its base_url, without the last slash."""

    secure: bool
    host: str
    port: int
    prefix: str
    private: bool
    ca_file: str | None


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back. `cut` says that there was more of the body, or that it broke off."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    cut: bool = False


def place_of(target: Mapping[str, Any]) -> Place:
    """Return where a target is. Raises NotSent."""
    try:
        parts = urlsplit(str(target.get("base_url", "")))
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise NotSent(f"base_url of the target is no URL: {error}", passes=False) from error
    if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment:
        raise NotSent("base_url of the target is no URL of a server", passes=False)
    secure = parts.scheme == "https"
    return Place(
        secure, host, port or (443 if secure else 80), parts.path.rstrip("/"),
        target.get("private") is True, target.get("ca_file"),
    )  # fmt: skip


def headers_of(target: Mapping[str, Any], place: Place) -> dict[str, str]:
    """Return what the target's credential is shown with. Raises NotSent."""
    token = target.get("token")
    if not token:
        return {}
    here = place.host == "localhost" or _loopback(place.host)
    if not place.secure and not here:
        raise NotSent("a token is not sent over plain HTTP: write https", passes=False)
    if named := target.get("token_header"):
        return {str(named): str(token)}
    return {"Authorization": f"Bearer {token}"}


def exchange(
    place: Place,
    request: Request,
    headers: Mapping[str, str],
    end: float,
    may_send: Callable[[socket.socket], bool],
) -> Answer | None:
    """Make a request and return the answer; None if `may_send` said no, just before the first byte.

    `end` is when it has to be over, by the monotonic clock. Raises NotSent, NoAnswer.
    """
    line = connected(place, end)
    connection = http.client.HTTPConnection(place.host, place.port)
    with closing(line), closing(connection):
        connection.sock = line
        body = b""
        given = {**request.headers, **headers, "Accept": "application/json", "Connection": "close"}
        if request.has_body:
            body = json.dumps(request.body, ensure_ascii=False).encode()
            given["Content-Type"] = "application/json"
        drop_unsent(line)
        if not may_send(line):
            return None
        try:
            connection.request(request.method, place.prefix + request.target, body or None, given)
            with closing(connection.getresponse()) as answer:
                deliver_unsent(line)
                return _read(answer, line, end)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise NoAnswer(f"{type(error).__name__}: {error}"[:300]) from error


def _read(answer: http.client.HTTPResponse, line: socket.socket, end: float) -> Answer:
    """Read an answer; what the target did is in its status, whatever becomes of the body."""
    raw, cut = bytearray(), False
    try:
        while len(raw) <= MOST_BYTES:
            line.settimeout(max(0.001, end - machine.monotonic_s()))
            chunk = answer.read1(1 << 14)
            if not chunk:
                break
            raw += chunk
        cut = bool(answer.length)  # of what it announced that much did not come
    except (OSError, http.client.HTTPException):
        cut = True
    headers = {name.lower(): value for name, value in answer.getheaders()}
    return Answer(answer.status, headers, bytes(raw[:MOST_BYTES]), cut or len(raw) > MOST_BYTES)


def connected(place: Place, end: float) -> socket.socket:
    """Return a connection to a target, with TLS where its URL says so. Raises NotSent."""
    why = "it has no address"
    for address in _addresses(place):
        if (left := end - machine.monotonic_s()) <= 0:
            raise NotSent("the time was over before it was called")
        try:
            line = socket.create_connection((str(address), place.port), timeout=left)
        except OSError as error:
            why = f"{type(error).__name__}: {error.strerror or error}"
            continue
        try:
            return _secured(place, line) if place.secure else line
        except (OSError, ssl.SSLError) as error:
            line.close()
            why = f"{type(error).__name__}: {error}"
        except BaseException:
            line.close()
            raise
    raise NotSent(f"no connection to {place.host}:{place.port}: {why}"[:300])


def _secured(place: Place, line: socket.socket) -> socket.socket:
    context = ssl.create_default_context(cafile=place.ca_file)
    return context.wrap_socket(line, server_hostname=place.host)


def _addresses(place: Place) -> list[IpAddress]:
    """Return where a host is, if that is a place to go to. Raises NotSent."""
    try:
        told = socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise NotSent(f"{place.host} cannot be resolved: {error}") from error
    found = list(
        dict.fromkeys(ipaddress.ip_address(str(each[4][0]).split("%")[0]) for each in told)
    )
    # All of them: a name that is half inside is not to be tried until it answers from there.
    for address in found:
        if (why := forbidden(address, private=place.private)) is not None:
            raise NotSent(f"{place.host} is at {address}, {why}", passes=False)
    return found


def forbidden(address: IpAddress, *, private: bool) -> str | None:
    """Say why an address is none to go to; None if it may be gone to."""
    inner = _embedded(address)
    if inner is not None:
        return forbidden(inner, private=private)
    if str(address) in _METADATA or address.is_link_local:
        return "where machines ask for their own credentials"
    reserved = address.is_reserved and not address.is_loopback  # ::1 is both
    if address.is_multicast or address.is_unspecified or reserved:
        return "which is no machine's address"
    inside = not address.is_global or any(address in net for net in _NOWHERE)
    if inside and not private:
        return "a private address (write private = true in the target if that is meant)"
    return None


def _embedded(address: IpAddress) -> ipaddress.IPv4Address | None:
    """Return the IPv4 address that an IPv6 address stands for, None if it stands for itself."""
    if isinstance(address, ipaddress.IPv4Address):
        return None
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    teredo = address.teredo
    return address.ipv4_mapped or address.sixtofour or (teredo[1] if teredo else None)


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
