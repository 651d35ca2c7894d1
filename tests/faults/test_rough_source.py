"""What brokers do to their readers costs no event and doubles no effect: a seeded fault layer."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from vedette.testing.clock import ManualClock
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import World, job, note_proposal, send_proposal, toy_fleet
from vedette.testing.unreliable_source import KINDS, UnreliableSource

HOUR_US = 3_600_000_000
ROOT = Path(__file__).parents[2]
EVENTS = [
    job(f"n{n}", send_proposal(f"n{n}"), note_proposal(f"n{n}"), key=f"k{n % 5}", value=n * n % 17)
    for n in range(60)
]


async def come_to(
    fleet: FleetHarness, world: World, clock: ManualClock, **rough: Any
) -> tuple[dict[str, Any], UnreliableSource]:
    """Deliver all events and see them through; return what a run comes to, and the source."""
    source = UnreliableSource("rough", EVENTS, **rough)
    async with fleet:
        await source.deliver(fleet.app.intake)
        for _ in range(3):
            await fleet.wait_until_idle()
            clock.advance(HOUR_US)
        entries = fleet.entries("event.accepted", "action.decided", "turn.reasoned", "run.closed")
        accepted = [e["event"] for e in entries if e["kind"] == "event.accepted"]
        rows = {
            key: fleet.app.store.runs.row("worker_notes", key) for key in ("k0", "k1", "k2", "k3")
        }
        came = {
            "accepted": sorted(accepted),
            "closed": sorted(e["event"] for e in entries if e["kind"] == "run.closed"),
            "decided": {
                e["action"]: e["outcome"] for e in entries if e["kind"] == "action.decided"
            },
            "judged": {e["event"]: e["label"] for e in entries if e["kind"] == "turn.reasoned"},
            "rows": rows,
            "effects": world.keys("wire.send"),
            "order": {
                f"k{k}": [t for t in world.texts("wire.send") if int(t[1:]) % 5 == k]
                for k in range(5)
            },
        }
    return came, source


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what a run comes to whose source does nothing of the kind."""
    world, clock = World(), ManualClock()
    fleet = toy_fleet(tmp_path_factory.mktemp("plain"), world, clock=clock)
    came, source = asyncio.run(come_to(fleet, world, clock, seed=0, fault_rate=0.0))
    assert not sum(source.fault_counts.values())
    return came


@pytest.mark.parametrize("seed", range(6))
async def test_a_rough_source_changes_nothing_of_what_a_run_comes_to(
    tmp_path: Path, seed: int, plain: dict[str, Any]
) -> None:
    world, clock = World(), ManualClock()
    fleet = toy_fleet(tmp_path, world, clock=clock)
    came, source = await come_to(fleet, world, clock, seed=seed)
    assert len(set(came["accepted"])) == len(came["accepted"]) == len(EVENTS)
    assert set(came["effects"].values()) == {1}
    assert came == plain
    assert set(source.fault_counts) == set(KINDS)
    assert sum(source.fault_counts.values()) > 10, "the source was not rough"


@pytest.mark.parametrize("seed", range(4))
async def test_a_wall_clock_that_jumps_changes_nothing_either(
    tmp_path: Path, seed: int, plain: dict[str, Any]
) -> None:
    """Forward and back, by up to twenty hours, between any two deliveries."""
    world, clock = World(), ManualClock()
    jumps: list[int] = []

    def jump(draw: random.Random) -> None:
        by = draw.randint(-20 * HOUR_US, 20 * HOUR_US)
        jumps.append(by)
        clock.set_wall(clock.now_us() + by)

    fleet = toy_fleet(tmp_path, world, clock=clock)
    came, _ = await come_to(fleet, world, clock, seed=seed, after_delivery=jump)
    assert min(jumps) < 0 < max(jumps)
    assert came == plain


async def test_an_intake_that_forgets_what_it_knows_is_found(
    tmp_path: Path, plain: dict[str, Any]
) -> None:
    """Negative control: were redelivered events new ones, the comparison above would say so."""
    from msgspec.structs import replace

    world, clock = World(), ManualClock()
    fleet = toy_fleet(tmp_path, world, clock=clock)
    source = UnreliableSource("rough", EVENTS, seed=1)
    async with fleet:
        intake: Any = fleet.app.intake
        accept, number = intake.accept, iter(range(10**6))

        async def forgetful(batch: list[Any], **more: Any) -> Any:
            receipts = await accept(
                [replace(e, id=f"{e.id} {next(number)}") for e in batch], **more
            )
            return [replace(r, event=e.key) for r, e in zip(receipts, batch, strict=True)]

        intake.accept = forgetful
        await source.deliver(intake)
        await fleet.wait_until_idle()
        accepted = [e["event"] for e in fleet.entries("event.accepted")]
    assert len(accepted) > len(plain["accepted"])
    assert sum(world.keys("wire.send").values()) > sum(plain["effects"].values())


# --- a zombie -------------------------------------------------------------------------------


def test_a_stopped_runner_keeps_its_store_and_goes_on_when_it_wakes(tmp_path: Path) -> None:
    """SIGSTOP, a second runner, SIGCONT: on SQLite the lock is held by who is stopped.

    So there are never two, and a zombie's commits are those of the only owner. (Leases that run
    out while their holder sleeps are PostgreSQL's, and tested there.)
    """
    child = ROOT / "tests" / "contract" / "store" / "store_child.py"
    command = [sys.executable, str(child), "loop", str(tmp_path)]
    runner = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert runner.stdout is not None
    try:
        answers = [runner.stdout.readline() for _ in range(20)]
        os.kill(runner.pid, signal.SIGSTOP)
        second = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert second.returncode == 1
        assert "StoreBusy" in second.stderr
        os.kill(runner.pid, signal.SIGCONT)
        answers += [runner.stdout.readline() for _ in range(400)]
    finally:
        runner.kill()
        rest, output = runner.communicate()
    answers += rest.splitlines(keepends=True)
    assert "Error" not in output
    durable = durable_runs(tmp_path)
    for line in answers:
        if line.endswith("\n"):
            run, _, last = line.split()
            assert durable[run] == int(last)


def durable_runs(folder: Path) -> dict[str, int]:
    from vedette.store.sqlite import SqliteReader

    store = SqliteReader(folder)
    try:
        page = store.runs.runs_page(agent=None, state="done", before=None, limit=100_000)
        return {run.id: run.last for run in page}
    finally:
        store.close()
