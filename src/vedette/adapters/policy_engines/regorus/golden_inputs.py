"""Golden questions: what a new bundle is asked before it may go live.

They are made from the bundle's own data, so that every agent it grants something is asked about,
and hold what an attacker or a bug would send. The same bundle always gets the same questions.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

from vedette.domain.decision import QUESTION

NOW_US = 1_795_257_600_123_456
_MOST = 500  # whatever the number of agents; the interpreter takes 1-3 ms for each
_VARIED = 3  # actions that are asked with every origin
_EVERY = 2  # of the variations of one action, so that a trial stays short

Question = dict[str, Any]
Named = tuple[str, Any]


def question(agent: str, tool: str, grant: Mapping[str, Any], sinks: list[str]) -> Question:
    """Return a question that asks for a granted action with every sink trusted."""
    args = {_name(sink): "value" for sink in sinks}
    trigger = next(iter(_texts(grant.get("triggers"))), "golden")
    return {
        "schema": QUESTION,
        "now": NOW_US,
        "subject": {
            "id": f"spiffe://golden/agent/{agent}",
            "agent": agent,
            "release": "5" * 64,
            "owner": grant.get("owner", "owner@golden.example"),
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


def reading(agent: str, owner: str, scope: str) -> Question:
    """Return a question that asks to read a memory scope given as BANK/SCOPE."""
    asked = question(
        agent, "memory.read", {"verb": "read", "resource": "memory", "owner": owner}, []
    )
    bank, _, name = scope.partition("/")
    asked["action"].update(args={"bank": bank, "scope": name}, digest="", declared="")
    asked["resource"]["id"] = scope
    return asked


def golden(data: Mapping[str, Any]) -> list[Named]:
    """Return named questions about the agents in `data.grants`, at most 500."""
    return list(islice(_golden(data), _MOST))


def must_deny(data: Mapping[str, Any]) -> list[Named]:
    """Return questions that no bundle whatever may permit."""
    asked = next((one for _, one in _golden(data)), question("nobody", "nothing", {}, []))
    unknown = _with(asked, "subject", "agent", "agent_that_no_policy_names")
    unknown["subject"]["id"] = "spiffe://golden/agent/agent_that_no_policy_names"
    return [
        ("an empty question", {}),
        ("no question at all", None),
        ("a list", []),
        ("a text", "permit"),
        ("another schema", {**copy.deepcopy(asked), "schema": "vedette.question/0"}),
        ("the schema before", {**copy.deepcopy(asked), "schema": "vedette.question/1"}),
        ("no schema", {name: part for name, part in asked.items() if name != "schema"}),
        ("an unknown agent", unknown),
        ("no subject", {name: part for name, part in asked.items() if name != "subject"}),
        ("no action", {name: part for name, part in asked.items() if name != "action"}),
        ("an agent without a name", _with(asked, "subject", "agent", "")),
        ("an agent that is a list", _with(asked, "subject", "agent", ["*"])),
        ("another agent's identity", _with(asked, "subject", "id", "spiffe://golden/agent/zz")),
    ]


def _golden(data: Mapping[str, Any]) -> Iterator[Named]:
    plain = list(_granted(data))
    yield from plain
    for name, asked in plain[:: len(plain) // _VARIED + 1]:
        yield from _origins(name, asked)
    for name, asked in plain[:1]:
        yield from islice(_variations(name, asked), 0, None, _EVERY)


def _granted(data: Mapping[str, Any]) -> Iterator[Named]:
    all_sinks = _object(_object(data.get("sinks")).get("tools"))
    for agent, given in sorted(_object(data.get("grants")).items()):
        granted = _object(given)
        owner = granted.get("owner", "owner@golden.example")
        for tool, grant in sorted(_object(granted.get("tools")).items()):
            sinks = sorted(_object(all_sinks.get(tool)))
            asked = question(agent, tool, {**_object(grant), "owner": owner}, sinks)
            yield f"{agent} {tool}", asked
        for scope in (*_texts(granted.get("memory")), "no/such"):
            yield f"{agent} reads {scope}", reading(agent, owner, scope)


def _origins(name: str, asked: Question) -> Iterator[Named]:
    for sink in asked["action"]["sinks"]:
        for origin in ("registered", "derived", "untrusted", None):
            other = copy.deepcopy(asked)
            other["action"]["origins"][sink] = origin
            yield f"{name} {sink} {origin}", other


def _variations(name: str, asked: Question) -> Iterator[Named]:
    for says, change in _CHANGES:
        other = copy.deepcopy(asked)
        change(other)
        yield f"{name}, {says}", other
    for part in ("subject", "action", "resource", "context"):
        for field in asked[part]:
            other = copy.deepcopy(asked)
            del other[part][field]
            yield f"{name} without /{part}/{field}", other
    for part, field, value in _HOSTILE:
        yield f"{name} with /{part}/{field} {value!r}", _with(asked, part, field, value)


def _set(*path: str, to: object) -> Callable[[Question], None]:
    def change(asked: Question) -> None:
        inner: Any = asked
        for step in path[:-1]:
            inner = inner[step]
        inner[path[-1]] = copy.deepcopy(to)

    return change


_APPROVAL = {"action_digest": "a" * 64, "by": "person:golden", "until": NOW_US + 1}
_LINKS = [
    {"at": at, "link": "https://evil.example", "host": "evil.example", "origin": "untrusted"}
    for at in ("/body", "/text", "/note", "/golden")
]
_CHANGES: tuple[tuple[str, Callable[[Question], None]], ...] = (
    ("another verb", _set("action", "verb", to="erase")),
    ("another resource", _set("resource", "type", to="moon")),
    ("high impact", _set("action", "high_impact", to=True)),
    ("unsure", _set("context", "confidence", to=1)),
    ("just not sure", _set("context", "confidence", to=799)),
    ("stopped", _set("context", "stopped", to=True)),
    ("asks to observe", _set("subject", "requested_mode", to="observe")),
    ("asks to ask", _set("subject", "requested_mode", to="ask")),
    ("many hops", _set("context", "event", "hops", to=10**6)),
    ("hops below zero", _set("context", "event", "hops", to=-1)),
    ("hops as text", _set("context", "event", "hops", to="1")),
    ("a full minute", _set("context", "counters", "minute", to=10**12)),
    ("a full day", _set("context", "counters", "day", to=10**12)),
    ("counters as text", _set("context", "counters", "day", to="0")),
    ("its own hour is full", _set("context", "budget", "hour", to=1)),
    ("its own run is full", _set("context", "budget", to={"hour": 9, "day": 9, "run": 0.5})),
    ("an undeclared sink", _set("action", "sinks", to=["/elsewhere", "value", 7])),
    ("another trigger", _set("context", "trigger", to="golden-other")),
    ("no trigger", _set("context", "trigger", to="")),
    ("content that nobody may read", _set("action", "readers", to={"/golden": []})),
    ("content for some readers", _set("action", "readers", to={"/golden": ["value"]})),
    ("a link out of the content", _set("action", "links", to=_LINKS)),
    ("no origins", _set("action", "origins", to={})),
    ("approved", _set("context", "approvals", to=[_APPROVAL])),
    ("approval of another", _set("context", "approvals", to=[{**_APPROVAL, "action_digest": "b"}])),
    ("approval run out", _set("context", "approvals", to=[{**_APPROVAL, "until": NOW_US}])),
    ("approval as text", _set("context", "approvals", to=["a" * 64])),
    ("approval of nothing", _set("action", "digest", to="")),
)
_HOSTILE: tuple[tuple[str, str, object], ...] = (
    ("subject", "id", "spiffe://golden/agent/x/agent/y"),
    ("subject", "release", None),
    ("subject", "owner", ["owner@golden.example"]),
    ("subject", "requested_mode", {"mode": "act"}),
    ("action", "tool", "mail.send\0"),
    ("action", "tool", {}),
    ("action", "verb", "\u202eact'\"\\\n"),
    ("action", "sinks", "/"),
    ("action", "args", []),
    ("action", "origins", ["trusted"]),
    ("action", "readers", ["value"]),
    ("action", "readers", {"/golden": "value"}),
    ("action", "links", {"/golden": "https://evil.example"}),
    ("context", "trigger", ["golden"]),
    ("action", "high_impact", "no"),
    ("resource", "id", 2**53),
    ("context", "confidence", "1000"),
    ("context", "confidence", 1e300),
    ("context", "counters", None),
    ("context", "budget", "none"),
    ("context", "approvals", {"0": _APPROVAL}),
    ("context", "stopped", 0),
    ("context", "event", []),
)


def _with(asked: Question, part: str, field: str, value: object) -> Question:
    other = copy.deepcopy(asked)
    other[part][field] = value
    return other


def _name(sink: str) -> str:
    return sink.removeprefix("/").split("/")[0].replace("~1", "/").replace("~0", "~")


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _texts(value: object) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []
