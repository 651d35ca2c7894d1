"""Data files of a policy bundle, mounted by directory as OPA mounts them, but read strictly.

OPA reads YAML as version 1.1 and others read 1.2, where `no`, `010` and `1:30` mean different
things. Two engines that see different data decide differently, so whatever is not the same in both
is refused, and so are duplicate keys, anchors, tags and fractions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from vedette.digest import SAFE_INTEGER
from vedette.errors import BadPolicy
from vedette.load.quick_yaml import Unclear, quick_yaml

DATA_NAMES = ("data.yaml", "data.json")
_DEPTH = 32

_INTEGER = re.compile(r"(0|-?[1-9][0-9]*)\Z")
_PLAIN = re.compile(r"[A-Za-z/_]")
# Plain words that YAML 1.1, or some reader of 1.2, takes for something else than text.
_OTHER_WORDS = re.compile(
    r"(?i:y|yes|n|no|on|off|null|true|false|~|)\Z"
    r"|[-+]?(0[0-9_]+|0x[0-9a-f_]+|0o[0-7_]+|0b[01_]+)\Z"
    r"|[-+]?[0-9][0-9_]*(:[0-9]+)+(\.[0-9_]*)?\Z"
    r"|[-+]?([0-9][0-9_]*)?\.?[0-9_]+([eE][-+]?[0-9]+)?\Z|[-+]?[0-9][0-9_]*\.?([eE][-+]?[0-9]+)?\Z"
    r"|[-+]?\.(?i:inf|nan)\Z"
    r"|[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt ].*)?\Z|=\Z|<<\Z"
)


def is_data(path: str) -> bool:
    """Say whether a path of the bundle is a data file."""
    return path.rpartition("/")[2] in DATA_NAMES


def mount(files: Mapping[str, bytes]) -> dict[str, Any]:
    """Return the data document of a bundle.

    Raises BadPolicy naming file and line for what is not strict data, and for two files that
    give the same path.
    """
    document: dict[str, Any] = {}
    for path in sorted(filter(is_data, files)):
        folder = path.rpartition("/")[0]
        _merge(document, folder.split("/") if folder else [], read_data(path, files[path]), path)
    return document


def read_data(path: str, raw: bytes) -> dict[str, Any]:
    """Read one data file: an object of strict values. Raises BadPolicy with file and line."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise BadPolicy("not UTF-8", where=f"{path}:{line}", mend="save it as UTF-8") from error
    value = _json(path, text) if path.endswith(".json") else _yaml(path, text)
    if not isinstance(value, dict):
        raise BadPolicy(
            "a data file holds an object", where=f"{path}:1", mend="write `name: value` lines"
        )
    return value


def _merge(into: dict[str, Any], folder: list[str], found: dict[str, Any], path: str) -> None:
    for part in folder:
        inner = into.setdefault(part, {})
        if not isinstance(inner, dict):
            raise BadPolicy(f"another data file gives {part!r} a value", where=f"{path}:1")
        into = inner
    for name, value in found.items():
        if name in into:
            raise BadPolicy(
                f"{name!r} is given by another data file too", where=f"{path}:1", mend="keep one"
            )
        into[name] = value


def _json(path: str, text: str) -> Any:
    def whole(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in pairs:
            if name in found:
                quoted = json.dumps(name, ensure_ascii=False)
                second = text.find(quoted, text.find(quoted) + 1)
                line = text.count("\n", 0, max(second, 0)) + 1
                raise BadPolicy(f"duplicate key {name!r}", where=f"{path}:{line}", mend="keep one")
            found[name] = value
        return found

    def refuse(number: str) -> Any:
        line = text.count("\n", 0, max(text.find(number), 0)) + 1
        raise BadPolicy(
            f"{number} is not a safe integer", where=f"{path}:{line}", mend="use a smaller unit"
        )

    def integer(number: str) -> int:
        value = int(number) if len(number) < 20 else SAFE_INTEGER + 1
        return value if abs(value) <= SAFE_INTEGER else int(refuse(number))

    try:
        return json.loads(
            text,
            object_pairs_hook=whole,
            parse_float=refuse,
            parse_constant=refuse,
            parse_int=integer,
        )
    except json.JSONDecodeError as error:
        raise BadPolicy(error.msg, where=f"{path}:{error.lineno}") from error
    except RecursionError as error:
        raise BadPolicy("nested too deep", where=f"{path}:1") from error


def _yaml(path: str, text: str) -> Any:
    quick = quick_yaml(text, scalar=_quick_scalar)
    return _fully(path, text) if quick is None else quick[0]


def _quick_scalar(text: str) -> Any:
    """Return what a plain scalar means here; raise Unclear for what is refused or in doubt."""
    if text in ("true", "false"):
        return text == "true"
    if text == "null":
        return None
    if _INTEGER.match(text):
        if len(text) < 18 and abs(int(text)) <= SAFE_INTEGER:
            return int(text)
        raise Unclear
    if not _PLAIN.match(text) or _OTHER_WORDS.match(text):
        raise Unclear
    return text


def _fully(path: str, text: str) -> Any:
    """Read YAML with the full reader, which knows what is wrong with a text."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        root = YAML(typ="safe", pure=True).compose(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise BadPolicy(str(error.problem or error.context), where=f"{path}:{line}") from error
    except (YAMLError, ValueError, RecursionError) as error:
        raise BadPolicy(str(error).splitlines()[0], where=f"{path}:1") from error
    if root is None:
        raise BadPolicy("the file is empty", where=f"{path}:1", mend="write {} for no data")
    return _value(path, root, 0)


def _value(path: str, node: Any, depth: int) -> Any:
    from ruamel.yaml.nodes import MappingNode, SequenceNode

    where = f"{path}:{node.start_mark.line + 1}"
    if node.anchor is not None:
        raise BadPolicy("anchors are not read", where=where, mend="write the value out")
    if depth > _DEPTH:
        raise BadPolicy(f"nested deeper than {_DEPTH}", where=where)
    if isinstance(node, SequenceNode):
        _plain_tag(node, "seq", where)
        return [_value(path, item, depth + 1) for item in node.value]
    if isinstance(node, MappingNode):
        _plain_tag(node, "map", where)
        found: dict[str, Any] = {}
        for key_node, item in node.value:
            line = f"{path}:{key_node.start_mark.line + 1}"
            key = _value(path, key_node, depth + 1)
            if not isinstance(key, str):
                raise BadPolicy(f"key {key!r} is not a text", where=line, mend="quote it")
            if key in found:
                raise BadPolicy(f"duplicate key {key!r}", where=line, mend="keep one")
            found[key] = _value(path, item, depth + 1)
        return found
    return _scalar(node, where)


def _plain_tag(node: Any, kind: str, where: str) -> None:
    if str(node.tag) != f"tag:yaml.org,2002:{kind}":
        raise BadPolicy(f"tag {node.tag} is not read", where=where, mend="remove the tag")


def _scalar(node: Any, where: str) -> Any:
    text: str = node.value
    if node.style is not None:
        _plain_tag(node, "str", where)
        return text
    if text in ("true", "false"):
        return text == "true"
    if text == "null":
        return None
    if _INTEGER.match(text):
        if len(text) < 18 and abs(int(text)) <= SAFE_INTEGER:
            return int(text)
        raise BadPolicy(f"{text} is beyond the safe integers", where=where, mend="quote it")
    if _OTHER_WORDS.match(text):
        raise BadPolicy(
            f"{text!r} means different things to different readers of YAML",
            where=where,
            mend="quote it if it is text; write true, false, null and whole numbers plainly",
        )
    _plain_tag(node, "str", where)
    return text
