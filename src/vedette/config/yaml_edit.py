"""Plain YAML, written, and edited by its lines: one value, one copied block, one more list item.

People write these files and keep comments in them, so nothing but the lines in question is
touched. Block mappings are known, and lists in brackets or in lines; whatever else a file holds
there is refused. Each caller reads the result again and compares what it means, so that an edit
that went wrong changes nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

_KEY = re.compile(r"""( *)(?:([A-Za-z_/][A-Za-z0-9_./-]*)|"([^"\\]*)"|'([^']*)'):(?= |\Z)(.*)\Z""")
_SCALAR = re.compile(r" +([A-Za-z0-9_./@:-]+)( +#.*| *)\Z")
# Of a text that needs no quotes, whoever reads it: JSON's form is YAML's as well.
_WORD = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*")
_RESERVED = frozenset(
    word
    for plain in ("true", "false", "null", "yes", "no", "on", "off", "y", "n")
    for word in (plain, plain.capitalize(), plain.upper())
)
_BLANK = re.compile(r" *(#.*)?\Z")
_FLOW_LIST = re.compile(r"( +)\[([A-Za-z0-9_, ./-]*)\]( +#.*| *)\Z")


class NotEditable(ValueError):
    """The place is not in the YAML, or is not written in a way that can be edited by lines."""


class _KeyBlock(Struct, frozen=True):
    """A key: its line, the end of its block, its indent, and what stands behind the colon."""

    line: int
    end: int
    indent: int
    rest: str


def block_yaml(value: Mapping[str, Any]) -> str:
    """Return JSON data as YAML that `parse_yaml` reads as the same, in its own order.

    A key of more than 1,024 characters cannot be read.
    """
    text = _flow(value)
    lines = _block_lines(value) if text is None else [text]
    return "\n".join(lines) + "\n"


def set_value(text: str, path: Sequence[str], value: str) -> str:
    """Return YAML with the plain scalar at `path` set; its key is added if only it is missing.

    Raises NotEditable.
    """
    lines = text.split("\n")
    place = _find_key(lines, path)
    if place is None:
        parent = _require_key(lines, path[:-1])
        if not _BLANK.match(parent.rest):
            raise NotEditable(f"{'.'.join(path[:-1])} is not written in lines of its own")
        first = _child_indent(lines, parent)
        lines.insert(parent.line + 1, f"{' ' * first}{path[-1]}: {value}")
        return "\n".join(lines)
    found = _SCALAR.match(place.rest)
    if found is None or place.end != place.line + 1:
        raise NotEditable(f"{'.'.join(path)} is no plain word")
    head = lines[place.line][: len(lines[place.line]) - len(place.rest)]
    lines[place.line] = f"{head} {value}{found[2].rstrip()}"
    return "\n".join(lines)


def set_line(text: str, path: Sequence[str], value: str) -> str:
    """Return YAML `text` with whatever stands on the one line of `path` replaced by `value`.

    Raises NotEditable if the value is not on that line, or there is none.
    """
    lines = text.split("\n")
    place = _require_key(lines, path)
    if place.end != place.line + 1 or _BLANK.match(place.rest):
        raise NotEditable(f"{'.'.join(path)} is not on one line")
    head = lines[place.line][: len(lines[place.line]) - len(place.rest)]
    lines[place.line] = f"{head} {value}"
    return "\n".join(lines)


def copy_block(text: str, path: Sequence[str], name: str) -> str:
    """Return YAML with the block at `path` once more right behind it, under another last key.

    Raises NotEditable.
    """
    lines = text.split("\n")
    place = _require_key(lines, path)
    copied = lines[place.line : place.end]
    copied[0] = f"{' ' * place.indent}{name}:{place.rest}"
    return "\n".join([*lines[: place.end], *copied, *lines[place.end :]])


def add_list_item(text: str, item: str, neighbour: str, keys: Sequence[str]) -> str:
    """Return YAML with `item` added to every list under one of `keys` that names `neighbour`.

    Lists in brackets on one line, and lists of one item a line. Items that are there stay.
    """
    lines, out = text.split("\n"), list[str]()
    at = 0
    while at < len(lines):
        line = lines[at]
        out.append(line)
        at += 1
        found = _KEY.match(line.replace("- ", "  ", 1) if line.lstrip().startswith("- ") else line)
        if found is None or (found[2] or found[3] or found[4]) not in keys:
            continue
        flow = _FLOW_LIST.match(found[5])
        if flow is not None:
            items = [one.strip() for one in flow[2].split(",") if one.strip()]
            if neighbour in items and item not in items:
                items.insert(items.index(neighbour) + 1, item)
                head = line[: len(line) - len(found[5])]
                out[-1] = f"{head}{flow[1]}[{', '.join(items)}]{flow[3].rstrip()}"
            continue
        block = []
        while at < len(lines) and re.match(r" *- +[A-Za-z0-9_./-]+( +#.*| *)\Z", lines[at]):
            block.append(lines[at])
            at += 1
        names = [one.strip()[1:].split("#")[0].strip() for one in block]
        if neighbour in names and item not in names:
            place = names.index(neighbour)
            dash = block[place].index("-")
            block.insert(place + 1, f"{' ' * dash}- {item}")
        out += block
    return "\n".join(out)


def append_item(text: str, path: Sequence[str], item: Mapping[str, Any]) -> str:
    """Return YAML with one more mapping at the end of the list at `path`, in lines of its own.

    Raises NotEditable.
    """
    lines = text.split("\n")
    place = _require_key(lines, path)
    flow = place.rest.partition("#")[0].strip()
    if flow not in ("", "[]"):
        raise NotEditable(f"{'.'.join(path)} is not written in lines of its own")
    if flow == "[]":
        lines[place.line] = lines[place.line].replace(" []", "", 1)
    starts = _item_starts(lines, place)
    indent = _indent(lines[starts[0]]) if starts else place.indent + 2
    lines[place.end : place.end] = _item_lines(item, indent)
    return "\n".join(lines)


def replace_in_item(text: str, path: Sequence[str], index: int, changes: Mapping[str, Any]) -> str:
    """Return YAML with keys of the mapping at `index` of the list at `path` replaced, whole.

    What else stands in that item stays as it is, comments too; a key that is not there comes
    behind the first. Raises NotEditable.
    """
    lines = text.split("\n")
    for key, value in changes.items():
        place = _require_key(lines, path)
        starts = _item_starts(lines, place)
        if index >= len(starts):
            raise NotEditable(f"{'.'.join(path)} has no item {index} in lines of its own")
        start = starts[index]
        end = starts[index + 1] if index + 1 < len(starts) else place.end
        deep, behind = _indent(lines[start]) + 2, 0
        for at in range(start, end):
            line = lines[at].replace("- ", "  ", 1) if at == start else lines[at]
            found = _KEY.match(line)
            if found and _indent(line) == deep and key in (found[2], found[3], found[4]):
                break
        else:
            if not _KEY.match(lines[start].replace("- ", "  ", 1)):
                raise NotEditable(f"the item has no {key} in lines of its own")
            at = behind = _end(lines, start, end, deep)
        new = _item_lines({key: value}, deep - 2)
        if at != start:
            new[0] = new[0].replace("- ", "  ", 1)
        lines[at : behind or _end(lines, at, end, deep)] = new
    return "\n".join(lines)


def _item_lines(item: Mapping[str, Any], indent: int) -> list[str]:
    """Return a mapping as an item of a block list; lists of plain values on one line."""
    found = list(_block_lines(item))
    return [" " * indent + ("- " if at == 0 else "  ") + line for at, line in enumerate(found)]


def _block_lines(value: Any) -> Iterator[str]:
    """Yield JSON data as YAML in lines of its own."""
    if isinstance(value, Mapping):
        for key, member in value.items():
            if (text := _flow(member)) is None:
                yield f"{_scalar(key)}:"
                yield from (f"  {line}" for line in _block_lines(member))
            else:
                yield f"{_scalar(key)}: {text}"
        return
    for item in value:
        if (text := _flow(item)) is not None:
            yield f"- {text}"
            continue
        for at, line in enumerate(_block_lines(item)):
            yield f"{'  ' if at else '- '}{line}"


def _flow(value: Any) -> str | None:
    """Return data that stands on one line: a scalar, a list of scalars, nothing at all."""
    if isinstance(value, Mapping):
        return None if value else "{}"
    if not isinstance(value, list):
        return _scalar(value)
    if any(isinstance(one, Mapping | list) for one in value):
        return None
    return f"[{', '.join(_scalar(one) for one in value)}]"


def _scalar(value: Any) -> str:
    if isinstance(value, str) and _WORD.fullmatch(value) and value not in _RESERVED:
        return value
    if not isinstance(value, str):
        return json.dumps(value)
    return f'"{"".join(map(_quoted_letter, value))}"'


def _quoted_letter(letter: str) -> str:
    """Return a letter as it stands in double quotes.

    Escaped is what cannot be seen, as JSON has it, but for what JSON writes in two halves.
    """
    if letter.isprintable() and letter not in '"\\':
        return letter
    return json.dumps(letter)[1:-1] if ord(letter) < 0x10000 else f"\\U{ord(letter):08x}"


def _item_starts(lines: list[str], place: _KeyBlock) -> list[int]:
    """Return the lines on which the items of a block list begin."""
    starts: list[int] = []
    for at in range(place.line + 1, place.end):
        if lines[at].lstrip().startswith("- ") and (
            not starts or _indent(lines[at]) == _indent(lines[starts[0]])
        ):
            starts.append(at)
    return starts


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _require_key(lines: list[str], path: Sequence[str]) -> _KeyBlock:
    place = _find_key(lines, path)
    if place is None:
        raise NotEditable(f"there is no {'.'.join(path)} in lines of its own")
    return place


def _find_key(lines: list[str], path: Sequence[str]) -> _KeyBlock | None:
    start, end, least = 0, len(lines), -1
    place = None
    for name in path:
        place = None
        indent = None
        for at in range(start, end):
            if _BLANK.match(lines[at]):
                continue
            deep = _indent(lines[at])
            if deep <= least:
                break
            indent = deep if indent is None else indent
            found = _KEY.match(lines[at])
            if deep == indent and found and name in (found[2], found[3], found[4]):
                place = _KeyBlock(at, _end(lines, at, end, deep), deep, found[5])
                break
        if place is None:
            return None
        start, end, least = place.line + 1, place.end, place.indent
    return place


def _end(lines: list[str], at: int, end: int, indent: int) -> int:
    """Return the line behind a key's block; comments and blank lines before the next key stay.

    The items of a list may stand at the key's own indent.
    """
    last = at
    for line in range(at + 1, end):
        if _BLANK.match(lines[line]):
            continue
        deep = _indent(lines[line])
        if deep < indent or (deep == indent and not lines[line].lstrip().startswith("- ")):
            break
        last = line
    return last + 1


def _child_indent(lines: list[str], parent: _KeyBlock) -> int:
    for at in range(parent.line + 1, parent.end):
        if not _BLANK.match(lines[at]):
            return _indent(lines[at])
    return parent.indent + 2
