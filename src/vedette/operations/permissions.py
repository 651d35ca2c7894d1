"""Permissions: what an agent may do, as the live policy itself answers when it is asked.

No rule is read and none is copied here. Each tool is put to the engine as an exact action: with
every sink trusted, then with each origin at each sink, with a value beyond those that its grant
names, and with less and less confidence until the answer becomes another. So what is shown is
what would be decided, under whatever rules are live.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

from msgspec import Struct, field
from msgspec.structs import asdict, replace

from vedette.domain.action import Action
from vedette.domain.agent import Agent, Fleet, Schedule, Subscription
from vedette.domain.decision import Decision, DecisionContext
from vedette.domain.event import CALL_TYPE, ENVELOPE, Event
from vedette.domain.origin import Origin
from vedette.domain.ports.policy_engine import PolicyEngine
from vedette.domain.schedule import NextWallTime, build_calendar
from vedette.domain.tool import Tool
from vedette.operations.modes import effective_mode, read_grant
from vedette.policy.gateway import Gateway

SCHEMA = "vedette.rights/1"
_QUERY_EVENT = Event("vedette:engine", "rights", "vedette.rights", vouched=ENVELOPE)
_EXAMPLES: Mapping[str, Any] = {
    "string": "example", "integer": 1, "number": 1, "boolean": False, "strings": ["example"],
    "list": [], "object": {}, "any": "example", "null": None,
}  # fmt: skip
_OUTCOMES_SCOPE = ("ledger", "outcomes")
# No list of values has it: U+FFFF is no character.
_UNLISTED_VALUE = "\uffff"
_FULL_CONFIDENCE = 1000
_TRUSTED: Origin = "trusted"


class PermissionQuery(Struct, frozen=True):
    """Whose permissions are asked, and of which engine, with the data that is live in it.

    `act_engine` is the same policy but for the agent's mode, which is act there. `cron_walls` reads
    a cron expression (`vedette.domain.schedule`).
    """

    agent: Agent
    engine: PolicyEngine
    revision: int
    files: Mapping[str, bytes]
    data: Mapping[str, Any]
    now_us: int
    cron_walls: Callable[[str], NextWallTime]
    stopped: frozenset[str] = field(default_factory=frozenset)
    act_engine: PolicyEngine | None = None


def effective_permissions(
    query: PermissionQuery, fleet: Fleet, stops: Sequence[tuple[str, str]]
) -> dict[str, Any]:
    """Return an agent's permissions: what it may do, wakes on and spends, as one JSON object.

    `stops` are (scope, name) of what is stopped. Raises nothing of the engine's: what it cannot
    decide is shown as the deny that it is.
    """
    agent = query.agent
    own = read_grant(query.files, agent.name)
    mine = [f"{s}:{n}" for s, n in stops if s == "all" or n == agent.name or n in agent.tools]
    tools = [_tool(query, tool) for tool in agent.tools.values()]
    memory = [_scope(query, bank, scope) for bank, scope in _scopes(agent, own)]
    limits = query.data.get("limits", {})
    actions = limits.get("actions", {})
    return {
        "schema": SCHEMA,
        "agent": agent.name,
        "title": agent.title,
        "owner": agent.owner,
        "identity": agent.identity.spiffe_id,
        "release": agent.release,
        "reasoner": ", ".join(dict.fromkeys((agent.reasoner, agent.last_reasoner))),
        "collection": agent.collection,
        "revision": query.revision or None,
        "mode": {
            "requested": agent.requested_mode,
            "granted": own["mode"],
            "in_force": effective_mode(agent.requested_mode, own["mode"]),
        },
        "wakes": describe_triggers(agent),
        "next_ticks": next_ticks(agent, query.now_us, query.cron_walls),
        "beside": [
            other.name
            for other in fleet.agents.values()
            if other.name != agent.name and _shared_subscriptions(other, agent)
        ],
        "tools": tools,
        "memory": memory,
        "limits": {
            "hops": limits.get("hops"),
            "actions": actions.get("agents", {}).get(agent.name, actions.get("default")),
        },
        "budget": {
            name: most
            for name, most in asdict(agent.budget).items()
            if most not in (None, 0) and (agent.asks_model or name.startswith("actions"))
        },
        "stopped": mine,
        "not_granted": [
            *(row["tool"] for row in tools if _is_ungranted(row["rule"])),
            *(f"memory {row['scope']}" for row in memory if row["outcome"] != "permit"),
        ],
        "not_requested": [
            *(name for name in own.get("tools", {}) if name not in agent.tools),
            *(
                f"memory {name}"
                for name in own.get("memory", [])
                if name not in [row["scope"] for row in memory]
            ),
        ],
    }


def _shared_subscriptions(one: Agent, other: Agent) -> set[Subscription]:
    """Return the subscriptions by which one event wakes both; a call is one agent's own."""
    shared = set(one.subscriptions) & set(other.subscriptions)
    return {each for each in shared if each.types != (CALL_TYPE,)}


def _scopes(agent: Agent, own: Mapping[str, Any]) -> list[tuple[str, str]]:
    found = dict.fromkeys((scope.bank, scope.scope) for scope in agent.scopes)
    if agent.schedules and "/".join(_OUTCOMES_SCOPE) in own.get("memory", []):
        # What a tick tells of people's answers; every agent with a schedule asks for it.
        found[_OUTCOMES_SCOPE] = None
    return list(found)


def _scope(query: PermissionQuery, bank: str, scope: str) -> dict[str, Any]:
    decision_context = DecisionContext(query.agent, _QUERY_EVENT, 1, query.now_us)
    found = Gateway(query.engine, query.revision).may_read(decision_context, bank, scope).decision
    return {"scope": f"{bank}/{scope}", "outcome": found.outcome, "rule": found.rule}


# --- one tool ------------------------------------------------------------------------------------


def granted_tools(query: PermissionQuery) -> list[Tool]:
    """Return the tools of an agent that its permissions reach: what policy grants, be it held."""
    found = []
    for tool in query.agent.tools.values():
        _, _, args, ask = _best_case(query, tool)
        if not _is_ungranted(ask(args, {}, _FULL_CONFIDENCE)[0].rule):
            found.append(tool)
    return found


def _is_ungranted(rule: str) -> bool:
    return rule.startswith(("grant.", "denies."))


def _best_case(
    query: PermissionQuery, tool: Tool
) -> tuple[Any, Mapping[str, Any], dict[str, Any], _Ask]:
    """Return a tool's grant, the values it is narrowed to, arguments that fit them, and whom to
    ask about those.
    """
    grant = read_grant(query.files, query.agent.name).get("tools", {}).get(tool.name, {})
    only = grant.get("only", {}) if isinstance(grant, dict) else {}
    only = only if isinstance(only, dict) else {}
    args = {name: _EXAMPLES[kind.removesuffix("?")] for name, kind in tool.args.items()}
    trigger, its_own = _first_trigger(grant)
    for pointer, values in [*only.items(), *its_own.items()]:
        if isinstance(values, list) and values and pointer[1:] in args:
            args[pointer[1:]] = values[0]
    return grant, only, args, _build_asker(query, tool, trigger)


def _tool(query: PermissionQuery, tool: Tool) -> dict[str, Any]:
    grant, only, args, ask = _best_case(query, tool)
    best = ask(args, {}, _FULL_CONFIDENCE)
    listed = query.data.get("sinks", {}).get("tools", {}).get(tool.name, {})
    sinks = dict.fromkeys([*tool.sinks, *listed])
    return {
        "tool": tool.name,
        "verb": tool.verb,
        "resource": tool.resource,
        "impact": "high" if tool.high_impact else _word(grant, "impact"),
        "inverse": tool.inverse,
        "target": tool.target,
        **_answer_to_json(best),
        "sinks": {
            sink: {
                origin: _answer_to_json(
                    ask(_fill_sink(args, sink, only), _label_sink(sink, origin), _FULL_CONFIDENCE)
                )
                for origin in get_args(Origin)
            }
            for sink in sinks
        },
        "only": {
            pointer: {
                "values": values,
                "beyond": _answer_to_json(
                    ask({**args, pointer[1:]: _UNLISTED_VALUE}, {}, _FULL_CONFIDENCE)
                ),
            }
            for pointer, values in only.items()
        },
        "bar_milli": _bar(ask, args, best),
    }


def _fill_sink(args: Mapping[str, Any], sink: str, only: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return arguments in which a sink within one is there; what a grant lists stays as listed."""
    _, *steps = sink.split("/")
    if len(steps) < 2 or steps[0] not in args or f"/{steps[0]}" in only:
        return args
    value: Any = _UNLISTED_VALUE
    for step in reversed(steps[1:]):
        value = [value] if step == "*" else {step: value}
    return {**args, steps[0]: value}


def _label_sink(sink: str, origin: Origin) -> dict[str, Origin]:
    """Return the label of the argument that is a sink, or that it is in: its elements have it."""
    return {f"/{name}": origin for name in sink.split("/")[1:2]}


def _word(grant: Any, name: str) -> str | None:
    return str(grant[name]) if isinstance(grant, dict) and name in grant else None


_Answer = tuple[Decision, Decision | None]  # now, and in act where it is not in act
_Ask = Callable[[Mapping[str, Any], Mapping[str, Origin], int], _Answer]


def _first_trigger(grant: Any) -> tuple[str, Mapping[str, Any]]:
    """Return a trigger that a grant is for, and the values that hold for it; "" for any."""
    triggers = grant.get("triggers") if isinstance(grant, dict) else None
    if isinstance(triggers, dict) and triggers:
        name, values = next(iter(triggers.items()))
        return str(name), values if isinstance(values, dict) else {}
    return (str(triggers[0]) if isinstance(triggers, list) and triggers else ""), {}


def _build_asker(query: PermissionQuery, tool: Tool, trigger: str) -> _Ask:
    def ask(args: Mapping[str, Any], origins: Mapping[str, Origin], confidence: int) -> _Answer:
        action = Action(
            run="run_rights", turn=1, ordinal=0, tool=tool, args=args,
            origins={**{f"/{name}": _TRUSTED for name in args}, **origins}, sources={},
            why="", confidence_milli=confidence, digest="0" * 64,
        )  # fmt: skip
        stopped = tool.name in query.stopped
        decision_context = DecisionContext(
            query.agent, _QUERY_EVENT, 1, query.now_us, stopped=stopped, trigger=trigger,
            artefact="own",
        )  # fmt: skip
        # A gateway of its own: what it permits is counted nowhere.
        now = Gateway(query.engine, query.revision).decide(action, decision_context).decision
        if query.act_engine is None:
            return now, None
        other = replace(decision_context, agent=replace(query.agent, requested_mode="act"))
        return now, Gateway(query.act_engine, query.revision).decide(action, other).decision

    return ask


def _answer_to_json(answer: _Answer) -> dict[str, Any]:
    now, act = answer
    return {
        "outcome": now.outcome,
        "rule": now.rule,
        "would": now.would,
        "reasons": list(now.reasons),
        "in_act": {"outcome": (act or now).outcome, "rule": (act or now).rule},
    }


def _bar(ask: _Ask, args: Mapping[str, Any], best: _Answer) -> int | None:
    """Return the least confidence with which the answer is as with the most; None if any will do.

    What a judge is less sure of than this is answered otherwise. Found by halving.
    """

    wanted = best[1] or best[0]

    def is_same(confidence: int) -> bool:
        now, act = ask(args, {}, confidence)
        found = act or now
        return found.outcome == wanted.outcome and set(found.reasons) == set(wanted.reasons)

    if is_same(0):
        return None
    low, high = 0, _FULL_CONFIDENCE
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_same(middle) else (middle, high)
    return high


def stopped_tools(agent: Agent, stops: Sequence[tuple[str, str]]) -> frozenset[str]:
    """Return the tools of an agent whose permissions are stopped by these (scope, name)."""
    return frozenset(
        tool
        for scope, name in stops
        for tool in agent.tools
        if scope == "all" or (scope == "agent" and name == agent.name) or name == tool
    )


# --- what wakes it -------------------------------------------------------------------------------


def describe_triggers(agent: Agent) -> list[str]:
    """Tell beside permissions what wakes an agent, a line for each subscription and schedule."""
    lines = []
    for one in agent.subscriptions:
        if one.types == (CALL_TYPE,):
            lines.append("calls of its client")
            continue
        line = f"events of type {' or '.join(one.types)}"
        if one.sources != ("*",):
            line += f" from {' or '.join(one.sources)}"
        if one.subjects != ("*",):
            line += f" about {' or '.join(one.subjects)}"
        lines.append(line)
    return lines + [
        f"its schedule {one.name}: {_describe_schedule(one)}" for one in agent.schedules
    ]


def _describe_schedule(schedule: Schedule) -> str:
    if schedule.every_us is not None:
        return f"every {schedule.every_us / 1e6:g} s"
    if schedule.daily is not None:
        return f"daily at {schedule.daily} ({schedule.zone})"
    return f"cron {schedule.cron} ({schedule.zone})"


def next_ticks(
    agent: Agent, now_us: int, cron: Callable[[str], NextWallTime]
) -> dict[str, int | None]:
    """Tell beside permissions when each schedule is due next (microseconds, UTC); None for never.

    `cron` reads a cron expression. Raises what it raises.
    """
    found: dict[str, int | None] = {}
    for schedule in agent.schedules:
        walls = None if schedule.cron is None else cron(schedule.cron)
        found[schedule.name] = build_calendar(schedule, walls)(now_us)
    return found
