"""Mail features, numbers for the kernel: headers and markup of a mail, and the shape of its text.

`mail_features` reads the data of a `mail.received` event; `data.facts` comes from the parser. What
is missing is NaN, unknown: a reviewed example that is only text has no headers to compare.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

_UNKNOWN = float("nan")
_KINDS = ("text/plain", "text/html", "multipart/alternative", "multipart/mixed", "other")
_CHARSETS = ("none", "us-ascii", "iso-8859-1", "windows-125", "gb", "ks_c", "euc-kr", "other")
_MAILERS = ("none", "mutt", "mozilla", "apple", "outlook", "web", "bulk", "other")
_FLAGS = (
    *("answers", "has_to", "has_date", "has_message_id", "priority", "return_path_differs"),
    "html",
)
_COUNTS = (
    *("hops", "bare_hops", "parts", "html_tags", "html_fonts", "html_tables", "html_images"),
    *("html_links", "html_forms", "html_scripts", "html_comments", "html_colours"),
    "html_centred",
)
_FREE = re.compile(r"@(?:[\w-]+\.)?(?:yahoo|hotmail|msn|aol|excite|lycos|mail|gmail|eudora)\.")
_URL = re.compile(r"https?://([^\s/>\"')]{1,200})([^\s>\"')]{0,500})", re.IGNORECASE)
_SHOUT = re.compile(r"\b[A-Z]{4,}\b")
_PHONE = re.compile(r"\(?\d{3}\)?[-. ]\d{3}[-. ]\d{4}|\b1-8\d\d")
_MONEY = re.compile(r"[$£€]\s?\d")
# None of these may take longer than the text is long, whoever wrote it: bounded, or begun once.
_ADDRESS = re.compile(r"(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}\.[\w.]+")
_CODE = re.compile(r"[{};][ \t\r]{0,40}$|^[ \t\r]{0,40}(?:#|//|\$ )", re.MULTILINE)
_WROTE = re.compile(r"\bwrote:|\bwrites:|^On .{5,60}:$", re.MULTILINE)
_GAP = re.compile(r"\s{3}\S|\b[a-z]{0,4}\d{3}[a-z0-9]*$")


def mail_features(text: str, data: Mapping[str, Any]) -> tuple[float, ...]:
    """Return the features of one mail; `data` is the event's data, `text` its words if it has none.

    Always the same number of features, each about 0..10 or NaN.
    """
    facts = data.get("facts")
    body = str(data.get("text") or text)
    return (
        *_header_features(facts if isinstance(facts, Mapping) else None),
        *_address_features(data),
        *_shape(body),
    )


def _header_features(facts: Mapping[str, Any] | None) -> list[float]:
    if facts is None:
        size = len(_KINDS) + len(_CHARSETS) + len(_MAILERS) + len(_FLAGS) + len(_COUNTS) + 9
        return [_UNKNOWN] * size
    found = [float(facts.get("kind") == kind) for kind in _KINDS]
    found += [float(facts.get("charset") == name) for name in _CHARSETS]
    found += [float(facts.get("mailer") == name) for name in _MAILERS]
    found += [float(facts.get(name, 0)) for name in _FLAGS]
    found += [math.log1p(float(facts.get(name, 0))) for name in _COUNTS]
    skew, zone = float(facts.get("skew_hours", 0)), float(facts.get("zone_hours", 0))
    encoding = str(facts.get("encoding", ""))
    return [
        *found,
        float(encoding == "base64"),
        float(encoding == "quoted-printable"),
        float(encoding == ""),
        float(facts.get("html_share", 0)) / 100,
        float(skew > 1),
        float(skew < -3),
        math.log1p(abs(skew)),
        float(zone in (8.0, 9.0)),
        float(-9 <= zone <= 2),
    ]


def _address_features(data: Mapping[str, Any]) -> list[float]:
    """Return what the addresses and the subject look like."""
    if "from" not in data:
        return [_UNKNOWN] * 17
    sender = str(data.get("from") or "").lower()
    local, _, domain = sender.partition("@")
    reply = str(data.get("reply_to") or "").lower()
    message_id = str(data.get("message_id") or "").lower()
    to, copied = data.get("to") or (), data.get("cc") or ()
    name = str(data.get("from_name") or "")
    subject = str(data.get("subject") or "")
    letters = [char for char in subject if char.isalpha()]
    return [
        float(bool(reply)),
        float(bool(reply) and reply != sender),
        float(bool(reply) and reply.partition("@")[2] != domain),
        float(bool(domain) and domain.split(".")[-2:] == _domain_suffix(message_id)),
        float("@" in message_id),
        math.log1p(len(to)),
        math.log1p(len(copied)),
        float(not to),
        math.log1p(sum(char.isdigit() for char in local)),
        float(bool(_FREE.search(sender))),
        float(not name),
        float(bool(name) and name.isupper()),
        float(subject[:3].lower() == "re:"),
        sum(char.isupper() for char in letters) / max(1, len(letters)),
        float("!" in subject) + float("?" in subject) / 2 + float("$" in subject),
        float(bool(_GAP.search(subject))),
        math.log1p(len(subject)),
    ]


def _domain_suffix(message_id: str) -> list[str]:
    return message_id.rpartition("@")[2].rstrip("> ").split(".")[-2:]


def _shape(body: str) -> list[float]:
    """Return what the text looks like: shouting, links, money, quoting, signature."""
    body = body[:20_000]
    words = max(1, len(body.split()))
    lines = body.split("\n")
    links = _URL.findall(body)
    hosts = [host.lower() for host, _ in links]
    letters = sum(char.isalpha() for char in body)
    return [
        math.log1p(words),
        sum(char.isupper() for char in body) / max(1, letters),
        math.log1p(len(_SHOUT.findall(body))),
        len(_SHOUT.findall(body)) / words * 10,
        math.log1p(body.count("!")),
        math.log1p(body.count("$") + len(_MONEY.findall(body))),
        math.log1p(body.count("%")),
        math.log1p(body.count("?")),
        sum(ord(char) > 126 for char in body) / max(1, len(body)),
        math.log1p(len(links)),
        math.log1p(len(set(hosts))),
        float(any(re.fullmatch(r"[\d.]+(?::\d+)?", host) for host in hosts)),
        float(any(":" in host or "@" in host or "%" in host for host in hosts)),
        float(any("?" in rest for _, rest in links)),
        math.log1p(len(_ADDRESS.findall(body))),
        float(bool(_PHONE.search(body))),
        sum(line.startswith((">", "|")) for line in lines) / len(lines),
        float(bool(_WROTE.search(body))),
        float(any(line.rstrip() == "--" for line in lines)),
        float(bool(_CODE.search(body))),
        math.log1p(sum(not line.strip() for line in lines)),
        sum(len(line) for line in lines) / len(lines) / 40,
        float(bool(re.search(r"\b(?:remove|unsubscribe|opt.?out|no longer wish)\b", body, re.I))),
        float(bool(re.search(r"\bclick (?:here|below|on)\b", body, re.I))),
        float(bool(re.search(r"\b(?:dear (?:sir|friend|customer)|congratulations)\b", body, re.I))),
    ]
