"""Stops and doubt as this process knows them: those that are durable, no step passes for later."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.contract.engine.test_liveness import Silent

from vedette.domain.base import failpoint
from vedette.domain.base.errors import BadCommand, StoreFailed
from vedette.domain.entry import Draft
from vedette.store.loss_detection import Loss
from vedette.testing.clock import ManualClock
from vedette.testing.toy_fleet import World, job, send_proposal, toy_fleet, wait_until

MINUTE_US = 60_000_000


class Commits:
    """Holds two commits up: the first when it stands, the second before it does."""

    def __init__(self) -> None:
        self.first, self.second = threading.Event(), threading.Event()
        self.go_on, self.stand = threading.Event(), threading.Event()

    def pass_point(self, name: str) -> None:
        if name == "commit:after" and not self.first.is_set():
            self.first.set()
            assert self.go_on.wait(30)
        elif name == "commit:mid" and self.first.is_set() and not self.second.is_set():
            self.second.set()
            assert self.stand.wait(30)


@pytest.fixture
def commits() -> Iterator[Commits]:
    made = Commits()
    yield made
    failpoint.hook = None
    made.go_on.set()
    made.stand.set()


async def test_what_is_decided_while_a_stop_is_being_committed_does_not_pass_for_later(
    tmp_path: Path, commits: Commits
) -> None:
    """Another stop is recorded a moment before, and what the store knows then is read."""
    judge = Silent()
    async with toy_fleet(tmp_path, World(), reasoners={"judge": judge}) as fleet:
        store: Any = fleet.app.store
        stops, stop = fleet.app.services.stops, store.commands.stop

        async def away(*args: Any, **more: Any) -> int:
            raise StoreFailed("the disk is full")

        await fleet.send(job("1"))
        store.commands.stop = away
        failpoint.hook = commits.pass_point
        assert not (await fleet.app.commands.stop(fleet.order(), tool="bell.ring"))["recorded"]
        store.commands.stop = stop
        await wait_until(commits.first.is_set)
        ordered = asyncio.create_task(fleet.app.commands.stop(fleet.order(), agent="worker"))
        await asyncio.sleep(0.05)  # it is in the queue
        commits.go_on.set()
        await wait_until(lambda: commits.second.is_set() and not stops.unrecorded)
        judge.answers.set()
        await asyncio.sleep(0.2)  # what is decided now is in the queue behind it
        commits.stand.set()
        assert (await ordered)["recorded"]
        await fleet.wait_until_idle()
        assert [entry["kind"] for entry in fleet.entries()][-2:] == ["stop.set", "stop.set"]
        await fleet.app.commands.resume(fleet.order(), agent="worker")
        await wait_until(lambda: bool(fleet.entries("run.closed")))


async def test_a_resume_that_could_not_be_read_back_is_taken_over_all_the_same(
    tmp_path: Path,
) -> None:
    """It stands: with what was known before it no step would ever commit again."""
    world = World()
    async with toy_fleet(tmp_path, world) as fleet:
        store: Any = fleet.app.store
        await fleet.app.commands.stop(fleet.order(), agent="worker")
        uncertainty = store.ledger.loss_window

        def away() -> None:
            store.ledger.loss_window = uncertainty
            raise StoreFailed("the disk failed")

        store.ledger.loss_window = away
        with pytest.raises(StoreFailed):
            await fleet.app.commands.resume(fleet.order(), agent="worker")
        await fleet.send(job("1", send_proposal()))
        await wait_until(lambda: world.effects() == 1)


@pytest.mark.parametrize("fails", ["commit", "read"])
async def test_a_doubt_that_a_person_ended_is_over_here_too(tmp_path: Path, fails: str) -> None:
    """Its entry stands, so no second order can end it: everything new went on being asked about."""
    async with toy_fleet(tmp_path, World()) as fleet:
        store: Any = fleet.app.store
        await store.maintenance.record_restore(Loss(0), actor="person:kim", reason="a test")
        fleet.app.services.loss_window = store.ledger.loss_window()
        await fleet.app.commands.resume(fleet.order(), all=True)
        await fleet.send(job("before"))
        settled, uncertainty = store.maintenance.close_loss_window, store.ledger.loss_window

        def away() -> None:
            raise StoreFailed("the disk failed")

        async def first(*arguments: Any, **more: Any) -> int:
            seq: int = await settled(*arguments, **more)
            store.maintenance.close_loss_window = settled
            if fails == "commit":
                away()
            store.ledger.loss_window = away
            return seq

        store.maintenance.close_loss_window = first
        if fails == "commit":
            with pytest.raises(StoreFailed):
                await fleet.submit_confirmed("settle_restore")
            with pytest.raises(BadCommand, match="no doubt to end"):
                await fleet.submit_confirmed("settle_restore")
        else:
            await fleet.submit_confirmed("settle_restore")
        (entry,) = fleet.entries("store.settled")
        found = fleet.app.services.loss_window
        assert found is not None
        assert (found.covers(entry["seq"]), found.covers(entry["seq"] + 1)) == (True, False)
        assert found == uncertainty()


@pytest.mark.parametrize(("minutes", "stands"), [(1, False), (0, True), (-1, True)])
async def test_a_stop_that_is_recorded_late_gives_way_to_a_resume_that_came_after_it(
    tmp_path: Path, minutes: int, stands: bool
) -> None:
    """The worker that it was ordered of was cut off; the resume went to another one.

    One that came before it, or no later than clocks may differ, lifts nothing.
    """
    clock = ManualClock()
    async with toy_fleet(tmp_path, World(), clock=clock) as fleet:
        store: Any = fleet.app.store
        stop = store.commands.stop
        await fleet.app.commands.stop(fleet.order(), tool="bell.ring")

        async def away(*args: Any, **more: Any) -> int:
            raise StoreFailed("PostgreSQL does not answer")

        async def lift() -> None:
            draft = Draft("stop.lifted", {"what": "tool:bell.ring", "actor": "person:else"})
            await stop(draft, "tool", "bell.ring", False)

        if minutes < 0:
            await lift()
            clock.advance(-minutes * MINUTE_US)
        store.commands.stop = away
        assert not (await fleet.app.commands.stop(fleet.order(), tool="bell.ring"))["recorded"]
        if minutes >= 0:
            clock.advance(minutes * MINUTE_US)
            await lift()
        store.commands.stop = stop
        clock.advance(MINUTE_US)  # by when it is tried again, however often it was while away
        stops = fleet.app.services.stops
        await wait_until(lambda: not stops.unrecorded and (stands or not stops.list_scopes()))
        await fleet.wait_until_idle()
        assert stops.list_scopes() == ([("tool", "bell.ring")] if stands else [])
        kinds = [entry["kind"] for entry in fleet.entries() if entry["kind"].startswith("stop.")]
        late = ["stop.set"] if stands else ["stop.set", "stop.lifted"]
        assert kinds == ["stop.set", "stop.lifted", *late]


@pytest.mark.parametrize(("by", "races"), [("person:else", True), ("engine:vedette", False)])
async def test_a_late_stop_gives_way_to_a_resume_that_comes_as_it_is_recorded(
    tmp_path: Path, by: str, races: bool
) -> None:
    """Another worker lifts a stop of the same tool between what is read here and the commit.

    What the engine lifts, at any time, is no resume: that stop was over, and this one has no end.
    """
    clock = ManualClock()
    async with toy_fleet(tmp_path, World(), clock=clock) as fleet:
        store: Any = fleet.app.store
        stop = store.commands.stop
        tool = ("tool", "bell.ring")
        timed = {"what": "tool:bell.ring", "actor": "person:else", "until": 2**60}
        await stop(Draft("stop.set", timed), *tool, True)

        async def away(*args: Any, **more: Any) -> int:
            raise StoreFailed("PostgreSQL does not answer")

        async def lift() -> None:
            store.commands.stop = stop
            await stop(Draft("stop.lifted", {"what": "tool:bell.ring", "actor": by}), *tool, False)

        async def commit_later(*args: Any, **more: Any) -> int:
            await lift()
            epoch: int = await stop(*args, **more)
            return epoch

        store.commands.stop = away
        assert not (await fleet.app.commands.stop(fleet.order(), tool="bell.ring"))["recorded"]
        clock.advance(MINUTE_US)
        if races:
            store.commands.stop = commit_later
        else:
            await lift()
        stops = fleet.app.services.stops
        await wait_until(lambda: not stops.unrecorded)
        await store.steps.probe()  # whatever was sent to the store by then stands
        await fleet.wait_until_idle()
        assert (
            stops.list_scopes()
            == store.policy.stop_scopes()
            == ([tool] if by == "engine:vedette" else [])
        )
