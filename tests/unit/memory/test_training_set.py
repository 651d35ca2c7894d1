"""Lessons: a judge is made of what policy lets its agent read, and of nothing else."""

from __future__ import annotations

from msgspec.structs import replace

from vedette.domain.agent import Agent, MemoryScope
from vedette.domain.budget import Budget
from vedette.domain.decision import Decision, DecisionContext, DecisionRecord, build_denial
from vedette.domain.identity import Identity
from vedette.domain.memory import Memory
from vedette.memory.training_set import Lessons

NOW = 1_780_000_000_000_000
DESK = Agent(
    name="desk",
    identity=Identity("harbour", "desk"),
    title="t",
    owner="o",
    release="r1",
    folder="",
    instruction="",
    charter={},
    subscriptions=(),
    schedules=(),
    tools={},
    scopes=(
        MemoryScope("inbox", "open", ("a",)),
        MemoryScope("inbox", "shut"),
        MemoryScope("inbox", "open", ("b",)),
    ),
    budget=Budget(),
    requested_mode="act",
)
PORT = replace(DESK, name="port", scopes=(MemoryScope("boats", "shut"),))


class Gate:
    """Permits the scopes of one name."""

    def __init__(self, policy_rev: int, *permits: str) -> None:
        self.policy_rev, self.permits = policy_rev, permits
        self.asked: list[DecisionContext] = []

    def may_read(self, situation: DecisionContext, bank: str, scope: str) -> DecisionRecord:
        self.asked.append(situation)
        permit = Decision("permit", "permit.memory", ("x",))
        decision = permit if scope in self.permits else build_denial("grant.memory")
        return DecisionRecord(decision, b"{}", self.policy_rev, "b", "e")


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
    return {
        name: [one.scope for one in lessons.load_lessons(name, NOW)] for name in ("desk", "port")
    }


def test_each_scope_is_decided_once_and_each_decision_is_an_entry() -> None:
    gate = Gate(3, "open")
    readable, drafts = made().decide_scopes(gate, NOW)
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
    readable, _ = lessons.decide_scopes(Gate(1, "open"), NOW)
    assert taught(lessons) == {"desk": [], "port": []}
    lessons.adopt(readable, 1)
    assert taught(lessons) == {"desk": ["open"], "port": []}


def test_only_whom_the_answer_changed_is_named() -> None:
    lessons = made()
    rows = [
        lessons.adopt(lessons.decide_scopes(Gate(rev, *permits), NOW)[0], rev)
        for rev, permits in enumerate([("open",), ("open",), ("open", "shut"), ("open",)], 1)
    ]
    assert rows == [["desk"], [], ["desk", "port"], ["desk", "port"]]
    assert taught(lessons) == {"desk": ["open"], "port": []}
    assert lessons.policy_rev == 4


def test_whose_scopes_changed_since_it_was_taught_is_named_until_it_is_taught_anew() -> None:
    banks = Banks()
    lessons = Lessons(banks, {"desk": DESK, "port": PORT})  # type: ignore[arg-type]
    lessons.adopt(lessons.decide_scopes(Gate(1, "open", "shut"), NOW)[0], 1)
    banks.versions["inbox"] = 2
    assert lessons.outdated_agents() == [], "nobody was taught anything that could be stale"
    taught(lessons)
    assert lessons.outdated_agents() == []
    banks.versions["inbox"] = 3
    assert lessons.outdated_agents() == ["desk"], "port reads another bank"
    lessons.preview_lessons("desk", NOW)
    assert lessons.outdated_agents() == ["desk"], "to look is not to be taught"
    lessons.load_lessons("desk", NOW)
    assert lessons.outdated_agents() == []
    assert (lessons.agents_taught("inbox", "open"), lessons.agents_taught("boats", "shut")) == (
        ["desk"], ["port"],
    )  # fmt: skip


def test_what_expires_first_of_what_was_taught_is_told_once() -> None:
    banks = Banks()
    lessons = Lessons(banks, {"desk": DESK, "port": PORT})  # type: ignore[arg-type]
    lessons.adopt(lessons.decide_scopes(Gate(1, "open", "shut"), NOW)[0], 1)
    lessons.load_lessons("desk", NOW)
    assert not lessons.pop_expired("desk", NOW * 2), "nothing of it expires"
    banks.ends = {"open": NOW + 5, "shut": NOW + 9}
    lessons.load_lessons("desk", NOW)
    assert not lessons.pop_expired("desk", NOW + 4)
    assert not lessons.pop_expired("port", NOW + 5), "nobody taught it"
    assert lessons.pop_expired("desk", NOW + 5), "from this instant on it is not recalled either"
    assert not lessons.pop_expired("desk", NOW + 9), "once: it is about to be taught anew"
    lessons.load_lessons("desk", NOW + 5)
    assert lessons.pop_expired("desk", NOW + 9)
