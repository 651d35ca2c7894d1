"""Promise 9: it fails closed; with a control that shows the test can fail."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.promises.common import state
from tests.cascades import (
    MANY,
    AwayModel,
    always,
    ask,
    cascade,
    decide_next,
    let_pass,
    stated,
    takeover,
)

from vedette.adapters.reasoners.adk.reasoner import AdkReasoner
from vedette.domain.base.canonical import canonical_json
from vedette.domain.decision import request_decision
from vedette.testing.harness import copy_policies
from vedette.testing.scripted import ScriptedModel
from vedette.testing.toy_fleet import World, drop_bars, job, note_proposal, send_proposal, toy_fleet

PERMIT: dict[str, Any] = {
    "schema": "vedette.decision/1", "outcome": "permit", "rule": "x", "reasons": [], "wait": None,
    "until": 0, "would": None, "obligations": [],
}  # fmt: skip


class Engine:
    """A policy engine that answers what the test wants."""

    name, digest = "test", "0" * 64

    def __init__(self, answer: object) -> None:
        self.answer = answer

    def decide(self, question: bytes) -> object:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


WRONG: list[object] = [
    None, {}, [], True, "permit", 1, b"permit", {"outcome": "permit"}, [PERMIT],
    canonical_json(PERMIT),
    {**PERMIT, "schema": "vedette.decision/9"}, {**PERMIT, "outcome": "allow"},
    {**PERMIT, "outcome": True}, {**PERMIT, "rule": ""}, {**PERMIT, "extra": 1},
    {**PERMIT, "wait": "approval"}, {**PERMIT, "until": -1}, {**PERMIT, "until": 0.5},
    {**PERMIT, "obligations": [{"type": "encrypt"}]}, {**PERMIT, "obligations": ["notify"]},
    {**PERMIT, "obligations": None}, {k: v for k, v in PERMIT.items() if k != "reasons"},
    RuntimeError("broken"), TimeoutError("late"), MemoryError(), RecursionError(),
    ValueError("undefined"), StopIteration(),
]  # fmt: skip


async def test_promise_09_it_fails_closed(tmp_path: Path, world: World) -> None:
    async with toy_fleet(tmp_path, world) as fleet:
        gateway = fleet.app.services.gateway
        live = gateway.engine
        for at, wrong in enumerate(WRONG):
            gateway.engine = Engine(wrong)
            event = job(str(at), send_proposal(), note_proposal("x"))
            await fleet.send(event)
            await fleet.wait_until_idle()
            assert [row.decided for row in fleet.actions(event)] == ["deny", "deny"], wrong
            assert all(row.rule.startswith("engine.") for row in fleet.actions(event))
            assert state(fleet, event) == "done"
        assert world.calls == []
        assert fleet.app.store.runs.row("worker_notes", "k") is None
        gateway.engine = live
        await fleet.send(job("good", send_proposal()))
        await fleet.wait_until_idle()
        assert world.effects() == 1


@pytest.mark.parametrize(
    "files",
    [
        {"vedette/gateway/decide.rego": "package vedette.gateway\n"},
        {"vedette/gateway/decide.rego": "package vedette.gateway\n\ndecision := true\n"},
        {"vedette/gateway/decide.rego": "package elsewhere\n\ndecision := {}\n"},
        {"grants/data.yaml": "{}\n"},
        {"sinks/data.yaml": "tools: {}\n"},
        {"limits/data.yaml": "hops: 8\n"},
        {"denies/data.yaml": "agents: []\n"},
    ],
)
async def test_promise_09_a_policy_with_nothing_in_it_permits_nothing(
    tmp_path: Path, world: World, files: dict[str, str]
) -> None:
    """Admitted by a stage that looks at nothing, it still permits nothing."""
    async with toy_fleet(tmp_path, world) as fleet:
        broken = copy_policies(tmp_path / "broken")
        shutil.rmtree(broken)
        shutil.copytree(fleet.policies, broken)
        for name, text in files.items():
            (broken / name).write_text(text)
        try:
            await fleet.apply_policy(broken)
        except Exception:
            # It does not even load; then the engine it would have been is no engine.
            fleet.app.services.gateway.engine = Engine(None)
        event = job("1", send_proposal(), note_proposal("x"))
        await fleet.send(event)
        await fleet.wait_until_idle()
        assert fleet.outcomes().get("permit", 0) == 0
        assert world.calls == []


def without(question: dict[str, Any], *path: str, put: object) -> dict[str, Any]:
    """Return the question with another value at a place."""
    found = copy.deepcopy(question)
    at: Any = found
    for name in path[:-1]:
        at = at[name]
    at[path[-1]] = put
    return found


# What each proof of a permit lacks, all else being right: what is asked, and the proof it is.
MISSING_PARTS: dict[str, tuple[tuple[str, ...], object]] = {
    "identity": (("subject", "id"), "spiffe://harbour/agent/somebody"),
    "identity of no release": (("subject", "release"), ""),
    "grant of the tool": (("action", "tool"), "wire.cut"),
    "grant of the verb": (("action", "verb"), "cut"),
    "grant of the resource": (("resource", "type"), "purse"),
    "origin": (("action", "origins"), {"/to": "untrusted", "/text": "derived"}),
    "origin told": (("action", "origins"), {"/text": "derived"}),
    "limit by the minute": (("context", "counters", "minute"), 10**9),
    "limit by the run": (("context", "counters", "run"), 10**9),
    "limit of hops": (("context", "event", "hops"), 99),
    "low impact": (("action", "high_impact"), True),
    "confidence": (("context", "confidence"), 0),
    "running": (("context", "stopped"), True),
    "an agent that is not denied": (("subject", "agent"), "denied"),
}


# What a person may put up with. No approval stands for any other proof.
MENDED_BY_A_PERSON = {"low impact", "confidence"}


@pytest.mark.parametrize("what", list(MISSING_PARTS))
async def test_promise_09_each_proof_is_needed(tmp_path: Path, world: World, what: str) -> None:
    """The question of a permit, with one thing wrong: no proof stands for another."""
    async with toy_fleet(tmp_path, world) as fleet:
        await fleet.send(job("1", send_proposal()))
        await fleet.wait_until_idle()
        entry = fleet.entries("action.decided")[0]
        question = fleet.body(entry["seq"])["question"]
        engine = fleet.app.services.gateway.engine
        assert request_decision(engine, question)[0].outcome == "permit"
        path, put = MISSING_PARTS[what]
        wrong = without(question, *path, put=put)
        assert request_decision(engine, wrong)[0].outcome != "permit"
        digest = question["action"]["digest"]
        given = {"action_digest": digest, "by": "person:x", "until": question["now"] + 1}
        approved = request_decision(engine, without(wrong, "context", "approvals", put=[given]))[0]
        assert (approved.outcome == "permit") == (what in MENDED_BY_A_PERSON)


async def test_promise_09_a_deny_takes_away_what_is_proven(tmp_path: Path, world: World) -> None:
    denied = {"denies/data.yaml": "agents: []\ntools: [wire.send]\ncomplete: true\n"}
    async with toy_fleet(tmp_path, world, extra=denied) as fleet:
        event = job("1", send_proposal(), send_proposal("x", "order.place"))
        await fleet.send(event)
        await fleet.wait_until_idle()
        assert [row.decided for row in fleet.actions(event)] == ["deny", "permit"]


async def test_promise_09_a_question_of_another_shape_is_not_put(
    tmp_path: Path, world: World
) -> None:
    """Whatever the engine would say to it."""
    async with toy_fleet(tmp_path, world) as fleet:
        await fleet.send(job("1", send_proposal()))
        await fleet.wait_until_idle()
        question = fleet.body(fleet.entries("action.decided")[0]["seq"])["question"]
        yes = Engine(PERMIT)
        assert request_decision(yes, question)[0].outcome == "permit"
        for wrong in (
            {}, {**question, "extra": 1}, {k: v for k, v in question.items() if k != "now"},
            without(question, "schema", put="vedette.question/99"),
            without(question, "now", put=True), without(question, "action", "tool", put=None),
            without(question, "action", "origins", put={"/to": "said"}),
            without(question, "context", "counters", put={}),
            without(question, "context", "approvals", put=[{"by": "x"}]),
        ):  # fmt: skip
            decision, _ = request_decision(yes, wrong)
            assert (decision.outcome, decision.rule) == ("deny", "engine.question"), wrong


async def test_promise_09_control_an_exact_permit_is_done(tmp_path: Path, world: World) -> None:
    async with toy_fleet(tmp_path, world) as fleet:
        fleet.app.services.gateway.engine = Engine(PERMIT)
        await fleet.send(job("1", send_proposal()))
        await fleet.wait_until_idle()
        assert world.effects() == 1


async def test_promise_09_a_model_that_nobody_measured_waits_for_a_person(
    tmp_path: Path, world: World
) -> None:
    """With people's answers it acts; another model in its place waits as it did."""
    fleet, _ = cascade(tmp_path, world, always, MANY)
    async with fleet:
        events = [job(str(n), key=str(n), confidence=0.1) for n in range(101)]
        await fleet.send(*events)
        await fleet.wait_until_idle()
        rows = [fleet.actions(event)[0] for event in events]
        found = {(row.decided, row.rule, stated(row)) for row in rows}
        assert found == {("hold", "confidence.low", 0)}
        assert world.effects() == 0
        for row in rows:
            await fleet.approve(row)
        await fleet.wait_until_idle()
        row = await decide_next(fleet, "measured")
        assert (row.decided, row.rule, world.effects()) == ("permit", "permit.tool", 102)
        assert stated(row) >= 900
    other = ScriptedModel(always)
    folders = {"worker": fleet.content / "agents" / "worker"}
    ask(fleet, AdkReasoner(folders, model_for=lambda _: other.model_for("other")))
    async with fleet:
        row = await decide_next(fleet, "other")
        assert (row.decided, row.rule, stated(row)) == ("hold", "confidence.low", 0)
        assert world.effects() == 102


async def test_promise_09_what_a_person_takes_over_waits_whatever_the_bar(
    tmp_path: Path, world: World
) -> None:
    """With no bar at all, too: it is no policy's to permit."""
    fleet, clock = takeover(tmp_path, world, AwayModel(), extra=drop_bars("worker"))
    event = job("1", send_proposal(), confidence=0.5)
    async with fleet:
        await fleet.send(event)
        await fleet.wait_until_idle()
        await let_pass(fleet, clock, 2_400)
        (row,) = fleet.actions(event)
        assert (row.decided, row.rule, world.effects()) == ("hold", "cascade.person", 0)
