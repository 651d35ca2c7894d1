"""Output of the verbs: JSON, tables and text no wider than its reader's terminal."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

_MIN_COLUMNS = 40
# `safe_text.BAR`, which is not loaded for every help text.
_BAR = "│ "
# A command in backticks, an instant, or a run of what is no space.
_WORD = re.compile(r"`[^`]*`\S*|\d{4}-\d\d-\d\d \d\d:\S+|\S+")


def wants_json() -> bool:
    """Say whether --json was given: anywhere on the command line."""
    ctx = click.get_current_context(silent=True)
    return ctx is not None and bool(ctx.find_root().params.get("as_json"))


def print_result(value: Any, text: str) -> None:
    """Print `value` as JSON, or `text` for people, no wider than they have columns."""
    click.echo(dumps(value) if wants_json() else fit_to_terminal(text))


def dumps(value: Any) -> str:
    """Return JSON for people and scripts: keys in the order in which they were put.

    It may be read at a terminal: what would move its cursor or hide itself is escaped.
    """
    text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
    if text.isascii():
        return text
    from vedette.domain.base.safe_text import is_visible

    return "".join(c if c == "\n" or is_visible(c) else json.dumps(c)[1:-1] for c in text)


def write_output(path: Path, text: str, what: str, option: str) -> bool:
    """Write a verb's output (`what`) into a file; False if that is -: standard output.

    Raises BadCommand, naming the `option` that gives the file.
    """
    if str(path) == "-":
        click.echo(text, nl=False)
        return False
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        from vedette.domain.base.errors import BadCommand

        raise BadCommand(
            f"the {what} cannot be written: {error.strerror}", where=str(path),
            mend=f"name a file that you may write: {option} FILE",
        ) from error  # fmt: skip
    return True


# --- text ------------------------------------------------------------------------------------


def sanitize_text(text: str) -> str:
    """Return text of unknown origin without what would move a terminal's cursor or colours."""
    from vedette.domain.base.safe_text import is_visible

    return "".join(c if is_visible(c) or c in "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)


def single_line(text: str) -> str:
    """Return text of unknown origin as one line of output that can be told from ours."""
    return sanitize_text(" ".join(str(text).split()))


def limit_lines(lines: Sequence[str], limit: int, more: str = "more") -> list[str]:
    """Return the first of a verb's lines, and one that says how many more there are, if any."""
    rest = len(lines) - limit
    return [*lines[:limit], *([f"… and {rest:,} {more}"] if rest > 0 else [])]


def terminal_columns() -> int | None:
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


def fit_to_terminal(text: str) -> str:
    """Return text as wide as its reader has columns; commands to copy stay whole."""
    from vedette.interfaces.cli.fleet import program

    return fit_text(text, terminal_columns(), f"{program()} ")


def fit_text(text: str, width: int | None, verbatim: str = "\0") -> str:
    """Return a verb's text in lines no wider than `width`, broken at spaces; nothing is left out.

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
    parts, row, end = [], "", 0
    for word in _WORD.finditer(line):
        gap = line[end : word.start()]
        end = word.end()
        if row.strip() and len(row) + len(gap) + len(word[0]) > width:
            parts.append(row)
            row, gap = further, ""
        row += gap + word[0]
    return "\n".join([*parts, row])


# --- tables ----------------------------------------------------------------------------------


def format_table(heads: list[str], rows: list[list[str]], *, fits: bool = True) -> str:
    """Return a table: rows under heads, columns as wide as their widest cell; numbers to the right.

    What is wider than its reader has columns goes on below, further in; not with `fits` off.
    """
    if not rows:
        return "  ".join(heads)
    lines = [heads, *rows]
    widths = [max(len(line[at]) for line in lines) for at in range(len(heads))]
    right = [all(_is_number(row[at]) for row in rows) for at in range(len(heads))]
    width = terminal_columns() if fits else None
    return "\n".join(
        _format_row(
            [
                cell.rjust(widths[at]) if right[at] else cell.ljust(widths[at])
                for at, cell in enumerate(line)
            ],
            width,
        )
        for line in lines
    )


def _is_number(cell: str) -> bool:
    return cell.replace(",", "").replace(".", "").isdigit() or cell in ("-", "")


def _format_row(cells: list[str], width: int | None) -> str:
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


# --- time ------------------------------------------------------------------------------------


def format_time(at_us: int) -> str:
    """Return an instant as a verb prints it, to the second in the viewer's zone; '-' for none.

    In UTC with `--utc`, or where that is the viewer's zone.
    """
    return time_formatter()(at_us)[:25] if at_us else "-"


def time_formatter() -> Callable[[int], str]:
    """Return how this viewer reads instants: local with its offset, or UTC with a Z."""
    from vedette.domain.base.clock import local_time, utc_time

    ctx = click.get_current_context(silent=True)
    wants_utc = ctx is not None and bool(ctx.find_root().params.get("utc"))
    return utc_time if wants_utc else local_time


_RECOVERIES = {
    "denied": "denied", "refused": "refused", "contexts": "begun anew", "answers": "not taken",
}  # fmt: skip


def format_usage(usage: Mapping[str, Any]) -> str:
    """Return, in words, what tried events used of a model; `usage` as `--json` prints it."""
    turns, calls, cost = usage["turns"], usage["calls"], usage["cost_micros"]
    tokens = (usage["input_tokens"], usage["output_tokens"])
    counted = "tokens not counted" if None in tokens else f"{tokens[0]:,} + {tokens[1]:,} tokens"
    money = "cost unknown" if cost is None else f"cost {cost / 1_000_000:.6f}"
    found = (f"{n} {_RECOVERIES[kind]}" for kind, n in usage["recoveries"].items() if n)
    recovered = ", ".join(found) or "none"
    return (
        f"{turns} turn{'s' * (turns != 1)}, {calls} call{'s' * (calls != 1)}, {counted}, {money}, "
        f"recoveries: {recovered}"
    )
