"""Lessons: a judge is made of what policy lets its agent read, and of nothing else."""

from __future__ import annotations

from dataclasses import replace

from vedette.domain.agent import Agent, Scope
from vedette.domain.budget import Budget
from vedette.domain.decision import Decision, denied
from vedette.domain.decision_request import Decided, Situation
from vedette.domain.identity import Identity
from vedette.domain.memory import Memory
from vedette.memory.training_set import Lessons

NOW = 1_780_000_000_000_000
DESK = Agent(
    name="desk", identity=Identity("harbour", "desk"), title="t", owner="o", release="r1",
    folder="", instruction="", charter={}, subscriptions=(), schedules=(), tools={},
    scopes=(Scope("inbox", "open", ("a",)), Scope("inbox", "shut"), Scope("inbox", "open", ("b",))),
    budget=Budget(), requested_mode="act",
)  # fmt: skip
PORT = replace(DESK, name="port", scopes=(Scope("boats", "shut"),))


class Gate:
    """Permits the scopes of one name."""

    def __init__(self, policy_rev: int, *permits: str) -> None:
        self.policy_rev, self.permits = policy_rev, permits
        self.asked: list[Situation] = []

    def may_read(self, situation: Situation, bank: str, scope: str) -> Decided:
        self.asked.append(situation)
        permit = Decision("permit", "permit.memory", ("x",))
        decision = permit if scope in self.permits else denied("grant.memory")
        return Decided(decision, b"{}", self.policy_rev, "b", "e")


class Banks:
    """Holds one memory in each scope."""

    def __init__(self) -> None:
        self.versions = {"inbox": 1, "boats": 1}
        self.ends: dict[str, int] = {}

    def version(self, bank: str) -> int:
        return self.versions[bank]

    def lessons(self, bank: str, scope: str, now_us: int) -> list[Memory]:
        ends = self.ends.get(scope, 0)
        if 0 < ends <= now_us:
            return []
        return [Memory("m", bank, 1, scope, "fact", (), "text", "d", "kim", "2026-01-01", ends)]


def made() -> Lessons:
    return Lessons(Banks(), {"desk": DESK, "port": PORT})  # type: ignore[arg-type]


def taught(lessons: Lessons) -> dict[str, list[str]]:
    return {name: [one.scope for one in lessons.of(name, NOW)] for name in ("desk", "port")}


def test_each_scope_is_decided_once_and_each_decision_is_an_entry() -> None:
    gate = Gate(3, "open")
    readable, drafts = made().decide(gate, NOW)
    assert readable == {"desk": (("inbox", "open"),), "port": ()}
    assert {draft.kind for draft in drafts} == {"recall.decided"}
    assert [[d.fields[name] for name in ("agent", "memory", "outcome")] for d in drafts] == [
        ["desk", "inbox/open", "permit"],
        ["desk", "inbox/shut", "deny"],
        ["port", "boats/shut", "deny"],
    ]
    assert {(s.event.source, s.event.type) for s in gate.asked} == {
        ("vedette:engine", "vedette.lessons")
    }


def test_nobody_is_taught_before_the_answer_is_taken() -> None:
    lessons = made()
    readable, _ = lessons.decide(Gate(1, "open"), NOW)
    assert taught(lessons) == {"desk": [], "port": []}
    lessons.take(readable, 1)
    assert taught(lessons) == {"desk": ["open"], "port": []}


def test_only_whom_the_answer_changed_is_named() -> None:
    lessons = made()
    told = [
        lessons.take(lessons.decide(Gate(rev, *permits), NOW)[0], rev)
        for rev, permits in enumerate([("open",), ("open",), ("open", "shut"), ("open",)], 1)
    ]
    assert told == [["desk"], [], ["desk", "port"], ["desk", "port"]]
    assert taught(lessons) == {"desk": ["open"], "port": []}
    assert lessons.policy_rev == 4


def test_whose_scopes_changed_since_it_was_taught_is_named_until_it_is_taught_anew() -> None:
    banks = Banks()
    lessons = Lessons(banks, {"desk": DESK, "port": PORT})  # type: ignore[arg-type]
    lessons.take(lessons.decide(Gate(1, "open", "shut"), NOW)[0], 1)
    banks.versions["inbox"] = 2
    assert lessons.moved() == [], "nobody was taught anything that could be stale"
    taught(lessons)
    assert lessons.moved() == []
    banks.versions["inbox"] = 3
    assert lessons.moved() == ["desk"], "port reads another bank"
    lessons.now("desk", NOW)
    assert lessons.moved() == ["desk"], "to look is not to be taught"
    lessons.of("desk", NOW)
    assert lessons.moved() == []
    assert (lessons.readers("inbox", "open"), lessons.readers("boats", "shut")) == (
        ["desk"], ["port"],
    )  # fmt: skip


def test_what_expires_first_of_what_was_taught_is_told_once() -> None:
    banks = Banks()
    lessons = Lessons(banks, {"desk": DESK, "port": PORT})  # type: ignore[arg-type]
    lessons.take(lessons.decide(Gate(1, "open", "shut"), NOW)[0], 1)
    lessons.of("desk", NOW)
    assert not lessons.expired("desk", NOW * 2), "nothing of it expires"
    banks.ends = {"open": NOW + 5, "shut": NOW + 9}
    lessons.of("desk", NOW)
    assert not lessons.expired("desk", NOW + 4)
    assert not lessons.expired("port", NOW + 5), "nobody taught it"
    assert lessons.expired("desk", NOW + 5), "from this instant on it is not recalled either"
    assert not lessons.expired("desk", NOW + 9), "once: it is about to be taught anew"
    lessons.of("desk", NOW + 5)
    assert lessons.expired("desk", NOW + 9)
