"""Permits: nothing happens without one that is durable, of the policy that is published."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from tests.simulation.history import NEVER, History, Order
from tests.simulation.promises.reading import (
    Found,
    Violation,
    find_entries,
    find_row_tools,
    read_losses,
)  # fmt: skip

# For how long bookings are kept at least: three days.
_BOOKED_US = 72 * 3600 * 1_000_000


def check_permits(history: History) -> Found:
    """No call begins, and nothing happens, without a permit that was durable before."""
    held = {want.text for event in history.events for want in event.wants if want.held}
    lost = read_losses(history)
    words: dict[str, list[tuple[int, bool]]] = defaultdict(list)
    for entry in find_entries(history, "action.decided", "budget.refused"):
        words[entry.get("action", "")].append((entry["seq"], entry.get("outcome") == "permit"))
    answers: dict[str, list[Order]] = defaultdict(list)
    for order in history.orders:
        answers[order.what].append(order)
    starts: dict[str, float] = {}
    for act in sorted(history.acts, key=lambda act: act.at_s):
        if act.what == "begun":
            starts[act.key] = act.at_s
        # What was permitted in history that is lost may happen after the loss.
        if act.what not in ("begun", "done") or lost(starts.get(act.key, act.at_s)):
            continue
        said = words[f"act_{act.key}"]
        if act.what == "begun" and act.entries is not None:
            said = [word for word in said if word[0] <= act.entries][-1:]
        call = f"{act.what} {act.tool} {act.text} at {act.at_s:.3f}"
        if not any(permit for _, permit in said):
            yield Violation("no permit", call)
        given = answers[act.key]
        yes = min((o.asked_s for o in given if o.verb == "approve"), default=NEVER)
        known = [o for o in given if o.verb == "deny" and not lost(o.told_s)]
        no = min((o.told_s for o in known), default=NEVER)
        if act.text in held and yes > act.at_s:
            yield Violation("no permit", f"{call}: nobody had approved of it")
        if act.what == "begun" and no + history.grace_s < act.at_s:
            yield Violation("no permit", f"{call}: it had been denied")


def list_publications(history: History) -> list[Order]:
    """Return the publications of which a restored store knows; others' revisions came again."""
    lost = read_losses(history)
    return [o for o in history.orders if o.verb == "publish" and not lost(o.told_s)]


def read_denials(orders: Iterable[Order]) -> set[tuple[int, str]]:
    """Return the (revision, tool) of which people know that it is denied."""
    return {(order.revision, tool) for order in orders for tool in order.denies if order.revision}


def check_policy(history: History) -> Found:
    """Nothing commits, and no call begins, under an older revision than the published one.

    And a revision's rules are those that were published with it.
    """
    live = 0
    rows, lost = find_row_tools(history), read_losses(history)
    publications = list_publications(history)
    denials = read_denials(publications)
    last: dict[str, str] = {}
    permits: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for entry in find_entries(history, "policy.published", "action.decided", "effect.done"):
        said = f"entry {entry['seq']}"
        if entry["kind"] == "policy.published":
            live = entry["policy_rev"]
        elif entry["kind"] == "action.decided":
            rev, tool, action = entry["policy_rev"], entry["tool"], entry["action"]
            last[action] = entry["outcome"]
            if rev < live:
                yield Violation("old policy", f"{said} under {rev}")
            if entry["outcome"] == "permit":
                permits[action].append((entry["seq"], rev))
                if (rev, tool) in denials:
                    yield Violation("old policy", f"{said} permits {tool}, which {rev} denies")
        elif entry["tool"] in rows and last.get(entry["action"]) != "permit":
            yield Violation("no permit", f"{said}: a row is written")
    for act in history.acts:
        if act.what != "begun" or lost(act.at_s):
            continue
        least = max(
            (o.revision for o in publications if o.told_s + history.grace_s < act.at_s), default=0
        )
        most = len(history.entries) if act.entries is None else act.entries
        under = max((rev for seq, rev in permits[f"act_{act.key}"] if seq <= most), default=least)
        if under < least:
            at = f"at {act.at_s:.3f} under {under}, published was {least}"
            yield Violation("old policy", f"{act.tool} {act.text} begun {at}")


def check_spend(history: History) -> Found:
    """What is booked of an agent's actions is what stands permitted.

    What was booked three days ago is dropped; a machine that comes up with another clock may say
    that it was.
    """
    if (spend := history.spend) is None:
        return
    stands: dict[str, str] = {}
    for entry in find_entries(history, "action.decided", "budget.refused"):
        stands[entry.get("action", "")] = entry["agent"] if entry.get("outcome") == "permit" else ""
    permits = Counter(agent for agent in stands.values() if agent)
    at_us = [entry["at"] for entry in history.entries if "at" in entry]
    dropped = bool(at_us) and max(at_us) - min(at_us) > _BOOKED_US
    for agent in spend.keys() | permits.keys():
        booked = spend.get(agent, 0)
        if booked > permits[agent] or (booked < permits[agent] and not dropped):
            yield Violation("spend", f"{agent}: {booked} booked, {permits[agent]} permits stand")
