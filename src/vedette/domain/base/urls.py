"""Addresses of servers: what is one, which are this machine, and where a secret may go."""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import SplitResult, urlsplit


def parse_url(text: str) -> SplitResult | None:
    """Return the parts of an `http://` or `https://` URL of a server; None for any other text."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:  # a bracket alone, a port that is no number
        return None
    is_server = parts.scheme in ("http", "https") and bool(parts.hostname) and port != 0
    return parts if is_server else None


def is_loopback(host: str) -> bool:
    """Say whether a host is this machine, by an address of the loopback or by its usual name."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def carries_secrets(parts: SplitResult) -> bool:
    """Say whether a secret may be sent to a URL: over TLS, or to this machine."""
    return parts.scheme == "https" or is_loopback(parts.hostname or "")
