"""Origins: where the value of an argument comes from, decided by the engine and never by a judge.

A Proposal names a value by reference (a pointer that the engine resolves itself) or gives it
bare. By reference the origin is that of the pointer's root; bare it is `derived`, or
`registered` if it equals an entry of the charter or the registry.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal

from vedette.errors import BadProposal
from vedette.quick_data import dataclass

Origin = Literal["trusted", "registered", "derived", "untrusted"]


@dataclass(frozen=True, slots=True)
class Ref:
    """A value named by where it is: `/event/data/from`, `/charter/folders/2`, `/outcome/1/id`."""

    pointer: str


@dataclass(frozen=True, slots=True)
class Roots:
    """Everything that one run may point at, with what is known of its origin.

    `vouched` names envelope attributes that the source authenticated; `data` is among them only
    for a tick, whose data the engine made of the agent's own schedule. Of an undo, which the engine
    made of the record, it names the places in the data that were trusted there (`data/args/to`).
    `trusted_memories` are the ids of memories that a person promoted, seeing their
    label: that is trusted, never the text. `trusted_outcomes` are the
    numbers of outcomes whose tool is declared to answer trusted data. `known` is what
    `known_values` says, where the caller knows it already.
    """

    event: Mapping[str, Any]
    vouched: frozenset[str]
    charter: Mapping[str, Any]
    registry: Mapping[str, Any]
    memory: Mapping[str, Mapping[str, Any]]
    trusted_memories: frozenset[str]
    outcome: Mapping[str, Any]
    trusted_outcomes: frozenset[str]
    row: Mapping[str, Any]
    known: frozenset[str] | None = None


@lru_cache(1024)
def tokens(pointer: str) -> tuple[str, ...]:
    """Split a JSON Pointer (RFC 6901). Raises BadProposal if it is not one.

    Agents point at few places, over and over: the last thousand are kept.
    """
    if not pointer.startswith("/"):
        raise BadProposal(f"{pointer!r} is not a JSON Pointer", mend="begin it with '/'")
    parts = pointer[1:].split("/")
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in parts)


def resolve(ref: Ref, roots: Roots) -> tuple[Any, Origin]:
    """Return the value that `ref` names and the origin of its root.

    Raises BadProposal if the pointer leads nowhere: a lost reference is never an empty value.
    """
    path = tokens(ref.pointer)
    if len(path) < 2:
        raise BadProposal(f"reference {ref.pointer!r} names a whole root", mend="point into it")
    root = path[0]
    if root not in ("event", "charter", "registry", "memory", "outcome", "row"):
        raise BadProposal(
            f"reference {ref.pointer!r} has no root {root!r}",
            mend="use /event, /charter, /registry, /memory, /outcome or /row",
        )
    return walk(getattr(roots, root), path[1:]), _origin(path, roots)


def walk(value: Any, path: Sequence[str]) -> Any:
    """Return what stands at a path below `value`. Raises BadProposal if it leads nowhere."""
    for token in path:
        value = _step(value, token, path)
    return value


def _step(value: Any, token: str, path: Sequence[str]) -> Any:
    if isinstance(value, Mapping) and token in value:
        return value[token]
    if isinstance(value, Sequence) and not isinstance(value, str | bytes) and token.isdigit():
        index = int(token)
        if index < len(value):
            return value[index]
    raise BadProposal(f"reference …/{'/'.join(path)} leads nowhere at {token!r}")


def _origin(path: Sequence[str], roots: Roots) -> Origin:
    root = path[0]
    if root in ("charter", "registry"):
        return "trusted"
    if root == "event":
        place = "/".join(path[1:])
        return "trusted" if {path[1], place} & roots.vouched else "untrusted"
    if root == "memory":
        # Whoever promoted or reviewed it vouches for the label; the text may quote anybody.
        promoted = path[1] in roots.trusted_memories and path[2:] == ("label",)
        return "trusted" if promoted else "untrusted"
    if root == "outcome":
        return "trusted" if path[1] in roots.trusted_outcomes else "untrusted"
    # The fleet's own rows hold what runs wrote there: known to us, chosen from what they read.
    return "derived"


def known_values(roots: Roots) -> frozenset[str]:
    """Return every string that stands in the charter or the registry."""
    if roots.known is not None:
        return roots.known
    return frozenset((*strings(roots.charter), *strings(roots.registry)))


def strings(value: Any) -> Iterator[str]:
    """Yield every string in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from strings(item)
    elif isinstance(value, Sequence):
        for item in value:
            yield from strings(item)


def bare_origin(value: Any, known: frozenset[str]) -> Origin:
    """Return the origin of a value given bare: registered if it is known as a whole."""
    return "registered" if isinstance(value, str) and value in known else "derived"
