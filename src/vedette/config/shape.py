"""Checks the shape of a document against a model and says in plain words what does not fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from vedette.config.field import Shape, Table, Tagged
from vedette.config.kinds import Errors, Kind
from vedette.config.problem import Problem, did_you_mean, find_nearest
from vedette.config.yaml import Document, KeyPath

__all__ = ["Shape", "check_document", "describe_error", "field_description", "to_problem"]

M = TypeVar("M", bound=Shape)

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


def check_document(model: type[M], document: Document) -> tuple[M | None, list[Problem]]:
    """Return the document as `model`, or None and a problem for each thing that does not fit."""
    if not isinstance(document.value, dict):
        found = "is empty" if document.value is None else "is not a mapping"
        mend = "begin with the keys " + ", ".join(list(model.fields())[:3])
        return None, [document.problem((), found, mend, code="wrong-type")]
    errors: Errors = []
    shape = model.check(document.value, (), errors)
    return shape, [to_problem(model, document, found) for found in errors]


def to_problem(model: type[Shape], document: Document, error: Mapping[str, Any]) -> Problem:
    """Return one error as a problem at its line of the document."""
    path = _document_path(document, error["loc"])
    what, mend = describe_error(model, error)
    return document.problem(path, what, mend, code=_code(str(error["type"])))


def _code(kind: str) -> str:
    """Return the code of one kind of misfit."""
    if kind in _TYPES:
        return "wrong-type"
    return {"missing": "missing-key", "extra_forbidden": "no-such-key"}.get(kind, "bad-value")


def _document_path(document: Document, loc: tuple[str | int, ...]) -> KeyPath:
    """Drop from a path what tells models apart: it is no key of the file."""
    path: list[str | int] = []
    value = document.value
    for position, part in enumerate(loc):
        found, inner = _find_child(value, part)
        if found:
            value = inner
        elif not (position == len(loc) - 1 and isinstance(value, dict)):
            continue
        path.append(part)
    return tuple(path)


def _find_child(value: Any, part: str | int) -> tuple[bool, Any]:
    if isinstance(value, dict) and part in value:
        return True, value[part]
    if isinstance(value, list) and isinstance(part, int) and part < len(value):
        return True, value[part]
    return False, None


def describe_error(model: type[Shape], error: Mapping[str, Any]) -> tuple[str, str]:
    """Return what is wrong and the mend for one error."""
    kind, context = error["type"], error.get("ctx", {})
    if kind == "missing":
        name = str(error["loc"][-1])
        return "is missing", field_description(model, error["loc"]) or f"add {name}:"
    if kind == "extra_forbidden":
        known = _siblings(model, error["loc"])
        return "unknown key", did_you_mean(str(error["loc"][-1]), known)
    if kind in ("literal_error", "union_tag_invalid"):
        expected = str(context.get("expected") or context.get("expected_tags"))
        given = error["input"] if kind == "literal_error" else context.get("tag")
        words = [word.strip(" '") for word in expected.replace(" or ", ",").split(",")]
        nearest = find_nearest(given, words) if isinstance(given, str) else None
        mend = f"did you mean {nearest!r}?" if nearest else f"write {expected}"
        return f"{given!r} is not known here", mend
    if kind == "union_tag_not_found":
        return "needs a `kind`", "add kind ="
    if kind in _TYPES:
        return f"must be {_TYPES[kind]}, found {_describe_value(error['input'])}", _MENDS.get(
            kind, ""
        )
    if kind == "plugin":
        return str(context["what"]), str(context["mend"] or "")
    if kind == "value_error":
        what, _, mend = str(context["error"]).partition(" | ")
        return what, mend
    if kind in ("greater_than_equal", "less_than_equal", "greater_than"):
        bound = context.get("ge", context.get("le", context.get("gt")))
        than = {"greater_than_equal": "at least", "less_than_equal": "at most"}
        return f"must be {than.get(kind, 'more than')} {bound}, found {error['input']}", ""
    if kind in ("too_short", "string_too_short"):
        return "is empty", field_description(model, error["loc"])
    return str(error["msg"]), ""


def field_description(model: type[Shape], loc: tuple[str | int, ...]) -> str:
    """Return the description of the field at `loc`, as the model gives it: it is the mend."""
    owner = _owner(model, loc)
    field = owner.fields().get(str(loc[-1])) if owner else None
    return (field.description or "") if field else ""


def _siblings(model: type[Shape], loc: tuple[str | int, ...]) -> list[str]:
    owner = _owner(model, loc)
    return list(owner.fields()) if owner else []


def _owner(model: type[Shape], loc: tuple[str | int, ...]) -> type[Shape] | None:
    """Return the model that holds the last part of `loc`."""
    owner: type[Shape] | None = model
    kind: Kind | None = None
    for part in loc[:-1]:
        if isinstance(part, int):
            continue
        if kind is not None and part in (tables := _tables(kind)):
            owner, kind = tables[part].shape, None
            continue
        field = owner.fields().get(part) if owner else None
        if field is None or field.kind is None:
            return None
        kind = field.kind
        owner = next(kind.models(), None)
    return owner


def _tables(kind: Any) -> Mapping[str, Table]:
    """Return the models that a kind tells apart, wherever within it it does so."""
    while kind is not None and not isinstance(kind, Tagged):
        kind = getattr(kind, "item", None) or getattr(kind, "kind", None)
    return {} if kind is None else kind.tables


def _describe_value(value: object) -> str:
    names = {bool: "true or false", str: "text", dict: "a mapping", list: "a list"}
    if value is None:
        return "nothing"
    if type(value) in (int, float):
        return f"the number {value}"
    if isinstance(value, str) and len(value) < 40:
        return f"the text {value!r}"
    return names.get(type(value), type(value).__name__)
