"""[[displays]] in vedette.toml: what people are shown of events whose types are the fleet's own."""

from __future__ import annotations

from typing import Annotated, Any

from vedette.config.field import AfterValidator, Field
from vedette.config.problem import Problem
from vedette.config.settings_table import SettingsTable
from vedette.config.yaml import Document, KeyPath
from vedette.domain.base.errors import BadProposal
from vedette.domain.display import MAX_FIELDS, Display
from vedette.domain.origin import split_pointer

_ROOTS = ("data", "subject", "source", "id", "type", "time", "extensions")
_MAX_NAME = 24


def _pointer(text: str) -> str:
    try:
        parts = split_pointer(text)
    except BadProposal as error:
        raise ValueError(
            f"{text[:60]!r} is no JSON Pointer | write for example /data/from"
        ) from error
    if parts[0] not in _ROOTS:
        names = ", ".join(f"/{root}" for root in _ROOTS)
        raise ValueError(f"an event has no {parts[0]!r} | begin with one of {names}")
    return text


Pointer = Annotated[str, AfterValidator(_pointer)]


class DisplayFile(SettingsTable):
    """What people are shown of events of a type before they answer what comes of them."""

    type: str = Field(description="the type of events, or a pattern: order.*", min_length=1)
    source: str = Field(default="*", description="their source, or a pattern", min_length=1)
    title: Pointer = Field(default="/subject", description="where it says what it is about")
    who: Pointer = Field(default="/source", description="where it says who it is from")
    when: Pointer = Field(default="/time", description="where it says when it was")
    values: dict[str, str] = Field(
        default_factory=dict, description="up to five more, by the names they are shown under"
    )
    text: Pointer | None = Field(
        default=None, description="where its text is, of which the first lines are shown"
    )


def build_displays(shape: Any) -> tuple[Display, ...]:
    """Return the displays that the settings declare, in the order in which they are tried."""
    return tuple(
        Display(one.type, one.title, one.who, one.when, dict(one.values), one.text, one.source)
        for one in shape.displays
    )


def display_problems(shape: Any, document: Document) -> list[Problem]:
    """Return what is wrong with [[displays]] beyond its shape."""
    problems = []
    seen: set[tuple[str, str]] = set()
    for index, one in enumerate(shape.displays):
        path: KeyPath = ("displays", index)
        if (one.type, one.source) in seen:
            what = f"events of {one.type!r} from {one.source!r} have a display already"
            problems.append(document.problem((*path, "type"), what, "leave one of them"))
        seen.add((one.type, one.source))
        if len(one.values) > MAX_FIELDS:
            what = f"{len(one.values)} values are more than are shown at once"
            problems.append(document.problem((*path, "values"), what, f"name at most {MAX_FIELDS}"))
        for name, pointer in one.values.items():
            if not (name.isprintable() and name.strip() and len(name) <= _MAX_NAME):
                what, mend = (
                    f"{name[:40]!r} names no value",
                    f"write 1 to {_MAX_NAME} plain characters",
                )
                problems.append(document.problem((*path, "values", name), what, mend))
            try:
                _pointer(pointer)
            except ValueError as error:
                what, _, mend = str(error).partition(" | ")
                problems.append(document.problem((*path, "values", name), what, mend))
    return problems
