"""Hosts that an HTTP request may name where no token is asked for.

A page of any web site can have a browser send requests to this machine: its own name is made to
resolve to 127.0.0.1 (DNS rebinding), and then the answers are the page's to read. The browser names
that site as the Host. An address is not a name that anybody can rebind, and what listens here under
other names says so in `[serve] hosts`.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from ipaddress import ip_address
from typing import TYPE_CHECKING

from vedette.domain.base.addresses import is_ip_address

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

# RFC 3986, 3.2.2: an address of version 6 stands in brackets.
_HOST_PATTERN = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^:\[\]@]+))(?::[0-9]*)?")
WRONG_HOST = "wrong-host"
WRONG_HOST_TEXT = "this server is not asked by that name"
WRONG_HOST_MEND = "ask by its address, or add the name to [serve] hosts"


class AllowedHosts:
    """The Hosts that an HTTP request may name: addresses, localhost, and those declared."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = {name.lower().rstrip(".") for name in names} | {"localhost"}

    def is_allowed(self, host: str) -> bool:
        """Say whether a Host header, with or without a port, is one of them."""
        found = _HOST_PATTERN.fullmatch(host.strip().lower())
        if found is None:
            return False
        name = found[1] or found[2]
        return name.rstrip(".") in self._names or is_ip_address(name)

    def is_origin_allowed(self, origin: str) -> bool:
        """Say whether a page of this origin may send requests: of this machine, or of a name here.

        The page of another address is another's.
        """
        scheme, _, host = origin.strip().lower().partition("://")
        found = _HOST_PATTERN.fullmatch(host) if scheme in ("http", "https") else None
        if found is None:
            return False
        name = (found[1] or found[2]).rstrip(".")
        if name in self._names:
            return True
        try:
            return ip_address(name).is_loopback
        except ValueError:
            return False

    def is_request_allowed(self, request: Request) -> bool:
        """Say whether a request names one of them, and no other."""
        hosts = request.headers.getlist("host")
        return len(hosts) == 1 and self.is_allowed(hosts[0])

    def refusal(self, request: Request) -> Response | None:
        """Return the answer to a request that names another host; None if it may go on."""
        from starlette.responses import JSONResponse

        if self.is_request_allowed(request):
            return None
        error = {
            "code": WRONG_HOST,
            "what": WRONG_HOST_TEXT,
            "where": "Host",
            "mend": WRONG_HOST_MEND,
        }
        return JSONResponse({"error": error}, 421)
