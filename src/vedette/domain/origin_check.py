"""The origins of a recorded action today: by the charter, registry and rules of now."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from vedette.domain.argument_schema import read_number_text
from vedette.domain.base.canonical import normalize_json
from vedette.domain.base.errors import BadProposal
from vedette.domain.origin import (
    Origin,
    bare_origin,
    collect_known_values,
    composite_origin,
    escape_pointer,
    resolve_path,
    split_pointer,
)
from vedette.domain.run import Superseded


def recompute_origins(
    record: Mapping[str, Any],
    charter: Mapping[str, Any],
    registry: Mapping[str, Any],
    reviewed: Collection[str] = (),
) -> dict[str, Origin]:
    """Return the origins of recorded arguments under today's charter and registry.

    `reviewed` are the ids of the reviewed memories that the run was briefed with. Raises Superseded
    if a value drawn from charter or registry by reference is not there any more, or if one that was
    trusted was drawn from another memory: labels of promoted ones were trusted once.
    """
    roots = {"charter": charter, "registry": registry}
    known = collect_known_values(charter, registry)
    sources: Mapping[str, str] = record["sources"]
    origins: dict[str, Origin] = dict(record["origins"])
    # Elements before what holds them: a list is worth what the worst of them is worth now.
    for pointer in sorted(origins, key=lambda each: -each.count("/")):
        value = resolve_path(record["args"], split_pointer(pointer))
        if pointer in sources:
            path = split_pointer(sources[pointer])
            if path[0] in roots:
                _check_unchanged(roots[path[0]], path, value, sources[pointer])
            elif path[0] == "memory" and origins[pointer] == "trusted" and path[1] not in reviewed:
                raise Superseded(f"{sources[pointer]} is trusted no more: nobody reviewed it")
        elif origins[pointer] == "registered":
            if _has_element_origins(value, pointer, origins):
                origins[pointer] = composite_origin(
                    value, pointer, origins, lambda key: bare_origin(key, known)
                )
            else:
                origins[pointer] = bare_origin(value, known)
    return origins


def _has_element_origins(value: Any, pointer: str, origins: Mapping[str, Origin]) -> bool:
    """Say whether a value is a list or an object whose elements have origins of their own."""
    if isinstance(value, Mapping):
        return bool(value) and all(f"{pointer}/{escape_pointer(name)}" in origins for name in value)
    if isinstance(value, list):
        return bool(value) and all(f"{pointer}/{index}" in origins for index in range(len(value)))
    return False


def _check_unchanged(root: Any, path: tuple[str, ...], value: Any, source: str) -> None:
    try:
        current = resolve_path(root, path[1:])
    except BadProposal as error:
        raise Superseded(f"{source} is no longer there") from error
    if not _is_same(current, value):
        raise Superseded(f"{source} says something else now")


def _is_same(current: Any, value: Any) -> bool:
    """Say whether a recorded value is what is drawn of the current one: as the record has it, or
    with the numbers that a schema made of it and of its texts.
    """
    if isinstance(current, Mapping):
        return (
            isinstance(value, Mapping)
            and {str(name) for name in current} == value.keys()
            and all(_is_same(item, value[str(name)]) for name, item in current.items())
        )
    if isinstance(current, list | tuple):
        return (
            isinstance(value, list)
            and len(current) == len(value)
            and all(map(_is_same, current, value))
        )
    drawn = normalize_json(current)
    number = read_number_text(drawn) if isinstance(drawn, str) else None
    return any(
        type(value) is type(each) and value == each
        for each in (drawn, number)
        if each is not None or drawn is None
    )
