"""Reads the plain YAML that people write for a fleet, fifty times faster than the full reader.

It knows block mappings and sequences, plain and simply quoted scalars, one-line lists and
mappings in brackets, and literal and folded blocks. Whatever else it meets, errors included, it
leaves to the full reader, which then says what is wrong and where: so it never refuses anything,
and what it does read means the same to both (tests/properties/test_quick_yaml.py compares them).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date
from typing import Any

Lines = dict[tuple[str | int, ...], int]

# What stands at the start of a plain scalar that is nothing but text to every reader.
_TEXT = re.compile(r"[A-Za-z/_(<][^\n]*\Z")
_WORDS = frozenset({"null", "true", "false"})
_INTEGER = re.compile(r"(?:0|-?[1-9][0-9]{0,17})\Z")
_FRACTION = re.compile(r"-?(?:0|[1-9][0-9]{0,9})\.[0-9]{1,9}\Z")
_DURATION = re.compile(r"[1-9][0-9]{0,6}(?:ms|s|m|h|d)\Z")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}\Z")
_KEY = re.compile(r"""(?:([A-Za-z_/][A-Za-z0-9_./ -]*)|"([^"\\]*)"|'([^']*)'):(?: +|\Z)""")
_QUOTED = re.compile(r"""(?:"([^"\\]*)"|'([^']*)')(?: +#.*|)\Z""")
# The escapes that people write: a line break, a quote, and characters that cannot be seen.
_ESCAPED = re.compile(
    r'"((?:[^"\\]|\\[n"\\]|\\u[0-9a-fA-F]{4}|\\U000[0-9a-fA-F]{5})*)"(?: +#.*|)\Z'
)
_ESCAPE = re.compile(r'\\(?:([n"\\])|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8}))')
_BLOCK = re.compile(r"([|>])(-?)(?: +#.*)?\Z")
_FLOW = re.compile(
    r"""(?:"([^"\\]*)"|'([^']*)'"""
    r"""|([A-Za-z/_][A-Za-z0-9_./@*-]*(?: +[A-Za-z0-9_./@*-]+)*|-?[0-9.]+))"""
)


class Unclear(Exception):
    """Something that only the full reader may judge."""


def core_scalar(text: str) -> Any:
    """Return what a plain scalar means by the core schema of YAML 1.2. Raises Unclear."""
    if not text:
        return None
    if _TEXT.match(text):
        lower = text.lower()
        if lower not in _WORDS:
            return text
        if text not in _WORDS:
            raise Unclear
        return None if text == "null" else text == "true"
    if _INTEGER.match(text):
        return int(text)
    if _DURATION.match(text):
        return text
    if _FRACTION.match(text):
        return float(text)
    if _DATE.match(text):
        try:
            return date.fromisoformat(text).isoformat()
        except ValueError as error:
            raise Unclear from error
    raise Unclear


def quick_yaml(
    text: str, first_line: int = 1, scalar: Callable[[str], Any] = core_scalar
) -> tuple[Any, Lines] | None:
    """Return a document's value and the line of each key and item, or None if it is not plain.

    `scalar` says what a plain scalar means, and raises Unclear where it does not know.
    """
    # Tabs, control characters, other line breaks and spaces are the full reader's business.
    if not text.replace("\n", "").isprintable():
        return None
    reader = _Reader(text, first_line, scalar)
    try:
        value = reader.document()
    except (Unclear, RecursionError):
        return None
    return value, reader.lines


class _Reader:
    def __init__(self, text: str, first_line: int, scalar: Callable[[str], Any]) -> None:
        self.raw = text.split("\n")
        self.at = 0
        self.first = first_line
        self.scalar = scalar
        self.lines: Lines = {(): first_line}

    # --- lines --------------------------------------------------------------------------------

    def _skip(self) -> tuple[int, str] | None:
        """Go to the next line that says something; return its indentation and its text."""
        while self.at < len(self.raw):
            line = self.raw[self.at]
            text = line.lstrip(" ")
            if text and text[0] != "#":
                if line.startswith(("---", "...", "%")):
                    raise Unclear
                return len(line) - len(text), text.rstrip(" ")
            self.at += 1
        return None

    def document(self) -> Any:
        found = self._skip()
        if found is None or found[0] != 0:
            raise Unclear
        value = self._block(0, found[1], ())
        if self._skip() is not None:
            raise Unclear
        return value

    # --- blocks -------------------------------------------------------------------------------

    def _block(self, indent: int, text: str, path: tuple[str | int, ...]) -> Any:
        if text.startswith("- ") or text == "-":
            return self._sequence(indent, path)
        if _KEY.match(text):
            return self._mapping(indent, path)
        raise Unclear

    def _mapping(
        self, indent: int, path: tuple[str | int, ...], inline: str | None = None
    ) -> dict[str, Any]:
        """Read a mapping; `inline` is its first line where that follows a dash."""
        found: dict[str, Any] = {}
        text = inline
        while True:
            if text is None:
                line = self._skip()
                if line is None or line[0] < indent:
                    return found
                if line[0] > indent:
                    raise Unclear
                text = line[1]
                if text.startswith("- ") or text == "-":
                    return found  # the caller's sequence goes on at the same indentation
            match = _KEY.match(text)
            if match is None:
                raise Unclear
            key = self._key(match)
            if key in found:
                raise Unclear
            here = (*path, key)
            self.lines[here] = self.at + self.first
            found[key] = self._value(indent, text[match.end() :], here)
            text = None

    def _key(self, match: re.Match[str]) -> str:
        plain = match[1]
        if plain is None:
            return str(match[2] if match[2] is not None else match[3])
        if plain.endswith(" ") or " #" in plain or self.scalar(plain) != plain:
            raise Unclear
        return str(plain)

    def _sequence(self, indent: int, path: tuple[str | int, ...]) -> list[Any]:
        found: list[Any] = []
        while True:
            line = self._skip()
            if line is None or line[0] < indent:
                return found
            if line[0] > indent:
                raise Unclear
            text = line[1]
            if not text.startswith("- "):
                if path and _KEY.match(text):
                    return found  # the next key of the mapping this list is a value of
                raise Unclear
            inner = text[2:].lstrip(" ")
            here = (*path, len(found))
            self.lines[here] = self.at + self.first
            if inner.startswith(("- ", "#")) or inner == "-":
                raise Unclear
            if _KEY.match(inner):
                found.append(self._mapping(indent + len(text) - len(inner), here, inner))
            else:
                found.append(self._value(indent, inner, here))

    # --- values -------------------------------------------------------------------------------

    def _value(self, indent: int, text: str, path: tuple[str | int, ...]) -> Any:
        """Read what follows a key or a dash, on its line or below it."""
        item = isinstance(path[-1], int)
        if block := _BLOCK.match(text):
            return self._text(indent, block[1], block[2])
        if not text or text[0] == "#":
            self.at += 1
            below = self._skip()
            if below is not None and below[0] > indent:
                return self._block(below[0], below[1], path)
            dashed = below is not None and (below[1].startswith("- ") or below[1] == "-")
            if below is not None and below[0] == indent and dashed and not item:
                return self._sequence(indent, path)
            return self.scalar("")
        value = self._inline(text, path)
        self.at += 1
        below = self._skip()
        if below is not None and below[0] > indent:
            raise Unclear  # a scalar of several lines, or a mistake
        return value

    def _inline(self, text: str, path: tuple[str | int, ...]) -> Any:
        if quoted := _QUOTED.match(text):
            return quoted[1] if quoted[1] is not None else quoted[2]
        if escaped := _ESCAPED.match(text):
            return _ESCAPE.sub(_character, escaped[1])
        if text[0] in "[{":
            return self._flow(text, path)
        plain = text.split(" #", 1)[0].rstrip(" ")
        if ": " in plain or plain.endswith(":"):
            raise Unclear
        return self.scalar(plain)

    def _text(self, indent: int, style: str, chomp: str) -> str:
        """Read a literal or folded block: the lines below, by their common indentation."""
        self.at += 1
        rows: list[str] = []
        own = 0
        while self.at < len(self.raw):
            line = self.raw[self.at]
            bare = line.lstrip(" ")
            depth = len(line) - len(bare)
            if not bare:
                if line and (not own or depth > own):
                    raise Unclear
                rows.append("")
            elif depth <= indent:
                break
            else:
                if not own and rows:
                    raise Unclear
                own = own or depth
                if depth < own or line.endswith(" "):
                    raise Unclear
                rows.append(line[own:])
            self.at += 1
        if self.at == len(self.raw) and self.raw[-1]:
            raise Unclear  # the file ends without a line break, and so may the text
        while rows and not rows[-1]:
            rows.pop()
        if not rows:
            raise Unclear
        if style == ">" and any(not row or row[0] == " " for row in rows):
            raise Unclear
        return (" " if style == ">" else "\n").join(rows) + ("" if chomp else "\n")

    # --- brackets -----------------------------------------------------------------------------

    def _flow(self, text: str, path: tuple[str | int, ...]) -> Any:
        """Read a list or mapping in brackets that ends on its line."""
        value, end = self._bracket(text, 0, path)
        rest = text[end:]
        if rest and not (rest[0] == " " and rest.lstrip(" ").startswith("#")):
            raise Unclear
        return value

    def _bracket(self, text: str, at: int, path: tuple[str | int, ...]) -> tuple[Any, int]:
        """Read what opens at `at`; return it and where what follows begins."""
        close, line = ("]" if text[at] == "[" else "}"), self.at + self.first
        values: list[Any] = []
        pairs: dict[str, Any] = {}
        at = _past(text, at + 1)
        while text[at : at + 1] != close:
            if close == "]":
                here = (*path, len(values))
                self.lines[here] = line
                value, at = self._flow_value(text, at, here)
                values.append(value)
            else:
                key, at = self._flow_scalar(text, at)
                if not isinstance(key, str) or key in pairs or text[at : at + 2] != ": ":
                    raise Unclear
                self.lines[(*path, key)] = line
                pairs[key], at = self._flow_value(text, _past(text, at + 1), (*path, key))
            at = _past(text, at)
            if text[at : at + 1] == close:
                break
            if text[at : at + 2] != ", ":
                raise Unclear
            at = _past(text, at + 1)
            if text[at : at + 1] == close:
                raise Unclear
        return (values if close == "]" else pairs), at + 1

    def _flow_value(self, text: str, at: int, path: tuple[str | int, ...]) -> tuple[Any, int]:
        if text[at : at + 1] in ("[", "{"):
            return self._bracket(text, at, path)
        return self._flow_scalar(text, at)

    def _flow_scalar(self, text: str, at: int) -> tuple[Any, int]:
        match = _FLOW.match(text, at)
        if match is None:
            raise Unclear
        if match[3] is not None:
            return self.scalar(match[3]), match.end()
        return match[1] if match[1] is not None else match[2], match.end()


def _character(escape: re.Match[str]) -> str:
    """Return the character that an escape stands for. Raises Unclear for half of one."""
    if escape[1]:
        return "\n" if escape[1] == "n" else escape[1]
    number = int(escape[2] or escape[3], 16)
    if 0xD800 <= number < 0xE000:
        raise Unclear
    return chr(number)


def _past(text: str, at: int) -> int:
    """Return the next place at or after `at` that is no space."""
    while text[at : at + 1] == " ":
        at += 1
    return at
