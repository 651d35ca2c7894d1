"""A Proposal (what a reasoner asks for) and the Action it becomes (what is decided and done)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from msgspec import Struct, field

from vedette.domain.base.canonical import canonicalize_normalized, sha256_hex, short_id
from vedette.domain.base.dataclass_fields import DataclassFields
from vedette.domain.base.errors import BadProposal
from vedette.domain.confidence import proposal_confidence
from vedette.domain.links import Link, find_argument_links
from vedette.domain.origin import (
    MAX_REFERENCED_VALUES,
    ArgumentResolver,
    Origin,
    Ref,
    Roots,
    escape_pointer,
    known_values,
    resolve,
)
from vedette.domain.tool import Tool


class Proposal(Struct, frozen=True):
    """One thing a reasoner wants done. It carries no identity, no permission and no origin.

    An argument may be composed: a `Ref` at any depth of it stands for the value it names.

    `confidence` is the reasoner's calibrated probability that this is right, 0..1; without one it
    is that of the judgement, and it is never more.
    """

    __dataclass_fields__ = DataclassFields()

    tool: str
    args: Mapping[str, Any]
    why: str = ""
    confidence: float | None = None


class Action(Struct, frozen=True):
    """An exact action: tool, arguments as they will be passed, and the origin of each.

    `origins` maps a JSON Pointer into `args` to an origin, of each argument and each element of
    it; `sources` maps such a pointer to the reference the value was drawn from, where it was drawn
    by reference. `readers` maps the pointer of an argument to who may read it, where not all may.
    `links` are those in its texts.
    """

    run: str
    turn: int
    ordinal: int
    tool: Tool
    args: Mapping[str, Any]
    origins: Mapping[str, Origin]
    sources: Mapping[str, str]
    why: str
    confidence_milli: int
    digest: str = field(default="")
    recorded_id: str = ""
    readers: Mapping[str, frozenset[str]] = field(default_factory=dict)
    links: Sequence[Link] = ()

    @property
    def id(self) -> str:
        """Return the action's id: a function of (run, turn, ordinal), or the one on record.

        What is on record stays, so that an effect keeps its key whatever ids are made of later.
        """
        return self.recorded_id or action_id(self.run, self.turn, self.ordinal)

    @property
    def key(self) -> str:
        """Return the idempotency key of the action's effect."""
        return self.id.removeprefix("act_")


def action_id(run: str, turn: int, ordinal: int) -> str:
    """Return the id of the action at this place of a run.

    It does not depend on the wording of the arguments: a model that words a call differently
    after a crash gets the same id, and so the same effect. Its first half is the event's.
    """
    return f"act_{run[4:20]}{short_id('act', run, turn, ordinal)[4:20]}"


def bind(
    proposal: Proposal,
    tool: Tool,
    roots: Roots,
    *,
    run: str,
    turn: int,
    ordinal: int,
    confidence: float,
) -> Action:
    """Resolve a proposal into an exact Action. `confidence` is that of its judgement, checked.

    Raises BadProposal for an argument the tool does not declare, a missing one, a reference that
    leads nowhere, or a value of another type than declared; BadConfidence for a confidence that is
    no probability.
    """
    sure = proposal_confidence(proposal.confidence, confidence, tool.name)
    if not proposal.args.keys() <= tool.args.keys():
        unknown = sorted(set(proposal.args) - set(tool.args))
        raise BadProposal(f"tool {tool.name} has no argument {unknown[0]!r}")
    args: dict[str, Any] = {}
    drawn = ArgumentResolver(roots)
    for name, kind in tool.args.items():
        if name not in proposal.args:
            if kind.endswith("?"):
                continue
            raise BadProposal(f"tool {tool.name} needs the argument {name!r}")
        given = proposal.args[name]
        if kind.startswith("strings") and isinstance(given, list | tuple):
            given = list(islice(_expand_references(given, roots), MAX_REFERENCED_VALUES + 1))
            if len(given) > MAX_REFERENCED_VALUES:
                raise BadProposal(
                    f"the argument {name!r} has more than {MAX_REFERENCED_VALUES:,} items"
                )
        value = drawn.resolve(given, "/" + escape_pointer(name))
        _check_type(value, kind.removesuffix("?"), tool, name)
        args[name] = value
    digest = action_digest(tool, args)
    return Action(
        run=run,
        turn=turn,
        ordinal=ordinal,
        tool=tool,
        args=args,
        origins=drawn.origins,
        sources=drawn.sources,
        why=proposal.why,
        confidence_milli=int(sure * 1000),
        digest=digest,
        recorded_id=action_id(run, turn, ordinal),
        readers=drawn.readers,
        links=find_argument_links(args, drawn.origins, lambda: known_values(roots)),
    )


def _expand_references(given: Sequence[Any], roots: Roots) -> Iterator[Any]:
    """Yield the items of a list of texts; a reference to a list stands for the items of that."""
    for item in given:
        value = resolve(item, roots)[0] if isinstance(item, Ref) else None
        if isinstance(value, list | tuple):
            yield from (Ref(f"{item.pointer}/{index}") for index in range(len(value)))
        else:
            yield item


def encode_argument(value: Any) -> dict[str, Any]:
    """Return an argument as its proposal gave it, in the form in which the ledger keeps it.

    `{"ref": POINTER}` or `{"value": …}`; around references within `{"list": […]}` and
    `{"object": {…}}` of such.
    """
    if isinstance(value, Ref):
        return {"ref": value.pointer}
    if _has_reference(value):
        if isinstance(value, Mapping):
            return {"object": {str(name): encode_argument(item) for name, item in value.items()}}
        return {"list": [encode_argument(item) for item in value]}
    return {"value": value}


def _has_reference(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_has_reference, value.values()))
    return isinstance(value, Ref) or (
        isinstance(value, list | tuple) and any(map(_has_reference, value))
    )


def bind_by_name(
    proposal: Proposal,
    tools: Mapping[str, Tool],
    roots: Roots,
    *,
    run: str,
    turn: int,
    ordinal: int,
    confidence: float,
) -> Action:
    """Resolve a proposal by the tools that its agent declares, by name; see `bind`.

    Raises BadProposal, also for a tool that is not declared.
    """
    tool = tools.get(proposal.tool)
    if tool is None:
        raise BadProposal(f"the agent declares no tool {proposal.tool!r}")
    return bind(proposal, tool, roots, run=run, turn=turn, ordinal=ordinal, confidence=confidence)


def action_bytes(tool: Tool, args: Mapping[str, Any]) -> bytes:
    """Return the canonical bytes that an approval binds to. Raises BadProposal.

    `args` are as `bind` makes them: `tame`.
    """
    try:
        return canonicalize_normalized({"args": args, "tool": tool.name, "declared": tool.digest})
    except ValueError as error:
        raise BadProposal(f"arguments of {tool.name} have no canonical form: {error}") from error


def action_digest(tool: Tool, args: Mapping[str, Any]) -> str:
    """Return the digest of the exact action: tool, its declaration and all arguments."""
    return sha256_hex(action_bytes(tool, args))


_TYPE_CHECKS: Mapping[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "boolean": lambda value: isinstance(value, bool),
    "strings": lambda value: (
        isinstance(value, list) and all(isinstance(each, str) for each in value)
    ),
    "list": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}


def _check_type(value: Any, kind: str, tool: Tool, name: str) -> None:
    fits = _TYPE_CHECKS.get(kind)
    if fits is None or not fits(value):
        raise BadProposal(f"tool {tool.name}: argument {name!r} is not a {kind}")
