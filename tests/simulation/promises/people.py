"""People: what they order holds from the answer on, is on record once, and is not asked again."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from tests.simulation.history import NEVER, History, Order
from tests.simulation.promises.reading import (
    Found,
    Violation,
    find_entries,
    find_restores,
    find_row_tools,
    find_subjects,
    list_scopes,
    read_losses,
)  # fmt: skip

# The entry that says of which orders that they were carried out, and if there is one of each
# subject.
_ENTRIES = {
    "hold.approved": (("approve",), True),
    "hold.denied": (("deny", "confirm"), True),
    "stop.set": (("stop",), True),
    "stop.lifted": (("resume",), True),
    "body.erased": (("erase",), False),
    "key.rotated": (("rotate",), False),
    "ledger.archived": (("archive",), False),
}
# For what reasons people may be told no.
_REFUSALS = (
    "cannot become", "has expired", "already stopped", "is not stopped", "nothing is closed",
    "is being handled", "may have happened", "the store went back", "no body is found",
    "is not what was shown",
)  # fmt: skip


def check_stops(history: History) -> Found:
    """Between the answer to a stop and the order to resume nothing begins of what was stopped."""
    restores = find_restores(history)
    for stop in [*history.orders, *_own_stops(history)]:
        if stop.verb != "stop" or stop.told_s == NEVER:
            continue
        lifts = [
            order.asked_s
            for order in history.orders
            if order.verb == "resume" and order.what == stop.what and order.told_s >= stop.asked_s
        ]
        # A store that went back comes up stopped; what else was ordered since is not known to it.
        back = [one for one in restores if one.since_s <= stop.told_s < one.told_s]
        until_s = min(lifts + [one.asked_s for one in back], default=NEVER)
        for act in history.acts:
            delay_s = act.at_s - stop.told_s
            if act.what != "begun" or stop.what not in list_scopes(act.agent, act.tool):
                continue
            if stop.by not in ("", act.by):
                continue
            if delay_s > history.grace_s and act.at_s < until_s:
                at = f"{delay_s:.3f} s after the stop of {stop.what}"
                yield Violation("not stopped", f"{act.tool} {act.text} begun {at}")
    stopped: set[str] = set()
    rows = find_row_tools(history)
    for entry in history.entries:
        if entry["kind"] == "stop.set":
            stopped.add(entry["what"])
        elif entry["kind"] == "stop.lifted":
            stopped.discard(entry["what"])
        begins = "label" in entry or (entry["kind"] == "effect.done" and entry["tool"] in rows)
        if begins and stopped & list_scopes(entry["agent"], entry.get("tool", "")):
            yield Violation("not stopped", f"entry {entry['seq']} ({entry['kind']})")


def _own_stops(history: History) -> Iterator[Order]:
    """Give the stop of a store that went back last, and knows it: in force from its entry on."""
    known = max((e["seq"] for e in find_entries(history, "store.restored")), default=NEVER)
    for one in find_restores(history)[-1:]:
        later = (act for act in history.acts if act.what == "begun" and act.at_s >= one.told_s)
        since = [act.at_s for act in later if (act.entries or 0) >= known]
        if since:
            yield Order("stop", one.asked_s, min(since) - 1e-6, "all:")


def check_losses(history: History) -> Found:
    """A store that went back says so, and is stopped by it; no other does."""
    restores = [one for one in find_restores(history) if one.told_s < NEVER]
    entries = [entry["seq"] for entry in find_entries(history, "store.restored")]
    lost = read_losses(history)
    if entries and not find_restores(history):
        yield Violation("stopped for nothing", f"entry {entries[0]}: nothing was lost")
    for one in restores[-1:]:
        # What was on record when the copy was made is not what says that it took over.
        before = (act for act in history.acts if act.at_s < one.since_s and not lost(act.at_s))
        known = max((act.entries or 0 for act in before), default=0)
        if max(entries, default=0) <= known:
            yield Violation("not stopped", f"the store went back at {one.asked_s:.3f}, unsaid")


def check_refusals(history: History) -> Found:
    """An order is refused for a known reason only."""
    for order, why in history.refused:
        known = any(reason in why for reason in _REFUSALS) or _keeps_rollback(history, order, why)
        if not known:
            yield Violation("refused", f"{order.verb} {order.what}: {why}")


def _keeps_rollback(history: History, order: Order, why: str) -> bool:
    """Say whether an archive was refused an entry that says to which release an agent went back."""
    named = re.search("waits since entry ([0-9]+)", why)
    if order.verb != "archive" or named is None:
        return False
    releases = find_entries(history, "agent.released")
    return any(one["seq"] == int(named[1]) and "back_to" in one for one in releases)


def check_orders(history: History) -> Found:
    """What people were told is done is on record, and once for each time that they asked."""
    lost, erased = read_losses(history), find_subjects(history, "erase")
    # An erasure denies what waits for it.
    denied = {_subject(e) for e in find_entries(history, "action.decided") if e["event"] in erased}
    for kind, (verbs, by_subject) in _ENTRIES.items():
        there = Counter(
            _subject(entry) if by_subject else ""
            for entry in find_entries(history, kind)
            # An archive erases, too: what it archived.
            if entry.get("actor") == history.person and entry.get("what") != "archive"
        )
        requested, answered = Counter[str](), Counter[str]()
        for order in [*history.orders, *(each for each, _ in history.refused)]:
            if order.verb in verbs:
                subject = order.what if by_subject else ""
                requested[subject] += 1
                answered[subject] += (
                    order.recorded and order.told_s < NEVER and not lost(order.told_s)
                )
        for subject in requested.keys() | there.keys():
            if kind == "hold.denied" and subject in denied:
                continue
            said = f"{verbs[0]} {subject}:"
            if answered[subject] > there[subject]:
                what = f"{said} {answered[subject]} told, {there[subject]} on record"
                yield Violation("forgotten", what)
            if there[subject] > requested[subject]:
                what = f"{said} {requested[subject]} asked, {there[subject]} on record"
                yield Violation("doubled", what)


def _subject(entry: dict[str, Any]) -> str:
    return str(entry.get("action", "")).removeprefix("act_") or str(entry.get("what", ""))


def check_approvals(history: History) -> Found:
    """What a person approved is not asked for again, unless nobody knows what came of it.

    An approval that was lost, or signed with a key that was rotated since, does not count.
    """
    if find_restores(history) or find_subjects(history, "rotate"):
        return
    held = {want.tool for event in history.events for want in event.wants if want.held}
    repeat = {entry["action"] for entry in find_entries(history, "hold.expired")}
    repeat |= {
        e["action"] for e in find_entries(history, "effect.unknown") if e["tool"] not in held
    }
    approved = Counter(entry["action"] for entry in find_entries(history, "hold.approved"))
    for action, times in approved.items():
        if times > 1 and action not in repeat:
            yield Violation("asked again", f"{action} was approved {times} times")


def check_erasures(history: History) -> Found:
    """Nothing is left of the content of what was erased.

    A row of the fleet's own is not an event's content: it stays, and so does what was noted in it.
    """
    lost, by_ref = read_losses(history), {event.ref: event for event in history.events}
    for order in history.orders:
        event = by_ref.get(order.what)
        if order.verb != "erase" or event is None or order.told_s == NEVER or lost(order.told_s):
            continue
        for want in event.wants:
            if not want.row and f'"{want.text}"' in history.content:
                yield Violation("not erased", f"{want.text} of {event.ref}")
