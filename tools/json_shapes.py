"""What `--json` answers look like: keys and types, written as docs/reference/json.md.

`UPDATE=1 pytest tests/acceptance/test_output.py` writes the page out of real answers; without
UPDATE the test compares. A key that vanishes or changes its type is a broken promise; a new one
wants the page to be written anew.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

HEAD = """\
# What `--json` answers

Written by `UPDATE=1 pytest tests/acceptance/test_output.py` out of real answers; a test compares.

Within a major version keys are only added: none vanishes, none changes its type. An instant is a
whole number of microseconds since 1970 in UTC, or text in RFC 3339 in UTC, never local time; a
length of time is in microseconds (`…_us`) or seconds; a confidence or share is in thousandths.
Text may hold what strangers wrote, as it is: print it with care.

`a.b` is the key `b` of the object `a`, `a[]` an item of the list `a`, `a.*` any value of an object
whose keys are names. `null` stands where there may be nothing. The first row of a verb, `.`, is the
answer itself. An error is `{"error": {"code", "what", "where", "mend"}}` on standard error, `where`
and `mend` may be `null`; the codes are in [errors.md](errors.md). An order given again under its
`--command-id` answers `{"already_done": true, "what": …}`.
"""

Shape = dict[str, set[str]]

# Objects whose keys are names of agents, tools, labels and the like, and not ours.
_NAMED = {
    "agents", "waiting", "effects", "refused", "drifts", "phases", "would", "until", "tools",
    "labels", "disagreed", "revisions",
    "unreplayable", "unrecomputable", "same", "differ", "arguments", "args", "kinds", "data",
    "attributes", "spent", "counts", "sinks", "banks", "releases",
}  # fmt: skip
# What a stranger or a judge wrote, and bodies of the ledger, whose keys docs/lifecycle.md tells:
# as they are, of no shape that is promised here.
_ANYTHING = {
    "data", "value", "document", "input", "args", "attributes", "context", "content", "result",
    "detail", "body", "recorded", "again",
}  # fmt: skip
# A key that is an id, a pointer or a name with a space is not ours either.
_NAME = re.compile(r"[/: ]|^[a-z]+_[0-9a-f]{16,}$")
_STEADY = re.compile(r"[a-z][a-z_]{1,30}(\.[a-z_]{1,30})?")
_ROW = re.compile(r"\| `(?P<path>[^`]+)` \| (?P<types>[^|]+) \| (?P<example>.*) \|")


def shape(value: Any) -> Shape:
    """Return path -> types of a JSON value."""
    found: Shape = {}
    for path, kind, _ in _walk(value, ""):
        found.setdefault(path or ".", set()).add(kind)
    return found


def page(answers: Mapping[str, Any]) -> str:
    """Return docs/reference/json.md: verb (as it is called) -> its answer."""
    parts = [HEAD]
    for verb, answer in answers.items():
        examples: dict[str, str] = {}
        for path, _, leaf in _walk(answer, ""):
            if isinstance(leaf, bool) or (isinstance(leaf, str) and _STEADY.fullmatch(leaf)):
                examples.setdefault(path or ".", f"`{json.dumps(leaf)}`")
        parts += [f"## vedette {verb}\n", "| key | type | for example |", "|---|---|---|"]
        parts += [
            f"| `{path}` | {', '.join(sorted(kinds))} | {examples.get(path, '')} |"
            for path, kinds in shape(answer).items()
        ]
        parts.append("")
    return "\n".join(parts)


def read(text: str) -> dict[str, Shape]:
    """Read a page: verb -> the shape of its answer."""
    found: dict[str, Shape] = {}
    for line in text.splitlines():
        if line.startswith("## vedette "):
            found[line.removeprefix("## vedette ")] = {}
        elif row := _ROW.fullmatch(line):
            found[list(found)[-1]][row["path"]] = set(row["types"].split(", "))
    return found


def broken(written: Shape, seen: Shape) -> Iterator[str]:
    """Yield what of a written shape an answer does not keep, and what of it is not written.

    A list that is empty and a value that is null this time keep what is told of their inside.
    """
    for path, kinds in written.items():
        if path in seen:
            # Of what was never more than null nothing is promised yet but the key.
            if kinds != {"null"} and not seen[path] <= kinds:
                yield f"`{path}` was {', '.join(kinds)} and is {', '.join(seen[path])}"
        elif _parent(path) in seen and not _hollow(path, seen):
            yield f"`{path}` is gone"
    yield from (f"`{path}` is not written: run it with UPDATE=1" for path in seen.keys() - written)


def _hollow(path: str, seen: Shape) -> bool:
    """Say whether what a path lies in is empty this time, so that nothing can be said of it."""
    if path.endswith(("[]", ".*")):
        return True
    return "object" not in seen[_parent(path)]


def _parent(path: str) -> str:
    if path.endswith("[]"):
        return path.removesuffix("[]") or "."
    return path.rpartition(".")[0] or "."


def _walk(value: Any, path: str) -> Iterator[tuple[str, str, Any]]:
    name = path.rpartition(".")[2]
    if name in _ANYTHING and value is not None:
        yield path, "anything", None
    elif isinstance(value, Mapping):
        yield path, "object", None
        for key, item in value.items():
            below = "*" if name in _NAMED or _NAME.search(str(key)) else key
            yield from _walk(item, f"{path}.{below}" if path else below)
    elif isinstance(value, list):
        yield path, "list", None
        for item in value:
            yield from _walk(item, f"{path}[]")
    else:
        yield path, _kind(value), value


def _kind(value: Any) -> str:
    for kind, name in ((bool, "true or false"), (int, "whole number"), (float, "number")):
        if isinstance(value, kind):
            return name
    return "null" if value is None else "text"
