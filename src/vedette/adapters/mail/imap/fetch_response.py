"""What FETCH answers, as `imaplib` hands it on: text, and literals beside it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

_FLAGS = re.compile(rb"FLAGS \(([^()]*)\)", re.IGNORECASE)
_UID = re.compile(rb"\bUID (\d+)", re.IGNORECASE)
_SIZE = re.compile(rb"\bRFC822\.SIZE (\d+)", re.IGNORECASE)
_DATE = re.compile(rb'\bINTERNALDATE "([^"]*)"', re.IGNORECASE)
_SHORT = re.compile(rb'BODY\[\](?:<0>)? (?:NIL|"((?:[^"\\]|\\.)*)")', re.IGNORECASE)
_MESSAGE_START = re.compile(rb"\d+ \(")


class Mail(Struct, frozen=True):
    """A mail of the open folder: its number, flags (without \\Recent), size, date, content.

    `received_us` is the server's date (microseconds UTC). `content` is what was asked for: nothing,
    the beginning or the whole mail.
    """

    uid: int
    flags: frozenset[str] = frozenset()
    size: int = 0
    received_us: int = 0
    content: bytes | None = None


def mails_of(response: Iterable[Any]) -> dict[int, Mail]:
    """Return the mails of an IMAP server's FETCH response by UID.

    A server may say of any mail, at any time, that its flags changed: what says no UID is left out,
    and what is said twice of one mail is put together.
    """
    found: dict[int, Mail] = {}
    text, content = b"", None
    for part in [*response, b"0 ("]:
        head = part[0] if isinstance(part, tuple) else part or b""
        if _MESSAGE_START.match(head):
            _merge_mail(found, text, content)
            text, content = b"", None
        text += head + b" "
        if isinstance(part, tuple):
            content = part[1]
    return found


def uid_set(uids: Iterable[int]) -> str:
    """Return UIDs as IMAP's sequence set."""
    parts: list[list[int]] = []
    for uid in sorted(set(uids)):
        if parts and parts[-1][1] == uid - 1:
            parts[-1][1] = uid
        else:
            parts.append([uid, uid])
    return ",".join(f"{a}:{b}" if a != b else str(a) for a, b in parts)


def _merge_mail(found: dict[int, Mail], text: bytes, content: bytes | None) -> None:
    flags = _FLAGS.search(text)
    # A keyword may be called as an item is; the list is cut out before others are looked for.
    rest = text if flags is None else text[: flags.start()] + text[flags.end() :]
    uid = _UID.search(rest)
    if uid is None:
        return
    mail = found.get(int(uid[1]), Mail(int(uid[1])))
    if flags is not None:
        words = (word.decode("ascii", "replace") for word in flags[1].split())
        mail = replace(mail, flags=frozenset(w for w in words if w.lower() != "\\recent"))
    if size := _SIZE.search(rest):
        mail = replace(mail, size=int(size[1]))
    if date := _DATE.search(rest):
        mail = replace(mail, received_us=_micros(date[1].decode("ascii", "replace")))
    if content is None and (short := _SHORT.search(rest)):
        content = re.sub(rb"\\(.)", rb"\1", short[1] or b"")
    if content is not None:
        mail = replace(mail, content=content)
    found[mail.uid] = mail


def _micros(date: str) -> int:
    """Return an INTERNALDATE in microseconds UTC; 0 for one that no calendar has."""
    try:
        moment = parsedate_to_datetime(date)
    except ValueError:
        return 0
    # "-0000" says no zone, which is UTC here.
    return max(0, round(moment.replace(tzinfo=moment.tzinfo or UTC).timestamp() * 1_000_000))
