"""The formats of JSON Schema that an argument may be declared to have, and what is of each.

jsonschema asserts most of them with packages of their own, several more than are worth having, and
some not at all: for it any text with an @ in it is an email address. What a tool's declaration says
here is relied on, so each is the RFC's form at its strictest: ASCII, and nothing before or after.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import date
from ipaddress import IPv4Address, IPv6Address
from urllib.parse import urlsplit

_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIME = re.compile(
    r"([01][0-9]|2[0-3]):[0-5][0-9]:([0-5][0-9]|60)(\.[0-9]{1,9})?"
    r"([Zz]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
)
# Appendix A of RFC 3339, which leaves out no unit between two: no P1Y1D, no PT1H1S.
_SECONDS = "[0-9]+S"
_MINUTES = f"[0-9]+M({_SECONDS})?"
_HOURS = f"[0-9]+H({_MINUTES})?"
_DAYS = "[0-9]+D"
_MONTHS = f"[0-9]+M({_DAYS})?"
_YEARS = f"[0-9]+Y({_MONTHS})?"
_CLOCK = f"T({_HOURS}|{_MINUTES}|{_SECONDS})"
_DURATION = re.compile(f"P(({_YEARS}|{_MONTHS}|{_DAYS})({_CLOCK})?|{_CLOCK}|[0-9]+W)")
_UUID = re.compile(r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
_ATOM = re.compile(r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
# What may stand in a URI (RFC 3986, 2), a percent sign with its two digits.
_URI = re.compile(r"([A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*")
# Who is asked at a host, the host or an IPv6 address in brackets, a port.
_AUTHORITY = re.compile(r"([^@\[\]]*@)?(\[[0-9A-Fa-f:.]+\]|[^@:\[\]]*)(:[0-9]*)?")
_POINTER = re.compile(r"(/([^~/]|~[01])*)*")


def is_date(text: str) -> bool:
    """Say whether a text is a full-date of RFC 3339."""
    try:
        return _DATE.fullmatch(text) is not None and bool(date.fromisoformat(text))
    except ValueError:
        return False


def is_time(text: str) -> bool:
    """Say whether a text is a full-time of RFC 3339; a leap second is one, at any minute."""
    return _TIME.fullmatch(text) is not None


def is_date_time(text: str) -> bool:
    """Say whether a text is a date-time of RFC 3339."""
    return text[10:11] in ("T", "t") and is_date(text[:10]) and is_time(text[11:])


def is_duration(text: str) -> bool:
    """Say whether a text is a duration of ISO 8601, as RFC 3339 (appendix A) has it."""
    return _DURATION.fullmatch(text) is not None


def is_uuid(text: str) -> bool:
    """Say whether a text is a UUID of RFC 4122."""
    return _UUID.fullmatch(text) is not None


def is_hostname(text: str) -> bool:
    """Say whether a text is a host's name of RFC 1123, without a dot at its end."""
    return len(text) <= 253 and all(map(_LABEL.fullmatch, text.split(".")))


def is_email(text: str) -> bool:
    """Say whether a text is one address of RFC 5321: atoms, an @ and a host's name."""
    local, _, host = text.rpartition("@")
    atoms = 0 < len(local) <= 64 and all(map(_ATOM.fullmatch, local.split(".")))
    return atoms and len(text) <= 254 and is_hostname(host)


def is_ipv4(text: str) -> bool:
    """Say whether a text is an IPv4 address in four decimal parts."""
    try:
        return text.isascii() and bool(IPv4Address(text).packed)
    except ValueError:
        return False


def is_ipv6(text: str) -> bool:
    """Say whether a text is an IPv6 address of RFC 4291, without a zone."""
    try:
        return text.isascii() and "%" not in text and bool(IPv6Address(text).packed)
    except ValueError:
        return False


def is_uri_reference(text: str) -> bool:
    """Say whether a text is a URI of RFC 3986, or a reference relative to one."""
    try:
        parts = urlsplit(text)
        _ = parts.port  # of digits, and no more than a port may be
    except ValueError:
        return False
    rest = f"{parts.path}{parts.query}{parts.fragment}"
    return (
        _URI.fullmatch(text) is not None
        and text.count("#") <= 1
        and _AUTHORITY.fullmatch(parts.netloc) is not None
        and not {"[", "]"} & set(rest)
    )


def is_uri(text: str) -> bool:
    """Say whether a text is a URI of RFC 3986, with its scheme."""
    return _SCHEME.match(text) is not None and is_uri_reference(text)


def is_json_pointer(text: str) -> bool:
    """Say whether a text is a JSON Pointer of RFC 6901."""
    return _POINTER.fullmatch(text) is not None


FORMATS: Mapping[str, Callable[[str], bool]] = {
    "date": is_date,
    "time": is_time,
    "date-time": is_date_time,
    "duration": is_duration,
    "email": is_email,
    "hostname": is_hostname,
    "ipv4": is_ipv4,
    "ipv6": is_ipv6,
    "uri": is_uri,
    "uri-reference": is_uri_reference,
    "uuid": is_uuid,
    "json-pointer": is_json_pointer,
}
