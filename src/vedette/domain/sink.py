"""Sinks within arguments: which values a sink's JSON Pointer names, and what they are worth."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from vedette.domain.origin import Origin, escape_pointer, split_pointer, worst_origin

_EACH = "*"


def find_places(args: Mapping[str, Any], sink: str) -> list[str]:
    """Return the JSON Pointers of the values that a sink names in arguments: none if it is absent.

    `*` stands for every element of a list and every member of an object. A value in which a step
    cannot be taken (a text, a list where a member is named) stands for the sink itself: whoever
    performs the call may take it for what the sink names. Absent is only the member that an object
    lacks, or the element that a list lacks; behind a `*` not even that is, or one element that has
    the member would speak for its neighbours that have not.
    """
    found: list[tuple[str, Any]] = [("", args)]
    places: list[str] = []
    is_each = False
    for step in split_pointer(sink):
        below: list[tuple[str, Any]] = []
        for pointer, value in found:
            names = _take_step(value, step)
            if names is None or (is_each and not names):
                places.append(pointer)
            else:
                below += [(f"{pointer}/{escape_pointer(str(at))}", value[at]) for at in names]
        found = below
        is_each = is_each or step == _EACH
    return [*places, *(pointer for pointer, _ in found)]


def _take_step(value: Any, step: str) -> list[Any] | None:
    """Return the names or indices that a step leads to; None in a value that has none such."""
    if isinstance(value, Mapping):
        return list(value) if step == _EACH else [step] if step in value else []
    if isinstance(value, list):
        if step == _EACH:
            return list(range(len(value)))
        if step.isascii() and step.isdecimal() and len(step) < 10:
            return [int(step)] if int(step) < len(value) else []
    return None


def place_origin(pointer: str, origins: Mapping[str, Origin]) -> Origin:
    """Return the origin of a place in arguments: its own, or that of what it is labelled with."""
    while pointer and pointer not in origins:
        pointer = pointer.rpartition("/")[0]
    return origins.get(pointer, "untrusted")


def sink_origins(
    sinks: Collection[str], args: Mapping[str, Any], origins: Mapping[str, Origin]
) -> dict[str, Origin]:
    """Return the origin of each sink that is there: the worst of all places that it names."""
    return {
        sink: worst_origin([place_origin(at, origins) for at in places])
        for sink in sinks
        if (places := find_places(args, sink))
    }


def judge_origins(
    sinks: Collection[str],
    args: Mapping[str, Any],
    origins: Mapping[str, Origin],
    *,
    is_whole: bool,
) -> Mapping[str, Origin]:
    """Return the origins of arguments as policy is told them: those of sinks within them among
    them, of such as are absent only where the whole argument counts for them (`is_whole`).

    A step `*` is a sink's alone: the label of a member that a call named `*` would pass for it.
    """
    inner = [sink for sink in sinks if sink.count("/") > 1]
    if not inner and not any(f"/{_EACH}" in at for at in origins):
        return origins
    found = sink_origins(inner, args, origins)
    if is_whole:
        whole = {sink: "/" + sink.split("/")[1] for sink in inner if sink not in found}
        found |= {sink: origins[at] for sink, at in whole.items() if at in origins}
    own = {at: origin for at, origin in origins.items() if _EACH not in at.split("/")}
    return {**own, **found}
