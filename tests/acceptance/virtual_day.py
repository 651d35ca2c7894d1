"""A seeded day of a fleet on a virtual clock: `python -m tests.acceptance.virtual_day FOLDER`.

Many agents, thousands of events, people who approve, deny and do not answer, a policy that changes,
a target that refuses, fails and loses answers; and a process that is killed by SIGKILL at random
crash points, dozens of times, each time taken up by a new one on the same folder. Prints what was
done as one JSON object.

What the world knows is kept apart from the engine: `world.jsonl` is the target's own record,
`answers.jsonl` what people were told that they had done.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import gc
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from msgspec.structs import replace
from tests.acceptance.day_world import (
    ACTING,
    AGENTS,
    ASKING,
    OBSERVING,
    DayWorld,
    append,
    events,
    share,
)
from tests.faults.scenario import publish
from tests.faults.warming import keep_content

from vedette.domain.base import failpoint
from vedette.domain.base.errors import AlreadyDone
from vedette.domain.event import Event
from vedette.domain.run import ActionRow
from vedette.testing.clock import ManualClock
from vedette.testing.faults import run_in_child
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import (
    DESK,
    GRANTS,
    World,
    deny_policy,
    job,
    propose,
    toy_fleet,
    write_policies,
)

START_US = 1_767_225_600_000_000  # 2026-01-01, midnight UTC
DAY_US = 86_400_000_000
BATCH = 150
# Crash points passed for each event, about.
POINTS = 1.5
FEED = "day"
# At these parts of the day a person publishes a policy that denies a tool, and one that does not.
CHANGES = ((0.35, "strict"), (0.7, "policies"))


# --- the fleet --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Day:
    """What is played: so many events, of that seed, in `folder`."""

    folder: Path
    number: int
    seed: int

    @property
    def events(self) -> list[Event]:
        """Return the events of the day."""
        return events(self.number, self.seed)

    def at_us(self, place: int) -> int:
        """Return the instant at which so many events have come."""
        return START_US + DAY_US * place // self.number


def lay(folder: Path) -> None:
    """Write the fleet's content and its two policies."""
    modes = {**dict.fromkeys(ASKING, "ask"), **dict.fromkeys(OBSERVING, "observe")}
    grants = "".join(GRANTS.format(name=name, mode=modes.get(name, "act")) for name in AGENTS)
    extra = {"grants/data.yaml": grants}
    toy_fleet(folder, World(), agents=AGENTS, extra=extra)
    write_policies(folder / "strict", AGENTS, extra={**extra, **deny_policy("slow.send")})


def fleet_of(day: Day, clock: ManualClock, world: DayWorld) -> FleetHarness:
    """Return the fleet of a day, not opened."""
    return FleetHarness(
        day.folder, content=day.folder / "content", policies=day.folder / "policies",
        targets={"world": {"kind": "world", "world": world}}, clock=clock,
    )  # fmt: skip


class Life:
    """One process's part of the day, from where the one before left it."""

    def __init__(self, day: Day) -> None:
        self.day = day
        self.clock = ManualClock(START_US)
        self.world = DayWorld(day.folder / "world.jsonl")
        self.fleet = fleet_of(day, self.clock, self.world)

    async def play(self) -> None:
        """Play to the end of the day."""
        await self._open()
        async with self.fleet as fleet:
            feed, place = self.day.events, int(fleet.app.intake.position(FEED) or 0)
            while place < len(feed):
                batch = feed[place : place + BATCH]
                place += len(batch)
                self._pass(place)
                await self._send(batch, place)
                await fleet.wait_until_idle(60)
                await self._change(place)
                await self._answer()
            for _ in range(12):
                self._pass_to(self.clock.now_us() + 30_000_000)
                await fleet.wait_until_idle(60)
                await self._answer()

    async def _open(self) -> None:
        """Set the clock to where the day is: time never goes back over a crash."""
        mark = self.day.folder / "clock"
        if mark.exists():
            self._pass_to(int(mark.read_text(encoding="ascii")) + 1_000_000)

    def _pass(self, place: int) -> None:
        self._pass_to(self.day.at_us(place))

    def _pass_to(self, at_us: int) -> None:
        self.clock.advance(max(0, at_us - self.clock.now_us()))
        (self.day.folder / "clock").write_text(str(self.clock.now_us()), encoding="ascii")

    async def _send(self, batch: list[Event], place: int) -> None:
        vouched = [
            replace(e, vouched=frozenset({"source", "id", "type", "subject"})) for e in batch
        ]
        await self.fleet.app.intake.accept(vouched, position=(FEED, str(place)))

    async def _change(self, place: int) -> None:
        """Publish the policy that is due by now, once."""
        part = place / self.day.number
        for at, name in CHANGES:
            if part >= at:
                folder = self.day.folder / name
                act = partial(publish, self.fleet.app.commands, folder=folder)
                await self._once(f"policy {at}", act)

    async def _once(self, id: str, act: Any) -> bool:
        order = replace(self.fleet.order("as the day says"), command_id=id)
        try:
            await act(order)
        except AlreadyDone:
            return False
        return True

    async def _answer(self) -> None:
        """Answer what waits for a person: most get a yes, some a no, some no answer at all."""
        commands = self.fleet.app.commands
        for row in self.fleet.app.store.runs.holds_page(after=0, limit=2000):
            if row.waits != "approval" or row.hold != "open" or share(f"{row.id} left") < 0.1:
                continue
            yes = self._says_yes(row)
            id = f"{row.id} {row.decisions} {row.tries}"
            answer = commands.approve if yes else commands.deny
            hold, digest = row.id.replace("act_", "hold_"), self.fleet.shown_digest(row)
            if await self._once(id, partial(answer, hold=hold, digest=digest)):
                append(self.day.folder / "answers.jsonl", {"action": row.id, "yes": yes})
        await self.fleet.wait_until_idle(60)

    def _says_yes(self, row: ActionRow) -> bool:
        if row.effect == "unknown":
            return not self.world.happened(row.id.removeprefix("act_"))
        return share(row.id) < 0.8


# --- deaths -----------------------------------------------------------------------------------


def live(day: Day) -> None:
    """Play to the end of the day in this process."""
    counted = failpoint.hook

    def hook(point: str) -> None:
        # (Two of these for every event say who was thinking; nothing of the record is written.)
        if counted is not None and not point.startswith("in_hand"):
            counted(point)

    failpoint.hook = hook
    asyncio.run(Life(day).play())


def die_calling(day: Day) -> None:
    """Hand in a few events more and die with a call made and its answer not recorded."""

    def hook(point: str) -> None:
        if point == "call:after":
            os.kill(os.getpid(), signal.SIGKILL)

    async def more() -> None:
        life = Life(day)
        await life._open()
        async with life.fleet as fleet:
            failpoint.hook = hook
            last = [
                job(
                    f"last {name}", propose("order.place", to=DESK, text=f"last {name}"), agent=name
                )
                for name in ACTING[:4]
            ]
            await fleet.send(*last)
            await fleet.wait_until_idle(60)

    asyncio.run(more())


def warm(folder: Path) -> None:
    """Load once, in the parent, what every child would load again."""
    keep_content()
    app: Any = import_module("vedette.app.composition_root")
    app.Dispatcher = partial(app.Dispatcher, handlers=16)
    with TemporaryDirectory(dir=folder) as place:
        day = Day(folder, 100, 1)
        trial = dataclasses.replace(day, folder=Path(place))
        for name in ("content", "policies", "strict"):
            (trial.folder / name).symlink_to(folder / name)
        live(trial)
    gc.collect()
    gc.freeze()


def play(day: Day, kills: int) -> dict[str, Any]:
    """Play the day with at least so many deaths; return what was done."""
    began = time.monotonic()
    warm(day.folder)
    # How many crash points a life may pass, so that there are deaths enough for the whole day.
    reach = int(2 * POINTS * day.number / (kills + 8))
    draw, points, died = random.Random(f"deaths {day.seed}"), Counter[str](), 0
    while died < kills:
        ended = run_in_child(lambda: live(day), die_at=draw.randint(20, reach), within_s=600)
        if ended.error:
            raise RuntimeError(ended.error)
        if not ended.killed:
            break
        died += 1
        points[ended.last_point] += 1
    ended = run_in_child(lambda: live(day), within_s=600)
    if ended.error:
        raise RuntimeError(ended.error)
    last = run_in_child(lambda: die_calling(day), within_s=60)
    killed_calling = "signal 9" in last.error
    return {
        "kills": died + killed_calling, "points": points, "killed_calling": killed_calling,
        "passes_at_end": ended.passes, "seconds": round(time.monotonic() - began, 1),
    }  # fmt: skip


def main() -> int:
    """Play a day in a folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--events", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=52)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    lay(given.folder)
    print(json.dumps(play(Day(given.folder, given.events, given.seed), given.kills)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
