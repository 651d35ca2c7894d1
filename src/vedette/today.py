"""What a recorded action is worth today: its origins under the charter and registry of now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vedette.digest import tame
from vedette.errors import BadProposal
from vedette.moved import Superseded
from vedette.origin import Origin, strings, tokens, walk


def origins_today(
    record: Mapping[str, Any], charter: Mapping[str, Any], registry: Mapping[str, Any]
) -> dict[str, Origin]:
    """Return the origins of recorded arguments under today's charter and registry.

    Raises Superseded if a value drawn from either by reference is not there any more.
    """
    roots = {"charter": charter, "registry": registry}
    known: frozenset[str] | None = None
    origins: dict[str, Origin] = dict(record["origins"])
    for pointer, origin in origins.items():
        value = record["args"][tokens(pointer)[0]]
        path = tokens(record["sources"][pointer]) if pointer in record["sources"] else []
        if path and path[0] in roots:
            try:
                today = walk(roots[path[0]], path[1:])
            except BadProposal as error:
                raise Superseded(f"{record['sources'][pointer]} is no longer there") from error
            if tame(today) != value:
                raise Superseded(f"{record['sources'][pointer]} says something else now")
        elif origin == "registered":
            if known is None:
                known = frozenset((*strings(charter), *strings(registry)))
            if value not in known:
                origins[pointer] = "derived"
    return origins
