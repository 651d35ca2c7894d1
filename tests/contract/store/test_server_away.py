"""A PostgreSQL server that is away for longer than a lease, while calls are under way."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.pg import Server, find_bin

from vedette.config.settings import StorePlan
from vedette.domain.base import failpoint
from vedette.domain.base.errors import StoreFailed, Unavailable
from vedette.domain.effect import Call
from vedette.domain.run import CommitResult, Step
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import World, job, send_proposal, toy_fleet, wait_until

BELL = send_proposal(tool="bell.ring")  # it can neither be repeated nor asked about
CALLED, STARTED = job("called", BELL, key="a"), job("started", BELL, key="b")


def ended(fleet: FleetHarness) -> int:
    """Return how many effects have an outcome; -1 while who reads leaves the server alone."""
    try:
        return len(fleet.entries("effect.done", "effect.unknown"))
    except StoreFailed:
        return -1


async def test_what_was_called_and_what_was_not_is_known_when_the_server_is_back(
    tmp_path: Path,
) -> None:
    """The lease runs out with nobody there to take it; nothing is left to a person."""
    server = Server(find_bin(), fsync=False)
    answers = threading.Event()

    def wait(call: Call) -> None:
        assert answers.wait(60)

    url_file = tmp_path / "url"
    url_file.write_text(server.fresh())
    world = World(answer=wait)
    fleet = toy_fleet(tmp_path, world)
    fleet._store = StorePlan("postgresql", url_file=str(url_file), lease_us=1_000_000)
    try:
        async with fleet:
            store: Any = fleet.app.store
            await fleet.send(CALLED)
            await wait_until(lambda: len(world.calls) == 1, 60)
            (run,) = fleet.runs(CALLED)
            onward = store.steps.send

            async def crash_after(step: Step) -> CommitResult:
                answer: CommitResult = await onward(step)
                if any(row.effect == "started" for row in step.actions):
                    server.crash()
                    with suppress(StoreFailed):  # so it is known that nothing can be committed
                        await fleet.send(job("lost", key="c"))
                return answer

            store.steps.send = lambda step: asyncio.ensure_future(crash_after(step))
            await fleet.send(STARTED)
            await wait_until(lambda: not store.steps.is_ready, 60)
            store.steps.send = onward
            answers.set()
            await wait_until(lambda: store.cluster.lease_epoch(run) is None, 60)
            server.restart()
            await wait_until(
                lambda: store.steps.is_ready and store.cluster.lease_epoch(run) is not None, 60
            )
            await wait_until(lambda: ended(fleet) == 2, 60)
            assert not fleet.entries("effect.unknown")
            assert world.keys() == Counter(call.key for call in world.calls)
            assert len(world.calls) == 2
    finally:
        server.stop()


@pytest.mark.parametrize("point", ["worker:before", "epoch:before"])
async def test_a_start_that_loses_its_server_says_so_in_a_sentence(
    point: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(find_bin(), fsync=False)
    url_file = tmp_path / "url"
    url_file.write_text(server.fresh())
    fleet = toy_fleet(tmp_path, World())
    fleet._store = StorePlan("postgresql", url_file=str(url_file))

    def crash(reached: str) -> None:
        if reached == point:
            monkeypatch.setattr(failpoint, "hook", None)
            server.crash()

    try:
        monkeypatch.setattr(failpoint, "hook", crash)
        with pytest.raises((Unavailable, StoreFailed), match="PostgreSQL") as told:
            await fleet.open()
        assert told.value.mend
        server.restart()
        async with fleet:
            await fleet.send(CALLED)
            await wait_until(lambda: len(fleet.entries("effect.done")) == 1, 60)
    finally:
        server.stop()
