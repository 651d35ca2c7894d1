"""Writes outgoing mails as bytes that are a function of the call alone.

There is no Date and no random part: repeated after a crash, a call writes the same bytes under
the same Message-ID. A submission server adds the Date when the mail leaves (RFC 6409 section 8.2).
"""

from __future__ import annotations

import re
from base64 import encodebytes
from email.header import Header
from email.parser import BytesHeaderParser
from hashlib import sha256

from vedette.sdk import Call

from .maildir import Refused

_ADDRESS = re.compile(
    r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-][A-Za-z0-9!#$%&'*+/=?^_`{|}~.-]{0,63}"
    r"@(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.){1,10}[A-Za-z]{2,24}"
)
_MESSAGE_ID = re.compile(r"<[^<>\s\x00-\x1f\x7f-\uffff]{1,240}>")
_HEADERS = 65_536  # bytes of the original in which its headers are looked for
_SUBJECT = 250


def reply(call: Call, original: bytes) -> bytes:
    """Return the mail that answers `original`: To, Subject and body from the call's arguments."""
    head = _head(call, original, _line(str(call.args["subject"])))
    return _join(head, _text_part(str(call.args["body"])))


def forward(call: Call, original: bytes) -> bytes:
    """Return a mail that carries `original`, byte for byte, behind a note."""
    subject = _line(_header(original, "Subject")) or "(no subject)"
    head = _head(call, original, f"Fwd: {subject}")
    # The boundary depends on the original, whose writer so cannot put it in there.
    boundary = "=_" + sha256(call.key.encode() + b"\0" + original).hexdigest()[:48]
    encoding = _encoding(original)
    parts = [
        f"--{boundary}\n".encode(),
        _text_part(str(call.args["note"])),
        f"\n--{boundary}\n".encode(),
        f"Content-Type: message/rfc822\nContent-Transfer-Encoding: {encoding}\n".encode(),
        b"Content-Disposition: attachment\n\n",
        original,
        f"\n--{boundary}--\n".encode(),
    ]
    kind = f'Content-Type: multipart/mixed; boundary="{boundary}"\n\n'.encode()
    return _join(head, kind + b"".join(parts))


def message_id(call: Call) -> str:
    """Return the Message-ID of the mail that a call writes: the same each time. Raises Refused."""
    sender = str(call.target.get("address", ""))
    if sender and not _ADDRESS.fullmatch(sender):
        raise Refused(f"address {sender!r} of the target is not one plain address")
    return f"<{call.key}@{sender.rpartition('@')[2] or 'vedette.invalid'}>"


def _head(call: Call, original: bytes, subject: str) -> list[tuple[str, str]]:
    to = str(call.args["to"])
    if not _ADDRESS.fullmatch(to):
        raise Refused(f"recipient {to!r} is not one plain address")
    name = message_id(call)
    sender = str(call.target.get("address", ""))
    head: list[tuple[str, str]] = [("From", sender)] if sender else []
    head += [("To", to), ("Subject", _encoded(subject[:_SUBJECT])), ("Message-ID", name)]
    answered = _MESSAGE_ID.search(_header(original, "Message-ID"))
    if answered:
        head += [("In-Reply-To", answered[0]), ("References", answered[0])]
    head += [
        ("X-Vedette-Run", _line(call.run)),
        # Folded (RFC 5322 2.2.3): a list of readers may be longer than a line.
        *((name, _line(value).replace(",", ",\n ")) for name, value in call.labels.items()),
        ("Auto-Submitted", "auto-generated"),
        ("MIME-Version", "1.0"),
    ]
    return head


def _join(head: list[tuple[str, str]], content: bytes) -> bytes:
    return "".join(f"{name}: {value}\n" for name, value in head).encode("ascii") + content


def _text_part(text: str) -> bytes:
    body = text.encode("utf-8", "replace")
    return (
        b'Content-Type: text/plain; charset="utf-8"\nContent-Transfer-Encoding: base64\n\n'
        + encodebytes(body)
    )


def _encoded(line: str) -> str:
    """Return a header value in ASCII, folded, as RFC 2047 words where it is not."""
    charset = "us-ascii" if line.isascii() else "utf-8"
    return Header(line, charset, maxlinelen=76, header_name="Subject").encode()


def _line(text: str) -> str:
    """Return `text` as one line: no header can be smuggled in behind a line end."""
    clean = text.encode("utf-8", "replace").decode("utf-8")
    return " ".join("".join(c if c.isprintable() else " " for c in clean).split())


def _header(original: bytes, name: str) -> str:
    try:
        value = BytesHeaderParser().parsebytes(original[:_HEADERS]).get(name, "")
        return str(value)[:2_000]
    except Exception:
        # The original is a stranger's: without a readable header we answer without it.
        return ""


def _encoding(content: bytes) -> str:
    """Return the transfer encoding under which `content` may stand as it is (RFC 2046, 5.2.1)."""
    if b"\0" in content or any(len(line) > 998 for line in content.split(b"\n")):
        return "binary"
    return "7bit" if content.isascii() else "8bit"
