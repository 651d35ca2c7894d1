"""What a proposal comes to, said plainly: the oracle for the ways that the engine takes to be fast.

Nothing here is written once for many proposals, and nothing is passed over because it is so nearly
always. Each function says what the bytes of a record are made of.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct, field

from vedette.domain.action import Action, Proposal, action_id, proposal_confidence
from vedette.domain.base.canonical import (
    canonical_json,
    canonicalize,
    canonicalize_normalized,
    normalize_json,
    sha256_hex,
)
from vedette.domain.base.errors import BadConfidence, BadProposal
from vedette.domain.decision import (
    DecisionContext,
    build_denial,
    check_request,
    parse_decision,
)
from vedette.domain.links import MAX_LINKS, Link, find_links
from vedette.domain.origin import (
    MAX_DEPTH,
    MAX_REFERENCED_CHARS,
    MAX_REFERENCED_VALUES,
    MAX_VALUES,
    Origin,
    Ref,
    Roots,
    bare_origin,
    collect_known_values,
    escape_pointer,
    resolve_path,
    worst_origin,
)
from vedette.domain.readers import meet_labels
from vedette.domain.tool import Tool

CHECKS: dict[str, Any] = {
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "boolean": lambda value: isinstance(value, bool),
    "strings": lambda value: isinstance(value, list) and all(isinstance(x, str) for x in value),
    "list": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}


class Drawn(Struct):
    """What was found so far of one proposal's arguments."""

    origins: dict[str, Origin] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    values: int = 0
    characters: int = 0


def split(pointer: str) -> list[str]:
    if not pointer.startswith("/"):
        raise BadProposal(f"{pointer!r} is not a JSON Pointer", mend="begin it with '/'")
    return [part.replace("~1", "/").replace("~0", "~") for part in pointer[1:].split("/")]


def look_up(pointer: str, roots: Roots) -> tuple[Any, Origin]:
    """Return what a reference names, and the origin of its root."""
    path = split(pointer)
    if len(path) < 2:
        raise BadProposal(f"reference {pointer!r} names a whole root", mend="point into it")
    root, second = path[0], path[1]
    if root not in ("event", "charter", "registry", "memory", "outcome", "row", "item"):
        raise BadProposal(
            f"reference {pointer!r} has no root {root!r}",
            mend="use /event, /charter, /registry, /memory, /outcome, /session, /item or /row",
        )
    value = resolve_path(getattr(roots, root), path[1:])
    place = "/".join(map(escape_pointer, path[1:]))
    trusted = {
        "event": second in roots.vouched or place in roots.vouched,
        "charter": True,
        "registry": True,
        "memory": second in roots.trusted_memories and path[2:] == ["label"],
        "outcome": second in roots.trusted_outcomes,
        "row": False,
        "item": True,
    }[root]
    return value, "trusted" if trusted else "derived" if root == "row" else "untrusted"


def normal(value: Any) -> Any:
    try:
        return normalize_json(value)
    except ValueError as error:
        raise BadProposal(f"a value has no canonical form: {error}") from error


def count(drawn: Drawn, value: Any) -> None:
    drawn.values += 1
    if isinstance(value, str):
        drawn.characters += len(value)
    elif isinstance(value, Mapping):
        drawn.characters += sum(len(str(name)) for name in value)
    if drawn.values > MAX_REFERENCED_VALUES or drawn.characters > MAX_REFERENCED_CHARS:
        raise BadProposal(
            f"its references stand for more than {MAX_REFERENCED_VALUES:,} values or "
            f"{MAX_REFERENCED_CHARS:,} characters",
            mend="name each value once",
        )
    # The last first, as a stack has them.
    if isinstance(value, Mapping):
        for item in reversed(list(value.values())):
            count(drawn, item)
    elif isinstance(value, list | tuple):
        for item in reversed(value):
            count(drawn, item)


def depth(value: Any) -> int:
    if isinstance(value, dict | list):
        inner = value.values() if isinstance(value, dict) else value
        return 1 + max(map(depth, inner), default=0)
    return 0


def below(value: Any, at: str, level: int = 0) -> Iterator[str]:
    if level < MAX_DEPTH and isinstance(value, dict | list):
        named = value.items() if isinstance(value, dict) else enumerate(value)
        for name, item in named:
            yield f"{at}/{escape_pointer(str(name))}"
            yield from below(item, f"{at}/{escape_pointer(str(name))}", level + 1)


def element(given: Any, at: str, roots: Roots, drawn: Drawn, readers: list[Any], level: int) -> Any:
    """Return one value of an argument, with what it was drawn from."""
    known = roots.known
    if known is None:
        known = collect_known_values(roots.charter, roots.registry)
    if isinstance(given, Ref):
        found, origin = look_up(given.pointer, roots)
        count(drawn, found)
        value = normal(found)
        drawn.sources[at], drawn.origins[at] = given.pointer, origin
        listed = list(below(value, at))
        if len(listed) <= MAX_VALUES:
            drawn.origins |= dict.fromkeys(listed, origin)
        if roots.labels is not None:
            readers.append(roots.labels.readers_at(split(given.pointer)))
        return value
    if level > 64:
        raise BadProposal(f"the value at {at} is nested deeper than 64")
    if isinstance(given, Mapping):
        value = {
            str(name): element(
                item, f"{at}/{escape_pointer(str(name))}", roots, drawn, readers, level + 1
            )
            for name, item in given.items()
        }
        if len(value) < len(given):
            raise BadProposal(f"the object at {at} names a member twice")
        drawn.origins[at] = worst_origin(
            [
                *(bare_origin(name, known) for name in value),
                *(drawn.origins[f"{at}/{escape_pointer(name)}"] for name in value),
            ]
        )
        return value
    if isinstance(given, list | tuple):
        value = [
            element(item, f"{at}/{index}", roots, drawn, readers, level + 1)
            for index, item in enumerate(given)
        ]
        drawn.origins[at] = worst_origin(
            [drawn.origins[f"{at}/{index}"] for index in range(len(value))]
        )
        return value
    value = normal(given)
    drawn.origins[at] = bare_origin(value, known)
    return value


def argument(given: Any, at: str, roots: Roots, drawn: Drawn) -> tuple[Any, Any]:
    """Return an argument's value and who may read it."""
    run_readers = None if roots.labels is None else roots.labels.run
    readers: list[Any] = [] if isinstance(given, Ref) else [run_readers]
    if isinstance(given, Ref) or not isinstance(given, Mapping | list | tuple):
        return element(given, at, roots, drawn, readers, 0), meet_labels(*readers)
    inner = Drawn(values=drawn.values, characters=drawn.characters)
    value = element(given, at, roots, inner, readers, 0)
    drawn.values, drawn.characters = inner.values, inner.characters
    if len(inner.origins) > MAX_VALUES + 1 or depth(value) > MAX_DEPTH:
        drawn.origins[at] = worst_origin([inner.origins[at], "derived"])
    else:
        drawn.origins |= inner.origins
        drawn.sources |= inner.sources
    return value, meet_labels(*readers)


def expanded(given: Any, name: str, roots: Roots) -> Any:
    found: list[Any] = []
    for item in given:
        value = look_up(item.pointer, roots)[0] if isinstance(item, Ref) else None
        if isinstance(value, list | tuple):
            found += (Ref(f"{item.pointer}/{index}") for index in range(len(value)))
        else:
            found.append(item)
        if len(found) > MAX_REFERENCED_VALUES:
            raise BadProposal(
                f"the argument {name!r} has more than {MAX_REFERENCED_VALUES:,} items"
            )
    return found


def bind(
    proposal: Proposal, tool: Tool, roots: Roots, *, run: str, turn: int, ordinal: int,
    confidence: float,
) -> Action:  # fmt: skip
    """Return the exact action of a proposal for a tool."""
    sure = proposal_confidence(proposal.confidence, confidence, tool.name)
    unknown = sorted(set(proposal.args) - set(tool.args))
    if unknown:
        raise BadProposal(f"tool {tool.name} has no argument {unknown[0]!r}")
    drawn, args, readers = Drawn(), {}, {}
    for name, declared in tool.args.items():
        kind = declared.removesuffix("?")
        if name not in proposal.args:
            if declared.endswith("?"):
                continue
            raise BadProposal(f"tool {tool.name} needs the argument {name!r}")
        given = proposal.args[name]
        if isinstance(given, list | tuple) and kind == "strings":
            given = expanded(given, name, roots)
        at = "/" + escape_pointer(name)
        args[name], label = argument(given, at, roots, drawn)
        if label is not None:
            readers[at] = label
        if not CHECKS[kind](args[name]):
            raise BadProposal(f"tool {tool.name}: argument {name!r} is not a {kind}")
    try:
        raw = canonicalize_normalized({"args": args, "tool": tool.name, "declared": tool.digest})
    except ValueError as error:
        raise BadProposal(f"arguments of {tool.name} have no canonical form: {error}") from error
    known = roots.known
    if known is None:
        known = collect_known_values(roots.charter, roots.registry)
    return Action(
        run=run, turn=turn, ordinal=ordinal, tool=tool, args=args, origins=drawn.origins,
        sources=drawn.sources, why=proposal.why, confidence_milli=int(sure * 1000),
        digest=sha256_hex(raw), recorded_id=action_id(run, turn, ordinal), readers=readers,
        links=links(args, drawn.origins, known),
    )  # fmt: skip


def links(args: Mapping[str, Any], origins: Mapping[str, Origin], known: Any) -> tuple[Link, ...]:
    """Return the links of all texts that are not trusted as they stand."""
    found: dict[tuple[str, str], Link] = {}
    waiting: list[tuple[str, Any, Origin]] = [
        (f"/{escape_pointer(name)}", value, "untrusted") for name, value in args.items()
    ]
    while waiting:
        at, value, above = waiting.pop()
        origin = origins.get(at, above)
        texts = [value] if isinstance(value, str) else []
        if isinstance(value, dict):
            texts = list(value)
            waiting += (
                (f"{at}/{escape_pointer(name)}", item, origin) for name, item in value.items()
            )
        elif isinstance(value, list):
            waiting += ((f"{at}/{index}", item, origin) for index, item in enumerate(value))
        for text in texts if origin != "trusted" else ():
            for link, host, same in find_links(text):
                if len(found) == MAX_LINKS:
                    found[at, ""] = Link(at, f"more than {MAX_LINKS} links", "", "untrusted")
                    return tuple(found.values())
                named = link in known or any(name and name in known for name in (host, same))
                found[at, link] = Link(at, link[:512], host, "registered" if named else origin)
    return tuple(found.values())


def question(action: Action, found: DecisionContext, counted: Mapping[str, int]) -> dict[str, Any]:
    """Return what policy is asked of an action."""
    agent, event, tool = found.agent, found.event, action.tool
    approval = found.approval
    return {
        "action": {
            "args": dict(action.args), "declared": tool.digest, "digest": action.digest,
            "high_impact": tool.high_impact, "links": [link.to_json() for link in action.links],
            "origins": dict(action.origins),
            "readers": {at: sorted(who) for at, who in action.readers.items()},
            "settles": tool.settles, "sinks": list(tool.sinks), "sources": dict(action.sources),
            "tool": tool.name, "verb": tool.verb,
        },
        "context": {
            "approvals": [] if approval is None else [
                {
                    "action_digest": approval.action_digest, "by": approval.by,
                    "until": approval.until_us,
                }
            ],
            "budget": {
                "day": agent.budget.actions_per_day or 0,
                "hour": agent.budget.actions_per_hour or 0, "run": agent.budget.actions_per_run,
            },
            "confidence": action.confidence_milli,
            "counters": {**counted, "run": found.actions_in_run},
            "event": {
                "hops": event.hops, "lineage": list(event.lineage), "source": event.source,
                "type": event.type, "vouched": sorted(event.vouched),
            },
            "memories": [{"id": cite, "trust": trust} for cite, trust in found.memories],
            "stopped": found.stopped,
            "trigger": agent.trigger_of(event) if found.trigger is None else found.trigger,
            "turn": found.turn,
        },
        "now": found.now_us,
        "resource": {
            "id": tool.target or agent.collection or tool.resource, "type": tool.resource,
        },
        "schema": "vedette.question/2",
        "subject": {
            "agent": agent.name, "id": agent.identity.spiffe_id, "owner": agent.owner,
            "release": agent.release, "requested_mode": agent.requested_mode,
        },
    }  # fmt: skip


def decision_body(request: dict[str, Any], answer: object) -> bytes:
    """Return the body of a decision's entry, of what an engine answers to a request."""
    try:
        canonicalize_normalized(request)
    except ValueError:
        request = {}
    problem = check_request(request)
    decision = parse_decision(answer) if problem is None else build_denial(
        "engine.question", problem
    )  # fmt: skip
    return canonical_json({"decision": decision.to_json(), "question": request})


def row_record(action: Action) -> bytes:
    """Return what an action's row keeps of it."""
    record = {
        "args": dict(action.args), "confidence": action.confidence_milli,
        "origins": dict(action.origins), "sources": dict(action.sources), "why": action.why,
    }  # fmt: skip
    if action.tool.inverse:
        record["inverse"] = action.tool.inverse
    if action.readers:
        record["readers"] = {at: sorted(who) for at, who in action.readers.items()}
    return canonicalize(record)


def written(value: Any) -> dict[str, Any]:
    """Return one argument of a proposal as an entry keeps it."""
    if isinstance(value, Ref):
        return {"ref": value.pointer}
    if _refers(value):
        if isinstance(value, Mapping):
            return {"object": {str(name): written(item) for name, item in value.items()}}
        return {"list": [written(item) for item in value]}
    return {"value": normalize_json(value)}


def _refers(value: Any) -> bool:
    inner = value.values() if isinstance(value, Mapping) else value
    composed = isinstance(value, Mapping | list | tuple)
    return isinstance(value, Ref) or (composed and any(map(_refers, inner)))


def turn_body(judgement: Any, turn: int, cited: Any) -> bytes:
    """Return the body of a turn's entry."""

    def sure(proposal: Proposal) -> float | None:
        try:
            return proposal_confidence(proposal.confidence, judgement.confidence, proposal.tool)
        except BadConfidence:
            return None

    body = {
        "confidence": judgement.confidence, "detail": dict(judgement.detail),
        "final": judgement.final, "label": judgement.label,
        "memories": [cite for cite, _ in cited],
        "proposals": [
            {
                "args": {str(name): written(value) for name, value in proposal.args.items()},
                "confidence": sure(proposal), "tool": proposal.tool, "why": proposal.why,
            }
            for proposal in judgement.proposals
        ],
        "score": judgement.score, "threshold": judgement.threshold,
        "trust": [trust for _, trust in cited], "turn": turn,
    }  # fmt: skip
    return canonical_json(normalize_json(body))
