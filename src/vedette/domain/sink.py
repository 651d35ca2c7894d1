"""Sinks within arguments: which values a sink's JSON Pointer names, and what they are worth."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from vedette.domain.origin import Origin, escape_pointer, split_pointer, worst_origin


def find_places(args: Mapping[str, Any], sink: str) -> list[str]:
    """Return the JSON Pointers of the values that a sink names in arguments: none if it is absent.

    `*` stands for every element of a list and every member of an object.
    """
    found: list[tuple[str, Any]] = [("", args)]
    for step in split_pointer(sink):
        below: list[tuple[str, Any]] = []
        for pointer, value in found:
            if isinstance(value, Mapping):
                names = list(value) if step == "*" else [step] if step in value else []
                below += [(f"{pointer}/{escape_pointer(name)}", value[name]) for name in names]
            elif isinstance(value, list):
                if step == "*":
                    below += [(f"{pointer}/{at}", item) for at, item in enumerate(value)]
                elif step.isascii() and step.isdecimal() and int(step) < len(value):
                    below.append((f"{pointer}/{step}", value[int(step)]))
        found = below
    return [pointer for pointer, _ in found]


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
