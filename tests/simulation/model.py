"""The model: what vedette promises, said of one history. It shares no code with the engine.

A judge of an event keeps the values of its key, and tells in its judgement's detail which it has
`seen`, the event's own last: only so are order and state seen from outside.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.simulation.history import NEVER, Event, History, Order, Want


@dataclass(frozen=True, order=True)
class Violation:
    """What is wrong: its kind, and a sentence for people."""

    kind: str
    what: str


Found = Iterator[Violation]


def judge(history: History) -> list[Violation]:
    """Return all that is wrong with a history; an empty list if nothing is."""
    checks = (_events, _effects, _repeats, _rows, _permits, _policy, _order, _stops)
    wrong = [Violation("error", said) for said in history.errors]
    return wrong + sorted({one for check in checks for one in check(history)})


def _events(history: History) -> Found:
    """What was accepted is in the ledger once, and each of its runs is judged and ended once."""
    accepted = Counter(e["event"] for e in _kind(history, "event.accepted"))
    judged = Counter((e["run"], e.get("turn", 1)) for e in _judged(history))
    closed = Counter((e["event"], e["agent"]) for e in _kind(history, "run.closed"))
    dropped = {(e["event"], e["agent"]) for e in _kind(history, "run.dropped")}
    dead = {(e["event"], e["agent"]) for e in _kind(history, "run.dead")}
    for at, entry in enumerate(history.entries, start=1):
        if entry["seq"] != at:
            yield Violation("lost", f"entry {at} of the ledger says that it is {entry['seq']}")
            break
    for event in history.events:
        if accepted[event.ref] > 1:
            yield Violation("doubled", f"{event.ref} was accepted {accepted[event.ref]} times")
        if event.told_s == NEVER or _forgotten(history, event.told_s):
            continue
        if not accepted[event.ref]:
            yield Violation("lost", f"{event.ref}: {event.by} said that it is durable")
            continue
        for agent in event.agents:
            run = event.ref, agent
            if closed[run] > 1:
                yield Violation("doubled", f"the run of {run} closed {closed[run]} times")
            elif run in dropped and event.ref not in _ordered(history, "erase"):
                yield Violation("lost", f"the run of {run} was dropped, and nobody said so")
            elif run in dead and not closed[run]:
                yield Violation("lost", f"the run of {run} became a dead letter")
            elif not closed[run] and run not in dropped:
                yield Violation("not live", f"the run of {run} has not ended")
    for (run_id, turn), times in judged.items():
        if times > 1:
            yield Violation("doubled", f"turn {turn} of {run_id} was judged {times} times")


def _effects(history: History) -> Found:
    """Each wanted call took effect once, under one key, unless somebody said that it may not."""
    done, keys = Counter[tuple[str, str, str]](), defaultdict(set)
    for act in history.acts:
        done[act.agent, act.tool, act.text] += act.what == "done"
        if act.text:
            keys[act.agent, act.tool, act.text].add(act.key)
    for event in history.events:
        for agent, want in ((a, w) for a in event.agents for w in event.wants if not w.row):
            name = (agent, want.tool, want.text)
            times = done.pop(name, 0)
            if times > 1 or len(keys[name]) > 1:
                yield Violation("doubled", f"{name}: {times} times under {len(keys[name])} keys")
            owed = event.told_s < NEVER and not _forgotten(history, event.told_s)
            if not times and owed and not _excused(history, event, want, keys[name]):
                yield Violation("lost", f"{name} never took effect")
    for name, times in done.items():
        if times:
            yield Violation("no permit", f"{name}: nobody asked for it")


def _repeats(history: History) -> Found:
    """Nobody makes a call again whose answer has come to them, be it under its key.

    Where workers share the keys one may have lost a call's to another and got it back.
    """
    if len({act.by.partition(".")[0] for act in history.acts}) > 1:
        return
    told: dict[tuple[str, str], float] = {}
    for act in sorted(history.acts, key=lambda act: act.at_s):
        if act.what == "told":
            told.setdefault((act.by, act.key), act.at_s)
        elif act.what == "begun" and (act.by, act.key) in told:
            since_s = act.at_s - told[act.by, act.key]
            what = (
                f"{act.tool} {act.text}: {act.by} was told {since_s:.3f} s before that it is done"
            )
            yield Violation("repeated", what)


def _excused(history: History, event: Event, want: Want, keys: set[str]) -> bool:
    """Say whether the plan itself has a reason for which a wanted effect need not have happened."""
    return (
        event.ref in _ordered(history, "erase")
        or any(want.tool in order.denies for order in history.orders)
        or (want.held and any(o.verb == "deny" for o in history.orders))
        or any(act.what == "refused" and act.key in keys for act in history.acts)
    )


def _rows(history: History) -> Found:
    """The fleet's rows hold what was wanted, once, in the order in which it was judged."""
    noted: dict[tuple[str, str], list[str]] = defaultdict(list)
    by_ref = {event.ref: event for event in history.events}
    done = {(e["event"], e["agent"], e["tool"]) for e in _kind(history, "effect.done")}
    for entry in _judged(history):
        event = by_ref.get(entry["event"])
        if event is None:
            continue
        for want in (want for want in event.wants if want.row):
            if (entry["event"], entry["agent"], want.tool) in done:
                noted[entry["agent"], event.key].append(want.text)
            elif not _excused(history, event, want, set()):
                yield Violation("lost", f"{entry['agent']} {want.tool} {want.text} was not written")
    for row in sorted(noted.keys() | history.rows.keys()):
        if (has := history.rows.get(row, [])) != noted[row] and not _ordered(history, "erase"):
            kind = "lost" if len(has) < len(noted[row]) else "doubled"
            if sorted(has) == sorted(noted[row]):
                kind = "out of order"
            yield Violation(kind, f"row {row} holds {has}, judged were {noted[row]}")


def _permits(history: History) -> Found:
    """No call begins, and nothing happens, without a permit that was durable before."""
    held = {want.text for event in history.events for want in event.wants if want.held}
    words: dict[str, list[tuple[int, bool]]] = defaultdict(list)
    for entry in _kind(history, "action.decided", "budget.refused"):
        words[entry.get("action", "")].append((entry["seq"], entry.get("outcome") == "permit"))
    begun: dict[str, float] = {}
    for act in sorted(history.acts, key=lambda act: act.at_s):
        if act.what == "begun":
            begun[act.key] = act.at_s
        # What was permitted in history that is lost may happen after the loss.
        if act.what not in ("begun", "done") or _forgotten(history, begun.get(act.key, act.at_s)):
            continue
        said = words[f"act_{act.key}"]
        if act.what == "begun" and act.entries is not None:
            said = [word for word in said if word[0] <= act.entries][-1:]
        call = f"{act.what} {act.tool} {act.text} at {act.at_s:.3f}"
        if not any(permit for _, permit in said):
            yield Violation("no permit", call)
        answers = [order for order in history.orders if order.what == act.key]
        yes = min((o.asked_s for o in answers if o.verb == "approve"), default=NEVER)
        known = [o for o in answers if o.verb == "deny" and not _forgotten(history, o.told_s)]
        no = min((o.told_s for o in known), default=NEVER)
        if act.text in held and yes > act.at_s:
            yield Violation("no permit", f"{call}: nobody had approved of it")
        if act.what == "begun" and no + history.grace_s < act.at_s:
            yield Violation("no permit", f"{call}: it had been denied")


def _policy(history: History) -> Found:
    """Nothing commits, and no call begins, under an older revision than the published one."""
    live = 0
    permits: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for entry in history.entries:
        if entry["kind"] == "policy.published":
            live = entry["policy_rev"]
        elif entry["kind"] == "action.decided":
            if entry["policy_rev"] < live:
                yield Violation("old policy", f"entry {entry['seq']} under {entry['policy_rev']}")
            if entry["outcome"] == "permit":
                permits[entry["action"]].append((entry["seq"], entry["policy_rev"]))
    told = [
        order
        for order in history.orders
        if order.verb == "publish" and not _forgotten(history, order.told_s)
    ]
    for act in history.acts:
        if act.what != "begun" or _forgotten(history, act.at_s):
            continue
        least = max((o.revision for o in told if o.told_s + history.grace_s < act.at_s), default=0)
        most = len(history.entries) if act.entries is None else act.entries
        under = max((rev for seq, rev in permits[f"act_{act.key}"] if seq <= most), default=least)
        if under < least:
            at = f"at {act.at_s:.3f} under {under}, published was {least}"
            yield Violation("old policy", f"{act.tool} {act.text} begun {at}")


def _order(history: History) -> Found:
    """Events of a key are judged in the order accepted, on what those before left behind."""
    by_ref = {event.ref: event for event in history.events}
    seen: dict[tuple[str, str], list[int]] = defaultdict(list)
    last: dict[tuple[str, str], int] = {}
    for entry in _judged(history):
        event = by_ref.get(entry["event"])
        if event is None or entry.get("turn", 1) != 1:
            continue
        name = entry["agent"], event.key
        if entry["about"] < last.get(name, 0):
            yield Violation("out of order", f"{name}: {event.ref} after a later one")
        last[name] = max(entry["about"], last.get(name, 0))
        seen[name].append(event.value)
        said = (history.bodies.get(entry["seq"]) or {}).get("detail", {}).get("seen")
        if said is not None and said != seen[name]:
            what = f"{name}: {event.ref} judged on {said}, before it came {seen[name]}"
            yield Violation("stale state", what)
            seen[name] = list(said)  # what follows from it is no violation of its own


def _stops(history: History) -> Found:
    """Between the answer to a stop and the order to resume nothing begins of what was stopped."""
    for stop in history.orders:
        if stop.verb != "stop" or stop.told_s == NEVER:
            continue
        lifts = [
            order.asked_s
            for order in history.orders
            if order.verb == "resume" and order.what == stop.what and order.told_s >= stop.asked_s
        ]
        # A store that went back comes up stopped; what else was ordered since is not known to it.
        back = [one for one in _restores(history) if one.since_s <= stop.told_s <= one.told_s]
        until_s = min(lifts + [one.asked_s for one in back], default=NEVER)
        for act in history.acts:
            late_s = act.at_s - stop.told_s
            if act.what != "begun" or stop.what not in _scopes(act.agent, act.tool):
                continue
            if stop.by not in ("", act.by):
                continue
            if late_s > history.grace_s and act.at_s < until_s:
                at = f"{late_s:.3f} s after the stop of {stop.what}"
                yield Violation("not stopped", f"{act.tool} {act.text} begun {at}")
    stopped: set[str] = set()
    for entry in history.entries:
        if entry["kind"] == "stop.set":
            stopped.add(entry["what"])
        elif entry["kind"] == "stop.lifted":
            stopped.discard(entry["what"])
        elif "label" in entry and stopped & _scopes(entry["agent"], ""):
            yield Violation("not stopped", f"entry {entry['seq']} ({entry['kind']})")


def _scopes(agent: str, tool: str) -> set[str]:
    return {f"agent:{agent}", f"tool:{tool}", "all:"}


def _kind(history: History, *kinds: str) -> Iterator[dict[str, Any]]:
    return (entry for entry in history.entries if entry["kind"] in kinds)


def _judged(history: History) -> Iterator[dict[str, Any]]:
    """Give the entries that record a judgement: of a turn, or of a run that came to nothing."""
    return (entry for entry in history.entries if "label" in entry)


def _ordered(history: History, verb: str) -> set[str]:
    return {order.what for order in history.orders if order.verb == verb}


def _restores(history: History) -> list[Order]:
    return [order for order in history.orders if order.verb == "restore"]


def _forgotten(history: History, at_s: float) -> bool:
    """Say whether an instant lies in what a restored store knows nothing of."""
    return any(one.since_s <= at_s < one.told_s for one in _restores(history))
