"""Two workers with a whole line each: what is handed over, answered elsewhere, or lost for a while.

Controls show that each of these would fail without what is there for it.
"""

from __future__ import annotations

import asyncio
import shutil
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.pg import server

from vedette.config.settings import StorePlan
from vedette.domain.base.errors import StoreFailed
from vedette.domain.effect import Call, Outcome
from vedette.domain.event import Event
from vedette.domain.run import ActionRow
from vedette.engine.calls_in_flight import CallsInFlight
from vedette.engine.cluster import follow_cluster
from vedette.interfaces.daemon import Daemon
from vedette.store.postgres import PostgresStore
from vedette.store.postgres.schema import shard_of
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import (
    World,
    job,
    note_proposal,
    send_proposal,
    toy_fleet,
    wait_until,
)


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def url() -> str:
    return server(fsync=False).fresh()


@pytest.fixture
def pair(tmp_path: Path, world: World, url: str) -> tuple[FleetHarness, FleetHarness]:
    """Two workers of one fleet, not opened yet."""
    file = tmp_path / "url"
    file.write_text(url)
    made = []
    for name in ("one", "other"):
        fleet = toy_fleet(tmp_path / name, world)
        fleet._store = StorePlan("postgresql", url_file=str(file), lease_us=1_000_000)
        yaml = fleet.content / "agents" / "worker" / "agent.yaml"
        text = yaml.read_text()
        held = "function: add_note, high_impact: true}"
        assert "function: add_note}" in text
        yaml.write_text(text.replace("function: add_note}", held))
        made.append(fleet)
    return made[0], made[1]


@asynccontextmanager
async def working(fleet: FleetHarness, like: FleetHarness | None = None) -> AsyncIterator[None]:
    """Open a worker and let it follow the others, as the runner does."""
    if like is not None:
        state = fleet.content.parent / "state"
        state.mkdir()
        shutil.copy(like.content.parent / "state" / "ledger.key", state / "ledger.key")
    async with fleet:
        app = fleet.app
        troubles: list[str] = []
        task = asyncio.create_task(
            follow_cluster(app.services, app.rollout, lambda: None, troubles.append)
        )
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def store_of(fleet: FleetHarness) -> PostgresStore:
    store = fleet.app.store
    assert isinstance(store, PostgresStore)
    return store


def shards(*fleets: FleetHarness) -> list[int]:
    return [len(store_of(fleet).cluster.leases.epochs) for fleet in fleets]


def open_holds(fleet: FleetHarness, event: Event) -> list[ActionRow]:
    return [row for row in fleet.actions(event) if row.hold == "open"]


def state(fleet: FleetHarness, event: Event) -> str:
    return fleet.runs(event)[0].state


# --- calls that are out when a shard is to go ---------------------------------------------------

# Several beats of a lease.
OUT_S = 3.0
CALLS = 8


async def joined_during_calls(pair: tuple[FleetHarness, FleetHarness], world: World) -> None:
    """Let a second worker join while calls are out; return when all runs are done.

    The calls take effect long after the shards would have gone, or when one of them was repeated.
    """
    one, other = pair
    land = threading.Event()

    def answer(call: Call) -> Outcome | None:
        land.wait(25)
        return None

    world.answer = answer
    async with working(one):
        events = [
            job(f"q{n}", send_proposal(f"q{n}", "order.place"), key=f"k{n}") for n in range(CALLS)
        ]
        await one.send(*events)
        await wait_until(lambda: len(world.calls) == CALLS, 20)
        async with working(other, like=one):
            end = time.monotonic() + OUT_S
            await wait_until(lambda: len(world.calls) > CALLS or time.monotonic() > end, 30)
            land.set()
            await wait_until(lambda: shards(one, other) == [32, 32], 30)
            await wait_until(lambda: all(state(one, event) == "done" for event in events), 30)


async def test_a_call_that_is_out_when_a_worker_joins_is_not_repeated(
    pair: tuple[FleetHarness, FleetHarness], world: World
) -> None:
    await joined_during_calls(pair, world)
    assert sorted(world.keys().values()) == [1] * CALLS
    assert len(world.calls) == CALLS
    assert world.queries == [], "its answer is recorded by whoever made it"


async def test_were_shards_given_back_with_a_call_out_its_answer_would_be_lost(
    pair: tuple[FleetHarness, FleetHarness], world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: nothing is known of the calls that are out. Still nothing is done twice."""
    for fleet in pair:
        yaml = fleet.content / "agents" / "worker" / "agent.yaml"
        yaml.write_text(yaml.read_text().replace("timeout: 30s", "timeout: 4s"))
    monkeypatch.setattr(CallsInFlight, "keys_with_calls", lambda calls: [])
    await joined_during_calls(pair, world)
    assert world.queries, "who was given the keys had to find out from the target"
    assert sorted(world.keys().values()) == [1] * CALLS


# --- answers at a worker that does not hold the key ---------------------------------------------


async def test_an_answer_takes_effect_whichever_worker_it_is_given_to(
    pair: tuple[FleetHarness, FleetHarness], world: World
) -> None:
    one, other = pair
    async with working(one), working(other, like=one):
        await wait_until(lambda: shards(one, other) == [32, 32], 30)
        events = [job(f"h{n}", send_proposal(f"h{n}", "big.send"), key=f"k{n}") for n in range(12)]
        poisoned = [job(f"p{n}", key=f"p{n}", poison=True) for n in range(12)]
        await one.send(*events, *poisoned)
        await wait_until(lambda: all(open_holds(one, event) for event in events), 30)
        await wait_until(lambda: all(state(one, event) == "dead" for event in poisoned), 30)
        runs = [one.runs(event)[0] for event in (*events, *poisoned)]
        owners = {store_of(one).cluster.lease_epoch(run) is not None for run in runs}
        assert owners == {True, False}, "the test needs keys of either worker"
        for event in events:
            await one.approve(open_holds(one, event)[0])
        await wait_until(lambda: all(state(one, event) == "done" for event in events), 30)
        assert set(world.keys("big.send").values()) == {1}
        assert world.effects("big.send") == len(events)
        dead = [one.runs(event)[0] for event in poisoned]
        steps = {run.id: run.steps for run in dead}
        await one.app.commands.redrive(one.order(), [run.id for run in dead[:6]])
        again = dead[:6]

        def died_again() -> bool:
            found = [one.app.store.runs.run(run.id) for run in again]
            return all(run and run.state == "dead" and run.steps > steps[run.id] for run in found)

        await wait_until(died_again, 30)
        await one.app.commands.drop(one.order(), [run.id for run in dead[6:]])
        assert {state(other, event) for event in poisoned[6:]} == {"done"}


async def test_a_row_that_another_worker_wrote_meanwhile_is_read_again(
    pair: tuple[FleetHarness, FleetHarness],
) -> None:
    one, other = pair
    key = next(f"k{n}" for n in range(10_000) if shard_of("worker", f"k{n}") == 50)

    async def held(fleet: FleetHarness, name: str, text: str) -> Event:
        event = job(name, note_proposal(text), key=key)
        await fleet.send(event)
        await wait_until(lambda: bool(open_holds(fleet, event)), 20)
        return event

    async def approved(fleet: FleetHarness, event: Event) -> None:
        await fleet.approve(open_holds(fleet, event)[0])
        await wait_until(lambda: state(fleet, event) == "done", 20)

    def texts() -> object:
        return (one.app.store.runs.row("worker_notes", key) or {}).get("texts")

    async with working(one):
        await approved(one, await held(one, "first", "a"))
        waits = await held(one, "second", "c")
        async with working(other, like=one):
            await wait_until(lambda: 50 in store_of(other).cluster.leases.epochs, 30)
            await approved(other, await held(other, "third", "b"))
            assert texts() == ["a", "b"]
        await wait_until(lambda: 50 in store_of(one).cluster.leases.epochs, 30)
        await asyncio.sleep(0.3)
        await approved(one, waits)
        assert texts() == ["a", "b", "c"]


# --- what is accepted, or not -------------------------------------------------------------------


async def test_events_for_a_worker_that_went_before_it_came_are_handled(
    pair: tuple[FleetHarness, FleetHarness], world: World, url: str
) -> None:
    """A second worker that ends while it starts: what was left to it is not left for ever."""
    one, _ = pair
    async with working(one):
        store = store_of(one)
        leases = store.cluster.leases
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("INSERT INTO worker VALUES('wrk_brief', 99, 0, 9, 9, 'brief')")
            connection.execute("UPDATE leasing SET rev=rev+1")
            await wait_until(lambda: bool(leases.drain_shards), 10)
            await one.send(*(job(f"s{n}", send_proposal(f"s{n}"), key=f"k{n}") for n in range(64)))
            connection.execute("DELETE FROM worker WHERE id='wrk_brief'")
            connection.execute("UPDATE leasing SET rev=rev+1")
        await wait_until(lambda: world.effects("wire.send") == 64, 20)
        assert shards(one) == [64]


async def test_a_batch_whose_commit_was_not_told_of_is_handled(
    pair: tuple[FleetHarness, FleetHarness], world: World
) -> None:
    one, _ = pair
    async with working(one):
        write: Any = store_of(one).parts.database
        real, lost = write.commit, [True]

        def commit() -> None:
            real()
            if lost:
                lost.clear()
                write._connection.close()
                raise psycopg.OperationalError("the connection was lost after COMMIT was sent")

        write.commit = commit
        event = job("a", send_proposal("a"))
        with pytest.raises(StoreFailed):
            await one.send(event)
        (receipt,) = await one.send(event)
        assert receipt.status == "duplicate"
        await wait_until(lambda: state(one, event) == "done", 20)
        assert world.effects("wire.send") == 1


@pytest.mark.parametrize("several", [True, False])
async def test_a_key_with_nul_is_a_recorded_refusal_on_every_store(
    pair: tuple[FleetHarness, FleetHarness], tmp_path: Path, world: World, several: bool
) -> None:
    fleet = pair[0] if several else toy_fleet(tmp_path / "sqlite", world)
    async with fleet:
        good = job("good", send_proposal("g"), key="k")
        receipts = await fleet.send(
            good, job("by key", send_proposal("b"), key="a\0b"), job("a\0b", send_proposal("b"))
        )
        assert [receipt.status for receipt in receipts] == ["accepted", "refused", "refused"]
        assert "NUL" in (receipts[1].error or "")
        assert len(fleet.entries("event.refused")) == 2
        await fleet.wait_until_idle()
        assert state(fleet, good) == "done"


# --- a database that is away --------------------------------------------------------------------


async def test_a_fleet_outlasts_a_database_that_is_away_for_long(
    pair: tuple[FleetHarness, FleetHarness], world: World, url: str
) -> None:
    one, _ = pair
    name = url.rpartition("/")[2]
    async with one:
        await one.app.dispatcher.close()
        running = Daemon(one.app, until_idle=False)
        run = asyncio.create_task(running.run())
        before = job("before", send_proposal("a"), key="k")
        await one.send(before)
        await wait_until(lambda: state(one, before) == "done", 20)
        stalls = [0.0]
        watch = asyncio.create_task(stalling(stalls))
        with psycopg.connect(server(fsync=False).url("postgres"), autocommit=True) as connection:
            connection.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false".encode())
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname=%s", (name,)
            )
            # Longer than the lease, and than the patience of whoever reads.
            await asyncio.sleep(4)
            with pytest.raises(StoreFailed):
                await one.send(job("away", send_proposal("b"), key="k"))
            with pytest.raises(StoreFailed):
                one.app.store.ledger.last_seq()
            connection.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true".encode())
        await sent(
            one,
            job("away", send_proposal("b"), key="k"),
            job("after", send_proposal("c"), key="k2"),
        )
        await wait_until(lambda: world.effects("wire.send") == 3, 30)
        watch.cancel()
        assert running.failure is None
        assert not run.done()
        running.stop()
        await asyncio.wait_for(run, 10)
    assert set(world.keys().values()) == {1}
    # Whoever reads waits once; from then on the loop is free for what else there is.
    assert max(stalls) < 3
    assert sum(stalls) < 4


async def stalling(stalls: list[float]) -> None:
    """Note how long the loop stood still, each time that it did."""
    while True:
        began = time.monotonic()
        await asyncio.sleep(0.01)
        took = time.monotonic() - began
        if took > 0.1:
            stalls.append(took)


async def sent(fleet: FleetHarness, *events: Event) -> None:
    """Send until it was accepted, as a source does."""
    for _ in range(100):
        try:
            await fleet.send(*events)
        except StoreFailed:
            await asyncio.sleep(0.1)
        else:
            return
    raise AssertionError("the store did not come back")
