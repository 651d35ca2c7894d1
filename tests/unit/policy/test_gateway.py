"""The gateway: what is asked, what is counted, and what an engine may answer."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from vedette.domain.action import Action, Proposal, bind_proposal
from vedette.domain.agent import Agent
from vedette.domain.budget import ACTIONS, Budget
from vedette.domain.decision import Approval, DecisionContext, check_request
from vedette.domain.event import ENVELOPE, Event
from vedette.domain.identity import Identity
from vedette.domain.origin import Ref, Roots
from vedette.domain.tool import Tool
from vedette.policy.gateway import Gateway

NOW = 1_780_000_000_000_000
NONE: dict[str, Any] = {}
TOOL = Tool("mail.send", "send", "outbox", {"to": "string"}, ("/to",), "idempotent", "send",
            target="mailbox", high_impact=True)  # fmt: skip
AGENT = Agent(
    name="desk", identity=Identity("harbour", "desk"), title="t", owner="o@example.org",
    release="r1", folder="", instruction="", charter={"desk": "desk@example.org"},
    subscriptions=(), schedules=(), tools={TOOL.name: TOOL}, scopes=(), budget=Budget(9, None, 4),
    requested_mode="act",
)  # fmt: skip
EVENT = Event("s", "1", "mail.received", "k", None, {}, 1, ("other",), ENVELOPE)
ROOTS = Roots(NONE, frozenset(), {"desk": "desk@example.org"}, NONE, NONE, frozenset(), NONE,
              frozenset(), NONE)  # fmt: skip
PERMIT: dict[str, Any] = {
    "schema": "vedette.decision/1", "outcome": "permit", "rule": "x", "reasons": [], "wait": None,
    "until": 0, "would": None, "obligations": [],
}  # fmt: skip


class Engine:
    """Answers what it is told to, and remembers what it was asked."""

    name, digest = "engine", "b" * 64

    def __init__(self, answer: object = None) -> None:
        self.answer, self.asked = answer, b""

    def decide(self, question: bytes) -> object:
        self.asked = question
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def action(confidence: float = 0.875) -> Action:
    proposal = Proposal("mail.send", {"to": Ref("/charter/desk")}, confidence=confidence)
    return bind_proposal(
        proposal, {TOOL.name: TOOL}, ROOTS, run="run_1", turn=1, ordinal=0, confidence=1.0
    )


def situation(**given: Any) -> DecisionContext:
    return DecisionContext(AGENT, EVENT, 1, NOW, **given)


def test_the_question_is_all_that_the_engine_knows_and_nothing_the_agent_says() -> None:
    engine = Engine(PERMIT)
    gateway = Gateway(engine, 5)
    gateway.counts.add("desk", ACTIONS, NOW, 2)
    approval = Approval(action().digest, "person:kim", NOW + 1)
    decided = gateway.decide(
        action(),
        situation(
            memories=(("inbox/m@3", "reviewed"),), actions_in_run=1, stopped=True, approval=approval
        ),
    )
    question = orjson.loads(engine.asked)
    assert check_request(question) is None
    assert decided.request == engine.asked
    assert (decided.policy_rev, decided.bundle, decided.engine) == (5, engine.digest, "engine")
    assert question["subject"] == {
        "id": "spiffe://harbour/agent/desk", "agent": "desk", "release": "r1",
        "owner": "o@example.org", "requested_mode": "act",
    }  # fmt: skip
    assert question["action"]["origins"] == {"/to": "trusted"}
    assert question["action"]["digest"] == action().digest
    assert question["action"]["high_impact"] is True
    assert question["resource"] == {"type": "outbox", "id": "mailbox"}
    context = question["context"]
    assert context["counters"] == {"minute": 2, "hour": 2, "day": 2, "run": 1}
    assert context["budget"] == {"hour": 9, "day": 0, "run": 4}
    assert context["event"] == {
        "type": "mail.received", "source": "s", "hops": 1, "lineage": ["other"],
        "vouched": sorted(ENVELOPE),
    }  # fmt: skip
    assert context["memories"] == [{"id": "inbox/m@3", "trust": "reviewed"}]
    assert context["approvals"] == [
        {"action_digest": action().digest, "by": "person:kim", "until": NOW + 1}
    ]
    assert (context["stopped"], context["confidence"], context["turn"]) == (True, 875, 1)


@pytest.mark.parametrize(
    "answer",
    [None, {}, "permit", True, ValueError("x"), {**PERMIT, "obligations": [{"type": "x"}]}],
)
def test_anything_but_an_exact_decision_is_a_deny(answer: object) -> None:
    decided = Gateway(Engine(answer), 1).decide(action(), situation())
    assert decided.decision.outcome == "deny"
    assert decided.decision.rule.startswith("engine.")


def test_a_question_that_cannot_be_recorded_is_a_deny_and_never_asked() -> None:
    from msgspec.structs import replace

    engine = Engine(PERMIT)
    odd = DecisionContext(AGENT, replace(EVENT, type="\ud800"), 1, NOW)
    decided = Gateway(engine, 1).decide(action(), odd)
    assert (decided.decision.outcome, decided.decision.rule) == ("deny", "engine.question")
    assert engine.asked == b""


def test_reading_a_memory_is_asked_as_an_action() -> None:
    engine = Engine(PERMIT)
    gateway = Gateway(engine, 1)
    decided = gateway.may_read(situation(), "inbox", "desk")
    question = orjson.loads(engine.asked)
    assert check_request(question) is None
    assert decided.decision.outcome == "permit"
    assert question["action"]["tool"] == "memory.read"
    assert question["resource"] == {"type": "memory", "id": "inbox/desk"}


def test_another_bundle_is_live_from_the_next_decision_on() -> None:
    gateway = Gateway(Engine(PERMIT), 1)
    assert gateway.decide(action(), situation()).policy_rev == 1
    gateway.swap(Engine(None), 2)
    decided = gateway.decide(action(), situation())
    assert (decided.policy_rev, decided.decision.outcome) == (2, "deny")
