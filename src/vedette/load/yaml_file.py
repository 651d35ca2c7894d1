"""Reads YAML into plain values and remembers on which line each of them stands.

A strict subset of YAML 1.2: one document, no duplicate keys, no anchors, no tags. What is left
means the same to every reader, and a small file cannot grow into a large value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from datetime import date, datetime
from pathlib import Path
from typing import Any

from vedette.load.problem import Problem, field_path
from vedette.load.quick_yaml import quick_yaml
from vedette.quick_data import dataclass

KeyPath = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed file: plain values, and the line of each path into them."""

    file: str
    value: Any
    lines: Mapping[KeyPath, int] = field(default_factory=dict)

    def line(self, path: KeyPath) -> int:
        """Return the line of `path`, or of the nearest thing around it that is there."""
        for length in range(len(path), -1, -1):
            known = self.lines.get(path[:length])
            if known is not None:
                return known
        return 1

    def problem(
        self,
        path: KeyPath,
        what: str,
        mend: str = "",
        *,
        warning: bool = False,
        code: str = "bad-fleet",
    ) -> Problem:
        """Return a problem at `path` of this file."""
        return Problem(self.file, self.line(path), field_path(path), what, mend, warning, code)


def read_text(path: Path, file: str) -> tuple[str, list[Problem]]:
    """Return a file's text; a file that cannot be read or is not UTF-8 is a problem."""
    try:
        return path.read_bytes().decode("utf-8"), []
    except UnicodeDecodeError as error:
        line = path.read_bytes()[: error.start].count(b"\n") + 1
        return "", [Problem(file, line, "", "is not UTF-8 text", "save it as UTF-8")]
    except OSError as error:
        why = error.strerror or "unreadable"
        return "", [Problem(file, 0, "", f"cannot be read: {why}", "put the file there")]


def read_yaml(path: Path, file: str) -> tuple[Document, list[Problem]]:
    """Read a YAML file. `file` is how problems name it; on a problem the value is None."""
    text, problems = read_text(path, file)
    return (Document(file, None), problems) if problems else parse_yaml(text, file)


def parse_yaml(text: str, file: str, first_line: int = 1) -> tuple[Document, list[Problem]]:
    """Parse YAML text whose first line is line `first_line` of `file`."""
    if (quick := quick_yaml(text, first_line)) is not None:
        return Document(file, *quick), []
    return parse_fully(text, file, first_line)


def parse_fully(text: str, file: str, first_line: int = 1) -> tuple[Document, list[Problem]]:
    """Parse as `parse_yaml` does, with the full reader, which knows what is wrong with a text."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        problems = _outside_subset(text, file, first_line)
        if problems:
            return Document(file, None), problems
        loaded = YAML(typ="rt", pure=True).load(text)
    except MarkedYAMLError as error:
        return Document(file, None), [_syntax(error, file, first_line)]
    except (YAMLError, ValueError) as error:
        what = f"is not YAML: {str(error).splitlines()[0]}"
        return Document(file, None), [Problem(file, first_line, "", what, "correct the syntax")]
    lines: dict[KeyPath, int] = {(): first_line}
    return Document(file, _plain(loaded, (), lines, first_line), lines), []


def _outside_subset(text: str, file: str, first_line: int) -> list[Problem]:
    from ruamel.yaml import YAML
    from ruamel.yaml.events import AliasEvent

    problems = []
    for event in YAML(typ="rt", pure=True).parse(text):
        line = event.start_mark.line + first_line
        if isinstance(event, AliasEvent) or getattr(event, "anchor", None):
            what, mend = "anchors and aliases are not taken", "write the value out"
            problems.append(Problem(file, line, "", what, mend, code="not-yaml"))
        elif getattr(event, "tag", None):
            what = f"tag {event.tag} is not taken"
            mend = "write a plain value"
            problems.append(Problem(file, line, "", what, mend, code="not-yaml"))
    return problems


def _syntax(error: Any, file: str, first_line: int) -> Problem:
    mark = error.problem_mark or error.context_mark
    line = mark.line + first_line if mark else first_line
    what = str(error.problem or error.context or "unreadable").splitlines()[0]
    if what.startswith("found duplicate key"):
        name = what.removeprefix("found duplicate key ").split(" with value")[0]
        what, mend = f"key {name} is given twice", "keep one of the two"
    elif "tab" in what or "'\\t'" in what:
        what, mend = f"is not YAML: {what}", "indent with spaces"
    else:
        what, mend = f"is not YAML: {what}", "check indentation, colons and quotes"
    return Problem(file, line, "", what, mend, code="not-yaml")


def _plain(value: Any, path: KeyPath, lines: dict[KeyPath, int], first_line: int) -> Any:
    """Return `value` without the parser's own types, noting the line of every key and item."""
    if isinstance(value, dict):
        plain: dict[Any, Any] = {}
        for key, item in value.items():
            name = _plain(key, (), {}, first_line)
            lines[(*path, name)] = value.lc.key(key)[0] + first_line  # type: ignore[attr-defined]
            plain[name] = _plain(item, (*path, name), lines, first_line)
        return plain
    if isinstance(value, list):
        for index in range(len(value)):
            lines[(*path, index)] = value.lc.item(index)[0] + first_line  # type: ignore[attr-defined]
        return [_plain(v, (*path, i), lines, first_line) for i, v in enumerate(value)]
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, datetime | date):
        return value.isoformat()
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    return str(value)
