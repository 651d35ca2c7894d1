"""What may go on goes on: no wait is longer than its reason, whatever came before it."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from tests.workers import JUDGE_PY

from vedette.event import Event
from vedette.testing.clock import ManualClock
from vedette.testing.harness import FleetHarness
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


async def test_what_waits_behind_other_attempts_of_its_key_takes_nobody_s_room(
    tmp_path: Path,
) -> None:
    """Nine keys that wait for another attempt, with more events behind them than are loaded."""
    clock = ManualClock()
    fleet = toy_fleet(tmp_path, World(), agents=("bad",), clock=clock)
    (fleet.content / "agents" / "bad" / "judge.py").write_text(JUDGE_PY)
    poison = [event(f"p{n}", f"p{n}", do="again") for n in range(9)]
    behind = [event(f"b{n}.{m}", f"p{n}") for m in range(40) for n in range(9)]
    healthy = [event(f"h{n}", f"h{n}") for n in range(150)]
    async with fleet:
        await fleet.app.commands.stop(fleet.order(), agent="bad")
        await fleet.send(*poison, *behind, *healthy)
        await fleet.app.commands.resume(fleet.order(), agent="bad")
        # No time passes, so no second attempt is made.
        await until(lambda: closed(fleet) == 150, 20)
        for _ in range(8):
            clock.advance(30 * SECOND)
            await fleet.settle()
        assert len(fleet.entries("run.dead")) == 9
        assert closed(fleet) == 150 + len(behind)
        assert labels(fleet, behind[-1]) == {f"seen {len(behind) // 9}"}


def event(name: str, key: str, **data: Any) -> Event:
    return Event("test", name, "bad.job", key, None, data)


def closed(fleet: FleetHarness) -> int:
    return fleet.app.store.counts().get("bad", {}).get("run.done", 0)


def labels(fleet: FleetHarness, of: Event) -> set[str]:
    found = fleet.entries("run.closed", "turn.reasoned")
    return {entry["label"] for entry in found if entry["event"] == of.key and "label" in entry}
