"""The model accepts a sound history and finds each violation in a spoiled one."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.simulation.history import NEVER, Act, Event, History, Order, Want
from tests.simulation.model import judge
from tests.simulation.proof import check_proof


def sound() -> History:
    """Two events of a key and one that a person approves; a stop, a publication; all is well."""
    one = Event(
        "evt_1", ("a",), "k", 1, (Want("order", "e1"), Want("note", "n1", row=True)), 1.0, 1.1, "w0"
    )
    two = Event("evt_2", ("a",), "k", 2, (Want("order", "e2"),), 1.2, 1.3, "w1")
    three = Event("evt_3", ("a",), "m", 3, (Want("big", "e3", held=True),), 3.0, 3.1, "w0")
    history = History([one, two, three], end_s=60.0)
    write = Ledger(history)
    write.add("policy.published", policy_rev=1)
    write.accept(one, two)
    write.judge(one, "a", [1], "k1", "order")
    write.decide(one, "n1", "note", "permit", 1)
    write.add("effect.done", action="act_n1", tool="note", **_of(one))
    write.call(one, "k1", "order", "e1", 2.0)
    write.close(one)
    write.add("stop.set", what="agent:a", actor="person:tester")
    history.orders.append(Order("stop", 2.1, 2.2, "agent:a"))
    write.add("stop.lifted", what="agent:a", actor="person:tester")
    history.orders.append(Order("resume", 2.5, 2.6, "agent:a"))
    write.judge(two, "a", [1, 2], "k2", "order")
    write.call(two, "k2", "order", "e2", 2.7)
    write.close(two)
    write.add("policy.published", policy_rev=2)
    history.orders.append(Order("publish", 2.8, 2.9, denies=("bell",), revision=2))
    write.accept(three)
    write.judge(three, "a", [3], "k3", "big", "hold", 2)
    history.orders.append(Order("approve", 3.5, 3.6, "k3"))
    write.add("hold.approved", action="act_k3", tool="big", actor="person:tester", **_of(three))
    write.decide(three, "k3", "big", "permit", 2)
    write.call(three, "k3", "big", "e3", 4.0)
    write.close(three)
    history.rows["a", "k"] = ["n1"]
    history.quiet_s = 2.0
    history.spend = {"a": 4}
    return history


def _of(event: Event) -> dict[str, Any]:
    return {"event": event.ref, "agent": "a", "run": f"run_{event.ref}"}


class Ledger:
    """Writes the ledger of a history as the engine would."""

    def __init__(self, history: History) -> None:
        self.history = history

    def add(self, kind: str, **more: Any) -> int:
        seq = len(self.history.entries) + 1
        self.history.entries.append({"seq": seq, "kind": kind, **more})
        return seq

    def accept(self, *events: Event) -> None:
        for event in events:
            self.add("event.accepted", event=event.ref)

    def judge(
        self, event: Event, agent: str, seen: list[int], key: str, tool: str,
        outcome: str = "permit", rev: int = 1,
    ) -> None:  # fmt: skip
        about = next(
            e["seq"] for e in self.history.entries if e.get("event") == event.ref
        )  # its acceptance
        label = f"sum {sum(seen)} of {len(seen)}"
        seq = self.add("turn.reasoned", turn=1, label=label, about=about, **_of(event))
        self.history.bodies[seq] = {"detail": {"seen": seen}}
        self.decide(event, key, tool, outcome, rev)

    def decide(self, event: Event, key: str, tool: str, outcome: str, rev: int) -> None:
        action = {"action": f"act_{key}", "tool": tool, "policy_rev": rev}
        self.add("action.decided", outcome=outcome, **action, **_of(event))

    def call(self, event: Event, key: str, tool: str, text: str, at_s: float) -> None:
        size = self.add("effect.started", action=f"act_{key}", tool=tool, **_of(event))
        for what in ("begun", "done", "told"):
            act = Act(at_s, what, tool, key, text, "a", "w0", size)
            self.history.acts.append(act)
            at_s += 0.05
        self.add("effect.done", action=f"act_{key}", tool=tool, **_of(event))

    def close(self, event: Event) -> None:
        self.add("run.closed", **_of(event))


def entry(history: History, kind: str, at: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = [e for e in history.entries if e["kind"] == kind][at]
    return found


def become(history: History, kind: str, at: int = 0) -> None:
    """Make nothing of an entry; its place stays."""
    entry(history, kind, at)["kind"] = "nothing"


def act(history: History, what: str, at: int = 0) -> Act:
    return [act for act in history.acts if act.what == what][at]


def swap_judgements(history: History) -> None:
    first, second = entry(history, "turn.reasoned", 0), entry(history, "turn.reasoned", 1)
    for name in ("event", "about", "run", "label"):
        first[name], second[name] = second[name], first[name]
    history.bodies[first["seq"]] = {"detail": {"seen": [2]}}
    history.bodies[second["seq"]] = {"detail": {"seen": [2, 1]}}


def say_old(history: History) -> None:
    entry(history, "action.decided", -1)["policy_rev"] = 1


def repeat_call(history: History) -> None:
    history.acts.append(Act(2.4, "done", "order", "k1", "e1", "a"))


def late_call(history: History) -> None:
    act(history, "begun", 1).at_s = 2.3


def withhold_answer(history: History) -> None:
    entry(history, "event.accepted", 1)["event"] = "evt_other"


def call_early(history: History) -> None:
    act(history, "begun").entries = 2


def denied_call(history: History) -> None:
    act(history, "begun", -1).at_s = 5.0
    history.orders.append(Order("deny", 3.7, 3.8, "k3"))


def old_permit(history: History) -> None:
    """The call of the third event begins on a permit that an earlier revision gave."""
    entry(history, "policy.published", 1)["kind"] = "nothing"
    say_old(history)


def old_rules(history: History) -> None:
    """The second revision permits what people published that it denies."""
    history.orders[2].denies = ("big",)


def repeat_yes(history: History) -> None:
    history.orders.append(Order("approve", 3.6, 3.7, "k3"))
    Ledger(history).add("hold.approved", action="act_k3", tool="big", actor="person:tester")


def repeat_order(history: History) -> None:
    Ledger(history).add("stop.set", what="agent:a", actor="person:tester")


def row_after_a_stop(history: History) -> None:
    """The row of the first event is written once more though its tool is stopped."""
    write = Ledger(history)
    write.add("stop.set", what="tool:note", actor="engine")
    write.add("effect.done", action="act_n1", tool="note", **_of(history.events[0]))


def go_on_after_a_restore(history: History) -> None:
    """The store went back to before the third event, says so, and is not stopped."""
    entry(history, "policy.published", 1).update(kind="store.restored")
    history.orders.insert(0, Order("restore", 2.85, 2.95, since_s=2.8))


def fail(history: History) -> None:
    """The first call is on record as failed, though its target did it and said so."""
    entry(history, "effect.done", 1).update(kind="effect.failed")


def lose(history: History) -> None:
    Ledger(history).add("store.restored")


def book(history: History, **spend: int) -> None:
    history.spend = spend


def keep_content(history: History) -> None:
    history.orders.append(Order("erase", 50.0, 50.1, "evt_2"))
    Ledger(history).add("body.erased", actor="person:tester")
    history.content = '{"text":"e2"}'


def repeat_begin(history: History) -> None:
    """Another worker begins the first call anew though the ledger says that it is done."""
    size = len(history.entries)
    history.acts.append(Act(2.65, "begun", "order", "k1", "e1", "a", "w1", size))


def ask_early(history: History) -> None:
    history.acts.append(Act(3.9, "asked", "order", "k2", "e2", "a", "w1"))


SPOILED: dict[str, tuple[str, Callable[[History], object]]] = {
    "an event that was answered for": ("lost", withhold_answer),
    "an effect": ("lost", lambda h: h.acts.remove(act(h, "done", 1))),
    "a row": ("lost", lambda h: become(h, "effect.done")),
    "a row's text": ("lost", lambda h: h.rows.clear()),
    "a dead letter": ("lost", lambda h: entry(h, "run.closed").update(kind="run.dead")),
    "a dropped run": ("lost", lambda h: entry(h, "run.closed").update(kind="run.dropped")),
    "a place of the ledger": ("lost", lambda h: h.entries.pop(4)),
    "an effect twice": ("doubled", repeat_call),
    "a key of its own": ("doubled", lambda h: setattr(act(h, "begun"), "key", "k9")),
    "a call whose answer was heard": (
        "repeated",
        lambda h: h.acts.append(Act(2.4, "begun", "order", "k1", "e1", "a", "w0")),
    ),
    "an event twice": (
        "doubled",
        lambda h: entry(h, "policy.published").update(kind="event.accepted", event="evt_1"),
    ),
    "a turn twice": (
        "doubled",
        lambda h: entry(h, "turn.reasoned", 1).update(run="run_evt_1"),
    ),
    "a row twice": ("doubled", lambda h: h.rows["a", "k"].append("n1")),
    "a call before its permit": ("no permit", call_early),
    "a call that nothing permits": (
        "no permit",
        lambda h: entry(h, "action.decided").update(outcome="deny"),
    ),
    "a call that nobody approved": ("no permit", lambda h: h.orders.pop()),
    "a call that was denied": (
        "no permit",
        denied_call,
    ),
    "an effect that nobody wants": (
        "no permit",
        lambda h: h.acts.append(Act(2.0, "done", "order", "k1", "e9", "a")),
    ),
    "a decision under an older revision": ("old policy", say_old),
    "a call under an older revision": ("old policy", old_permit),
    "two events the other way round": ("out of order", swap_judgements),
    "a judgement without the one before": (
        "stale state",
        lambda h: h.bodies.update({entry(h, "turn.reasoned", 1)["seq"]: {"detail": {"seen": [2]}}}),
    ),
    "a call after the stop": ("not stopped", late_call),
    "a judgement after the stop": (
        "not stopped",
        lambda h: become(h, "stop.lifted"),
    ),
    "a run that waits for nothing": ("not live", lambda h: become(h, "run.closed")),
    "a run that closed and was not judged": (
        "lost",
        lambda h: entry(h, "turn.reasoned", -1).pop("label"),
    ),
    "a judgement's content": (
        "lost",
        lambda h: h.bodies.pop(entry(h, "turn.reasoned")["seq"]),
    ),
    "a judgement's label": (
        "stale state",
        lambda h: entry(h, "turn.reasoned", -1).update(label="sum 0 of 0"),
    ),
    "a permit by the rules of another revision": ("old policy", old_rules),
    "a row that nothing permits": (
        "no permit",
        lambda h: entry(h, "action.decided", 1).update(outcome="hold"),
    ),
    "a row after the stop of its tool": ("not stopped", row_after_a_stop),
    "a restored store that runs": ("not stopped", go_on_after_a_restore),
    "a store that went back unsaid": (
        "not stopped",
        lambda h: h.orders.append(Order("restore", 20.0, 30.0, since_s=9.0)),
    ),
    "a stop for a loss that there was not": (
        "stopped for nothing",
        lose,
    ),
    "an order that is refused without a reason": (
        "refused",
        lambda h: h.refused.append((Order("stop", 5.0, what="all:"), "busy")),
    ),
    "an approval that is not on record": ("forgotten", lambda h: become(h, "hold.approved")),
    "a stop that is not on record": ("forgotten", lambda h: become(h, "stop.set")),
    "an order that is carried out twice": ("doubled", repeat_order),
    "an approval that is asked for again": ("asked again", repeat_yes),
    "an outcome that its target does not know": (
        "untrue",
        lambda h: h.acts.remove(act(h, "done")),
    ),
    "an outcome that was told otherwise": ("untrue", fail),
    "a call whose outcome is on record": ("repeated", repeat_begin),
    "a question while the call may be under way": ("asked too early", ask_early),
    "a booking that nothing permits": ("spend", lambda h: book(h, a=5)),
    "a permit that nobody booked": ("spend", book),
    "content that was erased": ("not erased", keep_content),
    "a ledger that proves nothing": ("unproved", lambda h: h.proof.append("head 7 differs")),
    "a traceback": ("error", lambda h: h.errors.append("a start ends in a traceback")),
}


def test_a_sound_history_is_accepted() -> None:
    assert judge(sound()) == []


@pytest.mark.parametrize("name", SPOILED)
def test_what_is_spoiled_is_found(name: str) -> None:
    kind, spoil = SPOILED[name]
    history = sound()
    spoil(history)
    assert kind in {one.kind for one in judge(history)}, judge(history)


def without_second_call() -> History:
    """A history in which the call of the second event never began; nobody says why."""
    history = sound()
    history.acts = [act for act in history.acts if act.text != "e2"]
    become(history, "effect.done", 2)
    assert [one.kind for one in judge(history)] == ["lost"]
    return history


def erase(history: History, event: str) -> None:
    history.orders.append(Order("erase", 2.6, 2.65, event))
    Ledger(history).add("body.erased", actor="person:tester")


def deny(history: History, key: str) -> None:
    """A person is asked about an action of the second event, and denies it."""
    history.orders.append(Order("deny", 2.6, 2.65, key))
    write, of = Ledger(history), _of(history.events[1])
    write.add("hold.denied", action=f"act_{key}", tool="order", actor="person:tester", **of)


def forbid(history: History, revision: int, tool: str = "order") -> None:
    """The second revision denies a tool; the last word on the second event's call is a deny."""
    history.orders[2].denies = (tool,)
    book(history, a=3)
    if revision == 1:
        become(history, "policy.published", 1)
    Ledger(history).decide(history.events[1], "k2", "order", "deny", revision)


def turn_away(history: History, key: str) -> None:
    history.acts.append(Act(2.7, "refused", "order", key, "", "a", "w0"))


@pytest.mark.parametrize(
    ("end", "of_another"),
    [
        (lambda h: erase(h, "evt_2"), lambda h: erase(h, "evt_1")),
        (lambda h: deny(h, "k2"), lambda h: deny(h, "k9")),
        (lambda h: turn_away(h, "k2"), lambda h: turn_away(h, "k9")),
        (lambda h: forbid(h, 2), lambda h: forbid(h, 2, "bell")),
        (lambda h: forbid(h, 2), lambda h: forbid(h, 1)),
    ],
    ids=["erased", "denied", "refused by its target", "a tool", "a revision"],
)
def test_what_was_ended_for_its_own_reason_alone_is_not_lost(
    end: Callable[[History], None], of_another: Callable[[History], None]
) -> None:
    history = without_second_call()
    end(history)
    assert judge(history) == []
    history = without_second_call()
    of_another(history)
    assert {one.kind for one in judge(history)} == {"lost"}


def test_rows_that_a_stop_held_are_in_the_order_in_which_they_were_written() -> None:
    history = sound()
    last_event = Event("evt_0", ("a",), "k", 4, (Want("note", "n0", row=True),), 4.1, 4.2, "w0")
    history.events.append(last_event)
    write = Ledger(history)
    write.accept(last_event)
    write.judge(last_event, "a", [1, 2, 4], "n0", "note", rev=2)
    write.add("effect.done", action="act_n0", tool="note", **_of(last_event))
    write.close(last_event)
    book(history, a=5)
    history.rows["a", "k"] = ["n1", "n0"]
    assert judge(history) == []
    # The first was held, and written after the second.
    become(history, "effect.done")
    write.add("effect.done", action="act_n1", tool="note", **_of(history.events[0]))
    history.rows["a", "k"] = ["n0", "n1"]
    assert {one.kind for one in judge(history)} == {"out of order"}
    for what, wrong in (("tool:order", {"out of order"}), ("tool:note", set())):
        history.entries.pop()
        write.add("stop.set", what=what, actor="engine")
        write.add("stop.lifted", what=what, actor="engine")
        write.add("effect.done", action="act_n1", tool="note", **_of(history.events[0]))
        assert {one.kind for one in judge(history)} == wrong
    history.rows["a", "k"] = ["n1", "n0"]
    assert {one.kind for one in judge(history)} == {"out of order"}


def test_a_booking_that_a_clock_made_old_may_be_dropped_and_none_is_made_up() -> None:
    history = sound()
    book(history, a=1)
    assert {one.kind for one in judge(history)} == {"spend"}
    history.entries[0]["at"], history.entries[-1]["at"] = 0, 80 * 3600 * 1_000_000
    assert judge(history) == []
    book(history, a=5)
    assert {one.kind for one in judge(history)} == {"spend"}


def proved() -> tuple[list[bytes], list[str], dict[int, bytes]]:
    """A ledger of three entries, two of them with a body, and its signed heads."""
    bodies = {1: b"salt-1one", 2: b"salt-2two"}
    entries = [
        {"seq": 1, "body": hashlib.sha256(bodies[1]).hexdigest()},
        {"seq": 2, "body": hashlib.sha256(bodies[2]).hexdigest(), "cause": 1},
        {"seq": 3},
    ]
    ledger = [json.dumps(entry).encode() for entry in entries]
    one, two, three = (hashlib.sha256(b"\0" + raw).digest() for raw in ledger)
    both = hashlib.sha256(b"\1" + one + two).digest()
    roots = {2: both, 3: hashlib.sha256(b"\1" + both + three).digest()}
    heads = {size: base64.b64encode(root).decode() for size, root in roots.items()}
    return ledger, [f"log\n{size}\n{root}\n\n- a name\n" for size, root in heads.items()], bodies


def test_a_ledger_is_proved_by_its_heads_and_digests() -> None:
    assert list(check_proof(*proved(), first=1)) == []
    ledger, notes, bodies = proved()
    assert list(check_proof([*ledger[:2], b'{"seq":3,"x":1}'], notes, bodies, 1)) == [
        "head 3 differs"
    ]
    assert list(check_proof(ledger, notes[:1], bodies, 1)) == ["3 entries, the last head is of 2"]
    assert list(check_proof(ledger[:2], notes[:1], bodies | {2: b"salt-1two"}, 1)) == [
        "the body of entry 2 differs"
    ]
    assert list(check_proof(ledger, notes, {2: bodies[2]}, 1)) == ["the body of entry 1 is missing"]
    assert list(check_proof(ledger, notes, {2: bodies[2]}, 2)) == []
    erasing = [*ledger, json.dumps({"seq": 4, "erased": [json.loads(ledger[0])["body"]]}).encode()]
    assert "the body of entry 1 is there, and was erased" in check_proof(erasing, notes, bodies, 1)
    assert "entry 2 says that it is 3" in check_proof([ledger[0], ledger[2]], notes, bodies, 1)


def test_what_a_restored_store_cannot_know_is_not_held_against_it() -> None:
    history = sound()
    history.events.append(Event("evt_4", ("a",), "k", 4, (Want("order", "e4"),), 10.0, 10.1))
    history.acts.append(Act(10.2, "done", "order", "k4", "e4", "a"))
    assert {one.kind for one in judge(history)} == {"lost", "no permit"}
    history.orders.append(Order("restore", 20.0, 30.0, since_s=9.0))
    lose(history)
    assert judge(history) == []


def test_an_order_that_was_never_answered_binds_nobody() -> None:
    history = sound()
    history.orders[0].told_s = NEVER
    late_call(history)
    assert judge(history) == []


def test_a_stop_that_could_not_be_recorded_binds_the_worker_that_said_so() -> None:
    history = sound()
    late_call(history)
    history.orders[0].by = "w1"
    assert judge(history) == []
    history.orders[0].by = "w0"
    assert {one.kind for one in judge(history)} == {"not stopped"}
