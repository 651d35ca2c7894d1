"""Recall: reads decided by policy, answers kept as long as nothing changed."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from vedette.domain.agent import Agent, MemoryScope
from vedette.domain.budget import Budget
from vedette.domain.decision import Decision, DecisionContext, DecisionRecord, build_denial
from vedette.domain.event import Event
from vedette.domain.identity import Identity
from vedette.domain.memory import Memory
from vedette.memory.retrieval import Recall, build_query

NOW = 1_780_000_000_000_000
AGENT = Agent(
    name="desk", identity=Identity("harbour", "desk"), title="t", owner="o", release="r1",
    folder="", instruction="", charter={}, subscriptions=(), schedules=(), tools={},
    scopes=(MemoryScope("inbox", "open"), MemoryScope("inbox", "shut")), budget=Budget(),
    requested_mode="act",
)  # fmt: skip
EVENT = Event("s", "1", "mail.received", "k", None, {"subject": "Boats", "text": "How many?"})


class Gate:
    """Permits the scope named open."""

    def __init__(self) -> None:
        self.policy_rev, self.asked = 1, 0

    def may_read(self, situation: DecisionContext, bank: str, scope: str) -> DecisionRecord:
        self.asked += 1
        permit = Decision("permit", "permit.memory", ("x",))
        decision = permit if scope == "open" else build_denial("grant.memory")
        return DecisionRecord(decision, b"{}", self.policy_rev, "b", "e")


class Banks:
    """Answers every search with one memory, and counts them."""

    def __init__(self) -> None:
        self.searched: list[tuple[Any, ...]] = []
        self.at = 1

    def version(self, bank: str) -> int:
        return self.at

    def recall(self, bank: str, scope: str, *given: Any) -> list[Memory]:
        self.searched.append((bank, scope, *given))
        return [Memory("m", bank, 1, scope, "fact", (), "text", "d", "kim", "2026-01-01")]

    def lessons(self, bank: str, scope: str, now_us: int) -> list[Memory]:
        return [
            Memory(id, bank, 1, scope, "fact", (), "text", "d", "kim", "2026-01-01")
            for id in ("m", "other", "third")
        ]


def made() -> tuple[Recall, Gate, Banks]:
    gate, banks = Gate(), Banks()
    return Recall(banks, gate), gate, banks  # type: ignore[arg-type]


def test_only_what_policy_permits_is_read_and_each_decision_is_an_entry() -> None:
    recall, _, banks = made()
    memories, drafts = recall.find_memories(AGENT, EVENT, NOW)
    assert [memory.scope for memory in memories] == ["open"]
    assert [scope for _, scope, *_ in banks.searched] == ["open"]
    assert [
        (d.kind, d.fields["memory"], d.fields["outcome"], d.fields["rule"]) for d in drafts
    ] == [
        ("recall.decided", "inbox/open", "permit", "permit.memory"),
        ("recall.decided", "inbox/shut", "deny", "grant.memory"),
    ]


def test_an_answer_is_kept_until_something_changes() -> None:
    recall, gate, banks = made()
    recall.find_memories(AGENT, EVENT, NOW)
    assert recall.find_memories(AGENT, EVENT, NOW + 1)[1] == []
    assert (gate.asked, len(banks.searched)) == (2, 1)
    recall.find_memories(AGENT, replace(EVENT, data={"text": "Another question"}), NOW)
    assert len(banks.searched) == 2
    banks.at = 2
    recall.find_memories(AGENT, EVENT, NOW)
    assert len(banks.searched) == 3
    gate.policy_rev = 2
    assert len(recall.find_memories(AGENT, EVENT, NOW)[1]) == 2
    assert (gate.asked, len(banks.searched)) == (4, 4)
    recall.find_memories(AGENT, EVENT, NOW + 60_000_001)
    assert len(banks.searched) == 5, "an expiry in between is noticed"


def test_a_decision_whose_entry_was_lost_is_made_again() -> None:
    recall, gate, _ = made()
    recall.find_memories(AGENT, EVENT, NOW)
    recall.forget_permits()
    assert len(recall.find_memories(AGENT, EVENT, NOW)[1]) == 2
    assert gate.asked == 4


def test_what_a_bank_is_searched_with() -> None:
    assert build_query(EVENT) == "Boats How many?"
    assert build_query(replace(EVENT, data={"value": 1})) == "mail.received k"
    assert build_query(replace(EVENT, data=None, subject=None)) == "mail.received "
    assert len(build_query(replace(EVENT, data={"text": "x" * 9000}))) == 2000


def test_what_was_recalled_before_stays_as_long_as_it_may_be_read() -> None:
    """Though others matter more by now. Another revision, or another scope's, is not the same."""
    recall, _, _ = made()
    cited = {"inbox/m@1", "inbox/other@1", "inbox/third@2", "inbox/gone@1", "elsewhere/third@1"}
    memories, _ = recall.find_memories(AGENT, EVENT, NOW, cited)
    assert [memory.cite() for memory in memories] == ["inbox/m@1", "inbox/other@1"]
    assert {memory.scope for memory in memories} == {"open"}
