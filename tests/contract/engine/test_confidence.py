"""Confidence fails closed wherever it was thought: in this process, in a worker, elsewhere, by ADK.

What is unsure waits for a person, and what does not say how sure it is is refused, with a code.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.remote import Host, now_us

from vedette.adapters.reasoners.adk.reasoner import AdkReasoner
from vedette.app.remote_workers import build_issuer
from vedette.config.deployment import Deployment, GatewayPlan
from vedette.domain.action import check_confidence, proposal_confidence
from vedette.domain.base.errors import BadConfidence
from vedette.domain.event import Event
from vedette.interfaces.http.worker_gateway import serve_workers
from vedette.testing.harness import FleetHarness, checkout
from vedette.testing.scripted import ScriptedModel, ToolCall
from vedette.testing.toy_fleet import World, toy_fleet, wait_until

# What the judge says stands in the event as Python, so that it may be anything at all.
JUDGE_PY = """\
from decimal import Decimal

from vedette.judging import Judge as Base
from vedette.judging import Judgement, Proposal, Ref


class Judge(Base):
    def judge(self, seen, briefing):
        data = briefing.event.data
        args = {"to": Ref("/charter/desk"), "text": "hello"}
        own = {"confidence": eval(data["own"])} if "own" in data else {}
        proposals = (Proposal("wire.send", args, **own), Proposal("wire.send", args))
        return Judgement("so", eval(data["sure"]), proposals if "both" in data else proposals[:1])
"""
FAR = Deployment(gateway=GatewayPlan(("127.0.0.1", 0), ("worker",), is_gateway=True))
# No probabilities, in Python; and with which words the refusal names each.
NONE_AT_ALL = {
    "7": "7", "-0.1": "-0.1", "1.0000001": "1", "float('nan')": "NaN", "float('inf')": "inf",
    "True": "True", "None": "no confidence", "'0.9'": "type str", "10**40": "1000",
    "[1]": "type list",
}  # fmt: skip


@asynccontextmanager
async def judging(folder: Path, way: str) -> AsyncIterator[FleetHarness]:
    """Open a toy fleet whose judge lives in this process, in a worker, or on another host."""
    fleet = toy_fleet(
        folder, World(), workers=way == "worker", edges=FAR if way == "remote" else None
    )
    (fleet.content / "agents" / "worker" / "judge.py").write_text(JUDGE_PY)
    async with fleet:
        if way != "remote":
            yield fleet
            return
        async with serve_workers(fleet.app) as address:
            assert address is not None
            signer = build_issuer(fleet.app.settings, now_us).signer("worker")

            async def mint() -> str:
                return signer.mint(now_us())

            agent = fleet.content / "agents" / "worker"
            host = Host("worker", agent, address, mint, folder / "host")
            try:
                yield fleet
            finally:
                await asyncio.to_thread(host.stop)


def question_event(name: str, **data: str) -> Event:
    return Event("test", name, "worker.job", name, None, data)


@pytest.mark.parametrize("way", ["here", "worker", "remote"])
async def test_what_is_unsure_waits_and_what_is_no_probability_is_refused(
    tmp_path: Path, way: str
) -> None:
    async with judging(tmp_path, way) as fleet:
        sure = question_event("sure", sure="0.95")
        lower = question_event("lower", sure="0.95", own="0.4")
        unsure = question_event("unsure", sure="0.4")
        higher = question_event("higher", sure="0.4", own="1.0")
        edges = question_event("edges", sure="1", own="0")
        odd = [question_event(f"judgement {n}", sure=said) for n, said in enumerate(NONE_AT_ALL)]
        parts = [
            question_event(f"proposal {n}", sure="0.95", own=said, both="yes")
            for n, said in enumerate(NONE_AT_ALL)
            if said != "None"
        ]
        events = [sure, lower, unsure, higher, edges, *odd, *parts]
        await fleet.send(*events)
        # Where no worker has come yet runs look again later: that is idle, and not the end.
        ends = ("done", "dead", "waiting")
        await wait_until(lambda: all(fleet.runs(event)[0].state in ends for event in events), 60)

        def stands(event: Event) -> list[tuple[str | None, str | None]]:
            return [(row.decided, row.rule) for row in fleet.actions(event)]

        assert stands(sure) == [("permit", "permit.tool")], "the control"
        for event in (lower, unsure, higher, edges):
            assert stands(event) == [("hold", "confidence.low")], event.id
        dead = {entry["event"]: entry for entry in fleet.entries("run.dead")}
        for event, words in zip(odd, NONE_AT_ALL.values(), strict=True):
            assert stands(event) == [], event.data
            entry = dead.pop(event.key)
            assert entry["what"] == "bad-confidence", event.data
            assert words in fleet.body(entry["seq"])["why"]
        assert dead == {}
        refused = {entry["event"]: entry for entry in fleet.entries("action.refused")}
        for event in parts:
            # The other proposal of the same judgement goes on.
            assert stands(event) == [("permit", "permit.tool")], event.data
            entry = refused.pop(event.key)
            assert (entry["what"], entry["ordinal"]) == ("bad-confidence", 0)
            assert "the proposal of wire.send" in fleet.body(entry["seq"])["why"]
        assert refused == {}


@pytest.mark.parametrize(
    ("charter", "bar", "outcome"),
    [("", True, "hold"), (', model_confidence: "1"', True, "hold"), ("", False, "permit")],
)
async def test_a_model_that_nobody_measured_is_below_the_bar(
    tmp_path: Path, charter: str, bar: bool, outcome: str
) -> None:
    """Whatever its charter says of it; only a policy that asks for no confidence lets it act."""
    world = World()
    shipped = (checkout() / "policies/limits/data.yaml").read_text("utf-8")
    extra = {"limits/data.yaml": shipped} if bar else None
    fleet = toy_fleet(tmp_path, world, reasoner="adk", extra=extra)
    yaml = fleet.content / "agents" / "worker" / "agent.yaml"
    text = yaml.read_text()
    assert text.count("note: known text}") == 1
    yaml.write_text(text.replace("note: known text}", f"note: known text{charter}}}"))
    model = ScriptedModel(
        [ToolCall("wire.send", {"to": "ref:/charter/desk", "text": "hello"}), "."]
    )
    folders = {"worker": yaml.parent}
    fleet._reasoners = {"adk": AdkReasoner(folders, model_for=model.model_for)}
    async with fleet:
        event = Event("test", "1", "worker.job", "k", None, {})
        await fleet.send(event)
        await fleet.wait_until_idle()
        (row,) = fleet.actions(event)
        assert row.decided == outcome
        assert world.effects() == (outcome == "permit")


@pytest.mark.parametrize("value", [0, 1, 0.0, 1.0, 0.5, 5e-324])
def test_probabilities(value: float) -> None:
    assert check_confidence(value, "this") == value
    assert proposal_confidence(value, 0.5, "a.b") == min(value, 0.5)
    assert proposal_confidence(None, value, "a.b") == value


class _Any(float):
    """A number that says of itself that it is within all bounds."""

    def __le__(self, other: Any) -> bool:
        return True


@pytest.mark.parametrize(
    "value", [math.nan, -math.inf, -5e-324, 1.0000000000000002, 2, -1, False, None, "1", {}, 1j]
)
def test_what_is_no_probability_is_refused_not_mended(value: Any) -> None:
    with pytest.raises(BadConfidence, match="probability from 0 to 1") as refused:
        check_confidence(value, "this")
    assert refused.value.code == "bad-confidence"
    if value is not None:
        with pytest.raises(BadConfidence):
            proposal_confidence(value, 1.0, "a.b")


def test_a_number_that_lies_when_it_is_compared_is_read_as_what_it_is() -> None:
    with pytest.raises(BadConfidence):
        check_confidence(_Any(7), "this")
