"""What may go on goes on: no wait is longer than its reason, whatever came before it."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from vedette.testing.clock import ManualClock
from vedette.testing.toy import World, job, send, toy_fleet, until

SECOND = 1_000_000


@pytest.fixture
def world() -> World:
    return World()


async def test_a_look_that_waited_for_the_store_is_not_followed_by_minutes_of_blindness(
    tmp_path: Path, world: World
) -> None:
    """The store's server stalled for 5.2 s once; what a person lets go on is seen soon after."""
    clock = ManualClock()
    async with toy_fleet(tmp_path, world, clock=clock) as fleet:
        store: Any = fleet.app.store
        due, stalls = store.due, [5.2]

        def stalled(now_us: int, limit: int, without: Collection[str] = ()) -> Any:
            if stalls:
                clock.advance(int(stalls.pop() * SECOND))
            return due(now_us, limit, without)

        store.due = stalled
        await until(lambda: not stalls)
        await fleet.app.commands.stop(fleet.order(), agent="worker")
        await fleet.send(job("1", send("late")))
        await fleet.app.commands.resume(fleet.order(), agent="worker")
        await until(lambda: world.effects() == 1, 5)
