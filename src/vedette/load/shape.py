"""Checks the shape of a document against a model and says in plain words what does not fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from vedette.load.problem import Problem, did_you_mean, near
from vedette.load.yaml_file import Document, KeyPath


class Shape(BaseModel):
    """Base of all file models: no unknown keys, no silent conversions."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


M = TypeVar("M", bound=BaseModel)

_TYPES = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}
_MENDS = {
    "string_type": "put quotes around it",
    "int_type": "write it without quotes or fraction",
    "bool_type": "write true or false without quotes",
    "list_type": "write one item per line, each after a dash",
}


def fit(model: type[M], document: Document) -> tuple[M | None, list[Problem]]:
    """Return the document as `model`, or None and a problem for each thing that does not fit."""
    if not isinstance(document.value, dict):
        found = "is empty" if document.value is None else "is not a mapping"
        mend = "begin with the keys " + ", ".join(list(model.model_fields)[:3])
        return None, [document.problem((), found, mend)]
    try:
        return model.model_validate(document.value), []
    except ValidationError as error:
        return None, [problem_of(model, document, found) for found in error.errors()]


def problem_of(model: type[BaseModel], document: Document, found: Mapping[str, Any]) -> Problem:
    """Return one error of pydantic as a problem at its line of the document."""
    path = _known(document, found["loc"])
    what, mend = sentence(model, found)
    return document.problem(path, what, mend)


def _known(document: Document, loc: tuple[str | int, ...]) -> KeyPath:
    """Drop what pydantic adds to a path: names of union members are no keys of the file."""
    path: list[str | int] = []
    value = document.value
    for position, part in enumerate(loc):
        found, inner = _at(value, part)
        if found:
            value = inner
        elif not (position == len(loc) - 1 and isinstance(value, dict)):
            continue
        path.append(part)
    return tuple(path)


def _at(value: Any, part: str | int) -> tuple[bool, Any]:
    if isinstance(value, dict) and part in value:
        return True, value[part]
    if isinstance(value, list) and isinstance(part, int) and part < len(value):
        return True, value[part]
    return False, None


def sentence(model: type[BaseModel], found: Mapping[str, Any]) -> tuple[str, str]:
    """Return what is wrong and the mend for one error of pydantic."""
    kind, context = found["type"], found.get("ctx", {})
    if kind == "missing":
        name = str(found["loc"][-1])
        return "is missing", describe(model, found["loc"]) or f"add {name}:"
    if kind == "extra_forbidden":
        known = _siblings(model, found["loc"])
        return "unknown key", did_you_mean(str(found["loc"][-1]), known)
    if kind in ("literal_error", "union_tag_invalid"):
        expected = str(context.get("expected") or context.get("expected_tags"))
        given = found["input"] if kind == "literal_error" else context.get("tag")
        words = [word.strip(" '") for word in expected.replace(" or ", ",").split(",")]
        nearest = near(given, words) if isinstance(given, str) else None
        mend = f"did you mean {nearest!r}?" if nearest else f"write {expected}"
        return f"{given!r} is not known here", mend
    if kind == "union_tag_not_found":
        return "needs a `kind`", "add kind ="
    if kind in _TYPES:
        return f"must be {_TYPES[kind]}, found {_name(found['input'])}", _MENDS.get(kind, "")
    if kind == "value_error":
        what, _, mend = str(context["error"]).partition(" | ")
        return what, mend
    if kind in ("greater_than_equal", "less_than_equal", "greater_than"):
        bound = context.get("ge", context.get("le", context.get("gt")))
        than = {"greater_than_equal": "at least", "less_than_equal": "at most"}
        return f"must be {than.get(kind, 'more than')} {bound}, found {found['input']}", ""
    if kind in ("too_short", "string_too_short"):
        return "is empty", describe(model, found["loc"])
    return str(found["msg"]), ""


def describe(model: type[BaseModel], loc: tuple[str | int, ...]) -> str:
    """Return the description of the field at `loc`, as the model gives it: it is the mend."""
    owner = _owner(model, loc)
    field = owner.model_fields.get(str(loc[-1])) if owner else None
    if owner and not field:
        field = next((f for f in owner.model_fields.values() if f.alias == loc[-1]), None)
    return field.description or "" if field else ""


def _siblings(model: type[BaseModel], loc: tuple[str | int, ...]) -> list[str]:
    owner = _owner(model, loc)
    if owner is None:
        return []
    return [field.alias or name for name, field in owner.model_fields.items()]


def _owner(model: type[BaseModel], loc: tuple[str | int, ...]) -> type[BaseModel] | None:
    """Return the model that holds the last part of `loc`."""
    owner: type[BaseModel] | None = model
    for part in loc[:-1]:
        if isinstance(part, int) or owner is None:
            continue
        field = owner.model_fields.get(part)
        if field is None:
            continue
        owner = _model_in(field.annotation, loc)
    return owner


def _model_in(annotation: Any, loc: tuple[str | int, ...]) -> type[BaseModel] | None:
    """Find the model in an annotation such as `list[X]` or a union told apart by `kind`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = [
        inner
        for arg in getattr(annotation, "__args__", ())
        if (inner := _model_in(arg, loc)) is not None
    ]
    for inner in found:
        kind = inner.model_fields.get("kind")
        if kind is not None and any(part == _tag(kind.annotation) for part in loc):
            return inner
    return found[0] if found else None


def _tag(annotation: Any) -> object:
    args = getattr(annotation, "__args__", ())
    return args[0] if args else None


def _name(value: object) -> str:
    names = {bool: "true or false", str: "text", dict: "a mapping", list: "a list"}
    if value is None:
        return "nothing"
    if type(value) in (int, float):
        return f"the number {value}"
    if isinstance(value, str) and len(value) < 40:
        return f"the text {value!r}"
    return names.get(type(value), type(value).__name__)
