"""Shape of a document, checked against a model; what does not fit is said in plain words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from vedette.config.field import Shape
from vedette.config.kinds import Errors
from vedette.config.problem import Problem, did_you_mean, find_nearest
from vedette.config.yaml import Document

M = TypeVar("M", bound=Shape)

_TYPES = {
    "string_type": "text",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
}
_MENDS = {
    "string_type": "put quotes around it",
    "int_type": "write it without quotes or fraction",
    "bool_type": "write true or false without quotes",
    "list_type": "write one item per line, each after a dash",
}
_BOUNDS = {
    "greater_than_equal": "at least", "less_than_equal": "at most", "greater_than": "more than",
}  # fmt: skip


def check_document(model: type[M], document: Document) -> tuple[M | None, list[Problem]]:
    """Return the document as `model`, or None and a problem for each thing that does not fit."""
    if not isinstance(document.value, dict):
        found = "is empty" if document.value is None else "is not a mapping"
        mend = "begin with the keys " + ", ".join(list(model.fields())[:3])
        return None, [document.problem((), found, mend, code="wrong-type")]
    errors: Errors = []
    shape = model.check(document.value, (), errors)
    return shape, [to_problem(document, found) for found in errors]


def to_problem(document: Document, error: Mapping[str, Any]) -> Problem:
    """Return one error as a problem at its line of the document that people wrote."""
    what, mend = describe_shape_error(error)
    return document.problem(error["loc"], what, mend, code=_code(str(error["type"])))


def _code(kind: str) -> str:
    """Return the code of one kind of misfit."""
    if kind in _TYPES:
        return "wrong-type"
    return {"missing": "missing-key", "extra_forbidden": "no-such-key"}.get(kind, "bad-value")


def describe_shape_error(error: Mapping[str, Any]) -> tuple[str, str]:
    """Return what is wrong and the mend for one error in a document's shape."""
    kind, context, value = error["type"], error["ctx"], error["input"]
    description = error.get("description") or ""
    if kind == "missing":
        return "is missing", description or f"add {error['loc'][-1]}:"
    if kind == "extra_forbidden":
        return "unknown key", did_you_mean(str(error["loc"][-1]), context["known"])
    if kind in ("literal_error", "union_tag_invalid"):
        given, expected = context.get("tag", value), str(context["expected"])
        words = [word.strip(" '") for word in expected.replace(" or ", ",").split(",")]
        nearest = find_nearest(given, words) if isinstance(given, str) else None
        mend = f"did you mean {nearest!r}?" if nearest else f"write {expected}"
        return f"{given!r} is not known here", mend
    if kind == "union_tag_not_found":
        return "needs a `kind`", "add kind ="
    if kind in _TYPES:
        return f"must be {_TYPES[kind]}, found {_describe_value(value)}", _MENDS.get(kind, "")
    if kind == "plugin":
        return str(context["what"]), str(context["mend"] or "")
    if kind == "value_error":
        what, _, mend = str(context["error"]).partition(" | ")
        return what, mend
    if kind in _BOUNDS:
        return f"must be {_BOUNDS[kind]} {context['bound']}, found {value}", ""
    if kind == "too_short":
        return "is empty", description
    return str(error["msg"]), ""


def _describe_value(value: object) -> str:
    names = {bool: "true or false", str: "text", dict: "a mapping", list: "a list"}
    if value is None:
        return "nothing"
    if type(value) in (int, float):
        return f"the number {value}"
    if isinstance(value, str) and len(value) < 40:
        return f"the text {value!r}"
    return names.get(type(value), type(value).__name__)
