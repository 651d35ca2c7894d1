"""Text of strangers made safe to print: nothing in it moves a cursor, hides or leaves its frame.

What does not show itself is spelled out: control characters and escape sequences, bidirectional
and zero-width characters, fillers that look like a space, a third mark on one letter. Lines are
folded by the columns that a terminal gives them (Unicode TR 11; an ambiguous width counts as wide),
so a terminal never breaks one itself; and each part stands behind a bar that no content can write,
because content only ever begins behind it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from unicodedata import category, east_asian_width

BAR = "│ "

# Printable by their category, and nothing to see: Hangul fillers, the braille blank, the joiner of
# graphemes, selectors of variations, Khmer and Mongolian marks (Default_Ignorable_Code_Point).
_INVISIBLE = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0") | frozenset(
    map(chr, (*range(0x180B, 0x1810), *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)))
)
_MAX_MARKS = 2
_MIN_WIDTH = 8

# What a mail program or a chat makes a link of, a mention or a command.
_LINKS = re.compile(r"(?<=\w)[.:\u3002\uff0e\uff61](?=[\w/])|@(?=\w)")


@lru_cache(4096)
def is_visible(char: str) -> bool:
    """Say whether a character is safe to print: it shows itself and does nothing else."""
    return char.isprintable() and char not in _INVISIBLE


def escape_text(text: str) -> str:
    """Return text made safe to print: one line in which every character shows itself.

    Letters of all languages stay; what is no plain character stands as JSON writes it.
    """
    if text.isascii() and text.isprintable():
        return text
    parts, marks = [], 0
    for char in text:
        marks = marks + 1 if char_width(char) == 0 else 0
        parts.append(char if is_visible(char) and marks <= _MAX_MARKS else json.dumps(char)[1:-1])
    return "".join(parts)


@lru_cache(4096)
def char_width(char: str) -> int:
    """Return how many columns of a terminal a character may take: 0 for a mark on another."""
    if category(char) in ("Mn", "Me"):
        return 0
    return 2 if east_asian_width(char) in "WFA" else 1


def text_width(text: str) -> int:
    """Return how many columns of a terminal a text safe to print may take."""
    return len(text) if text.isascii() else sum(map(char_width, text))


def wrap_text(text: str, width: int, *, at_spaces: bool = False) -> list[str]:
    """Return one line of safe text in parts of at most `width` columns, which make up the line.

    With `at_spaces` a part ends behind a space where one stands in its second half.
    """
    width = max(width, _MIN_WIDTH)
    parts: list[str] = []
    start, used, space = 0, 0, 0
    for at, char in enumerate(text):
        wide = char_width(char)
        if used + wide > width:
            end = space if at_spaces and space - start > width // 2 else at
            parts.append(text[start:end])
            start, used = end, text_width(text[end:at])
        if char == " ":
            space = at + 1
        used += wide
    return [*parts, text[start:]]


def wrap_line(line: str, width: int, *, at_spaces: bool = False) -> Iterator[str]:
    """Yield a line of ours safely within `width`; what goes on stands behind the bar, further in.

    It may hold what a stranger wrote, which so never begins a line. Nothing is left out.
    """
    first, *more = wrap_text(line, width, at_spaces=at_spaces)
    yield first.rstrip() if more and at_spaces else first
    if more:
        indent = len(line) - len(line.lstrip())
        front = " " * (indent if line[indent:].startswith(BAR) else indent + 2) + BAR
        rest = wrap_text(line[len(first) :], width - text_width(front), at_spaces=at_spaces)
        yield from (f"{front}{part}" for part in rest)


def quote_lines(lines: Iterable[str], width: int, indent: int = 0) -> Iterator[str]:
    """Yield a stranger's lines made safe to print, each part behind the bar, within `width`."""
    front = " " * indent + BAR
    for line in lines:
        for part in wrap_text(escape_text(line), width - text_width(front), at_spaces=True):
            yield f"{front}{part}".rstrip()


def defang_text(text: str) -> str:
    """Return text made safe: no program makes a link, a mention or a mail address of it.

    The usual way of security reports: `https[:]//example[.]com`, `ann[@]example[.]com`.
    """
    return _LINKS.sub(lambda found: f"[{found[0]}]", escape_text(text))
