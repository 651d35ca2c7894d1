"""Facts of a raw mail, for judges, from headers and markup: how it is made, not what it says.

Headers that name a list, a filter or the own mail server are left out on purpose: they tell where
a mail was collected, not what it is. Counts are capped, so that a hostile mail stays small.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from email.message import Message
from email.utils import parsedate_to_datetime

MARKUP_LIMIT = 200_000  # characters of markup read
_CAP = 999

# Programs people write with, programs that send to many, by what they call themselves.
_MAILERS = (
    ("mutt", r"mutt|pine|elm|gnus|emacs|vm |mh|kmail|sylpheed|evolution|balsa|exmh"),
    ("mozilla", r"mozilla|netscape|thunderbird"),
    ("apple", r"apple mail|entourage|eudora"),
    ("outlook", r"outlook|internet mail service|microsoft|imo"),
    ("web", r"webmail|yahoo|hotmail|squirrel|horde|imp"),
    ("bulk", r"bulk|mass|group ?mail|blaster|list|promo|campaign|direct|mailer|send|php"),
)
_MAILER_PATTERNS = tuple((name, re.compile(pattern)) for name, pattern in _MAILERS)
_MARKUP = {
    "html_fonts": r"<font|style\s*=",
    "html_tables": r"<table",
    "html_images": r"<img",
    "html_links": r"<a\s",
    "html_forms": r"<form|<input",
    "html_scripts": r"<script|javascript:|onload|onmouse",
    "html_comments": r"<!--",
    "html_colours": r"#[0-9a-f]{6}|color\s*=",
    "html_centred": r"<center|align\s*=\s*\"?center",
}
_MARKUP_PATTERNS = {name: re.compile(pattern, re.IGNORECASE) for name, pattern in _MARKUP.items()}
# A tag ends before the next begins: without that, a row of "<" is read five hundred times.
_TAG = re.compile(r"<[^<>]{1,500}>")
_ADDRESS = re.compile(r"\[\d{1,3}(?:\.\d{1,3}){3}\]|\(\d{1,3}(?:\.\d{1,3}){3}\)")


def mail_facts(message: Message, parts: Sequence[tuple[str, str]]) -> dict[str, int | str]:
    """Return the facts of a mail's headers and MIME parts; `parts` are (MIME type, decoded text).

    Times are whole hours, shares are per cent. Never raises for what a header holds.
    """
    headers = _headers(message)
    facts: dict[str, int | str] = {
        "kind": _kind(message),
        "charset": _charset(message),
        "mailer": _mailer(headers),
        "encoding": _plain(_first(headers, "content-transfer-encoding").lower()[:20]),
        "hops": min(_CAP, len(headers.get("received", []))),
        "bare_hops": sum(
            1
            for line in headers.get("received", [])
            if "unknown" in line.lower() or _ADDRESS.search(line.split(" by ")[0] or "") is None
        ),
        "answers": int(bool(headers.get("in-reply-to") or headers.get("references"))),
        "has_to": int(bool(headers.get("to"))),
        "has_date": int(bool(headers.get("date"))),
        "has_message_id": int(bool(headers.get("message-id"))),
        "priority": int(bool(headers.get("x-priority") or headers.get("importance"))),
        "return_path_differs": _return_path_differs(headers),
        "parts": min(_CAP, len(parts)),
    }
    facts.update(_times(headers))
    markup = "\n".join(text for kind, text in parts if kind == "text/html")[:MARKUP_LIMIT]
    plain = sum(len(text) for kind, text in parts if kind != "text/html")
    facts["html"] = int(bool(markup))
    facts["html_share"] = 100 * len(markup) // max(1, len(markup) + plain)
    facts["html_tags"] = min(_CAP, len(_TAG.findall(markup)))
    for name, pattern in _MARKUP_PATTERNS.items():
        facts[name] = min(_CAP, sum(1 for _ in pattern.finditer(markup)))
    return facts


def _headers(message: Message) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for key, value in message.raw_items():
        text = str(value).encode("ascii", "replace").decode("ascii")
        found.setdefault(key.lower(), []).append(" ".join(text[:2_000].split()))
    return found


def _plain(text: str) -> str:
    return "".join(c for c in text if c.isprintable())


def _first(headers: dict[str, list[str]], name: str) -> str:
    return headers.get(name, [""])[0]


def _kind(message: Message) -> str:
    try:
        kind = message.get_content_type()
    except Exception:
        return "other"
    known = ("text/plain", "text/html", "multipart/alternative", "multipart/mixed")
    if kind in known or kind in ("multipart/related", "multipart/signed"):
        return kind
    return "other"


def _charset(message: Message) -> str:
    try:
        name = str(message.get_content_charset() or "").lower()
    except Exception:
        return "other"
    for family in ("us-ascii", "utf-8", "iso-8859-1", "windows-125", "gb", "ks_c", "euc-kr"):
        if name.startswith(family):
            return family
    return "other" if name else "none"


def _mailer(headers: dict[str, list[str]]) -> str:
    name = (_first(headers, "x-mailer") or _first(headers, "user-agent")).lower()
    if not name:
        return "none"
    return next((family for family, pattern in _MAILER_PATTERNS if pattern.search(name)), "other")


def _return_path_differs(headers: dict[str, list[str]]) -> int:
    given = re.search(r"@([\w.-]+)", _first(headers, "return-path"))
    sender = re.search(r"@([\w.-]+)", _first(headers, "from"))
    return int(bool(given and sender and given[1].lower() != sender[1].lower()))


def _times(headers: dict[str, list[str]]) -> dict[str, int]:
    """Return how far the sender's clock is from the time of receipt, and its zone, in hours."""
    written = _moment(_first(headers, "date"))
    received = _moment(_first(headers, "received").rpartition(";")[2])
    if written is None:
        return {"skew_hours": -_CAP, "zone_hours": -_CAP}
    zone = written.utcoffset()
    skew = _CAP
    if received is not None:
        skew = int((written - received).total_seconds() // 3600)
    return {
        "skew_hours": max(-_CAP, min(_CAP, skew)),
        "zone_hours": int(zone.total_seconds() // 3600) if zone is not None else 0,
    }


def _moment(text: str) -> datetime | None:
    try:
        moment = parsedate_to_datetime(text.strip())
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
