"""YAML, read into plain values, with the line on which each of them stands.

A strict subset of YAML 1.2: one document, no duplicate keys, no anchors, no tags. What is left
means the same to every reader, and a small file cannot grow into a large value. libyaml scans and
parses; what it takes beyond that (it knows the grammar of YAML 1.1) is refused here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from vedette.config.problem import Problem, field_path

if TYPE_CHECKING:
    from yaml import MarkedYAMLError

KeyPath = tuple[str | int, ...]

MAX_DEPTH = 64

_WORDS = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
}  # fmt: skip
# What may begin a number or a time; most scalars begin with a letter and are looked at no further.
_DIGITS = frozenset("+-.0123456789")
_INTEGER = re.compile(r"[-+]?(?:0b[01_]+|0o[0-7_]+|0x[0-9a-fA-F_]+|[0-9_]+)\Z")
_BASES = {"b": 2, "o": 8, "x": 16}
_FRACTION = re.compile(
    r"[-+]?[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?\Z"
    r"|[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+\Z"
    r"|[-+]?\.[0-9_]+(?:[eE][-+][0-9]+)?\Z"
    r"|[-+]?\.(?:inf|Inf|INF)\Z|\.(?:nan|NaN|NAN)\Z"
)
_TIME = re.compile(
    r"([0-9]{4})-([0-9]{1,2})-([0-9]{1,2})"
    r"(?:(?:[Tt]| +)([0-9]{1,2}):([0-9]{2}):([0-9]{2})(?:\.[0-9]*)?(?: *(?:Z|[-+][0-9:]+))?)?\Z"
)
# Line breaks of YAML 1.1 only.
_BREAKS = re.compile("[\x85\u2028\u2029]")
_BLOCK_HEAD = re.compile(r"[|>][-+0-9]*(?: +#[^\r\n]*| *)(?=[\r\n]|\Z)")
_COMMENT = re.compile(r"(?:\A|(?<=[ \t]))#")


class Document(Struct, frozen=True):
    """A parsed YAML file: plain values, and the line of each path into them."""

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
    """Return the text of a file that people wrote; unreadable or not UTF-8 it is a problem."""
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


def parse_core_scalar(text: str) -> Any:
    """Return what a plain scalar means by the core schema of YAML 1.2.

    Numbers may hold underscores, and whole ones be binary, as before. A time stays text, but must
    be one, since other readers make a date of it. Raises ValueError.
    """
    if text[:1] not in _DIGITS:
        return _WORDS.get(text, text)
    if _INTEGER.match(text):
        base = _BASES.get(text.lstrip("+-")[1:2], 10)
        return int(text.replace("_", ""), base)
    if _FRACTION.match(text):
        return float(text.replace("_", "").lower().replace(".inf", "inf").replace(".nan", "nan"))
    if time := _TIME.match(text):
        datetime(*(int(part) for part in time.groups("0")))  # type: ignore[arg-type]  # noqa: DTZ001
    return text


def parse_yaml(
    text: str,
    file: str,
    first_line: int = 1,
    *,
    scalar: Callable[[str], Any] = parse_core_scalar,
    depth: int = MAX_DEPTH,
) -> tuple[Document, list[Problem]]:
    """Parse YAML text whose first line is line `first_line` of `file`.

    `scalar` says what a plain scalar means; its ValueError is given what is wrong and the mend.
    Within the outermost, collections are nested no deeper than `depth`.
    On a problem the value is None.
    """
    from yaml import MarkedYAMLError
    from yaml.reader import ReaderError

    text = text.removeprefix("\ufeff")
    if problems := _line_breaks(text, file, first_line):
        return Document(file, None), problems
    reader = _Reader(text, file, first_line, scalar, depth)
    try:
        value = reader.document()
    except MarkedYAMLError as error:
        reader.add_syntax_problem(error)
    except ReaderError as error:
        line = text.encode()[: error.position].count(b"\n")
        what = f"is not YAML: {error.reason} ({error.character!r})"
        reader.add_problem(line, what, "write it as an escape in double quotes")
    except _TooDeep as error:
        reader.add_problem(error.args[0], f"nested deeper than {depth}", "write it flatter")
    if reader.problems:
        return Document(file, None), reader.problems
    return Document(file, value, reader.lines), []


def _line_breaks(text: str, file: str, first_line: int) -> list[Problem]:
    """Refuse what ends a line for some readers only; libyaml's lines would not be an editor's."""
    problems = []
    for found in _BREAKS.finditer(text):
        line = text.count("\n", 0, found.start()) + first_line
        name = f"\\u{ord(found[0]):04x}"
        what = f"{name} ends a line for some readers of YAML only"
        mend = f"write {name} in double quotes"
        problems.append(Problem(file, line, "", what, mend, code="not-yaml"))
    return problems


class _TooDeep(Exception):
    """Collections are nested too deep. Its argument is the line, counted from 0."""


class _Reader:
    """Makes the value of a document of libyaml's events; collects what is refused."""

    def __init__(
        self, text: str, file: str, first_line: int, scalar: Callable[[str], Any], depth: int
    ) -> None:
        from yaml import events
        from yaml._yaml import CParser

        self._text, self._file, self._first_line = text, file, first_line
        self._scalar, self._depth = scalar, depth
        self._next: Callable[[], Any] = CParser(text).get_event
        self._events: Any = events
        self.lines: dict[KeyPath, int] = {(): first_line}
        self.problems: list[Problem] = []
        # Where quoted and block scalars stand: a tab is text in them.
        self._texts: list[tuple[int, int]] = []

    def add_problem(self, line: int, what: str, mend: str) -> None:
        """Note a problem. `line` counts from 0."""
        at = line + self._first_line
        self.problems.append(Problem(self._file, at, "", what, mend, code="not-yaml"))

    def add_syntax_problem(self, error: MarkedYAMLError) -> None:
        """Note what libyaml says is wrong, before all else."""
        mark = error.problem_mark or error.context_mark
        what = str(error.problem or error.context or "unreadable")
        if mark is not None and what.startswith("found character that"):
            found = self._text[mark.index : mark.index + 1]
            what = what.replace("character", f"character {found!r}", 1)
        tab = "tab" in what or "'\\t'" in what
        mend = "indent with spaces" if tab else "check indentation, colons and quotes"
        self.add_problem(mark.line if mark else 0, f"is not YAML: {what}", mend)
        # Told first: what was refused before may only have come of it.
        self.problems.insert(0, self.problems.pop())

    def document(self) -> Any:
        """Return the value of the one document; None if there is none."""
        value = None
        self._next()  # the stream's start
        start = self._next()
        if isinstance(start, self._events.DocumentStartEvent):
            if start.version is not None and start.version != (1, 2):
                what = "%YAML {}.{} is not taken".format(*start.version)
                self.add_problem(
                    start.start_mark.line, what, "remove the line; YAML is read as 1.2"
                )
            value = self._node(self._next(), (), 0)
            self._next()  # the document's end
            second = self._next()
            if isinstance(second, self._events.DocumentStartEvent):
                what = "is not YAML: expected a single document, but found another"
                self.add_problem(second.start_mark.line, what, "keep one of the two")
        if "\t" in self._text:
            self._add_tab_problems()
        return value

    def _node(self, event: Any, path: KeyPath, depth: int) -> Any:
        """Return the value that begins with `event`, noting the line of every key and item."""
        events, line = self._events, event.start_mark.line
        if event.anchor is not None:
            self.add_problem(line, "anchors and aliases are not taken", "write the value out")
        if isinstance(event, events.AliasEvent):
            return None
        if event.tag is not None:
            self.add_problem(line, f"tag {event.tag} is not taken", "write a plain value")
        if isinstance(event, events.ScalarEvent):
            return self._quoted_scalar(event) if event.style else self._plain_scalar(event)
        if depth > self._depth:
            raise _TooDeep(line)
        if isinstance(event, events.SequenceStartEvent):
            return self._sequence(path, depth + 1)
        return self._mapping(path, depth + 1)

    def _sequence(self, path: KeyPath, depth: int) -> list[Any]:
        found: list[Any] = []
        while not isinstance(event := self._next(), self._events.SequenceEndEvent):
            here = (*path, len(found))
            self.lines[here] = event.start_mark.line + self._first_line
            found.append(self._node(event, here, depth))
        return found

    def _mapping(self, path: KeyPath, depth: int) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        while not isinstance(event := self._next(), self._events.MappingEndEvent):
            line = event.start_mark.line
            key = self._node(event, (), depth)
            if isinstance(key, list | dict):
                self.add_problem(line, "a key is a list or a mapping", "write a word")
                key = None
            elif key == "<<" and not event.style:
                self.add_problem(line, "merge keys are not taken", "write the keys out")
            elif key in found:
                self.add_problem(line, f'key "{key}" is given twice', "keep one of the two")
            here = (*path, key)
            self.lines[here] = line + self._first_line
            found[key] = self._node(self._next(), here, depth)
        return found

    def _plain_scalar(self, event: Any) -> Any:
        try:
            return self._scalar(event.value)
        except ValueError as error:
            problem = error.args if len(error.args) == 2 else (f"is not YAML: {error}", "quote it")
            self.add_problem(event.start_mark.line, *problem)
            return None

    def _quoted_scalar(self, event: Any) -> str:
        """Return the text of a quoted or block scalar."""
        start = event.start_mark.index
        self._texts.append((start, event.end_mark.index))
        if event.style in "|>" and not _BLOCK_HEAD.match(self._text, start):
            what = f"is not YAML: expected spaces or a line break behind {event.style}"
            self.add_problem(event.start_mark.line, what, "put a space before the comment")
        return str(event.value)

    def _add_tab_problems(self) -> None:
        """Refuse tabs, which show as any number of spaces, but in quotes, blocks and comments."""
        after = line = 0
        for start, end in (*self._texts, (len(self._text), len(self._text))):
            for part in self._text[after:start].split("\n"):
                if "\t" in _COMMENT.split(part, maxsplit=1)[0]:
                    self.add_problem(line, "is not YAML: found a tab", "indent with spaces")
                line += 1
            line += self._text.count("\n", start, end) - 1
            after = end
