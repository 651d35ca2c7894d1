"""Questions around what the shipped policy grants: right, wrong, cut and hostile. Seeded."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

from vedette.adapters.policy_engines.regorus.stage import read_bundle
from vedette.domain.base.errors import EngineFailed
from vedette.domain.decision import Decision, build_denial, parse_decision
from vedette.domain.ports.policy_engine import PolicyEngine
from vedette.policy.bundle_data import mount
from vedette.policy.golden_requests import NOW_US, build_read_request, build_request

BUNDLE = read_bundle(Path(__file__).parents[1] / "policies")
SEED = 20260304


def generated(many: int, seed: int = SEED) -> list[Any]:
    """Return the first questions of `questions`."""
    return list(islice(questions(seed), many))


def questions(seed: int = SEED) -> Iterator[Any]:
    """Yield questions without end; about a tenth is right, the rest is missing or odd somewhere."""
    chance = random.Random(seed)
    bases = _bases()
    yield from ({}, [], None, "permit", 7)
    while True:
        yield _varied(chance, bases)


def _bases() -> list[dict[str, Any]]:
    """Return a question for each tool that is granted and each scope that may be read."""
    data = mount(BUNDLE.files)
    bases: list[dict[str, Any]] = []
    for agent, grant in data["grants"].items():
        owner = grant.get("owner", "o@harbour.example")
        for tool, given in grant["tools"].items():
            bases.append(
                build_request(
                    agent,
                    tool,
                    {**given, "owner": owner},
                    list(data["sinks"]["tools"].get(tool, [])),
                )
            )
        bases += [
            build_read_request(agent, owner, scope) for scope in (*grant["memory"], "no/such")
        ]
    return bases


def _varied(chance: random.Random, bases: list[dict[str, Any]]) -> dict[str, Any]:
    one = copy.deepcopy(chance.choice(bases))
    if chance.random() < 0.4:
        until = NOW_US + chance.randint(-1, 1)
        approval = {"action_digest": "a" * 64, "by": "person:ada", "until": until}
        one["context"]["approvals"] = [approval]
    for _ in range(chance.choice((0, 1, 1, 1, 2, 3, 5))):
        vary = (_origin, _origin, _value, _value, _wait, _cut, _hostile, _hostile)
        chance.choice(vary)(one, chance)
    return one


def _origin(one: dict[str, Any], chance: random.Random) -> None:
    origins = one.get("action", {}).get("origins") if isinstance(one.get("action"), dict) else None
    if isinstance(origins, dict) and origins:
        name = chance.choice(sorted(origins))
        origins[name] = chance.choice(
            ["trusted", "registered", "derived", "untrusted", "of old", 1]
        )


def _value(one: dict[str, Any], chance: random.Random) -> None:
    path, values = chance.choice(
        (
            ("subject/requested_mode", ["act", "ask", "observe", "ACT"]),
            ("subject/agent", ["inbox_triage", "anomaly_detection", "x"]),
            ("action/verb", ["move", "send", "erase"]),
            ("action/high_impact", [True, False]),
            ("action/sinks", [[], ["/to"], ["/message", "/nobody"], ["/a~1b"], ["/to/0"]]),
            ("action/readers", [{}, {"/to": []}, {"/to": ["value"]}, {"/to": ["@x"], "/a": ["b"]}]),
            ("action/sources", [{}, {"/to": "/event/data/from"}]),
            (
                "action/links",
                [[], [{"at": "/body", "link": "a.b", "host": "a.b", "origin": "derived"}]],
            ),
            ("context/trigger", ["", "golden", "mail.received@imap:*"]),
            ("resource/type", ["mailbox", "outbox", "incident"]),
            ("context/confidence", [0, 799, 800, 899, 900, 1000, 1001]),
            ("context/stopped", [True, False]),
            ("context/event/hops", [0, 8, 9, -1]),
            ("context/counters/minute", [0, 5999, 6000, 12000]),
            ("context/counters/hour", [0, 1999, 2000, 60000]),
            ("context/counters/day", [0, 10**6]),
            ("context/counters/run", [0, 7, 8]),
            ("context/budget", [{"hour": 2000, "day": 20000, "run": 8}]),
        )
    )
    _put(one, path.split("/"), chance.choice(values))


def _wait(one: dict[str, Any], chance: random.Random) -> None:
    """What a person, a resume or time is waited for: one of few things among so many others."""
    path, value = chance.choice(
        (
            ("subject/requested_mode", "ask"),
            ("action/high_impact", True),
            ("context/confidence", 0),
            ("context/stopped", True),
            ("context/counters/minute", 12000),
        )
    )
    _put(one, path.split("/"), value)


HOSTILE: tuple[Any, ...] = (
    None, True, False, 0, -1, 2**53, 0.5, 1e300, "", "0", "9999", "\0", "trusted\0", "a\"'\\\n",
    "\u202e\U0001f6a2", "*", [], {}, ["trusted"], {"a": []}, "permit", [[[]]], "x" * 5000,
)  # fmt: skip


def _hostile(one: dict[str, Any], chance: random.Random) -> None:
    _put(one, _path(one, chance), copy.deepcopy(chance.choice(HOSTILE)))


def _cut(one: dict[str, Any], chance: random.Random) -> None:
    *inner, last = _path(one, chance)
    at: Any = one
    for step in inner:
        at = at[step]
    if isinstance(at, dict):
        at.pop(last, None)


def _path(one: dict[str, Any], chance: random.Random) -> list[str]:
    path: list[str] = []
    at: Any = one
    while isinstance(at, dict) and at and (not path or chance.random() < 0.8):
        path.append(chance.choice(sorted(at)))
        at = at[path[-1]]
    return path or ["schema"]


def _put(one: dict[str, Any], path: list[str], value: object) -> None:
    at: Any = one
    for step in path[:-1]:
        at = at.get(step) if isinstance(at, dict) else None
    if isinstance(at, dict):
        at[path[-1]] = value


def decide(engine: PolicyEngine, question: object) -> Decision:
    """Decide as the gateway does: an engine that fails denies."""
    try:
        return parse_decision(engine.decide(orjson.dumps(question)))
    except EngineFailed:
        return build_denial("engine.failed")
