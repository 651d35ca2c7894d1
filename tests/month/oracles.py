"""What must be so of the month, said of the world's own records and of the ledger's entries.

Nothing here asks the engine. The simulation's model (`tests.simulation.model`) judges the agents
whose judges keep values; these judge tasks, bills, memories and effects of all the others.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping

from tests.month.content import KEEPERS, PRICE, ROOM
from tests.month.ledger import Fields, Ledger
from tests.month.record import Bill, Record, TaskPlan
from tests.simulation.history import History
from tests.simulation.promises import permits
from tests.simulation.promises.reading import Violation

Found = Iterator[Violation]
# What one turn of a model may cost at worst: two calls.
_CALLS, _TOKENS = 2, 2 * (ROOM + 2000)
# A turn or a decision may be on record so long after it read the clock: it waits for its model, or
# its worker froze.
LATE_US = 600_000_000
MINUTE_US, DAY_US = 60_000_000, 86_400_000_000
# How long a hold stays open, at least, by its entries: it counts from its decision.
EXPIRY_US = 72 * 3600 * 1_000_000 - LATE_US
_REPEATABLE = ("wire.send", "big.send", "flag.raise", "flag.lower", "book.look")


# --- spend ----------------------------------------------------------------------------------------


def price_of(read: int, written: int) -> int:
    """Return what tokens cost, in millionths."""
    return -(-(read * PRICE[0] + written * PRICE[1]) // 1_000_000)


def check_bills(record: Record, ledger: Ledger) -> Found:
    """What the provider billed is what is booked.

    Each settled turn of an answered call is one bill, to the token and the millionth. A bill that
    no settlement names is of a turn that nobody settled, or that was settled at its worst case, as
    its answer was lost: there is one such booking for each, and it is no smaller.
    """
    billed: dict[str, list[Bill]] = defaultdict(list)
    for bill in record.bills:
        billed[bill.agent].append(bill)
    reserved = {entry["seq"]: entry for entry in ledger.of("budget.reserved")}
    settled = list(ledger.of("budget.settled"))
    open_ = set(reserved) - {entry["cause"] for entry in settled}
    for agent in sorted({entry["agent"] for entry in settled} | billed.keys()):
        mine = [entry["spend"] for entry in settled if entry["agent"] == agent]
        exact, worst = Counter[tuple[int, int]](), [reserved[seq]["spend"] for seq in open_
                                                    if reserved[seq]["agent"] == agent]  # fmt: skip
        for spend in mine:
            tokens, money = spend.get("tokens", 0), spend.get("money_micros", 0)
            if not spend.get("model_calls"):
                if tokens or money:
                    yield Violation("spend", f"{agent}: {spend} is settled of no call")
            elif tokens >= _TOKENS // 2:
                worst.append(spend)
            else:
                exact[tokens, money] += 1
        bills = Counter((b.read + b.written, price_of(b.read, b.written)) for b in billed[agent])
        for spent, times in (exact - bills).items():
            yield Violation(
                "spend", f"{agent}: {times} turns are booked at {spent}, and not billed"
            )
        more = bills - exact
        if (number := more.total()) > len(worst):
            what = f"{number} bills are not booked, {len(worst)} turns at their worst case"
            yield Violation("spend", f"{agent}: {what}")
        for (tokens, money), _ in more.items():
            if not any(one["tokens"] >= tokens and one["money_micros"] >= money for one in worst):
                yield Violation("spend", f"{agent}: a bill of {tokens} tokens is booked by nobody")


Booked = Mapping[tuple[str, str], int]


def count_booked(ledger: Ledger, since_us: int, until_us: int) -> Counter[tuple[str, str]]:
    """Return what is booked at instants of an interval, by agent and unit.

    A turn counts at what it was settled at, else at its worst case, at the instant of its booking;
    an action at the permit that stands.
    """
    booked: Counter[tuple[str, str]] = Counter()
    turns: dict[int, tuple[str, int, Mapping[str, int]]] = {}
    stands: dict[str, tuple[str, int]] = {}
    for entry in ledger.entries:
        if entry["kind"] == "budget.reserved":
            turns[entry["seq"]] = entry["agent"], entry["at"], entry["spend"]
        elif entry["kind"] == "budget.settled" and entry["cause"] in turns:
            agent, at_us, _ = turns[entry["cause"]]
            turns[entry["cause"]] = agent, at_us, entry["spend"]
        elif entry["kind"] == "action.decided":
            stands.pop(entry["action"], None)
            if entry["outcome"] == "permit":
                stands[entry["action"]] = entry["agent"], entry["at"]
        elif entry["kind"] == "budget.refused" and entry.get("action"):
            stands.pop(entry["action"], None)
    for agent, at_us, spend in turns.values():
        if since_us <= at_us < until_us:
            booked.update({(agent, unit): amount for unit, amount in spend.items()})
    for agent, at_us in stands.values():
        if since_us <= at_us < until_us:
            booked[agent, "actions"] += 1
    return Counter({name: amount for name, amount in booked.items() if amount})


def check_booked(counted: Booked, stored: Booked) -> Found:
    """What the store has booked of a day is what its entries come to."""
    for name in sorted(counted.keys() | stored.keys()):
        if counted.get(name, 0) != stored.get(name, 0):
            what = f"{stored.get(name, 0)} booked, {counted.get(name, 0)} by the entries"
            yield Violation("spend", f"{' '.join(name)}: {what}")


def check_limits(
    ledger: Ledger, limits: Mapping[str, int], record: Record, since_us: int, until_us: int
) -> Found:
    """No agent's permits of a day are more than its limit, with the raises of then."""
    booked = count_booked(ledger, since_us, until_us)
    for agent, limit in limits.items():
        more = sum(by for name, from_us, to_us, by in record.raises
                   if name == agent and from_us < until_us and to_us > since_us)  # fmt: skip
        if booked[agent, "actions"] > limit + more:
            what = f"{booked[agent, 'actions']} actions of {limit} and {more} more"
            yield Violation("over budget", f"{agent}: {what}")


# --- effects --------------------------------------------------------------------------------------


def check_others(record: Record, history: History) -> Found:
    """Of the agents that the model does not judge: what is done was permitted, and is done once."""
    acts = [act for act in record.acts if act.agent not in KEEPERS]
    part = History(orders=history.orders, acts=acts, entries=history.entries, quiet_s=2.0)
    yield from permits.check_permits(part)
    done = Counter((act.tool, act.key) for act in acts if act.what == "done")
    for (tool, key), times in done.items():
        if times > 1:
            yield Violation("doubled", f"{tool} {key}: {times} times")
    did = {key for _, key in done} | {key for key, _ in record.hooks}
    there = {act.tool for act in acts} | {"incident.notify"}
    for entry in history.entries:
        said = entry["kind"] == "effect.done" and entry["tool"] in there
        if (
            said
            and entry["agent"] not in KEEPERS
            and entry["action"].removeprefix("act_") not in did
        ):
            yield Violation("untrue", f"entry {entry['seq']}: {entry['tool']}, and it never was")
    keys = {e["action"].removeprefix("act_") for e in history.entries
            if e["kind"] == "action.decided" and e["outcome"] == "permit"}  # fmt: skip
    for key, series in record.hooks:
        if key not in keys:
            yield Violation("no permit", f"the webhook heard of {series}")


def check_undos(record: Record) -> Found:
    """What is taken back is what a person named, once."""
    named = Counter(undo.text for undo in record.undone)
    lowered = Counter(
        act.text for act in record.acts if (act.tool, act.what) == ("flag.lower", "done")
    )
    for text, times in lowered.items():
        if times > named[text]:
            yield Violation("doubled", f"{text} was taken back {times} times")


# --- tasks ----------------------------------------------------------------------------------------


def check_tasks(record: Record, ledger: Ledger) -> Found:
    """Each task that ended done has what it was to do, by the targets' and people's own records."""
    done = Counter(act.text for act in record.acts if act.what == "done" and act.text[:2] == "T-")
    approved = {order.what for order in record.orders if order.verb == "approve"}
    for plan in record.tasks.values():
        entries = ledger.by_run.get(plan.run, []) if plan.run else []
        if not plan.run:
            continue
        kinds = Counter(entry["kind"] for entry in entries)
        if not kinds["run.closed"]:
            yield Violation("not live", f"{plan.name} of {plan.agent} has not ended")
            continue
        close = next(entry for entry in entries if entry["kind"] == "run.closed")
        cancelled = close.get("what") == "cancelled"
        if cancelled and plan.cancelled_s is None:
            yield Violation("lost", f"{plan.name} was cancelled by nobody")
        finishes = [e for e in entries if e["kind"] == "effect.done" and e["tool"] == "task.finish"]
        if cancelled == bool(finishes):
            yield Violation("untrue", f"{plan.name}: cancelled {cancelled}, {len(finishes)} ends")
        yield from _check_items(plan, ledger, entries, done)
        if cancelled:
            continue
        for entry in finishes:
            key = entry["action"].removeprefix("act_")
            if plan.person and key not in approved:
                yield Violation("unmet", f"{plan.name} ended, and nobody has seen it")
        met = _met(plan, ledger, entries, done)
        if met:
            yield Violation("unmet", f"{plan.name} of {plan.agent} ended: {met}")
        if close.get("items", 0) != len(plan.items):
            yield Violation(
                "untrue", f"{plan.name}: {close.get('items')} items of {len(plan.items)}"
            )
    for text, times in done.items():
        if times > 1:
            yield Violation("doubled", f"{text}: done {times} times")


def _read_items(ledger: Ledger, entries: list[Fields]) -> tuple[dict[str, str], bool]:
    """Return the last state of each item, by what its task's own outcomes say.

    And whether these are all: an archive has the outcomes that lie in it without their content.
    """
    states, are_all = {}, True
    for entry in entries:
        if entry["kind"] == "effect.done" and entry["tool"] in ("item.add", "item.close"):
            body = ledger.bodies.get(entry["seq"])
            if body is None:
                are_all &= entry["seq"] >= ledger.first
                continue
            item = body.get("data", {}).get("item")
            if item is not None:
                states[item["id"]] = item["state"]
    return states, are_all


def _check_items(
    plan: TaskPlan, ledger: Ledger, entries: list[Fields], done: Mapping[str, int]
) -> Found:
    for item, state in _read_items(ledger, entries)[0].items():
        texts = [f"{plan.name}/{item}", *(f"{plan.name}/{item}/{at}" for at in range(2, 9))]
        if item in plan.waits:
            yield from _check_wait(plan, item, entries)
            continue
        if item in plan.delegates:
            texts = [f"{plan.name}.{item}/x1"]
            other = done.get(f"{plan.name}.{item}/x2", 0)
            if state == "done" and other != done.get(texts[0], 0):
                yield Violation("untrue", f"{plan.name}.{item} is done, and half of it is not")
        times = sum(done.get(text, 0) for text in texts)
        if state == "done" and times != 1:
            yield Violation(
                "doubled" if times else "untrue", f"{plan.name}/{item}: done {times} times"
            )
        if item in plan.refuses and state == "done":
            yield Violation("untrue", f"{plan.name}/{item} is done, and was refused")


def _check_wait(plan: TaskPlan, item: str, entries: list[Fields]) -> Found:
    """No wait of a task is over before its time, but by its event; and none is twice over.

    Its time counts from after its intent is on record; that it was started is written later.
    """
    starts = {e["action"]: e["at"] for e in entries
              if e["kind"] == "effect.intended" and e["tool"] == "task.wait"}  # fmt: skip
    matched = {e["at"] for e in entries if e["kind"] == "event.matched"}
    ends = Counter(e["action"] for e in entries
                   if e["kind"] == "effect.done" and e["tool"] == "task.wait")  # fmt: skip
    for entry in entries:
        if entry["kind"] != "effect.done" or entry["tool"] != "task.wait":
            continue
        waited_us = entry["at"] - starts[entry["action"]]
        if ends[entry["action"]] > 1:
            yield Violation("doubled", f"{plan.name}: a wait of it was over twice")
        if waited_us < 7_200_000_000 and not any(at <= entry["at"] for at in matched):
            yield Violation("too early", f"{plan.name} waited {waited_us / 1e6:.0f} s")
        if waited_us > 7_200_000_000 + 86_400_000_000:
            yield Violation("not live", f"{plan.name} waited {waited_us / 1e6:.0f} s")


def _met(plan: TaskPlan, ledger: Ledger, entries: list[Fields], done: Mapping[str, int]) -> str:
    """Say what of a task that ended is not met; "" if all is."""
    if plan.items:
        states, are_all = _read_items(ledger, entries)
        missing = set(plan.items) - states.keys() if are_all else set()
        still = sorted(name for name, state in states.items() if state == "open")
        return f"missing {sorted(missing)}, open {still}" if missing or still else ""
    asks = set(map(int, plan.asks))
    sent = sum(done.get(f"{plan.name}/{at}", 0) for at in range(1, plan.letters + 1)
               if at not in asks)  # fmt: skip
    wanted = plan.letters - len(asks)
    return "" if sent >= wanted else f"{sent} of {wanted} messages were sent"


# --- memories -------------------------------------------------------------------------------------


def check_notices(record: Record, ledger: Ledger) -> Found:
    """No turn is told of a notice before it is promoted, or after it was taken back."""
    told: dict[str, list[int]] = defaultdict(list)
    for entry in ledger.of("turn.reasoned"):
        for cited in (ledger.bodies.get(entry["seq"]) or {}).get("memories", ()):
            told[_name(cited)].append(entry["at"])
    for notice in record.notices:
        for at_us in told[notice.name]:
            if notice.promoted is None or at_us < notice.promoted[0]:
                yield Violation("ungoverned", f"{notice.name} was told before it was promoted")
            if notice.withdrawn is not None and at_us > notice.withdrawn[1] + LATE_US:
                late_s = (at_us - notice.withdrawn[1]) / 1e6
                yield Violation("ungoverned", f"{notice.name} was told {late_s:.0f} s too late")


def _name(cited: object) -> str:
    text = cited if isinstance(cited, str) else str(cited)
    return text.partition("@")[0]


CHECKS: tuple[Callable[[Record, Ledger], Found], ...] = (check_bills, check_tasks, check_notices)
