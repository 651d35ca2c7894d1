"""How wide text for people may be, and how it is made to fit without losing anything."""

from __future__ import annotations

import os
import re
import sys

_MIN_COLUMNS = 40
# `safe_text.BAR`, which is not loaded for every help text.
_BAR = "│ "
# A command in backticks, an instant, or a run of what is no space.
_WORD = re.compile(r"`[^`]*`\S*|\d{4}-\d\d-\d\d \d\d:\S+|\S+")


def columns() -> int | None:
    """Return how many columns the reader has: COLUMNS, or what the terminal says.

    None without either: a program that reads by line gets every line whole.
    """
    given = os.environ.get("COLUMNS", "")
    if given.isdigit() and int(given) > 0:
        return max(_MIN_COLUMNS, int(given))
    try:
        return max(_MIN_COLUMNS, os.get_terminal_size(sys.stdout.fileno()).columns)
    except (AttributeError, OSError, ValueError):
        return None


def fit_text(text: str, width: int | None, verbatim: str = "\0") -> str:
    """Return text with lines no wider than `width`, broken at spaces; nothing is left out.

    What goes on stands further in than its line, and of a stranger's line behind the bar again, so
    it cannot be taken for one of its own. Left as they are: words that are wider, such as ids and
    paths, and lines with `verbatim` in them outside of backticks: a command to copy.
    """
    if width is None:
        return text
    return "\n".join(_fit_line(line, width, verbatim) for line in text.split("\n"))


def _fit_line(line: str, width: int, verbatim: str) -> str:
    if line.lstrip().startswith(_BAR):
        from vedette.domain.base.safe_text import wrap_line

        # Whose columns count, not whose letters: a terminal must not break it once more.
        return "\n".join(wrap_line(line, width, at_spaces=True))
    if len(line) <= width or verbatim in re.sub(r"`[^`]*`", "", line):
        return line
    indent = len(line) - len(line.lstrip())
    further = " " * min(indent + 4, width // 2)
    parts, begun, end = [], "", 0
    for word in _WORD.finditer(line):
        gap = line[end : word.start()]
        end = word.end()
        if begun.strip() and len(begun) + len(gap) + len(word[0]) > width:
            parts.append(begun)
            begun, gap = further, ""
        begun += gap + word[0]
    return "\n".join([*parts, begun])


def format_row(cells: list[str], width: int | None) -> str:
    """Return padded cells as a line of a table.

    If it is too wide its last cell, which is the longest as a rule, goes on below: in its own
    column where there is room, else further in than the line.
    """
    line = "  ".join(cells).rstrip()
    if width is None or len(line) <= width:
        return line
    before = "  ".join(cells[:-1])
    start, last = len(before) + 2, cells[-1].strip()
    if width - start >= max(16, *(len(word) for word in last.split() or [""])):
        broken = fit_text(" " * start + last, width).split("\n")
        below = [" " * start + more.strip() for more in broken[1:]]
        return "\n".join([before + "  " + broken[0].lstrip(), *below])
    return fit_text(f"{before.rstrip()}\n    {last}", width)
