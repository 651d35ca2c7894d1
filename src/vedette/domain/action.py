"""A Proposal (what a reasoner asks for) and the Action it becomes (what is decided and done).

A confidence is a probability. What is missing, beyond 0..1 or no number is never read as certainty,
and never brought into the range: whoever does not know how sure they are is refused, with a code.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

from msgspec import Struct, field

from vedette.domain.base.canonical import (
    canonicalize_normalized,
    canonicalize_numbers,
    normalize_json,
    sha256_hex,
    short_id,
)
from vedette.domain.base.dataclass_fields import DataclassFields
from vedette.domain.base.errors import BadConfidence, BadProposal
from vedette.domain.links import Link, find_argument_links
from vedette.domain.origin import (
    MAX_REFERENCED_VALUES,
    ArgumentResolver,
    Origin,
    Ref,
    Roots,
    escape_pointer,
    resolve,
)
from vedette.domain.sink import judge_origins
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
    `links` are those in its texts. `asks` is why a person is to decide it, whatever policy says
    (`decision.ask_person`); "" if nothing asks for that.
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
    asks: str = ""

    @property
    def id(self) -> str:
        """Return the action's id: a function of (run, turn, ordinal), or the one on record.

        What is on record stays, so that an effect keeps its key whatever ids are made of later.
        """
        return self.recorded_id or action_id(self.run, self.turn, self.ordinal)

    @property
    def judged_origins(self) -> Mapping[str, Origin]:
        """Return the origins as policy is told them: those of sinks within arguments among them.

        Such a sink has the worst origin of all places that it names. With a schema it has none if
        there is no such place: it decides nothing. Without one nobody can tell what else the tool
        would take for it, so the whole argument counts.
        """
        tool = self.tool
        return judge_origins(tool.sinks, self.args, self.origins, is_whole=tool.schema is None)

    @property
    def key(self) -> str:
        """Return the idempotency key of the action's effect."""
        return self.id.removeprefix("act_")


def hold_id(action: str) -> str:
    """Return the id of an action's hold: the two share their number."""
    return "hold_" + action.removeprefix("act_")


def action_id(run: str, turn: int, ordinal: int) -> str:
    """Return the id of the action at this place of a run.

    It does not depend on the wording of the arguments: a model that words a call differently
    after a crash gets the same id, and so the same effect. Its first half is the event's.
    """
    return f"act_{run[4:20]}{short_id('act', run, turn, ordinal)[4:20]}"


def bind_proposal(
    proposal: Proposal,
    tools: Mapping[str, Tool],
    roots: Roots,
    *,
    run: str,
    turn: int,
    ordinal: int,
    confidence: float,
) -> Action:
    """Return the exact Action of a Proposal; `confidence` is that of its judgement, checked.

    `tools` are those that its agent declares, by name. Raises BadProposal for another tool, an
    argument the tool does not declare, a missing one, a reference that leads nowhere, or a value of
    another type than declared; BadConfidence for a confidence that is no probability.
    """
    tool = tools.get(proposal.tool)
    if tool is None:
        raise BadProposal(f"the agent declares no tool {proposal.tool!r}")
    sure = proposal_confidence(proposal.confidence, confidence, tool.name)
    if not proposal.args.keys() <= tool.args.keys():
        unknown = sorted(set(proposal.args) - set(tool.args))
        raise BadProposal(f"tool {tool.name} has no argument {unknown[0]!r}")
    if tool.schema is not None:
        drawn = ArgumentResolver(roots, keeps_numbers=True)
        args = _bind_schema(tool, proposal.args, drawn)
    else:
        args = {}
        drawn = ArgumentResolver(roots)
        for parameter in tool.parameters:
            name = parameter.name
            if name not in proposal.args:
                if parameter.is_optional:
                    continue
                raise BadProposal(f"tool {tool.name} needs the argument {name!r}")
            given = proposal.args[name]
            if parameter.kind == "strings" and isinstance(given, list | tuple):
                given = list(islice(_expand_references(given, roots), MAX_REFERENCED_VALUES + 1))
                if len(given) > MAX_REFERENCED_VALUES:
                    raise BadProposal(
                        f"the argument {name!r} has more than {MAX_REFERENCED_VALUES:,} items"
                    )
            value = args[name] = drawn.resolve(parameter.pointer, given)
            if type(value) is not parameter.exact_type and not parameter.fits(value):
                raise BadProposal(f"tool {tool.name}: argument {name!r} is not a {parameter.kind}")
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
        links=find_argument_links(args, drawn.origins, drawn.known_values),
    )


def _bind_schema(
    tool: Tool, proposed: Mapping[str, Any], drawn: ArgumentResolver
) -> dict[str, Any]:
    """Return the arguments of a tool that declares them by a schema."""
    args = {
        name: drawn.resolve("/" + escape_pointer(name), given) for name, given in proposed.items()
    }
    if drawn.drawn:
        args = tool.argument_schema.read_numbers(tool.name, args, drawn.drawn)
    tool.argument_schema.check(tool.name, args)
    return args


def _expand_references(given: Sequence[Any], roots: Roots) -> Iterator[Any]:
    """Yield the items of a list of texts; a reference to a list stands for the items of that."""
    for item in given:
        value = resolve(item, roots)[0] if isinstance(item, Ref) else None
        if isinstance(value, list | tuple):
            yield from (Ref(f"{item.pointer}/{index}") for index in range(len(value)))
        else:
            yield item


def encode_arguments(args: Mapping[str, Any]) -> dict[str, Any]:
    """Return a Proposal's arguments as plain data, references and all, as entries keep them.

    In the form of `normalize_json`; raises ValueError as that does.
    """
    return {str(name): encode_argument(value) for name, value in args.items()}


def encode_argument(value: Any) -> dict[str, Any]:
    """Return one argument of a Proposal as plain data, references and all, as entries keep it.

    `{"ref": POINTER}` or `{"value": …}`; around references within `{"list": […]}` and
    `{"object": {…}}` of such.
    """
    if type(value) is str:  # as nearly all are
        return {"value": value}
    if isinstance(value, Ref):
        return {"ref": normalize_json(value.pointer)}
    if _has_reference(value):
        if isinstance(value, Mapping):
            return {"object": {str(name): encode_argument(item) for name, item in value.items()}}
        return {"list": [encode_argument(item) for item in value]}
    return {"value": normalize_json(value)}


def decode_arguments(encoded: Mapping[str, Any], tool: Tool | None = None) -> dict[str, Any]:
    """Return a Proposal's arguments from what `encode_arguments` made of them.

    A fraction that was given bare stays the decimal text that entries keep of it, unless `tool`
    says that its schema has a number there. Raises BadProposal for what is too much to be walked.
    """
    found = {name: _decode_argument(value) for name, value in encoded.items()}
    if tool is None or tool.schema is None:
        return found
    places = {"/" + escape_pointer(name) for name in found}
    return tool.argument_schema.read_numbers(tool.name, found, places)


def _decode_argument(encoded: Mapping[str, Any]) -> Any:
    ((kind, value),) = encoded.items()
    if kind == "ref":
        return Ref(value)
    if kind == "list":
        return [_decode_argument(item) for item in value]
    if kind == "object":
        return {name: _decode_argument(item) for name, item in value.items()}
    return value


def _has_reference(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_has_reference, value.values()))
    return isinstance(value, Ref) or (
        isinstance(value, list | tuple) and any(map(_has_reference, value))
    )


def action_digest(tool: Tool, args: Mapping[str, Any]) -> str:
    """Return the digest that an approval binds to: of tool, its declaration and all arguments.

    `args` are as `bind` makes them: in the form of `normalize_json`, or of `normalize_numbers`
    where a schema declares them. Raises BadProposal.
    """
    canonicalize = canonicalize_normalized if tool.schema is None else canonicalize_numbers
    try:
        raw = canonicalize({"args": args, "tool": tool.name, "declared": tool.digest})
    except ValueError as error:
        raise BadProposal(f"arguments of {tool.name} have no canonical form: {error}") from error
    return sha256_hex(raw)


def check_confidence(value: object, subject: str) -> float:
    """Return a confidence as a probability, 0..1. Raises BadConfidence, which says whose it is
    (`subject`).

    A bool is no number here, and neither is the text of one.
    """
    found = math.nan
    if isinstance(value, int | float) and not isinstance(value, bool):
        with suppress(OverflowError):
            # Not by the value's own methods: a subclass could say anything when it is compared.
            found = float.__pos__(value) if isinstance(value, float) else int.__truediv__(value, 1)
    if 0 <= found <= 1:
        return found
    said = "says no confidence" if value is None else f"has the confidence {_describe_value(value)}"
    raise BadConfidence(f"{subject} {said}", mend="say a probability from 0 to 1")


def proposal_confidence(proposed: object, judgement: float, tool: str) -> float:
    """Return an Action's confidence: its Proposal may lower the judgement's, never raise it.

    `proposed` is None where the proposal says nothing of its own; `judgement` was checked. Raises
    BadConfidence.
    """
    if proposed is None:
        return judgement
    return min(check_confidence(proposed, f"the proposal of {tool}"), judgement)


def _describe_value(value: object) -> str:
    """Name a value without asking it: it may be an object of somebody's code."""
    if type(value) in (bool, int):
        return str(value)[:40]
    if type(value) is float:
        return "NaN" if math.isnan(value) else f"{value:g}"
    return f"of type {type(value).__name__}"
