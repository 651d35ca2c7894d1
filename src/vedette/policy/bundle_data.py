"""Data files of a policy bundle, mounted by directory as OPA mounts them, but read strictly.

OPA reads YAML as version 1.1 and others read 1.2, where `no`, `010` and `1:30` mean different
things. Two engines that see different data decide differently, so whatever is not the same in both
is refused, and so are duplicate keys, anchors, tags and fractions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import orjson

from vedette.config.yaml import Document, KeyPath, parse_yaml
from vedette.domain.base.canonical import MAX_SAFE_INTEGER
from vedette.domain.base.errors import BadPolicy
from vedette.domain.bundle import Bundle

DATA_NAMES = ("data.yaml", "data.json")
_DEPTH = 32
# Two bundles' files. A start mounts one bundle five times, and to read YAML strictly is slow.
_MAX_FILES = 32

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
    """Say whether a path of a policy bundle is one of its data files."""
    return path.rpartition("/")[2] in DATA_NAMES


def mount(files: Mapping[str, bytes]) -> dict[str, Any]:
    """Return the data document of a policy bundle, mounted from its data files.

    Raises BadPolicy naming file and line for what is not strict data, and for two files that
    give the same path.
    """
    document: dict[str, Any] = {}
    for path in sorted(filter(is_data, files)):
        folder = path.rpartition("/")[0]
        _merge(document, folder.split("/") if folder else [], read_data(path, files[path]), path)
    return document


def write_bundle_folder(bundle: Bundle, folder: Path) -> None:
    """Write a policy bundle's rules and data for OPA's own programs; tests are left out."""
    files = {path: text.encode() for path, text in bundle.modules().items()}
    for path, raw in {**files, "data.json": orjson.dumps(mount(bundle.files))}.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(raw)


def read_data(path: str, raw: bytes) -> dict[str, Any]:
    """Read one data file of a policy bundle, strictly. Raises BadPolicy with file and line."""
    packed = _pack_data(path, raw)
    if packed is None:
        return _parse_data(path, raw)
    value: dict[str, Any] = orjson.loads(packed)
    return value


@lru_cache(_MAX_FILES)
def _pack_data(path: str, raw: bytes) -> bytes | None:
    """Return what a data file says as JSON, whoever asks again; None where it has half a letter."""
    value = _parse_data(path, raw)
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:
        return None


def _parse_data(path: str, raw: bytes) -> dict[str, Any]:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise BadPolicy("not UTF-8", where=f"{path}:{line}", mend="save it as UTF-8") from error
    value = _parse_json(path, text) if path.endswith(".json") else _parse_yaml(path, text)
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


def _parse_json(path: str, text: str) -> Any:
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
        value = int(number) if len(number) < 20 else MAX_SAFE_INTEGER + 1
        return value if abs(value) <= MAX_SAFE_INTEGER else int(refuse(number))

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


def _parse_yaml(path: str, text: str) -> Any:
    document, problems = parse_yaml(text, path, scalar=_parse_scalar, depth=_DEPTH)
    for problem in problems:
        # Said as of JSON.
        twice = "duplicate " if problem.what.endswith("is given twice") else ""
        raise BadPolicy(f"{twice}{problem.what}", where=problem.where, mend=problem.mend)
    if document.value is None:
        raise BadPolicy("the file is empty", where=f"{path}:1", mend="write {} for no data")
    _check_keys(document, document.value, ())
    return document.value


def _check_keys(document: Document, value: Any, path: KeyPath) -> None:
    if isinstance(value, list):
        for index, item in enumerate(value):
            _check_keys(document, item, (*path, index))
    elif isinstance(value, dict):
        for key, item in value.items():
            here = (*path, key)
            if not isinstance(key, str):
                where = f"{document.file}:{document.line(here)}"
                raise BadPolicy(f"key {key!r} is not a text", where=where, mend="quote it")
            _check_keys(document, item, here)


def _parse_scalar(text: str) -> Any:
    """Return what a plain scalar means here. Raises ValueError for what is refused."""
    if text in ("true", "false"):
        return text == "true"
    if text == "null":
        return None
    if _INTEGER.match(text):
        if len(text) < 18 and abs(int(text)) <= MAX_SAFE_INTEGER:
            return int(text)
        raise ValueError(f"{text} is beyond the safe integers", "quote it")
    if _OTHER_WORDS.match(text):
        raise ValueError(
            f"{text!r} means different things to different readers of YAML",
            "quote it if it is text; write true, false, null and whole numbers plainly",
        )
    return text
