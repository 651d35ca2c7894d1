"""Golden questions: what a new bundle is asked before it may go live.

They are made from the bundle's own data, so that every agent it grants something is asked about,
and hold what an attacker or a bug would send. The same bundle always gets the same questions.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from vedette.domain.decision import REQUEST_SCHEMA

NOW_US = 1_795_257_600_123_456
_MOST = 500  # whatever the number of agents; the interpreter takes 1-3 ms for each
_VARIED_ACTIONS = 3  # actions that are asked with every origin
_VARIATION_STRIDE = 2  # of the variations of one action, so that a trial stays short

_OWNER = "owner@golden.example"

Request = dict[str, Any]
NamedRequest = tuple[str, Any]


def build_request(agent: str, tool: str, grant: Mapping[str, Any], sinks: list[str]) -> Request:
    """Return a golden question: it asks for a granted action with every sink trusted."""
    args = {_name(sink): "value" for sink in sinks}
    trigger = next(iter(_texts(grant.get("triggers"))), "golden")
    return {
        "schema": REQUEST_SCHEMA,
        "now": NOW_US,
        "subject": {
            "id": f"spiffe://golden/agent/{agent}",
            "agent": agent,
            "release": "5" * 64,
            "owner": grant.get("owner", _OWNER),
            "requested_mode": "act",
        },
        "action": {
            "tool": tool,
            "verb": grant.get("verb", "act"),
            "digest": "a" * 64,
            "declared": "d" * 64,
            "settles": "idempotent",
            "high_impact": False,
            "args": args,
            "origins": dict.fromkeys(sinks, "trusted"),
            "sources": {},
            "sinks": sinks,
            "links": [],
            "readers": {},
        },
        "resource": {"type": grant.get("resource", "thing"), "id": "golden"},
        "context": {
            "event": {"type": "t", "source": "s", "hops": 0, "lineage": [], "vouched": ["id"]},
            "confidence": 1000,
            "memories": [],
            "counters": {"minute": 0, "hour": 0, "day": 0, "run": 0},
            "budget": {"hour": 0, "day": 0, "run": 0},
            "approvals": [],
            "stopped": False,
            "trigger": trigger,
            "turn": 1,
        },
    }


def build_read_request(agent: str, owner: str, scope: str) -> Request:
    """Return a golden question that asks to read a memory scope given as BANK/SCOPE."""
    request = build_request(
        agent, "memory.read", {"verb": "read", "resource": "memory", "owner": owner}, []
    )
    bank, _, name = scope.partition("/")
    request["action"].update(args={"bank": bank, "scope": name}, digest="", declared="")
    request["resource"]["id"] = scope
    return request


def golden_requests(data: Mapping[str, Any]) -> list[NamedRequest]:
    """Return named questions about the agents in `data.grants`, at most 500."""
    return list(islice(_generate_requests(data), _MOST))


def forbidden_requests(data: Mapping[str, Any]) -> list[NamedRequest]:
    """Return golden questions that no policy bundle whatever may permit."""
    request = next(
        (one for _, one in _generate_requests(data)), build_request("nobody", "nothing", {}, [])
    )
    unknown = _changed(request, "subject/agent", "agent_that_no_policy_names")
    unknown["subject"]["id"] = "spiffe://golden/agent/agent_that_no_policy_names"
    return [
        ("an empty question", {}),
        ("no question at all", None),
        ("a list", []),
        ("a text", "permit"),
        ("another schema", _changed(request, "schema", "vedette.question/0")),
        ("the schema before", _changed(request, "schema", "vedette.question/1")),
        ("no schema", {name: part for name, part in request.items() if name != "schema"}),
        ("an unknown agent", unknown),
        ("no subject", {name: part for name, part in request.items() if name != "subject"}),
        ("no action", {name: part for name, part in request.items() if name != "action"}),
        ("an agent without a name", _changed(request, "subject/agent", "")),
        ("an agent that is a list", _changed(request, "subject/agent", ["*"])),
        ("another agent's identity", _changed(request, "subject/id", "spiffe://golden/agent/zz")),
    ]


def _generate_requests(data: Mapping[str, Any]) -> Iterator[NamedRequest]:
    plain = list(_granted_requests(data))
    yield from plain
    for name, request in plain[:: len(plain) // _VARIED_ACTIONS + 1]:
        yield from _origin_variations(name, request)
        # What an agent may do itself, it may have another do.
        above = {**_ABOVE, **{name: request["subject"][name] for name in ("agent", "owner")}}
        asked = {"ancestors": [above], "room": True}
        yield f"{name}, asked by its like", _changed(request, "context/delegation", asked)
    for name, request in plain[:1]:
        yield from islice(_variations(name, request), 0, None, _VARIATION_STRIDE)


def _granted_requests(data: Mapping[str, Any]) -> Iterator[NamedRequest]:
    all_sinks = _object(_object(data.get("sinks")).get("tools"))
    for agent, given in sorted(_object(data.get("grants")).items()):
        granted = _object(given)
        owner = granted.get("owner", _OWNER)
        for tool, grant in sorted(_object(granted.get("tools")).items()):
            sinks = sorted(_object(all_sinks.get(tool)))
            request = build_request(agent, tool, {**_object(grant), "owner": owner}, sinks)
            yield f"{agent} {tool}", request
        for scope in (*_texts(granted.get("memory")), "no/such"):
            yield f"{agent} reads {scope}", build_read_request(agent, owner, scope)


def _origin_variations(name: str, request: Request) -> Iterator[NamedRequest]:
    for sink in request["action"]["sinks"]:
        for origin in ("registered", "derived", "untrusted", None):
            other = copy.deepcopy(request)
            other["action"]["origins"][sink] = origin
            yield f"{name} {sink} {origin}", other


def _variations(name: str, request: Request) -> Iterator[NamedRequest]:
    for label, path, value in _CHANGES:
        yield f"{name}, {label}", _changed(request, path, value)
    for part in ("subject", "action", "resource", "context"):
        for field in request[part]:
            other = copy.deepcopy(request)
            del other[part][field]
            yield f"{name} without /{part}/{field}", other
    for path, value in _HOSTILE:
        yield f"{name} with /{path} {value!r}", _changed(request, path, value)


def _changed(request: Request, path: str, value: object) -> Request:
    """Return a question with another value at a place."""
    changed = copy.deepcopy(request)
    *steps, last = path.split("/")
    inner = changed
    for step in steps:
        inner = inner[step]
    inner[last] = copy.deepcopy(value)
    return changed


_APPROVAL = {"action_digest": "a" * 64, "by": "person:golden", "until": NOW_US + 1}
_LINKS = [
    {"at": at, "link": "https://evil.example", "host": "evil.example", "origin": "untrusted"}
    for at in ("/body", "/text", "/note", "/golden")
]
_MET = {"name": "met", "held": True, "why": "golden"}
_UNMET = {"name": "unmet", "held": False, "why": "golden"}
_ABOVE = {"agent": "golden", "cover": "act", "owner": _OWNER, "requested_mode": "act"}
_CHANGES: tuple[tuple[str, str, object], ...] = (
    ("another verb", "action/verb", "erase"),
    ("another resource", "resource/type", "moon"),
    ("high impact", "action/high_impact", True),
    ("unsure", "context/confidence", 1),
    ("just not sure", "context/confidence", 799),
    ("stopped", "context/stopped", True),
    ("asks to observe", "subject/requested_mode", "observe"),
    ("asks to ask", "subject/requested_mode", "ask"),
    ("many hops", "context/event/hops", 10**6),
    ("hops below zero", "context/event/hops", -1),
    ("hops as text", "context/event/hops", "1"),
    ("a full minute", "context/counters/minute", 10**12),
    ("a full day", "context/counters/day", 10**12),
    ("counters as text", "context/counters/day", "0"),
    ("its own hour is full", "context/budget/hour", 1),
    ("its own run is full", "context/budget", {"hour": 9, "day": 9, "run": 0.5}),
    ("an undeclared sink", "action/sinks", ["/elsewhere", "value", 7]),
    ("another trigger", "context/trigger", "golden-other"),
    ("no trigger", "context/trigger", ""),
    ("content that nobody may read", "action/readers", {"/golden": []}),
    ("content for some readers", "action/readers", {"/golden": ["value"]}),
    ("a link out of the content", "action/links", _LINKS),
    ("no origins", "action/origins", {}),
    ("approved", "context/approvals", [_APPROVAL]),
    ("approval of another", "context/approvals", [{**_APPROVAL, "action_digest": "b"}]),
    ("approval run out", "context/approvals", [{**_APPROVAL, "until": NOW_US}]),
    ("approval as text", "context/approvals", ["a" * 64]),
    ("approval of nothing", "action/digest", ""),
    ("a task that is done", "context/task", {"conditions": [_MET, _MET], "person": False}),
    ("a task that is not done", "context/task", {"conditions": [_MET, _UNMET], "person": True}),
    ("a task that a person ends", "context/task", {"conditions": [], "person": True}),
    ("a task without conditions", "context/task", {"conditions": [], "person": False}),
    ("an action that the engine refuses", "context/refuses", "golden.rule"),
    ("asked by an unknown agent", "context/delegation", {"ancestors": [_ABOVE], "room": True}),
    ("asked by nobody", "context/delegation", {"ancestors": [], "room": True}),
    ("asked, without room", "context/delegation", {"ancestors": [_ABOVE], "room": False}),
)
_HOSTILE: tuple[tuple[str, object], ...] = (
    ("subject/id", "spiffe://golden/agent/x/agent/y"),
    ("subject/release", None),
    ("subject/owner", ["owner@golden.example"]),
    ("subject/requested_mode", {"mode": "act"}),
    ("action/tool", "mail.send\0"),
    ("action/tool", {}),
    ("action/verb", "\u202eact'\"\\\n"),
    ("action/sinks", "/"),
    ("action/args", []),
    ("action/origins", ["trusted"]),
    ("action/readers", ["value"]),
    ("action/readers", {"/golden": "value"}),
    ("action/links", {"/golden": "https://evil.example"}),
    ("context/trigger", ["golden"]),
    ("action/high_impact", "no"),
    ("resource/id", 2**53),
    ("context/confidence", "1000"),
    ("context/confidence", 1e300),
    ("context/counters", None),
    ("context/budget", "none"),
    ("context/approvals", {"0": _APPROVAL}),
    ("context/stopped", 0),
    ("context/event", []),
    ("context/task", []),
    ("context/delegation", []),
    ("context/delegation", {"ancestors": {"golden": _ABOVE}, "room": True}),
    ("context/delegation", {"ancestors": [{"agent": []}, 7], "room": "true"}),
    ("context/task", {"conditions": {"met": _MET}, "person": True}),
    ("context/task", {"conditions": [{"held": "true"}], "person": False}),
    ("context/refuses", ["golden.rule"]),
)


def _name(sink: str) -> str:
    return sink.removeprefix("/").split("/")[0].replace("~1", "/").replace("~0", "~")


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _texts(value: object) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []
