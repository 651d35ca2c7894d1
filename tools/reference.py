"""Writes docs/reference/ out of the schemas and the catalogue of errors.

`UPDATE=1 pytest tests/acceptance/test_reference_docs.py` writes it; without UPDATE the test
compares. What is told of a key stands beside its declaration in src/vedette/config.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from vedette.config.agent_file import agent_schema
from vedette.config.bank import bank_schema
from vedette.config.settings_file import settings_schema
from vedette.interfaces.cli.error_codes import EXPLANATIONS

_WRITTEN = "Written by `UPDATE=1 pytest tests/acceptance/test_reference_docs.py`; a test compares."


def pages() -> dict[str, str]:
    """Return the pages of docs/reference/ by file name."""
    return {
        "agent-yaml.md": _page(
            "agent.yaml",
            "The declaration of one agent, in `agents/NAME/`. It *requests*; policy *grants*.",
            agent_schema(),
        ),
        "bank-yaml.md": _page(
            "bank.yaml",
            "The declaration of one memory bank, in `memory/NAME/`. Memories stand beside it as"
            " Markdown files with front matter.",
            bank_schema(),
        ),
        "vedette-toml.md": _page(
            "vedette.toml",
            "The settings of one fleet. An environment variable has the last word: `VEDETTE_STATE`,"
            " `VEDETTE_LIMITS__MAX_HOPS`, two underscores between table and key. What each kind of"
            " target takes is in the commented file that `vedette init` writes.",
            settings_schema(),
        ),
        "errors.md": _errors(),
    }


def _page(title: str, introduction: str, schema: Mapping[str, Any]) -> str:
    parts = [f"# {title}\n", f"{_WRITTEN}\n", f"{introduction}\n", *_object(schema, None)]
    for name, shape in schema.get("$defs", {}).items():
        parts += _object(shape, _name(name))
    return "\n".join(parts)


def _object(shape: Mapping[str, Any], title: str | None) -> Iterator[str]:
    if title is not None:
        yield f"## {title}\n"
    about = " ".join(str(shape.get("description", "")).split())
    if about:
        yield f"{about}\n"
    needed = set(shape.get("required", ()))
    yield "| key | takes | default | what it is |"
    yield "|---|---|---|---|"
    for key, given in shape.get("properties", {}).items():
        default = "**needed**" if key in needed else _default(given)
        what = " ".join(str(given.get("description", "")).split())
        yield f"| `{key}` | {_cell(_takes(given))} | {_cell(default)} | {_cell(what)} |"
    yield ""


def _name(name: str) -> str:
    """Return the name of a table: `CsvFile` is told of as `csv`."""
    return re.sub(r"(?<!^)(?=[A-Z])", " ", name.removesuffix("File")).lower()


def _default(given: Mapping[str, Any]) -> str:
    value = given.get("default")
    # The default of a table is that of its keys, which stand in a table of their own.
    return (
        "–"
        if value in (None, []) or isinstance(value, dict)
        else f"`{json.dumps(value, ensure_ascii=False)}`"
    )


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


_PLAIN = {
    "string": "text", "integer": "a whole number", "number": "a number", "boolean": "true or false",
    "null": "nothing", "object": "a mapping",
}  # fmt: skip


def _takes(given: Mapping[str, Any]) -> str:
    """Say in words what a value may be."""
    if "$ref" in given:
        name = _name(given["$ref"].rsplit("/", 1)[1])
        return f"[{name}](#{name.replace(' ', '-')})"
    for several in ("anyOf", "oneOf"):
        if several in given:
            found = [_takes(one) for one in given[several] if one.get("type") != "null"]
            return " or ".join(dict.fromkeys(found))
    if "const" in given:
        return f"`{given['const']}`"
    if "enum" in given:
        return ", ".join(f"`{word}`" for word in given["enum"])
    kind = given.get("type")
    if kind == "array":
        return f"a list of {_takes(given.get('items', {}))}"
    if kind == "object" and isinstance(given.get("additionalProperties"), Mapping):
        return f"a mapping to {_takes(given['additionalProperties'])}"
    words = _PLAIN.get(str(kind), "anything")
    bounds = [
        f"{said} {given[name]}"
        for name, said in (
            ("minimum", "at least"), ("maximum", "at most"), ("exclusiveMinimum", "more than"),
        )
        if name in given
    ]  # fmt: skip
    return f"{words}, {', '.join(bounds)}" if bounds else words


def _errors() -> str:
    parts = [
        "# Error codes\n",
        f"{_WRITTEN}\n",
        "Every error has a code, in brackets after `error` and under `code` in JSON. A code keeps"
        " its meaning. `vedette explain --error CODE` prints the same.\n",
    ]
    for code, lesson in EXPLANATIONS.items():
        parts += [
            f"## {code}\n",
            f"{lesson.meaning} {lesson.cause}\n",
            f"**Mend:** {lesson.mend}\n",
        ]
    return "\n".join(parts)
