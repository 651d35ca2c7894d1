"""Edits of plain YAML by its lines: one value, one copied block, one more item of a list.

People write these files and keep comments in them, so nothing but the lines in question is
touched. Block mappings are known, and lists in brackets or in lines; whatever else a file holds
there is refused. Each caller reads the result again and compares what it means, so that an edit
that went wrong changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

_KEY = re.compile(r"""( *)(?:([A-Za-z_/][A-Za-z0-9_./-]*)|"([^"\\]*)"|'([^']*)'):(?= |\Z)(.*)\Z""")
_SCALAR = re.compile(r" +([A-Za-z0-9_./@:-]+)( +#.*| *)\Z")
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


def set_value(text: str, path: Sequence[str], value: str) -> str:
    """Return YAML with the plain scalar at `path` set; its key is added if only it is missing.

    Raises NotPlain.
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

    Raises NotPlain if the value is not on that line, or there is none.
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

    Raises NotPlain.
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
            deep = len(lines[at]) - len(lines[at].lstrip(" "))
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
    """Return the line behind a key's block; comments and blank lines before the next key stay."""
    last = at
    for line in range(at + 1, end):
        if _BLANK.match(lines[line]):
            continue
        if len(lines[line]) - len(lines[line].lstrip(" ")) <= indent:
            break
        last = line
    return last + 1


def _child_indent(lines: list[str], parent: _KeyBlock) -> int:
    for at in range(parent.line + 1, parent.end):
        if not _BLANK.match(lines[at]):
            return len(lines[at]) - len(lines[at].lstrip(" "))
    return parent.indent + 2
