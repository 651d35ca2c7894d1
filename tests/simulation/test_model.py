"""The model accepts a sound history and finds each violation in a spoiled one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.simulation.history import NEVER, Act, Event, History, Order, Want
from tests.simulation.model import judge


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
    write.add("action.decided", action="act_n1", outcome="permit", policy_rev=1, **_of(one))
    write.add("effect.done", action="act_n1", tool="note", **_of(one))
    write.call(one, "k1", "order", "e1", 2.0)
    write.close(one)
    write.add("stop.set", what="agent:a")
    history.orders.append(Order("stop", 2.1, 2.2, "agent:a"))
    write.add("stop.lifted", what="agent:a")
    history.orders.append(Order("resume", 2.5, 2.6, "agent:a"))
    write.judge(two, "a", [1, 2], "k2", "order")
    write.call(two, "k2", "order", "e2", 2.7)
    write.close(two)
    write.add("policy.published", policy_rev=2)
    history.orders.append(Order("publish", 2.8, 2.9, denies=("bell",), revision=2))
    write.accept(three)
    write.judge(three, "a", [3], "k3", "big", "hold", 2)
    history.orders.append(Order("approve", 3.5, 3.6, "k3"))
    write.add("action.decided", action="act_k3", outcome="permit", policy_rev=2, **_of(three))
    write.call(three, "k3", "big", "e3", 4.0)
    write.close(three)
    history.rows["a", "k"] = ["n1"]
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
        seq = self.add("turn.reasoned", turn=1, label="", about=about, **_of(event))
        self.history.bodies[seq] = {"detail": {"seen": seen}}
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
    for name in ("event", "about", "run"):
        first[name], second[name] = second[name], first[name]
    history.bodies[first["seq"]] = {"detail": {"seen": [2]}}
    history.bodies[second["seq"]] = {"detail": {"seen": [2, 1]}}


def say_old(history: History) -> None:
    entry(history, "action.decided", -1)["policy_rev"] = 1


def call_again(history: History) -> None:
    history.acts.append(Act(2.4, "done", "order", "k1", "e1", "a"))


def late_call(history: History) -> None:
    act(history, "begun", 1).at_s = 2.3


def never_told(history: History) -> None:
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


SPOILED: dict[str, tuple[str, Callable[[History], object]]] = {
    "an event that was answered for": ("lost", never_told),
    "an effect": ("lost", lambda h: h.acts.remove(act(h, "done", 1))),
    "a row": ("lost", lambda h: become(h, "effect.done")),
    "a row's text": ("lost", lambda h: h.rows.clear()),
    "a dead letter": ("lost", lambda h: entry(h, "run.closed").update(kind="run.dead")),
    "a dropped run": ("lost", lambda h: entry(h, "run.closed").update(kind="run.dropped")),
    "a place of the ledger": ("lost", lambda h: h.entries.pop(4)),
    "an effect twice": ("doubled", call_again),
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


@pytest.mark.parametrize(
    ("verb", "more"),
    [
        ("erase", {"what": "evt_2"}),
        ("publish", {"denies": ("order",), "revision": 2}),
    ],
)
def test_what_people_ended_is_not_lost(verb: str, more: dict[str, Any]) -> None:
    history = sound()
    history.acts = [act for act in history.acts if act.text != "e2"]
    assert [one.kind for one in judge(history)] == ["lost"]
    history.orders.append(Order(verb, 1.0, 1.05, **more))
    assert "lost" not in {one.kind for one in judge(history)}


def test_what_a_restored_store_cannot_know_is_not_held_against_it() -> None:
    history = sound()
    history.events.append(Event("evt_4", ("a",), "k", 4, (Want("order", "e4"),), 10.0, 10.1))
    history.acts.append(Act(10.2, "done", "order", "k4", "e4", "a"))
    assert {one.kind for one in judge(history)} == {"lost", "no permit"}
    history.orders.append(Order("restore", 20.0, 30.0, since_s=9.0))
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
