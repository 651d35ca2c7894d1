"""Loosening: what another bundle loosens, said to whoever wants it live, before it is.

A *loosening* is a difference after which something may be permitted that was not before. In the
data files that the shipped rules read, each key is compared by what it means: a mode that rises, a
tool that is granted, a limit that is raised, a deny that goes. What cannot be judged so counts as a
loosening too, as nobody has shown that it is none: a changed rule, data of another name, a key that
is not known here, and a value of a shape that none of the rules expects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import orjson
from msgspec import Struct

from vedette.domain.base.canonical import canonical_json, sha256_hex
from vedette.domain.bundle import Bundle
from vedette.domain.decision import Decision, evaluate_request
from vedette.domain.ports.policy_engine import PolicyEngine

MODES = ("observe", "ask", "act")
_PERMISSIVENESS = {"deny": 0, "hold": 1, "permit": 2}
_MAX_SHOWN = 20

Document = Mapping[str, Any]


class Loosening(Struct, frozen=True):
    """What a bundle loosens against another, in words; empty where nothing is.

    `bundle_digests` are the digests of both bundles. `evidence` tells what recorded questions would
    be answered under both; it is shown, and is no part of the digest, as other questions are
    recorded meanwhile.
    """

    statements: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    bundle_digests: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """Return what a person confirms: exactly these words, about exactly these bundles."""
        return sha256_hex(canonical_json([*self.bundle_digests, *self.statements]))


def find_loosening(
    old: Bundle, new: Bundle, mount: Callable[[Mapping[str, bytes]], Document]
) -> Loosening:
    """Return what `new` loosens against `old`. `mount` returns a bundle's data document.

    Raises BadPolicy for data that cannot be read.
    """
    if old.digest == new.digest:
        return Loosening()
    was, now = mount(old.files), mount(new.files)
    said = [*_rules(old, new)]
    for name in sorted(was.keys() | now.keys()):
        before, after = was.get(name), now.get(name)
        if before != after:
            said += _COMPARERS.get(name, _unknown_changes)(
                name, _as_object(before), _as_object(after)
            )
            said += _shape_changes(f"data.{name}", before, after)
            if not isinstance(after, dict):
                said.append(f"data.{name}: another shape")
    return Loosening(tuple(dict.fromkeys(said)), bundle_digests=(old.digest, new.digest))


def find_looser_decisions(
    old: PolicyEngine, new: PolicyEngine, requests: Sequence[bytes]
) -> tuple[str, ...]:
    """Say which recorded questions come out looser under another engine, newest question first."""
    found: list[str] = []
    for raw in requests:
        before, after = evaluate_request(old, raw), evaluate_request(new, raw)
        if _PERMISSIVENESS[after.outcome] > _PERMISSIVENESS[before.outcome]:
            request = orjson.loads(raw)
            found.append(
                f"{request['subject']['agent']} {request['action']['tool']}: "
                f"{_format_decision(before)} -> {_format_decision(after)}"
            )
    counted = [
        f"{found.count(line)} x {line}" if found.count(line) > 1 else line
        for line in dict.fromkeys(found)
    ]
    more = [f"and {len(counted) - _MAX_SHOWN} more"] if len(counted) > _MAX_SHOWN else []
    head = f"of the last {len(requests)} decisions {len(found)} would have come out looser"
    return (head, *counted[:_MAX_SHOWN], *more)


def _format_decision(decision: Decision) -> str:
    return f"{decision.outcome} ({decision.rule})"


def _as_object(value: Any) -> Document:
    return value if isinstance(value, dict) else {}


def _rules(old: Bundle, new: Bundle) -> Iterator[str]:
    """Say which rules are others: comments, empty lines and tests decide nothing."""
    before, after = old.modules(), new.modules()
    for path in sorted(before.keys() | after.keys()):
        if path not in after:
            yield f"rules taken away: {path}"
        elif path not in before:
            yield f"rules added: {path}"
        elif _significant_lines(before[path]) != _significant_lines(after[path]):
            yield f"rules changed: {path}"


def _significant_lines(text: str) -> list[str]:
    lines = text.split("\n")  # as Rego does: splitlines() would split at more than that
    if "`" in text:  # a raw text may have lines that only look like comments
        return lines
    return [line for line in lines if line.strip() and not line.lstrip().startswith("#")]


# --- data, by what its keys mean ---------------------------------------------------------------


def _unknown_changes(name: str, was: Document, now: Document) -> Iterator[str]:
    """Say that data differs of which nobody here knows what it does."""
    for path in sorted(_leaves(was).items() ^ _leaves(now).items(), key=str):
        yield f"data.{name}{path[0]}: changed"


def _leaves(value: Any, path: str = "") -> dict[str, str]:
    if isinstance(value, dict) and value:
        found: dict[str, str] = {}
        for key, item in value.items():
            found |= _leaves(item, f"{path}/{key}")
        return found
    return {path: canonical_json(value).decode()}


def _other_changes(name: str, was: Document, now: Document, known: set[str]) -> Iterator[str]:
    """Say what differs beside the keys that are known."""
    rest = [{key: item for key, item in each.items() if key not in known} for each in (was, now)]
    yield from _unknown_changes(name, *rest)


def _shape_changes(what: str, was: Any, now: Any) -> Iterator[str]:
    """Say where a value is of another kind than before: rules may read it quite otherwise."""
    if isinstance(was, dict) and isinstance(now, dict):
        for key in sorted(was.keys() & now.keys(), key=str):
            yield from _shape_changes(f"{what}/{key}", was[key], now[key])
    elif (
        None not in (was, now)
        and type(was) is not type(now)
        and not (_is_number(was) and _is_number(now))
    ):
        yield f"{what}: another shape"


def _complete(name: str, was: Document, now: Document) -> Iterator[str]:
    if now.get("complete") is True and was.get("complete") is not True:
        yield f"{name}: counts as complete"


def _grants(name: str, was: Document, now: Document) -> Iterator[str]:
    for agent in sorted(now):
        before, after = _as_object(was.get(agent)), _as_object(now[agent])
        if agent not in was:
            yield f"{agent}: known to policy"
        old, new = _mode(before), _mode(after)
        if MODES.index(new) > MODES.index(old):
            yield f"{agent}: mode {old} -> {new}"
        if before.get("owner") != after.get("owner") and agent in was:
            yield f"{agent}: owner {before.get('owner')} -> {after.get('owner')}"
        for scope in _added_items(before.get("memory"), after.get("memory")):
            yield f"{agent}: may read {scope}"
        for tool in _added_items(before.get("inward"), after.get("inward")):
            yield f"{agent}: {tool} is called inward, its permits wait for no second opinion"
        tools, given = _as_object(before.get("tools")), _as_object(after.get("tools"))
        for tool in sorted(given):
            if tool not in tools:
                yield f"{agent}: {tool} is granted"
            elif tools[tool] != given[tool]:
                yield from _tool(
                    f"{agent}: {tool}", _as_object(tools[tool]), _as_object(given[tool])
                )
        known = {"mode", "owner", "memory", "inward", "tools"}
        yield from _other_changes(f"{name}/{agent}", before, after, known)


def _mode(grant: Document) -> str:
    mode = grant.get("mode")
    return mode if mode in MODES else "observe"


def _tool(what: str, was: Document, now: Document) -> Iterator[str]:
    for key in ("verb", "resource"):
        if was.get(key) != now.get(key):
            yield f"{what}: {key} {was.get(key)} -> {now.get(key)}"
    if was.get("impact") != "low" and now.get("impact") != was.get("impact"):
        yield f"{what}: impact {was.get('impact')} -> {now.get('impact')}"
    if "only" in was:
        if "only" not in now:
            yield f"{what}: any value of its arguments, where only some were granted"
        else:
            yield from _values(what, was["only"], now["only"])
    if "triggers" in was:
        if "triggers" not in now:
            yield f"{what}: for any run, where only some triggers were granted"
        else:
            yield from _triggers(
                what, _trigger_values(was["triggers"]), _trigger_values(now["triggers"])
            )
    known = {"verb", "resource", "impact", "only", "triggers"}
    yield from _other_changes(what, was, now, known)


def _values(what: str, was: Any, now: Any) -> Iterator[str]:
    """Say what arguments may be that they might not before. Both are {pointer: [value, ...]}."""
    if was == now:
        return
    if not isinstance(was, dict) or not isinstance(now, dict):
        yield f"{what}: other values of its arguments, in another shape"
        return
    for pointer in sorted(was.keys() - now.keys()):
        yield f"{what}: any value of {pointer}"
    for pointer in sorted(was.keys() & now.keys()):
        more = _added_items(was[pointer], now[pointer])
        if more:
            yield f"{what}: {pointer} may be {', '.join(map(str, more))}"


def _trigger_values(triggers: Any) -> Any:
    """Return triggers as {name: the values that hold for it}; a list sets none."""
    if isinstance(triggers, list):
        return {str(name): {} for name in triggers}
    return triggers


def _triggers(what: str, was: Any, now: Any) -> Iterator[str]:
    if was == now:
        return
    if not isinstance(was, dict) or not isinstance(now, dict):
        yield f"{what}: other triggers, in another shape"
        return
    for name in sorted(now.keys() - was.keys()):
        yield f"{what}: runs of trigger {name} have it"
    for name in sorted(now.keys() & was.keys()):
        yield from _values(f"{what}: trigger {name}", was[name], now[name])


def _added_items(was: Any, now: Any) -> list[Any]:
    """Return what a list has that another has not.

    What is no list may mean anything (Rego's `in` finds the values of an object): it is new whole.
    """
    if was == now or now is None:
        return []
    before = was if isinstance(was, list) else []
    return [item for item in now if item not in before] if isinstance(now, list) else [now]


def _denies(name: str, was: Document, now: Document) -> Iterator[str]:
    yield from _complete(name, was, now)
    for kind in ("agents", "tools"):
        for item in _added_items(now.get(kind), was.get(kind)):
            yield f"{kind[:-1]} {item} is denied no longer"
        lists = [isinstance(each.get(kind), list) for each in (was, now)]
        if was.get(kind) != now.get(kind) and not all(lists):
            yield f"{name}/{kind}: {'is' if lists[0] else 'was'} no list"
    yield from _other_changes(name, was, now, {"complete", "agents", "tools"})


def _registry(name: str, was: Document, now: Document) -> Iterator[str]:
    before = _leaves(was)
    for path, value in sorted(_leaves(now).items()):
        if before.get(path) != value and value != "{}":
            yield f"registry{path} is {value}"


def _sinks(name: str, was: Document, now: Document) -> Iterator[str]:
    yield from _complete(name, was, now)
    tools, given = _as_object(was.get("tools")), _as_object(now.get("tools"))
    for tool in sorted(tools.keys() | given.keys()):
        before, after = _as_object(tools.get(tool)), _as_object(given.get(tool))
        for sink in sorted(before.keys() - after.keys()):
            yield f"{tool} {sink}: no longer listed, so free where the tool does not declare it"
        for sink in sorted(after):
            one, other = _as_object(before.get(sink)), _as_object(after[sink])
            takes = one.get("accepts") if sink in before else ["trusted"]
            listed = takes if isinstance(takes, list) else []
            for origin in _added_items([*listed, "trusted"], other.get("accepts")):
                yield f"{tool} {sink}: takes {origin}"
            otherwise = other.get("otherwise")
            if otherwise not in (None, "deny", one.get("otherwise")):
                yield f"{tool} {sink}: else a person may allow it, where it was denied"
            receiver = other.get("receiver")
            if receiver not in (None, True) and one.get("receiver") is not receiver:
                yield f"{tool} {sink}: receives nothing, so it may be none of the permitted readers"
            known = {"accepts", "otherwise", "receiver"}
            yield from _other_changes(f"{name}/tools/{tool}{sink}", one, other, known)
    yield from _other_changes(name, was, now, {"complete", "tools"})


def _limits(name: str, was: Document, now: Document) -> Iterator[str]:
    yield from _complete(name, was, now)
    if _is_raised(was.get("hops"), now.get("hops")):
        yield f"hops {was.get('hops')} -> {now.get('hops')}"
    agents = {
        agent
        for each in (was, now)
        for part in ("actions", "confidence_milli")
        for agent in _as_object(_as_object(each.get(part)).get("agents"))
    }
    for agent in [None, *sorted(agents)]:
        before, after = _windows(was, agent), _windows(now, agent)
        for window in ("minute", "hour", "day"):
            if _is_raised(before.get(window), after.get(window)):
                yield (
                    f"{agent or 'every agent'}: actions a {window} {before.get(window)} -> "
                    f"{after.get(window)}"
                )
        for tool in [None, *sorted(_threshold_tools(was, agent) | _threshold_tools(now, agent))]:
            old, new = _threshold(was, agent, tool), _threshold(now, agent, tool)
            risen = _is_number(new) and _is_number(old) and new > old
            if new is not None and new != old and not risen:
                subject = f"{agent or 'every agent'}{': ' + tool if tool else ''}"
                yield f"{subject}: needs a confidence of {new} thousandths, was {old}"
    yield from _other_changes(name, was, now, {"complete", "hops", "actions", "confidence_milli"})


def _is_raised(was: Any, now: Any) -> bool:
    """Say whether a limit is not shown to be as low: Rego finds every number below a text."""
    if now is None or was == now:
        return False
    return not (_is_number(was) and _is_number(now) and now < was)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _windows(limits: Document, agent: str | None) -> Document:
    actions = _as_object(limits.get("actions"))
    own = _as_object(actions.get("agents")).get(agent) if agent else None
    return own if isinstance(own, dict) else _as_object(actions.get("default"))


def _threshold_tools(limits: Document, agent: str | None) -> set[str]:
    bars = _as_object(_as_object(limits.get("confidence_milli")).get("agents"))
    return set(_as_object(_as_object(bars.get(agent or "")).get("tools")))


def _threshold(limits: Document, agent: str | None, tool: str | None) -> Any:
    """Return the threshold that holds, the closest that is named; None where none is."""
    bars = _as_object(limits.get("confidence_milli"))
    own = _as_object(_as_object(bars.get("agents")).get(agent or ""))
    named = (_as_object(own.get("tools")).get(tool or ""), own.get("default"), bars.get("default"))
    return next((bar for bar in named if bar is not None), None)


def _budgets(name: str, was: Document, now: Document) -> Iterator[str]:
    """Say which limits go or rise and which prices fall; one that is new only takes away."""
    yield from _complete(name, was, now)
    before, after = _leaves(was), _leaves(now)
    for path, value in sorted(before.items()):
        if path == "/complete" or after.get(path) == value:
            continue
        old, new = orjson.loads(value), orjson.loads(after.get(path, "null"))
        if old == {} and new is None:
            continue
        falls = path.startswith("/prices")
        looser = not _is_number(new) or not _is_number(old) or (new < old if falls else new > old)
        if looser:
            yield f"budget {path[1:]}: {old} -> {'none' if new is None else new}"


_COMPARERS: Mapping[str, Callable[[str, Document, Document], Iterator[str]]] = {
    "grants": _grants,
    "denies": _denies,
    "registry": _registry,
    "sinks": _sinks,
    "limits": _limits,
    "budgets": _budgets,
}
