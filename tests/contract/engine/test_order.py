"""The order of a key and its judge's state: kept by stops, rooms, and moves of a lease.

The toy judge tells every value that its state holds, so each judgement says what it was made of.
"""

from __future__ import annotations

import shutil
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.pg import server

from vedette.config.settings import StorePlan
from vedette.domain.base import failpoint
from vedette.domain.run import Run
from vedette.store.postgres import PostgresStore
from vedette.store.postgres.database import PostgresDatabase
from vedette.store.postgres.leases import Leases
from vedette.store.postgres.schema import create_tables, shard_of
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import World, job, note_proposal, toy_fleet, wait_until

LEASE_US = 1_000_000


@pytest.fixture
def world() -> World:
    return World()


class Notices:
    """Events with numbered values, and what their judgements must say."""

    def __init__(self) -> None:
        self.sent: dict[str, list[int]] = defaultdict(list)
        self._number = 0

    def event(self, key: str) -> Any:
        self._number += 1
        self.sent[key].append(self._number)
        number = self._number
        return job(f"e{number}", note_proposal(str(number)), key=key, value=number)

    def check(self, fleet: FleetHarness) -> None:
        """Compare every judgement, in the order of the ledger, with an undisturbed one."""
        judged: dict[str, list[int]] = defaultdict(list)
        of = {number: key for key, numbers in self.sent.items() for number in numbers}
        for entry in fleet.entries("turn.reasoned"):
            seen = fleet.body(entry["seq"])["detail"]["seen"]
            judged[of[seen[-1]]].append(seen[-1])
            assert seen == judged[of[seen[-1]]], "the state lacks what was judged before"
        assert judged == self.sent


# --- one worker -------------------------------------------------------------------------------


async def test_events_that_come_with_a_resume_do_not_overtake_those_put_away(
    tmp_path: Path, world: World
) -> None:
    notices = Notices()
    async with toy_fleet(tmp_path, world) as fleet:
        for _ in range(6):
            await fleet.send(*(notices.event(key) for key in "abab"))
            await fleet.app.commands.stop(fleet.order(), agent="worker")
            await fleet.send(*(notices.event(key) for key in "abab"))
            await fleet.app.commands.resume(fleet.order(), agent="worker")
            await fleet.send(*(notices.event(key) for key in "aabb"))
        await fleet.wait_until_idle()
        notices.check(fleet)


async def test_an_event_that_was_not_found_in_the_store_is_not_passed_over(
    tmp_path: Path, world: World
) -> None:
    """Whatever made memory incomplete: the store refuses, and the key is read again."""
    notices = Notices()
    async with toy_fleet(tmp_path, world) as fleet:
        await fleet.app.commands.stop(fleet.order(), agent="worker")
        await fleet.send(*(notices.event("a") for _ in range(70)))
        store: Any = fleet.app.store
        backlog, hidden = store.schedule.ready_runs, [3, 0]

        def incomplete(after: int, limit: int, agent: str | None = None) -> list[Run]:
            runs: list[Run] = backlog(after, limit, agent)
            while hidden and len(runs) > 3:
                del runs[hidden.pop(0)]
            return runs

        store.schedule.ready_runs = incomplete
        await fleet.app.commands.resume(fleet.order(), agent="worker")
        await wait_until(lambda: len(fleet.entries("turn.reasoned")) == 70, 20)
        assert not hidden, "nothing was hidden, so nothing was shown"
        notices.check(fleet)


# --- several workers --------------------------------------------------------------------------


@asynccontextmanager
async def worker(
    folder: Path, world: World, url_file: Path, like: Path | None = None
) -> AsyncIterator[FleetHarness]:
    fleet = toy_fleet(folder, world)
    fleet._store = StorePlan("postgresql", url_file=str(url_file), lease_us=LEASE_US)
    if like is not None:
        (folder / "state").mkdir()
        shutil.copy(like / "state" / "ledger.key", folder / "state" / "ledger.key")
    async with fleet:
        yield fleet


def leases(fleet: FleetHarness) -> Leases:
    store = fleet.app.store
    assert isinstance(store, PostgresStore)
    return store.cluster.leases


async def test_a_key_that_has_just_come_is_read_from_its_oldest_event(
    tmp_path: Path, world: World
) -> None:
    """Its lease is here a moment before the line looks: what is accepted then waits for that."""
    url_file = tmp_path / "url"
    url_file.write_text(server(fsync=False).fresh())
    notices = Notices()
    key = next(f"k{n}" for n in range(9999) if shard_of("worker", f"k{n}") == 50)
    here = next(f"k{n}" for n in range(9999) if shard_of("worker", f"k{n}") == 3)
    one_folder, other_folder = tmp_path / "one", tmp_path / "other"
    async with worker(one_folder, world, url_file) as one:
        async with worker(other_folder, world, url_file, like=one_folder) as other:
            await wait_until(lambda: 50 in leases(other).epochs and 3 in leases(one).epochs, 20)
            dispatcher: Any = other.app.dispatcher
            dispatcher.wake = lambda: None  # it gets to nothing before it ends
            await one.send(*(notices.event(key) for _ in range(3)))
            await one.send(notices.event(here))
            await wait_until(lambda: len(one.entries("turn.reasoned")) == 1, 10)
            dispatcher = one.app.dispatcher
            dispatcher.wake = lambda: None
        await wait_until(lambda: 50 in leases(one).epochs, 20)
        await one.send(notices.event(key), notices.event(here))
        await wait_until(lambda: len(one.entries("turn.reasoned")) >= 1)
        del dispatcher.wake
        await wait_until(lambda: len(one.entries("turn.reasoned")) == 6, 10)
        notices.check(one)


@pytest.fixture
def hook() -> Iterator[Any]:
    yield lambda given: setattr(failpoint, "hook", given)
    failpoint.hook = None


def test_a_lease_that_ran_out_while_its_beat_was_on_its_way_is_taken_up_anew(hook: Any) -> None:
    """Whoever asked meanwhile was told no, and let go of runs: they are looked for again."""
    database = PostgresDatabase(server(fsync=False).fresh(), name="test")
    create_tables(database)
    now: list[int] = [0]
    results: list[tuple[int | None, int]] = []
    held = Leases(database, "wrk_a", "a", lease_us=LEASE_US, own_head=lambda: 0, now=lambda: now[0])

    def slow(name: str) -> None:
        if name == "beat:after" and not results:
            now[0] += LEASE_US * 3 // 4
            results.append((held.epoch("a", "k"), held.rev))

    held.start()
    try:
        hook(slow)
        now[0] += LEASE_US // 2
        for _ in range(400):
            if results and held.epoch("a", "k") is not None:
                break
            time.sleep(0.01)
        ((epoch, rev),) = results
        assert epoch is None
        assert held.epoch("a", "k") is not None
        assert held.rev > rev
    finally:
        held.close()
