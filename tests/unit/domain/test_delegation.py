"""What agents above may do is the engine's own rule, whatever a bundle decides."""

from __future__ import annotations

from typing import Any

import pytest

from vedette.domain.base.canonical import canonical_json
from vedette.domain.decision import Decision, check_request, evaluate_request
from vedette.domain.delegation import find_cover, read_budget, trusted_places
from vedette.domain.escrow import count_actions, held_escrow, returned_escrow, spend_of
from vedette.domain.run import ActionRow
from vedette.domain.tool import Tool
from vedette.policy.golden_requests import build_request

SEND = {"verb": "send", "resource": "wire", "impact": "low"}


class Answers:
    """A policy engine that answers everything alike."""

    def __init__(self, decision: Decision) -> None:
        self.decision = decision

    def decide(self, request: bytes) -> Any:
        return self.decision.to_json()


PERMITS = Answers(Decision("permit", "permit.tool", ()))


def decide(
    covers: list[str], *, room: Any = True, approved: bool = False, engine: Answers = PERMITS
) -> Decision:
    ancestors = [
        {"agent": f"a{at}", "cover": cover, "owner": "o", "requested_mode": "act"}
        for at, cover in enumerate(covers)
    ]
    approval = {"action_digest": "d", "by": "person:a", "until": 2}
    context = {
        "delegation": {"ancestors": ancestors, "room": room},
        "approvals": [approval] if approved else [],
    }
    question = {"action": {"digest": "d"}, "context": context, "now": 1}
    return evaluate_request(engine, canonical_json(question))


@pytest.mark.parametrize(
    ("covers", "room", "approved", "outcome", "rule"),
    [
        (["act", "act"], True, False, "permit", "permit.tool"),
        (["act", "ask"], True, False, "hold", "delegation.ask"),
        (["act", "ask"], True, True, "permit", "permit.tool"),
        (["none", "act"], True, True, "deny", "delegation.cover"),
        (["act", "none"], True, True, "deny", "delegation.cover"),
        (["ACT"], True, True, "deny", "delegation.cover"),
        (["act"], False, True, "deny", "delegation.budget"),
        (["act"], 1, True, "deny", "delegation.budget"),
        ([], True, True, "deny", "delegation.unknown"),
    ],
)
def test_a_bundle_that_permits_all_permits_no_more_than_each_ancestor_may(
    covers: list[str], room: Any, approved: bool, outcome: str, rule: str
) -> None:
    found = decide(covers, room=room, approved=approved)
    assert (found.outcome, found.rule) == (outcome, rule)


def test_what_a_bundle_denies_or_holds_stays_so() -> None:
    denied = Answers(Decision("deny", "grant.tool", ("grant.tool",), would="permit"))
    found = decide(["none"], engine=denied)
    assert (found.rule, found.would) == ("grant.tool", "deny")
    held = Answers(Decision("hold", "impact.high", ("impact.high",), "approval"))
    assert decide(["ask"], engine=held).reasons == ("delegation.ask", "impact.high")
    assert decide(["none"], engine=held).outcome == "deny"


def test_the_denial_names_every_agent_that_may_not() -> None:
    found = decide(["none", "act", "none"])
    assert found.reasons == ("delegation.cover:a0", "delegation.cover:a2")


@pytest.mark.parametrize(
    ("given", "requested", "cover"),
    [
        ({"mode": "act", "tools": {"x": SEND}}, "act", "act"),
        ({"mode": "ask", "tools": {"x": SEND}}, "act", "ask"),
        ({"mode": "act", "tools": {"x": SEND}}, "ask", "ask"),
        ({"mode": "observe", "tools": {"x": SEND}}, "act", "none"),
        ({"mode": "act", "tools": {"x": SEND}}, "observe", "none"),
        ({"tools": {"x": SEND}}, "act", "none"),
        ({"mode": "act", "tools": {"x": {**SEND, "impact": "high"}}}, "act", "ask"),
        ({"mode": "act", "tools": {"x": {**SEND, "impact": "none"}}}, "act", "none"),
        ({"mode": "act", "tools": {"x": {**SEND, "only": {"/to": ["a"]}}}}, "act", "ask"),
        ({"mode": "act", "tools": {"x": {**SEND, "triggers": ["task"]}}}, "act", "none"),
        ({"mode": "act", "tools": {"x": {**SEND, "onyl": {}}}}, "act", "none"),
        ({"mode": "act", "tools": {"x": {**SEND, "verb": "read"}}}, "act", "none"),
        ({"mode": "act", "tools": {"x": {**SEND, "impact": "high"}, "y": SEND}}, "act", "act"),
        ({"mode": "act", "tools": []}, "act", "none"),
        ({"mode": "act", "tools": {"x": "all"}}, "act", "none"),
        ("all", "act", "none"),
        (None, "act", "none"),
    ],
)
def test_what_grants_cover(given: Any, requested: str, cover: str) -> None:
    found = find_cover({"chief": given}, "chief", "kim", requested, {}, "send", "wire")
    assert found == cover


def declared(name: str, verb: str = "send", *, high: bool) -> Tool:
    return Tool(name, verb, "wire", {}, (), "idempotent", "act", high_impact=high)


@pytest.mark.parametrize(
    ("tools", "granted", "cover"),
    [
        ([declared("x", high=True)], ["x"], "ask"),
        ([declared("x", high=False)], ["x"], "act"),
        # What it may do by itself is what it is granted, not what it only has.
        ([declared("x", high=True), declared("y", high=False)], ["x"], "ask"),
        ([declared("x", high=True), declared("y", high=False)], ["x", "y"], "act"),
        # Of a tool that it has not: as those that it has.
        ([declared("x", high=True)], ["y"], "ask"),
        ([declared("x", high=True), declared("z", high=False)], ["y"], "act"),
        ([declared("x", "look", high=True)], ["x"], "act"),
    ],
)
def test_an_impact_that_an_agent_above_declares_as_high_needs_a_person(
    tools: list[Tool], granted: list[str], cover: str
) -> None:
    grants = {"chief": {"mode": "act", "tools": dict.fromkeys(granted, SEND)}}
    own = {tool.name: tool for tool in tools}
    assert find_cover(grants, "chief", "kim", "act", own, "send", "wire") == cover


@pytest.mark.parametrize(
    ("owner", "cover"), [("kim", "act"), ("lee", "none"), ("", "none"), (None, "none")]
)
def test_grants_to_an_agent_of_another_owner_cover_nothing(owner: Any, cover: str) -> None:
    grants = {"chief": {"mode": "act", "owner": owner, "tools": {"x": SEND}}}
    assert find_cover(grants, "chief", "kim", "act", {}, "send", "wire") == cover


def test_the_question_has_its_shape_or_is_denied() -> None:
    request = build_request("clerk", "wire.send", {"verb": "send", "resource": "wire"}, [])
    above = {"agent": "chief", "cover": "act", "owner": "o", "requested_mode": "act"}
    request["context"]["delegation"] = {"ancestors": [above], "room": True}
    assert check_request(request) is None
    odd: list[Any] = [
        [], {"ancestors": [above]}, {"ancestors": [above], "room": 1},
        {"ancestors": [{**above, "more": 1}], "room": True}, {"ancestors": {}, "room": True},
    ]  # fmt: skip
    for wrong in odd:
        request["context"]["delegation"] = wrong
        assert check_request(request) is not None


def test_a_budget_is_whole_numbers_of_known_units() -> None:
    assert read_budget({"tokens": 5, "actions": 0}) == {"tokens": 5}
    odd: list[dict[str, Any]] = [
        {"coins": 1}, {"actions": -1}, {"actions": True}, {"actions": "3"},
    ]  # fmt: skip
    for wrong in odd:
        with pytest.raises(ValueError, match="budget"):
            read_budget(wrong)


def test_only_what_was_trusted_is_vouched_for() -> None:
    origins = {
        "/goal": "trusted", "/agent": "trusted", "/inputs/a": "trusted", "/inputs/b": "registered",
        "/inputs/c~1d/0": "trusted", "/inputs/e": "untrusted", "/budget/actions": "trusted",
    }  # fmt: skip
    assert trusted_places(origins.items()) == {"data/goal", "data/inputs/a", "data/inputs/c~1d/0"}


def row(
    tool: str, *, counted: int = 1, answer: bytes | None = None, effect: Any = "done"
) -> ActionRow:
    record = {
        "args": {"budget": {"actions": 5, "tokens": 100}}, "origins": {}, "sources": {},
        "confidence": 1000, "why": "",
    }  # fmt: skip
    return ActionRow(
        id="act_1", run="run_1", turn=1, ordinal=0, agent="chief", tool=tool, digest="d",
        record=canonical_json(record), effect=effect, counted_us=counted, answer=answer,
    )  # fmt: skip


def answered(**spent: int) -> bytes:
    return canonical_json({"data": {"spent": spent}, "error": "", "state": "done"})


def test_what_an_ask_holds_goes_back_once() -> None:
    begun = row("agent.ask", effect="started")
    assert held_escrow(begun) == {"actions": 5, "tokens": 100}
    done = row("agent.ask", answer=answered(actions=2))
    assert returned_escrow(begun, done) == {"actions": 3, "tokens": 100}
    assert returned_escrow(done, done) == {}
    beyond = row("agent.ask", answer=answered(actions=2, tokens=150))
    assert returned_escrow(begun, beyond) == {"actions": 3}
    denied = row("agent.ask", counted=0, effect="cancelled")
    assert returned_escrow(begun, denied) == {"actions": 5, "tokens": 100}
    # Where nobody can say what was spent, all of it was.
    unknown = row("agent.ask", answer=canonical_json({"data": {}, "error": "x", "state": "failed"}))
    assert returned_escrow(begun, unknown) == {}


def test_what_a_run_has_used_of_its_actions() -> None:
    rows = [
        row("wire.send"), row("wire.send", effect=None), row("task.finish"),
        row("agent.ask", effect="started"), row("agent.ask", answer=answered(actions=2)),
    ]  # fmt: skip
    assert count_actions(rows) == 1 + 5 + 2
    assert spend_of({"model_calls": 3, "actions": 7}, rows) == {"model_calls": 3, "actions": 8}
