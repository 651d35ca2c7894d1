"""A plain count of a day's entries, against which that day's report is held."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from tests.month.ledger import Fields, Ledger

# These go on as they were permitted to, for hours and over midnight: begun, they are no exception.
_LASTING = frozenset({"task.wait", "agent.ask"})
_CHANGES = frozenset({
    "policy.published", "policy.refused", "stop.set", "stop.lifted", "budget.raised", "body.erased",
    "key.rotated", "ledger.archived", "store.upgraded", "run.redriven", "run.dropped",
    "clock.jumped", "clock.confirmed",
})  # fmt: skip


def recount(day: Ledger) -> dict[str, Any]:
    """Count a day's entries."""
    kinds = Counter(entry["kind"] for entry in day.entries)
    outcomes = Counter(entry["outcome"] for entry in day.of("action.decided"))
    answers = Counter((e.get("actor"), e["kind"]) for e in day.of("hold.approved", "hold.denied"))
    return {
        "events": kinds["event.accepted"],
        "refused": kinds["event.refused"],
        "runs_closed": kinds["run.closed"],
        "runs_dead": kinds["run.dead"],
        "decisions": {word: outcomes[word] for word in ("permit", "hold", "deny")},
        "effects": {word: kinds[f"effect.{word}"] for word in ("done", "failed", "unknown")},
        "starts": sum(entry.get("what") != "visit" for entry in day.of("store.opened")),
        "approved": kinds["hold.approved"],
        "denied": kinds["hold.denied"],
        "expired": kinds["hold.expired"],
        "answered": sum(answers.values()),
        "asked": len(_asked(day)),
        "spent": _spent(day),
        "changed": sum(kinds[kind] for kind in _CHANGES),
        "dead": kinds["run.dead"],
        "away": kinds["model.away"],
        "left": {word: count for word, count in _left(day).items() if count},
        "closed_by_agent": dict(Counter(e["agent"] for e in day.of("run.closed"))),
        "useful": dict(Counter(e["agent"] for e in day.of("effect.done"))),
    }


def _asked(day: Ledger) -> set[str]:
    """Return the actions about which a person was asked."""
    by_hand, asked = set(), set()
    for entry in day.entries:
        if entry["kind"] == "action.decided":
            body = day.bodies.get(entry["seq"]) or {}
            if body.get("question", {}).get("action", {}).get("settles") == "none":
                by_hand.add(entry["action"])
            if entry["outcome"] == "hold" and entry.get("wait") == "approval":
                asked.add(entry["action"])
        elif entry["kind"] == "effect.unknown" and entry["action"] in by_hand:
            asked.add(entry["action"])
    return asked


def _spent(day: Ledger) -> dict[str, int]:
    """Return what agents spent that day, by "agent unit"."""
    spent: Counter[str] = Counter()
    stands: dict[str, str] = {}
    for entry in day.entries:
        if entry["kind"] == "action.decided":
            stands[entry["action"]] = entry["agent"] if entry["outcome"] == "permit" else ""
        elif entry["kind"] == "budget.refused" and entry.get("action"):
            stands[entry["action"]] = ""
        elif entry["kind"] == "budget.settled":
            for unit, amount in entry["spend"].items():
                spent[f"{entry['agent']} {unit}"] += amount
    spent.update(f"{agent} actions" for agent in stands.values() if agent)
    return {name: amount for name, amount in sorted(spent.items()) if amount}


def _left(day: Ledger) -> Counter[str]:
    """Return in which state what was begun or failed that day was left."""
    last: dict[str, str] = {}
    for entry in day.entries:
        if entry["kind"].startswith("effect."):
            state = entry["kind"].removeprefix("effect.")
            lasts = state == "started" and entry["tool"] in _LASTING
            last[entry["action"]] = "" if lasts else state
    wanted = ("unknown", "failed", "started", "intended")
    return Counter(state for state in last.values() if state in wanted)


def read_report(report: Fields) -> dict[str, Any]:
    """Return of a report what `recount` counts, under the same names."""
    traffic, questions = report["traffic"], report["questions"]
    odd: Counter[str] = Counter()
    for one in report["exceptions"]:
        odd[one["kind"]] += one["count"]
    wakeups = report["wakeups"]
    spent = {
        f"{one['agent']} {one['unit']}": one["spent"]
        for one in report["budgets"]["spent"] if one["spent"]
    }  # fmt: skip
    left = {kind.removeprefix("effect."): n for kind, n in odd.items() if kind[:7] == "effect."}
    return {
        **{name: traffic[name] for name in ("events", "refused", "runs_closed", "runs_dead",
                                            "decisions", "effects", "starts")},
        **{name: questions[name] for name in ("approved", "denied", "expired", "asked")},
        "answered": sum(one["answered"] for one in report["answered"]),
        "spent": dict(sorted(spent.items())),
        "changed": sum(one["kind"] in _CHANGES for one in report["changed"]),
        "dead": odd["run.dead"],
        "away": odd["model.away"],
        "left": left,
        "closed_by_agent": {
            one["agent"]: n for one in wakeups
            if (n := one["at_no_cost"] + one["by_model"] + one["by_people"])
        },
        "useful": {one["agent"]: one["useful"] for one in wakeups if one["useful"]},
    }  # fmt: skip


def compare(report: Fields, day: Ledger) -> Iterator[str]:
    """Say where a day's report and its entries do not agree."""
    said, counted = read_report(report), recount(day)
    for name in counted:
        if said[name] != counted[name]:
            yield f"{name}: the report says {said[name]}, its entries {counted[name]}"
    if report["traffic"]["unreadable"]:
        yield f"{report['traffic']['unreadable']} entries cannot be read"
