"""Events: none is lost or handled twice; those of a key are judged in order, on what was before."""

from __future__ import annotations

from collections import Counter, defaultdict

from tests.simulation.history import NEVER, History
from tests.simulation.promises.reading import (
    Found,
    Violation,
    find_entries,
    find_judgements,
    find_subjects,
    read_losses,
)  # fmt: skip


def check_events(history: History) -> Found:
    """What was accepted is in the ledger once, and each of its runs is judged and ended once."""
    accepted = Counter(e["event"] for e in find_entries(history, "event.accepted"))
    turns = Counter((e["run"], e.get("turn", 1)) for e in find_judgements(history))
    judged = {(e["event"], e["agent"]) for e in find_judgements(history)}
    closed = Counter((e["event"], e["agent"]) for e in find_entries(history, "run.closed"))
    dropped = {(e["event"], e["agent"]) for e in find_entries(history, "run.dropped")}
    dead = {(e["event"], e["agent"]) for e in find_entries(history, "run.dead")}
    erased, lost = find_subjects(history, "erase"), read_losses(history)
    for at, entry in enumerate(history.entries, start=1):
        if entry["seq"] != at:
            yield Violation("lost", f"entry {at} of the ledger says that it is {entry['seq']}")
            break
    for event in history.events:
        if accepted[event.ref] > 1:
            yield Violation("doubled", f"{event.ref} was accepted {accepted[event.ref]} times")
        if event.told_s == NEVER or lost(event.told_s):
            continue
        if not accepted[event.ref]:
            yield Violation("lost", f"{event.ref}: {event.by} said that it is durable")
            continue
        for agent in event.agents:
            run = event.ref, agent
            if closed[run] > 1:
                yield Violation("doubled", f"the run of {run} closed {closed[run]} times")
            elif run in dropped and event.ref not in erased:
                yield Violation("lost", f"the run of {run} was dropped, and nobody said so")
            elif run in dead and not closed[run]:
                yield Violation("lost", f"the run of {run} became a dead letter")
            elif not closed[run] and run not in dropped:
                yield Violation("not live", f"the run of {run} has not ended")
            elif closed[run] and run not in judged:
                yield Violation("lost", f"the run of {run} closed and was never judged")
    for (run_id, turn), times in turns.items():
        if times > 1:
            yield Violation("doubled", f"turn {turn} of {run_id} was judged {times} times")


def check_judgements(history: History) -> Found:
    """Events of a key are judged in the order accepted, on what those before left behind.

    A judge's label is the sum of all that it has seen; what it has seen is on record, unless it was
    erased, or archived, where other content is kept for a shorter time.
    """
    by_ref = {event.ref: event for event in history.events}
    seen: dict[tuple[str, str], list[int]] = defaultdict(list)
    last: dict[tuple[str, str], int] = {}
    erased = find_subjects(history, "erase")
    archived = max((e["size"] for e in find_entries(history, "ledger.archived")), default=0)
    for entry in find_judgements(history):
        event = by_ref.get(entry["event"])
        if event is None or entry.get("turn", 1) != 1:
            continue
        name = entry["agent"], event.key
        if entry["about"] < last.get(name, 0):
            yield Violation("out of order", f"{name}: {event.ref} after a later one")
        last[name] = max(entry["about"], last.get(name, 0))
        seen[name].append(event.value)
        label = f"sum {sum(seen[name])} of {len(seen[name])}"
        if entry["label"] != label:
            what = f"{name}: {event.ref} says {entry['label']!r}, not {label!r}"
            yield Violation("stale state", what)
        said = (history.bodies.get(entry["seq"]) or {}).get("detail", {}).get("seen")
        kept = event.ref not in erased and entry["seq"] > archived
        if said is None and kept and entry["kind"] == "turn.reasoned":
            what = f"{name}: what was judged of {event.ref} is not on record"
            yield Violation("lost", what)
        if said is not None and said != seen[name]:
            what = f"{name}: {event.ref} judged on {said}, before it came {seen[name]}"
            yield Violation("stale state", what)
            seen[name] = list(said)  # what follows from it is no violation of its own
