"""A permitted transactional effect whose worker dies or is slow: an attempt, and never dropped.

Agents' code runs in processes of its own, which really die.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from vedette.domain.event import Event
from vedette.domain.run import ActionRow
from vedette.testing.clock import ManualClock
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import World, job, note_proposal, toy_fleet, wait_until

HOUR_US = 3_600_000_000
ADD_NOTE = """\
    if call.args["text"] == "die":
        import os
        os._exit(3)
    if call.args["text"] in ("slow", "nap"):
        import time
        # Longer than rows may take; a worker that is just born has longer.
        time.sleep(1.3 if call.args["text"] == "slow" else 0.7)
"""
HELD = "function: add_note, high_impact: true}"


def fleet_of(folder: Path, clock: ManualClock, *, held: bool = False) -> FleetHarness:
    fleet = toy_fleet(folder, World(), clock=clock, workers=True)
    agent = fleet.content / "agents" / "worker"
    text = (agent / "tools.py").read_text()
    before = "def add_note(call, row):\n"
    assert before in text
    (agent / "tools.py").write_text(text.replace(before, before + ADD_NOTE))
    if held:
        yaml = (agent / "agent.yaml").read_text()
        (agent / "agent.yaml").write_text(yaml.replace("function: add_note}", HELD))
    return fleet


async def attempted(fleet: FleetHarness, clock: ManualClock, event: Event) -> None:
    """Let the attempts of a run follow each other until it has ended."""
    for _ in range(8):
        await fleet.wait_until_idle()
        if fleet.runs(event)[0].state in ("done", "dead"):
            return
        clock.advance(HOUR_US)
    raise AssertionError("the run never ended")


def only_row(fleet: FleetHarness, event: Event) -> ActionRow:
    (row,) = fleet.actions(event)
    return row


def texts(fleet: FleetHarness) -> list[str]:
    row: Any = fleet.app.store.runs.row("worker_notes", "k") or {}
    return list((row.get("row") or row).get("texts", []))


def kill_once(name: str, after_s: float) -> threading.Thread:
    """Kill the first worker of a name that is seen to be at work, from outside."""

    def work() -> None:
        end = time.monotonic() + 10
        while time.monotonic() < end:
            for child in psutil.Process().children(recursive=True):
                if child.is_running() and child.name().startswith(name):
                    time.sleep(after_s)
                    os.kill(child.pid, signal.SIGKILL)
                    return
            time.sleep(0.01)

    thread = threading.Thread(target=work)
    thread.start()
    return thread


async def test_what_never_comes_is_tried_to_the_bound_and_then_a_dead_letter(
    tmp_path: Path,
) -> None:
    clock = ManualClock()
    async with fleet_of(tmp_path, clock) as fleet:
        event, behind = (
            job("1", note_proposal("die"), value=1),
            job("2", note_proposal("b"), value=2),
        )
        await fleet.send(event, behind)
        await attempted(fleet, clock, event)
        (run,) = fleet.runs(event)
        assert run.state == "dead"
        (dead,) = fleet.entries("run.dead")
        assert dead["what"] == "worker-lost"
        assert "ended" in fleet.body(dead["seq"])["why"]
        assert fleet.entries("effect.failed") == []
        await attempted(fleet, clock, behind)
        assert texts(fleet) == ["b"], "its key goes on"
        # Only what was permitted for good counts against the limits.
        counts = fleet.app.services.gateway.counts
        assert counts.totals("worker", "actions", clock.now_us())["day"] == 1


async def test_what_was_too_slow_is_done_once_the_next_time(tmp_path: Path) -> None:
    clock = ManualClock()
    async with fleet_of(tmp_path, clock) as fleet:
        first = job("1", note_proposal("a"))
        await fleet.send(first)
        await attempted(fleet, clock, first)
        event = job("2", note_proposal("slow"), note_proposal("c"))
        await fleet.send(event)
        await attempted(fleet, clock, event)
        assert fleet.entries("effect.failed") == []
        assert texts(fleet) == ["a", "slow", "c"]
        assert [row.effect for row in fleet.actions(event)] == ["done", "done"]
        counts = fleet.app.services.gateway.counts
        assert counts.totals("worker", "actions", clock.now_us())["day"] == 3


async def test_an_approval_is_still_there_for_the_next_attempt(tmp_path: Path) -> None:
    clock = ManualClock()
    async with fleet_of(tmp_path, clock, held=True) as fleet:
        event = job("1", note_proposal("nap"))
        await fleet.send(event)
        await fleet.wait_until_idle()
        held = only_row(fleet, event)
        assert held.hold == "open"
        fleet.app.services.tool_executor.prepare("worker")  # type: ignore[attr-defined]
        killer = kill_once("hands:worker", 0.0)
        await fleet.approve(held)
        await wait_until(lambda: not killer.is_alive())
        await attempted(fleet, clock, event)
        assert (only_row(fleet, event).effect, texts(fleet)) == ("done", ["nap"])
        assert len(fleet.entries("hold.approved")) == 1


async def test_what_the_tool_itself_raises_is_its_answer(tmp_path: Path) -> None:
    """The control: a tool that says no is not asked five times."""
    clock = ManualClock()
    async with fleet_of(tmp_path, clock) as fleet:
        event = job("1", note_proposal("raise"))
        await fleet.send(event)
        await fleet.wait_until_idle()
        assert only_row(fleet, event).effect == "failed"
        assert fleet.runs(event)[0].state == "done"
