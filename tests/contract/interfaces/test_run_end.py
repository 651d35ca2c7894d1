"""What a run tells at its end: all that it came to, or what its follower made of it until then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from vedette.app.follower_process import FollowerProcess
from vedette.interfaces.daemon import Daemon, describe_run
from vedette.testing.toy_fleet import World, job, send_proposal, toy_fleet


class HungFollower:
    """A follower that makes nothing of the ledger."""

    pid = 1

    async def run(self, report: Callable[[str], None]) -> None:
        await asyncio.Event().wait()


@pytest.mark.parametrize("interrupted", [True, False])
async def test_who_interrupts_a_run_waits_for_no_lists(tmp_path: Path, interrupted: bool) -> None:
    async with toy_fleet(tmp_path, World()) as fleet:
        await fleet.app.dispatcher.close()
        await fleet.app.intake.accept([job("1", send_proposal("hello"))])
        follower = cast(FollowerProcess, HungFollower())
        running = Daemon(fleet.app, until_idle=not interrupted, follower=follower)
        told: list[int] = []

        def tick(daemon: Daemon) -> None:
            told.append(fleet.app.store.tables.event_counts()[0])
            if interrupted and fleet.app.metrics.total("effects", state="done"):
                daemon.stop()

        async with asyncio.timeout(20):
            await running.run(tick)
        counted = describe_run(running)["events"]["accepted"]
    assert told[0] == 0
    assert (told[-1], counted) == ((0, 0) if interrupted else (1, 1))
