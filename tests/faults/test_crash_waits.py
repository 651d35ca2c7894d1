"""Killed at any commit of a wait and of a session: it wakes once, by the right one, and ends."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.contract.engine.test_sessions import ask, patient, session_fleet
from tests.contract.engine.test_tasks import Answer, Scripted, finish, says, send
from tests.contract.engine.test_waits import DONE, WORK, reply, wait
from tests.faults.test_judge_turn_kills import die_after

from vedette.domain.event import Event
from vedette.domain.memory import Briefing
from vedette.testing.clock import ManualClock
from vedette.testing.faults import run_in_child
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import World, job, toy_fleet

EVENT = job("1")
# The turn that waits, its start, the outcome; a turn and its effect; the finish.
WAIT_COMMITS = 6


def waits_then_sends(briefing: Briefing) -> Any:
    if briefing.turn == 1:
        return says(wait(event="reply", where={"/data/thread": 7}))
    return says(send("now")) if briefing.turn == 2 else says(finish())


def wait_fleet(folder: Path, answer: Answer = waits_then_sends) -> FleetHarness:
    fleet = toy_fleet(
        folder, World(), reasoners={"judge": Scripted(answer)}, work=WORK, done=DONE,
        clock=ManualClock(),
    )  # fmt: skip
    with_goal(fleet)
    return fleet


def with_goal(fleet: FleetHarness) -> None:
    file = fleet.content / "agents/worker/agent.yaml"
    text = file.read_text().replace("{on: worker.job}", "{on: worker.job, goal: Wait for it.}")
    file.write_text(text)


def play(fleet: FleetHarness, batches: list[list[Event]], die_at: int | None) -> None:
    """Deliver batch after batch, each once the fleet is idle; as sources do, again and again."""

    async def run() -> None:
        async with fleet:
            if die_at is not None:
                die_after(fleet, die_at)
            for batch in batches:
                await fleet.send(*batch)
                await fleet.wait_until_idle()

    asyncio.run(run())


def facts(fleet: FleetHarness, event: Event) -> dict[str, Any]:
    """Return what a run came to, and what there is of wakes; the store's rows are right."""

    async def run() -> dict[str, Any]:
        async with fleet:
            await fleet.wait_until_idle()
            (found,) = fleet.runs(event)
            assert list(fleet.app.store.ledger.row_mismatches()) == []
            rows = fleet.app.store.runs.actions(found.id)
            return {
                "state": (found.state, found.turn),
                "actions": [(row.tool, row.effect, row.answer) for row in rows],
                "matched": len(fleet.entries("event.matched")),
                "joined": [entry["cause"] for entry in fleet.entries("event.joined")],
                "closed": len(fleet.entries("run.closed")),
            }

    return asyncio.run(run())


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    fleet = wait_fleet(tmp_path_factory.mktemp("calm"))
    play(fleet, BATCHES, None)
    found = facts(fleet, EVENT)
    assert (found["state"], found["matched"], found["closed"]) == (("done", 3), 1, 1)
    return found


BATCHES = [[EVENT], [reply("other", thread=8), reply("right")], [reply("late")]]


@pytest.mark.parametrize("at", range(1, WAIT_COMMITS + 1))
def test_a_wait_that_is_killed_wakes_once(tmp_path: Path, calm: dict[str, Any], at: int) -> None:
    fleet = wait_fleet(tmp_path)
    died = run_in_child(lambda: play(fleet, BATCHES, at))
    assert "ended by signal 9" in died.error
    # Whatever was accepted is delivered again, too.
    ended = run_in_child(lambda: play(fleet, BATCHES, None))
    assert not ended.error, ended.error
    found = facts(fleet, EVENT)
    assert {**found, "actions": None} == {**calm, "actions": None}
    assert [each[:2] for each in found["actions"]] == [each[:2] for each in calm["actions"]]
    assert b'"id":"right"' in found["actions"][0][2]


def waits_twice(briefing: Briefing) -> Any:
    if briefing.turn == 1:
        waits = wait(event="reply", where={"/data/thread": 7}), wait(event="reply", source="mail")
        return says(*waits)
    return says(send("now")) if briefing.turn == 2 else says(finish())


@pytest.mark.parametrize("at", [3, 4, 5])
def test_two_waits_that_one_event_ends_end_whatever_is_killed(tmp_path: Path, at: int) -> None:
    fleet = wait_fleet(tmp_path, waits_twice)
    batches = [[EVENT], [reply("right")]]
    died = run_in_child(lambda: play(fleet, batches, at))
    assert "ended by signal 9" in died.error
    ended = run_in_child(lambda: play(fleet, batches, None))
    assert not ended.error, ended.error
    found = facts(fleet, EVENT)
    assert (found["state"], found["matched"]) == (("done", 3), 2)


SESSION = [[ask("a")], [ask("b"), ask("c", "t1")], []]


@pytest.mark.parametrize("at", [4, 5, 6, 7])
def test_an_event_joins_once_whatever_is_killed(tmp_path: Path, at: int) -> None:
    fleet, _ = session_fleet(tmp_path, patient)
    died = run_in_child(lambda: play(fleet, SESSION, at))
    assert "ended by signal 9" in died.error
    ended = run_in_child(lambda: play(fleet, SESSION, None))
    assert not ended.error, ended.error
    found = facts(fleet, ask("a"))
    assert found["state"][0] == "done"
    assert len(found["joined"]) == len(set(found["joined"]))
    assert found["closed"] == 3 or found["joined"] == []
