"""Two workers of one fleet on PostgreSQL, each with a whole line: shared work, one barrier."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.pg import server

from vedette.config.settings import StorePlan
from vedette.domain.budget import ACTIONS
from vedette.domain.effect import Call, Outcome
from vedette.domain.run import Run
from vedette.engine.cluster import catch_up_with_cluster, follow_cluster, sync_rate_counts
from vedette.engine.kill_switch import count_error
from vedette.operations.curation import sync_banks
from vedette.store.postgres.cluster import LeasedCluster
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import (
    DENY_TOOL,
    World,
    job,
    note_proposal,
    send_proposal,
    toy_fleet,
    wait_until,
)

KEYS = 40


@pytest.fixture
def world() -> World:
    return World()


def laid(folder: Path, world: World, url_file: Path) -> FleetHarness:
    fleet = toy_fleet(folder, world)
    fleet._store = StorePlan("postgresql", url_file=str(url_file), lease_us=1_000_000)
    return fleet


@asynccontextmanager
async def working(fleet: FleetHarness) -> AsyncIterator[FleetHarness]:
    """Open a worker and let it follow the others, as the runner does."""
    async with fleet:
        app = fleet.app
        troubles: list[str] = []
        task = asyncio.create_task(
            follow_cluster(app.services, app.rollout, lambda: None, troubles.append)
        )
        try:
            yield fleet
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    assert troubles == []


@pytest.fixture
async def two(tmp_path: Path, world: World) -> AsyncIterator[tuple[FleetHarness, FleetHarness]]:
    """Two workers that hold half of the keys each."""
    url_file = tmp_path / "url"
    url_file.write_text(server(fsync=False).fresh())
    one, other = (laid(tmp_path / name, world, url_file) for name in ("one", "other"))
    async with working(one):
        (tmp_path / "other" / "state").mkdir()
        key = tmp_path / "one" / "state" / "ledger.key"
        shutil.copy(key, tmp_path / "other" / "state" / "ledger.key")
        async with working(other):
            await wait_until(lambda: [shards(one), shards(other)] == [32, 32], 30)
            yield one, other


def shards(fleet: FleetHarness) -> int:
    cluster: Any = fleet.app.store.cluster
    return len(cluster.leases.epochs)


def ready(fleet: FleetHarness) -> int:
    found = fleet.app.store.tables.counts().get("worker", {})
    return found.get("run.ready", 0)


@pytest.mark.parametrize("resumed", [True, False])
async def test_a_resume_is_a_clean_sheet_at_every_worker(
    two: tuple[FleetHarness, FleetHarness], resumed: bool
) -> None:
    """Wherever it was ordered; the stop may have come and gone before the other one looked."""
    one, other = (fleet.app.services for fleet in two)
    run = Run("run_1", "a#1", "worker", "k", 1)
    for _ in range(99):  # one more within the hour is too many
        await count_error(one, run)
        await count_error(other, run)
    if resumed:
        await two[1].app.commands.stop(two[1].order(), agent="worker")
        await two[1].app.commands.resume(two[1].order("mended"), agent="worker")
        await wait_until(lambda: one.stops.epoch == other.stops.epoch)
    for line in (one, other):
        await count_error(line, run)
    assert one.store.policy.stop_scopes() == ([] if resumed else [("agent", "worker")])


async def test_both_do_what_either_accepts_once(
    two: tuple[FleetHarness, FleetHarness], world: World
) -> None:
    one, other = two
    for at, fleet in ((0, one), (1, other)):
        await fleet.send(
            *(
                job(f"{at}-{n}", send_proposal(f"{at}-{n}"), key=f"k{n % KEYS}")
                for n in range(2 * KEYS)
            )
        )
    # What one was sent, the other is sent again: a redelivery to another worker.
    await other.send(
        *(job(f"0-{n}", send_proposal(f"0-{n}"), key=f"k{n % KEYS}") for n in range(KEYS))
    )
    await wait_until(lambda: world.effects("wire.send") >= 4 * KEYS, 60)
    await wait_until(lambda: ready(one) == 0, 30)
    assert world.effects("wire.send") == 4 * KEYS
    assert set(world.keys().values()) == {1}
    for fleet in two:
        assert fleet.app.dispatcher.handled_count, "both must have worked, or nothing was shared"


async def test_runs_and_their_events_are_read_by_the_batch(
    two: tuple[FleetHarness, FleetHarness], world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs come from the store, in its order, whoever accepted them: not one by one."""
    one, other = two
    asked: list[str] = []

    def counted(found: Any, name: str) -> None:
        ask = getattr(found, name)

        def count(*given: Any) -> Any:
            if name != "events_at" or given[0]:
                asked.append(name)
            return ask(*given)

        monkeypatch.setattr(found, name, count)

    for name in ("event", "event_at", "events_at"):
        counted(one.app.store.runs, name)
    counted(one.app.store.schedule, "ready_runs")
    mine = [key for key in (f"k{n}" for n in range(200)) if is_leased(one, key)][:KEYS]
    await one.send(*(job(f"n{n}", send_proposal(f"n{n}"), key=key) for n, key in enumerate(mine)))
    await wait_until(lambda: world.effects("wire.send") == len(mine), 30)
    assert {"event", "event_at"}.isdisjoint(asked)
    assert max(asked.count("ready_runs"), asked.count("events_at")) < len(mine) // 4
    theirs = [key for key in (f"k{n}" for n in range(200)) if not is_leased(one, key)][:KEYS]
    asked.clear()
    for name in ("event_at", "events_at"):
        counted(other.app.store.runs, name)
    await one.send(*(job(f"o{n}", send_proposal(f"o{n}"), key=key) for n, key in enumerate(theirs)))
    await wait_until(lambda: world.effects("wire.send") == len(mine) + len(theirs), 30)
    assert "event_at" not in asked
    assert 0 < asked.count("events_at") < len(theirs) // 4


def is_leased(fleet: FleetHarness, key: str) -> bool:
    cluster: Any = fleet.app.store.cluster
    return cluster.leases.epoch("worker", key) is not None


async def test_a_key_s_order_holds_whoever_accepts(
    two: tuple[FleetHarness, FleetHarness],
) -> None:
    one, other = two
    for n in range(30):
        await (one, other)[n % 2].send(job(f"n{n}", note_proposal(f"{n}"), key="pump"))
    store = one.app.store

    def texts() -> list[str]:
        row = store.runs.row("worker_notes", "pump")
        return list(row["texts"]) if row else []

    await wait_until(lambda: len(texts()) == 30, 60)
    assert texts() == [str(n) for n in range(30)]


def slowly(world: World, seconds: float = 0.02) -> None:
    slow = threading.Event()

    def answer(call: Call) -> Outcome | None:
        slow.wait(seconds)
        return None

    world.answer = answer


async def deny_sending(fleet: FleetHarness, folder: Path) -> int:
    """Publish a policy that denies the calls; return its revision."""
    shutil.copytree(fleet.policies, folder)
    (folder / "vedette" / "denies" / "test.rego").write_text(DENY_TOOL.format("wire.send"))
    done = await fleet.apply_policy(folder)
    assert done["ok"]
    return int(done["revision"])


async def test_nothing_older_starts_anywhere_once_a_publication_returned(
    two: tuple[FleetHarness, FleetHarness], world: World, tmp_path: Path
) -> None:
    one, other = two
    slowly(world, 0.2)
    await one.send(*(job(f"j{n}", send_proposal(f"t{n}"), key=f"k{n}") for n in range(600)))
    await wait_until(lambda: len(world.calls) > 20, 100)
    revision = await deny_sending(one, tmp_path / "denying")
    calls = len(world.calls)
    assert calls < 600, "the test needs calls that were still to come"
    await wait_until(lambda: ready(one) == 0, 100)
    assert len(world.calls) == calls
    assert other.app.services.gateway.policy_rev == revision
    counts = one.app.store.tables.counts()["worker"]
    assert counts["effect.done"] == calls
    assert counts["decided.deny"] == 600 - calls


async def test_without_the_barrier_older_calls_do_start(
    two: tuple[FleetHarness, FleetHarness],
    world: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The control: were nobody waited for and nothing asked before a call, the test would fail."""
    one, _ = two

    async def at_once(cluster: LeasedCluster) -> None:
        return None

    monkeypatch.setattr(LeasedCluster, "wait_for_barrier", at_once)
    monkeypatch.setattr(LeasedCluster, "is_lease_valid", lambda cluster, epoch: True)
    monkeypatch.setattr(LeasedCluster, "is_current", True)  # so that nobody follows
    slowly(world, 0.5)
    await one.send(*(job(f"j{n}", send_proposal(f"t{n}"), key=f"k{n}") for n in range(600)))
    await wait_until(lambda: len(world.calls) > 20, 60)
    await deny_sending(one, tmp_path / "denying")
    calls = len(world.calls)
    assert calls < 600
    await wait_until(lambda: len(world.calls) > calls, 20)


async def test_a_stop_holds_at_every_worker_when_it_returns(
    two: tuple[FleetHarness, FleetHarness], world: World
) -> None:
    one, other = two
    slowly(world)
    await one.send(*(job(f"j{n}", send_proposal(f"t{n}"), key=f"k{n}") for n in range(600)))
    await wait_until(lambda: len(world.calls) > 20, 60)
    await one.app.commands.stop(one.order("enough"), agent="worker")
    calls = len(world.calls)
    assert calls < 600
    await asyncio.sleep(1)
    assert len(world.calls) == calls
    assert other.app.services.stops.is_agent_stopped("worker")
    await other.app.commands.resume(other.order("go on"), agent="worker")
    await wait_until(lambda: world.effects("wire.send") == 600, 90)
    assert set(world.keys().values()) == {1}


async def test_rate_counters_come_to_know_what_others_spent(
    two: tuple[FleetHarness, FleetHarness], world: World
) -> None:
    one, _ = two
    await one.send(*(job(f"j{n}", send_proposal(f"t{n}"), key=f"k{n}") for n in range(KEYS)))
    await wait_until(lambda: world.effects("wire.send") == KEYS, 60)
    for fleet in two:
        line = fleet.app.services
        sync_rate_counts(line)
        now = line.clock.now_us()
        assert line.gateway.counts.totals("worker", ACTIONS, now)["hour"] == KEYS


async def test_what_is_current_is_not_taken_up_again(
    two: tuple[FleetHarness, FleetHarness],
) -> None:
    one, _ = two
    revision = one.app.services.gateway.policy_rev
    await catch_up_with_cluster(one.app.services, one.app.rollout)
    assert one.app.services.gateway.policy_rev == revision
    assert sync_banks(one.app.banks, one.app.store) == one.app.store.ledger.last_seq()
