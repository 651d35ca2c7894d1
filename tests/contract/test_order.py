"""The order of a key and its judge's state: kept by stops, rooms, and moves of a lease.

The toy judge tells every value that its state holds, so each judgement says what it was made of.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from vedette.testing.harness import FleetHarness
from vedette.testing.toy import World, job, note, toy_fleet


@pytest.fixture
def world() -> World:
    return World()


class Told:
    """Events with numbered values, and what their judgements must say."""

    def __init__(self) -> None:
        self.sent: dict[str, list[int]] = defaultdict(list)
        self._number = 0

    def event(self, key: str) -> Any:
        self._number += 1
        self.sent[key].append(self._number)
        number = self._number
        return job(f"e{number}", note(str(number)), key=key, value=number)

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
    told = Told()
    async with toy_fleet(tmp_path, world) as fleet:
        for _ in range(6):
            await fleet.send(*(told.event(key) for key in "abab"))
            await fleet.app.commands.stop(fleet.order(), agent="worker")
            await fleet.send(*(told.event(key) for key in "abab"))
            await fleet.app.commands.resume(fleet.order(), agent="worker")
            await fleet.send(*(told.event(key) for key in "aabb"))
        await fleet.settle()
        told.check(fleet)
