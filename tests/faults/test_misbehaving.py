"""A whole fleet in which one agent's code misbehaves: it is dead-lettered, nobody else notices."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.workers import JUDGE_PY

from vedette.domain.event import Event
from vedette.testing.clock import ManualClock
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import World, job, note_proposal, toy_fleet, wait_until

# What one event of the agent `bad` does, and what its dead letter says of it.
DEEDS = [
    ("loop", "took longer than 1 s"),
    ("eat", "went over its memory limit"),
    ("segfault", "was ended by SIGSEGV"),
    ("exit", "ended by itself with exit code 3"),
]
EACH = 12


def two_agents(
    folder: Path, clock: ManualClock, *, workers: bool = True, code: str = JUDGE_PY
) -> FleetHarness:
    """Return a fleet of `worker`, who works, and `bad`, who does what its events say."""
    fleet = toy_fleet(folder, World(), agents=("worker", "bad"), clock=clock, workers=workers)
    bad = folder / "content" / "agents" / "bad"
    (bad / "judge.py").write_text(code)
    with (bad / "agent.yaml").open("a") as file:
        file.write("limits: {time: 1s, memory: 160MiB}\n")
    return fleet


def bad_job(name: str, key: str, **data: Any) -> Event:
    return Event("test", name, "bad.job", key, None, data)


def labels(fleet: FleetHarness, agent: str) -> dict[str, str]:
    """Return what each closed run of an agent was judged, by its event."""
    return {
        entry["event"]: entry["label"]
        for entry in fleet.entries("run.closed", "turn.reasoned")
        if entry["agent"] == agent and "label" in entry
    }


def dead_letters(fleet: FleetHarness) -> list[dict[str, Any]]:
    """Return the entries of dead letters, each with its reason."""
    return [
        {**entry, "why": fleet.body(entry["seq"])["why"]} for entry in fleet.entries("run.dead")
    ]


async def through(fleet: FleetHarness, clock: ManualClock, guilty: Event) -> None:
    """Let time pass until a run is done with, one way or the other."""

    def over() -> bool:
        clock.advance(250_000)
        fleet.app.dispatcher.wake_due()
        return all(run.state in ("done", "dead") for run in fleet.runs(guilty))

    await wait_until(over, 60)
    await fleet.wait_until_idle()


@pytest.mark.slow
@pytest.mark.timeout(150)
@pytest.mark.parametrize(("do", "why"), DEEDS, ids=[do for do, _ in DEEDS])
async def test_an_event_that_kills_its_worker_becomes_a_dead_letter(
    tmp_path: Path, do: str, why: str
) -> None:
    clock = ManualClock()
    guilty = bad_job("guilty", "k3", do=do)
    innocent = [bad_job(f"b{n}", f"k{n % 4}") for n in range(EACH)]
    worked = [
        job(f"w{n}", note_proposal(f"text {n}"), key=f"k{n % 3}", value=n) for n in range(EACH)
    ]
    async with two_agents(tmp_path, clock) as fleet:
        await fleet.send(*innocent[:6], *worked[:6], guilty, *innocent[6:], *worked[6:])
        await through(fleet, clock, guilty)
        (dead,) = fleet.runs(guilty)
        assert dead.state == "dead"
        (entry,) = dead_letters(fleet)
        assert entry["event"] == guilty.key
        assert why in entry["why"]
        for event in (*innocent, *worked):
            assert [run.state for run in fleet.runs(event)] == ["done"], event.id
        disturbed = labels(fleet, "worker")
        notes = "SELECT data FROM \"row\" WHERE collection='worker_notes' ORDER BY key"
        assert [
            orjson.loads(data)["texts"] for (data,) in fleet.app.store.database.rows(notes)
        ] == [[f"text {n}" for n in range(EACH) if n % 3 == key] for key in range(3)]
        # Its key goes on as if it had never been: its state is that of the events that stood.
        assert labels(fleet, "bad")[innocent[-1].key] == "seen 3"

    async with two_agents(tmp_path / "quiet", ManualClock(), workers=False) as fleet:
        await fleet.send(*innocent, *worked)
        await fleet.wait_until_idle()
        assert labels(fleet, "worker") == disturbed


async def test_in_this_process_it_would_take_the_others_with_it(tmp_path: Path) -> None:
    """Negative control: a judge that raises nothing and never returns stops everybody.

    A short sleep stands for the endless loop, which could not be ended from here.
    """
    clock = ManualClock()
    code = JUDGE_PY.replace("time.sleep(60)", "time.sleep(0.5)")
    async with two_agents(tmp_path, clock, workers=False, code=code) as fleet:
        loop = asyncio.get_running_loop()
        lags: list[float] = []
        began = loop.time()
        loop.call_later(0.05, lambda: lags.append(loop.time() - began))
        await fleet.send(bad_job("guilty", "k", do="sleep"))
        await fleet.wait_until_idle()
        assert lags[0] > 0.4


async def test_state_survives_the_workers_of_a_fleet(tmp_path: Path) -> None:
    """Workers killed between batches, and a restart: labels equal those of one process."""
    events = [job(f"e{n}", key=f"k{n % 3}", value=n) for n in range(30)]
    messages: list[dict[str, str]] = []
    for workers in (True, False):
        clock = ManualClock()
        fleet = toy_fleet(tmp_path / str(workers), World(), clock=clock, workers=workers)
        async with fleet:
            for at in range(0, 30, 6):
                await fleet.send(*events[at : at + 6])
                await fleet.wait_until_idle()
                if workers and at == 18:
                    await fleet.restart()
                elif workers:
                    assert fleet.app.pool is not None
                    os.kill(fleet.app.pool.worker_pids["worker", "judge"], signal.SIGKILL)
            messages.append(labels(fleet, "worker"))
    assert messages[0] == messages[1]
    assert len(messages[0]) == 30
