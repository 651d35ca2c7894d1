"""Effects: each that was wanted happens once, and what the ledger says of it is true."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable

from tests.simulation.history import NEVER, Act, Event, History
from tests.simulation.promises.permits import list_publications, read_denials
from tests.simulation.promises.reading import (
    Found,
    Violation,
    find_entries,
    find_judgements,
    find_restores,
    find_row_tools,
    find_subjects,
    list_wants,
    read_actions,
    read_losses,
)  # fmt: skip

# Nobody loses a key and has it back within this time: half a lease of a simulated fleet.
_KEPT_S = 1.0


def check_effects(history: History) -> Found:
    """Each wanted call took effect once, under one key, unless somebody said that it may not."""
    done, keys = Counter[tuple[str, str, str]](), defaultdict(set)
    excused, lost = read_excuses(history), read_losses(history)
    for act in history.acts:
        done[act.agent, act.tool, act.text] += act.what == "done"
        if act.text:
            keys[act.agent, act.tool, act.text].add(act.key)
    for event in history.events:
        for agent, at, want in list_wants(event):
            if want.row:
                continue
            name = (agent, want.tool, want.text)
            times = done.pop(name, 0)
            if times > 1 or len(keys[name]) > 1:
                yield Violation("doubled", f"{name}: {times} times under {len(keys[name])} keys")
            owed = event.told_s < NEVER and not lost(event.told_s)
            if not times and owed and not excused(event, agent, at):
                yield Violation("lost", f"{name} never took effect")
    for name, times in done.items():
        if times and history.judges(name[0]):
            yield Violation("no permit", f"{name}: nobody asked for it")


def read_excuses(history: History) -> Callable[[Event, str, int], bool]:
    """Return who says whether an event's n-th want of an agent need not have happened.

    It is excused by a reason of its own alone: the last word on its action is that of a policy that
    denies its tool, a person said no to it, its target refused it, or its event was erased.
    """
    actions, known = read_actions(history), {o.revision for o in list_publications(history)}
    last = {entry["action"]: entry for entry in find_entries(history, "action.decided")}
    restores = find_restores(history)
    # One that was asked for before a copy was made, and answered after, may be known to the copy.
    denials = read_denials(
        order
        for order in history.orders
        if not any(one.since_s <= order.asked_s and order.told_s < one.told_s for one in restores)
    )
    # Who published it may have been told no number, as the answer was lost.
    unsure = {tool for o in history.orders for tool in o.denies if not o.revision}
    free = {
        name
        for name, entry in last.items()
        if entry["outcome"] == "deny"
        and (
            (entry["policy_rev"], entry["tool"]) in denials
            or (entry["tool"] in unsure and entry["policy_rev"] not in known)
        )
    }
    free |= {entry["action"] for entry in find_entries(history, "hold.denied")}
    free |= {f"act_{act.key}" for act in history.acts if act.what == "refused"}
    free |= find_expired(history)
    erased = find_subjects(history, "erase")

    def excused(event: Event, agent: str, at: int) -> bool:
        known = actions.get((event.ref, agent), [])
        return event.ref in erased or (at < len(known) and known[at] in free)

    return excused


def find_expired(history: History) -> set[str]:
    """Return the actions whose hold may have expired: nobody answered it for as long as it stays.

    Where a clock jumped nobody outside can say how long that was.
    """
    if any(fault.what == "clock" for fault in history.faults):
        return {entry["action"] for entry in find_entries(history, "hold.expired")}
    asked: dict[str, int] = {}
    expired: set[str] = set()
    if history.expires_us == NEVER:
        return expired
    for entry in find_entries(history, "action.decided", "hold.expired"):
        if entry["kind"] == "hold.expired":
            if entry["at"] - asked.get(entry["action"], entry["at"]) >= history.expires_us:
                expired.add(entry["action"])
        elif entry["outcome"] == "hold":
            asked.setdefault(entry["action"], entry["at"])
        else:
            asked.pop(entry["action"], None)
    return expired


def check_rows(history: History) -> Found:
    """The fleet's rows hold what was wanted, once, in the order in which it was judged.

    What a stop of its tool held, or a person was asked about, is written later: the rows of that
    key are then in the order in which they were done.
    """
    noted: dict[tuple[str, str], list[tuple[int, str]]] = defaultdict(list)
    asked = {(agent, event.key) for event in history.events for agent, _, want in list_wants(event)
             if want.row and want.held}  # fmt: skip
    held = _find_held(history)
    by_ref = {event.ref: event for event in history.events}
    actions, excused = read_actions(history), read_excuses(history)
    done = {e["action"]: at for at, e in enumerate(find_entries(history, "effect.done"))}
    for entry in find_judgements(history):
        event = by_ref.get(entry["event"])
        if event is None:
            continue
        agent = entry["agent"]
        known = actions.get((event.ref, agent), [])
        for at, want in enumerate(event.wants):
            if want.row and at < len(known) and known[at] in done:
                noted[agent, event.key].append((done[known[at]], want.text))
            elif want.row and not excused(event, agent, at):
                yield Violation("lost", f"{agent} {want.tool} {want.text} was not written")
    for row in sorted(noted.keys() | history.rows.keys()):
        has = history.rows.get(row, [])
        is_late = row in asked or any(at in held for at, _ in noted[row])
        owed = [text for _, text in (sorted(noted[row]) if is_late else noted[row])]
        if has != owed:
            kind = "lost" if len(has) < len(owed) else "doubled"
            if sorted(has) == sorted(owed):
                kind = "out of order"
            yield Violation(kind, f"row {row} holds {has}, judged were {owed}")


def _find_held(history: History) -> set[int]:
    """Return which outcomes, counted in their order, came after a stop of their tool held them."""
    stopped, waiting, held = set[str](), set[str](), set[int]()
    open_actions: dict[str, str] = {}
    done = 0
    kinds = ("action.decided", "effect.done", "stop.set", "stop.lifted")
    for entry in find_entries(history, *kinds):
        if entry["kind"] == "stop.set":
            stopped.add(entry["what"])
        elif entry["kind"] == "stop.lifted":
            stopped.discard(entry["what"])
        elif entry["kind"] == "action.decided":
            open_actions[entry["action"]] = f"tool:{entry['tool']}"
        else:
            if entry["action"] in waiting:
                held.add(done)
            open_actions.pop(entry["action"], None)
            done += 1
            continue
        waiting |= {name for name, tool in open_actions.items() if tool in stopped}
    return held


def check_repeats(history: History) -> Found:
    """Nobody makes a call again whose answer has come to them, be it under its key.

    Where workers share the keys one may have lost a call's to another and got it back: no sooner
    than half a lease later. And nobody begins one of which the ledger says that it is done.
    """
    shared = len({act.by.partition(".")[0] for act in history.acts}) > 1
    lost = read_losses(history)
    fields: dict[tuple[str, str], float] = {}
    done: dict[str, int] = {}
    for entry in find_entries(history, "effect.done"):
        done.setdefault(entry["action"].removeprefix("act_"), entry["seq"])
    for act in sorted(history.acts, key=lambda act: act.at_s):
        if act.what == "told":
            fields.setdefault((act.by, act.key), act.at_s)
        if act.what != "begun":
            continue
        call = f"{act.tool} {act.text}"
        since_s = act.at_s - fields.get((act.by, act.key), NEVER)
        if since_s >= 0 and not (shared and since_s > _KEPT_S):
            what = f"{call}: {act.by} was told {since_s:.3f} s before that it is done"
            yield Violation("repeated", what)
        if done.get(act.key, NEVER) <= (act.entries or 0) and not lost(act.at_s):
            yield Violation("repeated", f"{call} at {act.at_s:.3f}: its outcome was on record")


def check_questions(history: History) -> Found:
    """No other life asks what came of a call before the call's own time is over."""
    starts: dict[str, Act] = {}
    for act in sorted(history.acts, key=lambda act: act.at_s):
        if act.what == "begun":
            starts[act.key] = act
        elif act.what == "asked" and act.key in starts and starts[act.key].by != act.by:
            since_s = act.at_s - starts[act.key].at_s
            if since_s < history.quiet_s:
                what = f"{act.tool} {act.text} by {act.by} {since_s:.3f} s after it began"
                yield Violation("asked too early", what)


def check_outcomes(history: History) -> Found:
    """What is recorded of a call agrees with its target's own record."""
    did = {act.key for act in history.acts if act.what == "done"}
    # What may be repeated has failed once its tries are used up, whatever a lost answer said; a
    # person's no is the last word, too.
    answered = {act.key for act in history.acts if act.what in ("told", "asked")}
    answered -= find_subjects(history, "deny") | find_subjects(history, "confirm")
    rows = find_row_tools(history)
    last = {
        entry["action"].removeprefix("act_"): entry
        for entry in find_entries(history, "effect.done", "effect.failed", "effect.cancelled")
        if history.judges(entry.get("agent", ""))
    }
    for key, entry in last.items():
        said = f"entry {entry['seq']}: {entry['kind']} of {entry['tool']}"
        if entry["kind"] == "effect.done" and entry["tool"] not in rows and key not in did:
            yield Violation("untrue", f"{said}, and its target never did it")
        if entry["kind"] != "effect.done" and key in did & answered:
            yield Violation("untrue", f"{said}, and its target did it")
