"""Cascades tried before they act: what the judge settles asks nobody, the rest is the model's.

The parts of `test_recordings`: real clients, a strict server, the engine's line, the real policy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from msgspec.structs import replace
from tests.model_server import KEY
from tests.model_trials import DESK, Fleet, harness_of

from vedette.app.dry_run import PriorState
from vedette.config.fleet import load_fleet
from vedette.domain.event import Event
from vedette.operations.eval_cases import read_evals
from vedette.operations.evaluation import ModelUsage
from vedette.testing.harness import checkout
from vedette.testing.model_server import FunctionCall, ModelServer, Request, Turn

pytestmark = pytest.mark.timeout(120)

LETTER = FunctionCall("wire_send", {"to": DESK, "text": "by the model"})
RING = {"tool": "bell.ring", "args": {"to": {"ref": "/charter/desk"}, "text": "by the judge"}}
WORDS = 'outcomes: {wire.send: {data: {id: "7"}}}'


def send_once(request: Request) -> Turn:
    """Send a letter, then be done."""
    return Turn((LETTER,) if request.turn == 0 else ("Sent.",))


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer(send_once, keys=(KEY,)) as server:
        yield server


@pytest.fixture
def fleet(tmp_path: Path, server: ModelServer) -> Fleet:
    """Return a cascade under the bars as they are shipped."""
    fleet = Fleet(tmp_path, server)
    fleet.edit("agent.yaml", "model: fast", "model: fast\nreasoner: [judge, model]")
    limits = "policies/limits/data.yaml"
    (fleet.content / limits).write_text((checkout() / limits).read_text("utf-8"))
    return fleet


def event(name: str, confidence: float, **data: Any) -> Event:
    """Return an event that the toy judge is so sure of, and would ring for."""
    given = {"confidence": confidence, "do": [RING], **data}
    return Event("test", name, "worker.job", "k", None, given)


def write_case(fleet: Fleet, expect: str, *events: Event, words: str = "") -> None:
    listed = [
        {"type": one.type, "source": one.source, "id": one.id, "subject": "k", "data": one.data}
        for one in events
    ]
    more = f"  {words}\n" if words else ""
    text = f"- name: the case\n  events: {orjson.dumps(listed).decode()}\n"
    (fleet.agent / "evals/cases.yaml").write_text(f"{text}{more}  expect: {{{expect}}}\n")


def run_in_fleet(fleet: Fleet, *events: Event) -> None:
    async def run() -> None:
        async with harness_of(fleet) as harness:
            for one in events:
                await harness.send(one)
                await harness.wait_until_idle()

    asyncio.run(run())


def told(value: dict[str, Any]) -> list[tuple[bool, bool, float, list[tuple[str, str]]]]:
    return [
        (
            turn["judged"], turn["deferred"], turn["confidence"],
            [(one["tool"], one["outcome"]) for one in turn["actions"]],
        )
        for turn in value["turns"]
    ]  # fmt: skip


def test_what_its_judge_settles_needs_no_recording(fleet: Fleet, server: ModelServer) -> None:
    write_case(fleet, "label: sum 0 of 1, permitted: [], denied: [bell.ring]", event("j1", 0.95))
    for given in ({}, {"live": True}, {"live": True, "record": True}):
        found = fleet.cases(**given)
        assert found.differences == ()
        assert found.usage is not None
        assert found.usage == ModelUsage()
        assert not list((fleet.agent / "evals").glob("recordings/*"))
    assert not server.statuses
    write_case(fleet, "denied: []", event("j1", 0.95))
    assert fleet.cases().differences == ("denied: expected none, found bell.ring",)


def test_what_its_judge_defers_is_replayed_without_the_model(
    fleet: Fleet, server: ModelServer
) -> None:
    """The judge's own proposal is no action; the model's is held, as nobody has measured it."""
    sure, unsure = event("j1", 0.95), event("j2", 0.5, value=3)
    expect = "label: no action, permitted: [], denied: [bell.ring], held: [wire.send]"
    write_case(fleet, expect, sure, unsure, words=WORDS)
    assert fleet.cases().differences[0].startswith("not recorded")
    live = fleet.cases(live=True, record=True)
    assert live.differences == ()
    assert server.statuses == {200: 2}
    assert live.usage is not None
    assert (live.usage.turns, live.usage.input_tokens) == (2, 200)
    server.close()
    again = fleet.cases()
    assert again.differences == ()
    assert again.rules == live.rules
    assert again.rules[-1][2] == "confidence.low"
    assert b"confidence" not in fleet.recording.read_bytes()


def test_another_opinion_makes_a_recording_stale(fleet: Fleet) -> None:
    write_case(fleet, "held: [wire.send]", event("j2", 0.5))
    assert fleet.cases(live=True, record=True).ok
    # The judge's code is a file of the folder; of what it was taught only its word tells.
    raw = fleet.recording.read_text()
    recorded = orjson.loads(raw)["runs"][0]["turns"][0]
    assert recorded["turn"] == 2
    digest = recorded["told"]["the judge's opinion"]
    fleet.recording.write_text(raw.replace(digest, "0" * 64))
    assert "the judge's opinion is another" in fleet.cases().differences[0]


def test_a_recording_of_what_the_judge_settles_by_now_is_stale(fleet: Fleet) -> None:
    write_case(fleet, "held: [wire.send]", event("j2", 0.5))
    assert fleet.cases(live=True, record=True).ok
    write_case(fleet, "denied: [bell.ring]", event("j2", 0.95))
    found = fleet.cases()
    assert "turn 2 was said when the run went on" in found.differences[0]
    live = fleet.cases(live=True, record=True)
    assert live.differences == ()
    assert live.basis == "its judge alone, nothing to record"
    assert not list((fleet.agent / "evals").glob("recordings/*"))


@pytest.mark.parametrize(("said", "outcome"), [("0.85", "permitted"), ("0.75", "held")])
def test_a_case_says_how_sure_its_model_is(fleet: Fleet, said: str, outcome: str) -> None:
    """A confidence is no part of what was asked, so its recording holds; nothing is audited."""
    fleet.edit("agent.yaml", "mode: act", "mode: act\nconfidence: {audit_share: 1000}")
    write_case(fleet, "held: [wire.send]", event("j2", 0.5), words=WORDS)
    assert fleet.cases(live=True, record=True).ok
    words = f"{WORDS}\n  confidence: {said}"
    write_case(fleet, f"{outcome}: [wire.send]", event("j2", 0.5), words=words)
    assert fleet.cases().differences == ()


@pytest.mark.parametrize("said", ["7", "-0.1", ".nan", "much"])
def test_a_confidence_is_a_probability(fleet: Fleet, said: str) -> None:
    write_case(fleet, "held: []", event("j2", 0.5), words=f"confidence: {said}")
    (problem,) = read_evals(load_agent(fleet), "agents/worker")[1]
    assert (problem.file, problem.line) == ("agents/worker/evals/cases.yaml", 3)
    assert "confidence" in problem.field


def test_a_judge_says_itself_how_sure_it_is(fleet: Fleet) -> None:
    write_case(fleet, "held: []", event("j2", 0.5), words="confidence: 0.9")
    agent = replace(load_agent(fleet), asks_model=False, cascade=None)
    (problem,) = read_evals(agent, "agents/worker")[1]
    assert problem.what == "a judge says itself how sure it is"


def load_agent(fleet: Fleet) -> Any:
    settings = fleet.settings
    return load_fleet(settings.root, settings, now_us=0).fleet.agents["worker"]


def test_a_deferred_event_is_tried_out_of_the_ledger(fleet: Fleet, server: ModelServer) -> None:
    unsure, quiet = event("j2", 0.5), event("j3", 0.95, do=[])
    run_in_fleet(fleet, event("j1", 0.95), unsure, quiet)
    assert server.statuses == {200: 1}
    server.close()
    value = fleet.attempt(unsure)
    assert value["is_recording"]
    assert told(value) == [(True, True, 0.5, []), (False, False, 0.0, [("wire.send", "hold")])]
    assert value["turns"][0]["label"] == "sum 0 of 2", "as it was judged then"
    assert value["ended"] == "waits for a person"
    assert (value["usage"]["turns"], value["usage"]["calls"]) == (1, 1)
    # What it settled then it is asked of again, at no cost.
    assert fleet.attempt(event("j1", 0.95))["deferred"] is False
    assert fleet.attempt(quiet)["label"] == "sum 0 of 1"


def test_a_deferred_event_is_tried_anew(fleet: Fleet, server: ModelServer) -> None:
    """The judge is as it was before the event, and asked again; so is the model."""
    run_in_fleet(fleet, event("j1", 0.95, value=4))
    value = fleet.attempt(event("j2", 0.5))
    assert value["deferred"]
    assert not server.statuses
    prior = PriorState(since=((1, event("j1", 0.95, value=4)),))
    value = fleet.attempt(event("j2", 0.5), live=True, prior=prior)
    assert value["turns"][0]["label"] == "sum 4 of 2"
    assert told(value)[1:] == [(False, False, 0.0, [("wire.send", "hold")])]
    assert server.statuses == {200: 1}


def test_in_workers_its_judge_sees_no_key(
    fleet: Fleet, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.workers = True
    plan = replace(fleet.models["fast"], key_file=None, key_env="EXAMPLE_KEY")
    fleet.models = {"fast": plan}
    monkeypatch.setenv("EXAMPLE_KEY", KEY)
    fleet.edit("judge.py", '        if data.get("raise"):\n', SPY)
    expect = "label: no action, held: [wire.send], denied: [bell.ring]"
    write_case(fleet, expect, event("j1", 0.95), event("j2", 0.5), words=WORDS)
    assert fleet.cases(live=True, record=True).differences == ()
    assert server.statuses == {200: 2}


SPY = """\
        import os
        if "EXAMPLE_KEY" in os.environ:
"""


def test_an_event_is_tried_with_what_people_said(fleet: Fleet, server: ModelServer) -> None:
    """A hundred people's yes: the same event that was held then would be done by now."""
    fleet.edit("agent.yaml", "model_calls_per_day: 100", "model_calls_per_day: 1000")
    events = [replace(event(f"m{n}", 0.5), subject=f"m{n}") for n in range(100)]

    async def answer() -> None:
        async with harness_of(fleet) as harness:
            await harness.send(*events)
            await harness.wait_until_idle(60)
            for one in events:
                (row,) = harness.actions(one)
                assert row.hold == "open"
                await harness.approve(row)
            await harness.wait_until_idle(60)

    asyncio.run(answer())
    server.close()
    value = fleet.attempt(events[0])
    assert told(value)[1][3] == [("wire.send", "permit")]
    assert (value["ended"], len(value["turns"])) == ("done", 3)
    assert value["turns"][1]["confidence"] == 0.990
