"""Names of folders as IMAP writes them: modified UTF-7 (RFC 3501, 5.1.3), quoted."""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from typing import Any

_SHIFTED = re.compile(r"[^\x20-\x7e]+|&")
_LIST = re.compile(rb'\(([^()]*)\) (?:"(?:\\.|[^"\\])*"|NIL) (?:"((?:\\.|[^"\\])*)"|(\S+))')
_WORD = re.compile(r"&([A-Za-z0-9+,]*)-")


def quote_name(name: str) -> str:
    """Return an IMAP folder's name as an argument. Raises ValueError for what none can have."""
    if not name or len(name) > 255 or any(ord(c) < 32 or ord(c) == 127 for c in name):
        raise ValueError(f"{name!r} cannot be a folder's name")
    text = _SHIFTED.sub(lambda found: _shift(found[0]), name)
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def decode_name(name: str) -> str:
    """Return an IMAP folder's name as people write it; as it came if it is not well formed."""
    try:
        return _WORD.sub(lambda found: _unshift(found[1]), name)
    except ValueError:
        return name


def parse_list_line(line: Any) -> str | None:
    """Return the folder that a line of IMAP's LIST names; None for one that cannot be opened."""
    if isinstance(line, tuple):  # a name with bytes that no quotes take
        head, name = line
        flags = head.partition(b"(")[2].partition(b")")[0]
    else:
        found = _LIST.match(line or b"")
        if found is None:
            return None
        flags, name = found[1], found[2] if found[2] is not None else found[3]
        name = re.sub(rb"\\(.)", rb"\1", name)
    if rb"\noselect" in flags.lower() or rb"\nonexistent" in flags.lower():
        return None
    return decode_name(name.decode("utf-8", "replace"))


def _shift(text: str) -> str:
    if text == "&":
        return "&-"
    word = b64encode(text.encode("utf-16-be")).rstrip(b"=").replace(b"/", b",")
    return f"&{word.decode()}-"


def _unshift(word: str) -> str:
    if not word:
        return "&"
    padded = word.replace(",", "/") + "=" * (-len(word) % 4)
    return b64decode(padded, validate=True).decode("utf-16-be")
