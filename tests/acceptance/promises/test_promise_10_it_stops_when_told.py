"""Promise 10: it stops when told; with a control that shows the test can fail."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.promises.common import approve, first

from vedette.domain.action import Proposal
from vedette.domain.effect import Call
from vedette.domain.event import Event
from vedette.domain.memory import Briefing
from vedette.domain.origin import Ref
from vedette.domain.ports.reasoner import ReasonerJudgement
from vedette.domain.run import Step
from vedette.testing.harness import FleetHarness
from vedette.testing.scripted import ScriptedReasoner
from vedette.testing.toy_fleet import (
    World,
    intercept_commits,
    job,
    note_proposal,
    send_proposal,
    toy_fleet,
    wait_until,
)

NOTE = {"key": Ref("/event/subject"), "text": "x"}


async def queued_behind_two(fleet: FleetHarness, world: World) -> Event:
    """Return when 300 calls queue for two slots and one action waits for a person."""
    fleet.app.services.calls.fleet_slots = asyncio.Semaphore(2)
    gate = threading.Event()

    def hold_up(call: Call) -> None:
        gate.wait(10)

    world.answer = hold_up
    held = job("held", send_proposal("held", "big.send"), key="held")
    await fleet.send(held, *(job(f"e{n}", send_proposal(str(n)), key=f"k{n}") for n in range(300)))

    def queued() -> bool:
        sql = "SELECT COUNT(*) FROM action WHERE decided='permit' AND effect='intended'"
        return bool(fleet.app.store.database.rows(sql)[0][0] == 300)

    await wait_until(queued, 30)
    gate.set()
    world.answer = None
    await wait_until(lambda: len(world.calls) >= 20)
    return held


@pytest.mark.parametrize("what", [{"all": True}, {"agent": "worker"}, {"tool": "wire.send"}])
async def test_promise_10_it_stops_when_told(
    tmp_path: Path, world: World, what: dict[str, Any]
) -> None:
    """Queued calls, waiting approvals and new events; the time it took is told."""
    async with toy_fleet(tmp_path, world, agents=("worker", "helper")) as fleet:
        held = await queued_behind_two(fleet, world)
        answer = await fleet.app.commands.stop(fleet.order("enough"), **what)
        called = len(world.calls)
        assert answer["took_us"] > 0
        late = job("late", send_proposal("late"), note_proposal("late"), key="late")
        await fleet.send(late)
        if "tool" not in what:
            await approve(fleet, first(fleet, held))
        await fleet.wait_until_idle()
        assert len(world.calls) <= called + 2, "at most what was already on its way"
        assert world.effects("big.send") == 0
        if "tool" not in what:
            assert fleet.app.store.runs.row("worker_notes", "late") is None
        if "agent" in what:
            other = job("other", send_proposal("other"), agent="helper")
            await fleet.send(other)
            await fleet.wait_until_idle()
            assert world.texts()[-1] == "other"
        stopped = len(world.calls)
        await fleet.restart()
        await fleet.wait_until_idle()
        assert len(world.calls) == stopped, "a stop outlives a restart"

        await fleet.app.commands.resume(fleet.order("go on"), **what)
        await fleet.wait_until_idle(30)
        texts = [text for text in world.texts("wire.send") if text not in ("late", "other")]
        assert sorted(set(texts), key=int) == [str(n) for n in range(300)], "nothing was lost"
        assert len(world.keys("wire.send")) == len(world.record) - world.effects("big.send")
        assert [entry["what"] for entry in fleet.entries("stop.set", "stop.lifted")] == [
            f"{scope}:{'' if name is True else name}" for scope, name in what.items()
        ] * 2


@pytest.mark.parametrize("what", [{"all": True}, {"agent": "worker"}, {"tool": "note.add"}])
async def test_promise_10_nothing_that_was_decided_before_a_stop_commits_after_it(
    tmp_path: Path, world: World, what: dict[str, Any]
) -> None:
    """A row of the fleet's own, permitted before the stop, its step still on its way."""
    async with toy_fleet(tmp_path, world) as fleet:
        stopped: list[dict[str, Any]] = []

        async def late(step: Step) -> Step | None:
            if step.actions and not stopped:
                stopped.append(await fleet.app.commands.stop(fleet.order("now"), **what))
            return None

        intercept_commits(fleet, late)
        event = job("1", note_proposal("x"))
        await fleet.send(event)
        await fleet.wait_until_idle()
        assert len(stopped) == 1
        assert fleet.app.store.runs.row("worker_notes", "k") is None
        assert [entry["outcome"] for entry in fleet.entries("action.decided")] in ([], ["hold"])
        await fleet.app.commands.resume(fleet.order("go on"), **what)
        await fleet.wait_until_idle()
        assert fleet.app.store.runs.row("worker_notes", "k") == {"texts": ["x"]}, "and once only"


async def test_promise_10_a_turn_under_way_is_not_kept(tmp_path: Path, world: World) -> None:
    """Its agent is stopped while it thinks: neither actions nor memories of that turn stand."""
    thinks = ScriptedReasoner(
        [ReasonerJudgement(proposals=(Proposal("note.add", NOTE),), model_calls=1)]
    )
    fleet = toy_fleet(tmp_path, world, reasoner="adk", reasoners={"adk": thinks})
    reason = thinks.reason

    async def slowly(briefing: Briefing) -> ReasonerJudgement:
        thought = await reason(briefing)
        if len(thinks.briefings) == 1:
            await fleet.app.commands.stop(fleet.order("now"), agent="worker")
        return thought

    thinks.reason = slowly  # type: ignore[method-assign]
    async with fleet:
        await fleet.send(job("1"))
        await fleet.wait_until_idle()
        assert fleet.entries("turn.reasoned", "action.decided", "run.closed") == []
        await fleet.app.commands.resume(fleet.order("go on"), agent="worker")
        await fleet.wait_until_idle()
        assert len(fleet.entries("action.decided")) == 1


async def test_promise_10_no_call_starts_while_a_stop_becomes_durable(
    tmp_path: Path, world: World
) -> None:
    """From the order on, not from its commit: whoever gave it may count on it."""
    async with toy_fleet(tmp_path, world) as fleet:
        await queued_behind_two(fleet, world)
        store: Any = fleet.app.store
        onward, written = store.commands.stop, asyncio.Event()

        async def slowly(*given: Any, **more: Any) -> int:
            await written.wait()
            epoch: int = await onward(*given, **more)
            return epoch

        store.commands.stop = slowly
        stopping = asyncio.create_task(fleet.app.commands.stop(fleet.order("now"), all=True))
        await asyncio.sleep(0.05)
        called = len(world.calls)
        assert called < 250
        for _ in range(20):
            await asyncio.sleep(0.005)
            assert len(world.calls) == called, "a call started after the order"
        written.set()
        await stopping
        await fleet.wait_until_idle()
        assert len(world.calls) == called


async def test_promise_10_control_a_stop_that_is_not_taken_over_is_seen(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vedette.domain.stop import StopState

    async with toy_fleet(tmp_path, world) as fleet:
        await queued_behind_two(fleet, world)
        monkeypatch.setattr(StopState, "restore", lambda self, epoch, stops: None)
        monkeypatch.setattr(StopState, "is_stop_pending", lambda self, agent, tool: False)
        await fleet.app.commands.stop(fleet.order(), all=True)
        await fleet.wait_until_idle(30)
        # All of them, which the test above finds to be fewer.
        assert len(world.keys("wire.send")) == 300
