"""A fleet at work on a small disk that fills up and is freed again: full_child.py SMALL OUTSIDE.

The state lies on SMALL. The target's record, what the source was told and what happened lie
OUTSIDE. Prints nothing; writes OUTSIDE/told.json.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

from tests.faults.world import FileWorld

from vedette.domain.base.errors import StoreFailed
from vedette.domain.event import Event
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import World, job, note_proposal, send_proposal, toy_fleet

EVENTS = 150
BALLAST = 60_000_000
PADDING = "0123456789" * 3000  # makes an event heavy, so that few of them fill the disk


def events() -> list[Event]:
    """Return the load: sends by an idempotent and a queryable tool, and rows, over seven keys."""
    tools = ("wire.send", "order.place")
    return [
        job(
            f"f{n}", send_proposal(f"f{n}", tool=tools[n % 2]), note_proposal(f"f{n}"),
            key=f"k{n % 7}", value=n, padding=PADDING,
        )
        for n in range(EVENTS)
    ]  # fmt: skip


class Load:
    """Offers every event until it is accepted, as a source does; frees the disk once it is full."""

    def __init__(self, fleet: FleetHarness, ballast: Path, outside: Path) -> None:
        self.fleet, self.ballast, self.outside = fleet, ballast, outside
        self.failures: list[str] = []
        self.unready = 0

    async def offer(self, event: Event) -> None:
        """Offer an event again and again."""
        store = self.fleet.app.store
        while True:
            try:
                (receipt,) = await self.fleet.send(event)
            except StoreFailed as error:
                self.failures.append(str(error))
                self.unready += not store.steps.is_ready
                if len(self.failures) == 20:
                    self.ballast.unlink()
                await asyncio.sleep(0.02)
                continue
            assert receipt.event is not None
            with (self.outside / "accepted").open("ab", buffering=0) as file:
                file.write(receipt.event.encode() + b"\n")
            return


async def main(small: Path, outside: Path) -> None:
    ballast = small / "ballast"
    ballast.write_bytes(bytes(BALLAST))
    toy_fleet(outside, World())
    fleet = FleetHarness(
        small,
        content=outside / "content",
        policies=outside / "policies",
        targets={"world": {"kind": "world", "world": FileWorld(outside / "world.jsonl")}},
    )
    async with fleet:
        load = Load(fleet, ballast, outside)
        waiting = iter(events())

        async def offer_all() -> None:
            for event in waiting:
                await load.offer(event)

        await asyncio.gather(*(offer_all() for _ in range(4)))
        async with asyncio.timeout(60):
            while unfinished(fleet):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        fields = {
            "failures": load.failures,
            "unready": load.unready,
            "ready": fleet.app.store.steps.is_ready,
            "free": os.statvfs(small).f_bavail,
        }
    (outside / "told.json").write_text(json.dumps(fields), encoding="utf-8")


def unfinished(fleet: FleetHarness) -> list[str]:
    """Return the runs that have not ended."""
    fleet.app.dispatcher.wake_due()
    page = fleet.app.store.runs.runs_page(agent=None, state=None, before=None, limit=10_000)
    return [run.id for run in page if run.state not in ("done", "dead")]


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2])))
