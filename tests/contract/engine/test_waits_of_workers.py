"""A run waits at one worker, its event is accepted by another: it wakes once, wherever it is."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.contract.engine.test_tasks import Scripted, run_of
from tests.contract.engine.test_waits import DONE, WORK, reply, waits_kept
from tests.contract.store.test_store_postgres_line import working
from tests.faults.test_crash_waits import waits_then_sends, with_goal
from tests.pg import server

from vedette.config.settings import StorePlan
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import World, job, toy_fleet, wait_until

Workers = tuple[FleetHarness, FleetHarness]
EVENTS = [job(str(number), key=f"key {number}") for number in range(6)]


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[Workers]:
    """Two workers that hold half of the keys each, and one world."""
    url_file, world = tmp_path / "url", World()
    url_file.write_text(server(fsync=False).fresh())
    fleets = []
    for name in ("one", "two"):
        fleet = toy_fleet(
            tmp_path / name, world, reasoners={"judge": Scripted(waits_then_sends)}, work=WORK,
            done=DONE,
        )  # fmt: skip
        with_goal(fleet)
        fleet._store = StorePlan("postgresql", url_file=str(url_file), lease_us=1_000_000)
        fleets.append(fleet)
    async with working(fleets[0]):
        (tmp_path / "two/state").mkdir()
        shutil.copy(tmp_path / "one/state/ledger.key", tmp_path / "two/state/ledger.key")
        async with working(fleets[1]):
            await wait_until(lambda: all(len(shards_of(one)) == 32 for one in fleets))
            yield fleets[0], fleets[1]


def shards_of(fleet: FleetHarness) -> dict[int, int]:
    cluster: Any = fleet.app.store.cluster
    epochs: dict[int, int] = cluster.leases.epochs
    return epochs


def states(fleet: FleetHarness) -> list[tuple[str, str | None]]:
    return [(run.state, run.waits) for event in EVENTS for run in fleet.runs(event)]


async def test_an_event_wakes_runs_of_both_workers(two: Workers) -> None:
    one, other = two
    await one.send(*EVENTS)
    await wait_until(lambda: states(one) == [("waiting", "event")] * len(EVENTS), 30)
    held = [one.app.store.cluster.lease_epoch(run_of(one, one.runs(e)[0].id)) for e in EVENTS]
    assert None in held  # some are the other's
    assert any(held)
    await other.send(reply("no", thread=8), reply("right"))
    await wait_until(lambda: states(other) == [("done", None)] * len(EVENTS), 30)
    await asyncio.gather(one.wait_until_idle(), other.wait_until_idle())
    matched = one.entries("event.matched")
    assert len(matched) == len({entry["run"] for entry in matched}) == len(EVENTS)
    assert len({entry["cause"] for entry in matched}) == 1
    assert len(one.entries("run.closed")) == len(EVENTS)
    assert waits_kept(one) == 0
    assert list(one.app.store.ledger.row_mismatches()) == []


async def test_waits_go_over_to_the_worker_that_is_left(two: Workers) -> None:
    one, other = two
    await one.send(*EVENTS)
    await wait_until(lambda: states(one) == [("waiting", "event")] * len(EVENTS), 30)
    await one.app.dispatcher.close()  # it handles nothing any more, and gives nothing back
    await other.send(reply("right"))
    await one.close()
    await wait_until(lambda: states(other) == [("done", None)] * len(EVENTS), 30)
    assert len(other.entries("event.matched")) == len(EVENTS)


async def test_who_never_saw_a_wait_wakes_it_all_the_same(two: Workers) -> None:
    """What a worker knew of a store without waits does not hold once another has committed."""
    one, other = two
    await other.send(reply("before"))
    leases: Any = one.app.store.cluster
    keys = [key for key in map(str, range(200)) if leases.leases.epoch("worker", key) is not None]
    event = job("of one", key=keys[0])
    await one.send(event)
    await wait_until(lambda: one.runs(event)[0].waits == "event", 30)
    await other.send(reply("right"))
    await wait_until(lambda: one.runs(event)[0].state == "done", 30)
