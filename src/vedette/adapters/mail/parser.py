"""Raw mail in, the data of a `mail.received` event out; hostile bytes never raise.

RFC 5322 and MIME are read with the standard `email` package under its old policy: the new one
parses headers when they are looked at and raises there on some malformed ones. What was wrong
with a mail is named in `defects`; what could not be decoded stands as U+FFFD in the text.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from email import message_from_bytes
from email.header import decode_header
from email.message import Message
from email.parser import BytesHeaderParser
from email.utils import getaddresses, parsedate_to_datetime
from typing import Any

from vedette.adapters.mail.facts import mail_facts
from vedette.adapters.mail.html import strip_html
from vedette.domain.event import READERS
from vedette.domain.readers import Readers, parse_readers

TEXT_LIMIT = 20_000  # characters of text kept
HEADER_LIMIT = 2_000  # characters of one header kept
RECIPIENT_LIMIT = 100  # addresses kept of one header
PART_LIMIT = 200  # MIME parts looked at
_HTML_LIMIT = 400_000  # characters of HTML read
_DEFECT_LIMIT = 20

# C0 and C1 controls but tab and line feed: none of them is text, NUL breaks databases.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_SPACES = re.compile(r"[ \t\u00a0]+")
_LINES = re.compile(r"\n{3,}")
_WORDS = re.compile(r"\w+")
_AGENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


def parse_mail(raw: bytes) -> dict[str, Any]:
    """Return the data of `mail.received` for one raw mail (docs: the event types).

    Never raises for what the bytes hold. Every string is valid Unicode without lone surrogates.
    """
    defects: list[str] = []
    message = _parse(raw, defects)
    sender_name, sender = _first(_addresses(message, "from", defects))
    if not sender:
        defects.append("no sender address")
    seen: list[tuple[str, str]] = []
    text, attachments = _content(message, raw, defects, seen)
    date = mail_date(message)
    if date is None:
        defects.append("no valid date")
    reply_to = _first(_addresses(message, "reply-to", defects))[1]
    return {
        "from": sender,
        "from_name": sender_name,
        "to": [address for _, address in _addresses(message, "to", defects)],
        "cc": [address for _, address in _addresses(message, "cc", defects)],
        "reply_to": reply_to or None,
        "subject": _decode_words(_raw_header(message, "subject", defects), defects),
        "date": date,
        "text": text,
        "attachments": attachments,
        "list": _is_list(message),
        "facts": mail_facts(message, seen),
        "message_id": _raw_header(message, "message-id", defects)[:250],
        "defects": list(dict.fromkeys(defects))[:_DEFECT_LIMIT],
    }


def mail_lineage(raw: bytes) -> tuple[str, ...]:
    """Return the agents a raw mail says it comes from, oldest first; empty if no fleet sent it."""
    if b"x-vedette-run" not in raw[:65_536].lower():
        return ()
    try:
        headers = BytesHeaderParser().parsebytes(raw[:65_536])
    except Exception:
        return ()
    if not _raw_header(headers, "x-vedette-run", []):
        return ()
    names = _raw_header(headers, "vedettelineage", []).split(",")
    return tuple(name.strip() for name in names if _AGENT.fullmatch(name.strip()))[:32]


def mail_readers(raw: bytes) -> Readers:
    """Return who may read a raw mail by its own label; nobody if that cannot be read.

    Whoever wrote it can only narrow it so.
    """
    if READERS.encode() not in raw[:65_536].lower():
        return None
    try:
        defects: list[str] = []
        value = _raw_header(BytesHeaderParser().parsebytes(raw[:65_536]), READERS, defects)
        if not value:
            return None  # the word stands in its text alone
        return frozenset() if defects else parse_readers(",".join(map(str.strip, value.split(","))))
    except Exception:
        return frozenset()


def mail_date(message: Message) -> str | None:
    """Return a mail's Date header as RFC 3339 in UTC, or None if there is no valid one."""
    try:
        moment = parsedate_to_datetime(_raw_header(message, "date", []))
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        moment = moment.astimezone(UTC)
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
    if moment < datetime(1970, 1, 1, tzinfo=UTC):
        return None
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def clean_mail_text(text: str) -> str:
    """Return a mail's text without control characters and lone surrogates, line ends as LF."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if not text.isascii():
        text = text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    return _CONTROLS.sub("", text)


# --- structure -------------------------------------------------------------------------------


def _parse(raw: bytes, defects: list[str]) -> Message:
    # The package recurses once per nesting level, so that a deep mail ends its stack.
    try:
        return message_from_bytes(raw)
    except RecursionError:
        defects.append("MIME parts nested too deep")
    except Exception as error:
        defects.append(f"not readable as MIME ({type(error).__name__})")
    try:
        return BytesHeaderParser().parsebytes(raw)
    except Exception as error:
        defects.append(f"headers not readable ({type(error).__name__})")
        return Message()


def _parts(message: Message, defects: list[str]) -> list[Message]:
    """Return the leaves of the mail in order, without recursion and bounded."""
    leaves: list[Message] = []
    waiting = [message]
    while waiting:
        part = waiting.pop()
        for defect in part.defects:
            defects.append(f"MIME: {type(defect).__name__}")
        payload = part.get_payload()
        if isinstance(payload, list) and _type(part) != "message/rfc822":
            waiting.extend(item for item in reversed(payload) if isinstance(item, Message))
            continue
        if len(leaves) >= PART_LIMIT:
            defects.append("too many MIME parts")
            break
        leaves.append(part)
    return leaves


def _content(
    message: Message, raw: bytes, defects: list[str], seen: list[tuple[str, str]]
) -> tuple[str, list[dict[str, Any]]]:
    """Return text and attachments; `seen` takes the decoded text parts with their type."""
    plain: list[str] = []
    html: list[str] = []
    attachments: list[dict[str, Any]] = []
    try:
        for part in _parts(message, defects):
            kind = _type(part)
            if _is_attachment(part, kind):
                attachments.append(_attachment(part, kind, defects))
            elif kind == "text/html":
                markup = _text(part, defects)[:_HTML_LIMIT]
                seen.append((kind, markup))
                html.append(strip_html(markup, defects))
            else:
                plain.append(_text(part, defects))
                seen.append((kind, plain[-1]))
    except Exception as error:
        # A defence in depth: whatever the package trips over, the mail still becomes an event.
        defects.append(f"content not readable ({type(error).__name__})")
        if not plain and not html:
            plain.append(raw.decode("utf-8", "replace"))
    text = _merge_texts("\n".join(plain), "\n".join(html), defects)
    if len(text) > TEXT_LIMIT:
        defects.append("text cut")
        text = text[:TEXT_LIMIT]
    return text, attachments


def _merge_texts(plain: str, html: str, defects: list[str]) -> str:
    """Return the plain text, and after it the lines that only the HTML part has.

    People read the HTML part, machines often only the other: a judge must see both, or a mail
    says one thing to each.
    """
    plain, html = _collapse_space(plain), _collapse_space(html)
    if not plain or not html:
        return plain or html
    known = set(_WORDS.findall(plain.lower()))
    extra: list[str] = []
    for line in html.split("\n"):
        words = _WORDS.findall(line.lower())
        if len(words) >= 3 and sum(word not in known for word in words) * 2 > len(words):
            extra.append(line)
    if not extra:
        return plain
    defects.append("HTML says more than the plain text")
    return plain + "\n\n" + "\n".join(extra)


def _collapse_space(text: str) -> str:
    lines = (_SPACES.sub(" ", line).rstrip() for line in clean_mail_text(text).split("\n"))
    return _LINES.sub("\n\n", "\n".join(lines)).strip()


def _type(part: Message) -> str:
    try:
        return clean_mail_text(part.get_content_type())
    except Exception:
        return "text/plain"


def _is_attachment(part: Message, kind: str) -> bool:
    # A multipart that reached here has no parts: its boundary is broken, all of it is text.
    if not kind.startswith(("text/", "multipart/")):
        return True
    try:
        return part.get_content_disposition() == "attachment"
    except Exception:
        return False


def _attachment(part: Message, kind: str, defects: list[str]) -> dict[str, Any]:
    try:
        name = _decode_words(str(part.get_filename() or ""), defects)
    except Exception:
        name = ""
        defects.append("attachment with a name that cannot be read")
    payload = part.get_payload()
    size = 0 if isinstance(payload, list) else len(_bytes(part, defects))
    return {"name": name[:200], "type": kind[:100], "size": size}


def _bytes(part: Message, defects: list[str]) -> bytes:
    try:
        payload = part.get_payload(decode=True)
    except Exception as error:
        defects.append(f"transfer encoding not readable ({type(error).__name__})")
        return str(part.get_payload()).encode("utf-8", "replace")
    return payload if isinstance(payload, bytes) else b""


def _text(part: Message, defects: list[str]) -> str:
    payload = _bytes(part, defects)
    try:
        charset = str(part.get_content_charset() or "")
    except Exception:
        charset = ""
        defects.append("charset not readable")
    return _unicode(payload, charset, defects)


def _unicode(data: bytes, charset: str, defects: list[str]) -> str:
    """Decode with the named charset, else UTF-8, else with replacement characters."""
    for name in (charset, "utf-8"):
        # A text codec only: `base64`, `rot13` and their kind are names Python knows too.
        if not name or len(name) > 40:
            continue
        try:
            return data.decode(name)
        except UnicodeDecodeError:
            defects.append(f"text is not valid {name}")
        except (LookupError, ValueError):
            defects.append("unknown charset")
        except Exception as error:
            defects.append(f"charset failed ({type(error).__name__})")
    return data.decode("utf-8", "replace")


# --- headers ---------------------------------------------------------------------------------


def _raw_header(message: Message, name: str, defects: list[str]) -> str:
    """Return the first header of that name, unfolded, its raw bytes as text; "" if none."""
    for key, value in message.raw_items():
        if key.lower() != name:
            continue
        text = str(value)
        if not text.isascii():
            data = (
                text.encode("ascii", "surrogateescape")
                if _is_surrogate_escaped(text)
                else text.encode()
            )
            try:
                text = data.decode("utf-8")
            except UnicodeDecodeError:
                defects.append(f"header {name} is not valid UTF-8")
                text = data.decode("utf-8", "replace")
        if len(text) > HEADER_LIMIT and name not in ("to", "cc"):
            defects.append(f"header {name} cut")
            text = text[:HEADER_LIMIT]
        return " ".join(clean_mail_text(text[: HEADER_LIMIT * 20]).split())
    return ""


def _is_surrogate_escaped(text: str) -> bool:
    return all(char < "\x80" or "\udc80" <= char <= "\udcff" for char in text)


def _decode_words(text: str, defects: list[str]) -> str:
    """Decode RFC 2047 words of an unstructured header or a display name."""
    if "=?" not in text:
        return clean_mail_text(text)[:HEADER_LIMIT]
    try:
        pieces = decode_header(text)
    except Exception:
        defects.append("encoded word not readable")
        return clean_mail_text(text)[:HEADER_LIMIT]
    out: list[str] = []
    for piece, charset in pieces:
        if isinstance(piece, bytes):
            out.append(_unicode(piece, charset or "utf-8", defects))
        else:
            out.append(piece)
    return " ".join(clean_mail_text("".join(out)).split())[:HEADER_LIMIT]


def _addresses(message: Message, name: str, defects: list[str]) -> list[tuple[str, str]]:
    """Return (display name, address) of one header; addresses in the spelling of the mail."""
    header = _raw_header(message, name, defects)
    if not header:
        return []
    try:
        # Display names are decoded after the split: an encoded comma separates nothing.
        pairs = getaddresses([header])
    except Exception:
        defects.append(f"header {name} not readable")
        return []
    found: list[tuple[str, str]] = []
    for display, address in pairs[:RECIPIENT_LIMIT]:
        address = "".join(address.split())
        if "@" not in address or len(address) > 320:
            if address:
                defects.append(f"header {name} holds no valid address")
            continue
        found.append((_decode_words(display, defects)[:200], address))
    return found


def _first(pairs: list[tuple[str, str]]) -> tuple[str, str]:
    return pairs[0] if pairs else ("", "")


def _is_list(message: Message) -> bool:
    names = {key.lower() for key, _ in message.raw_items()}
    if names & {"list-id", "list-unsubscribe", "list-post"}:
        return True
    return _raw_header(message, "precedence", []).lower() in ("bulk", "list")
