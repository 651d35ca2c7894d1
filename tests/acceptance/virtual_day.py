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
import gc
import hashlib
import json
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.faults.warming import keep

from vedette import crashpoint
from vedette.effect import Call, Outcome
from vedette.errors import AlreadyDone
from vedette.event import Event
from vedette.run import ActionRow
from vedette.testing.clock import ManualClock
from vedette.testing.faults import in_child
from vedette.testing.harness import FleetHarness
from vedette.testing.toy import (
    DESK,
    GRANTS,
    World,
    denying,
    do,
    job,
    note,
    toy_fleet,
    write_policies,
)

START_US = 1_767_225_600_000_000  # 2026-01-01, midnight UTC
DAY_US = 86_400_000_000
ACTING = tuple(f"keeper_{number:02}" for number in range(18))
ASKING = ("asker_1", "asker_2")
OBSERVING = ("novice_1", "novice_2")
AGENTS = (*ACTING, *ASKING, *OBSERVING)
BATCH = 50
# Crash points passed for each event, about.
POINTS = 2.0
FEED = "day"
IDEMPOTENT = ("wire.send", "big.send", "slow.send")
# At these parts of the day a person publishes a policy that denies a tool, and one that does not.
CHANGES = ((0.35, "strict"), (0.7, "policies"))


# --- what happens in the world ----------------------------------------------------------------


def share(text: str) -> float:
    """Return a number in 0..1 that depends on a text alone."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6]) / 2**48


class DayWorld:
    """The target of all tools. One line is appended for every call, and the effect is that line.

    What it answers depends on the key and on how often it was called: some calls are refused for
    now, some fail, of some the answer is lost after the effect.
    """

    def __init__(self, record: Path) -> None:
        self.record = record
        self._lock = threading.Lock()
        self._calls: Counter[str] = Counter()
        self._done: set[str] = set()
        for line in self.lines():
            self._note(line)

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield what stands in the record."""
        if self.record.exists():
            for line in self.record.read_bytes().splitlines():
                yield json.loads(line)

    def happened(self, key: str) -> bool:
        """Say whether a key has taken effect."""
        return key in self._done

    def act(self, call: Call) -> Outcome:
        """Do what a call asks."""
        with self._lock:
            first, chance = not self._calls[call.key], share(call.key)
            answer = "done"
            if first and chance < 0.06:
                answer = "retry"
            elif chance > 0.98:
                answer = "failed"
            repeat = call.tool in IDEMPOTENT and call.key in self._done
            line = {
                "key": call.key, "tool": call.tool, "agent": call.agent,
                "text": str(call.args["text"]), "effect": answer == "done" and not repeat,
            }  # fmt: skip
            self._write(line)
        if answer == "done" and first and 0.06 <= chance < 0.1:
            raise ConnectionError("the answer was lost on its way")
        if answer == "done":
            return Outcome("done", {"id": call.key})
        return Outcome("retry" if answer == "retry" else "failed", error=answer)

    def ask(self, call: Call) -> Outcome | None:
        """Say what came of a key."""
        return Outcome("done", {"id": call.key}) if self.happened(call.key) else None

    def _note(self, line: dict[str, Any]) -> None:
        self._calls[line["key"]] += 1
        if line["effect"]:
            self._done.add(line["key"])

    def _write(self, line: dict[str, Any]) -> None:
        append(self.record, line)
        self._note(line)


def append(path: Path, line: dict[str, Any]) -> None:
    """Append a line in one write: a killed process leaves all of it, or nothing."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, (json.dumps(line) + "\n").encode())
    finally:
        os.close(file)


def events(number: int, seed: int) -> list[Event]:
    """Return the events of a day; each says in its data what its agent is to propose."""
    draw = random.Random(seed)
    return [_event(draw, f"e{at}") for at in range(number)]


def _event(draw: random.Random, name: str) -> Event:
    agent, key = draw.choice(AGENTS), f"k{draw.randrange(8)}"
    number, more = draw.random(), {"value": draw.randrange(9)}
    if number < 0.003:
        return job(name, key=key, agent=agent, **{**more, "raise": True})
    return job(name, *_proposals(draw, name), key=key, agent=agent, **more, **_doubt(draw))


def _doubt(draw: random.Random) -> dict[str, Any]:
    return {"confidence": 0.5} if draw.random() < 0.04 else {}


def _proposals(draw: random.Random, name: str) -> list[dict[str, Any]]:
    number = draw.random()
    if number < 0.5:
        return []
    if number < 0.65:
        return [note(f"{name} 0")]
    if number < 0.68:
        return [do("wire.send", to="stranger@elsewhere.example", text=f"{name} 0")]
    if number < 0.69:
        return [do("door.open", to=DESK, text=f"{name} 0")]
    tools = ("wire.send", "order.place", "bell.ring", "big.send", "slow.send")
    drawn = draw.choices(tools, weights=(10, 6, 3, 3, 2), k=draw.choice((1, 1, 1, 2)))
    return [do(tool, to=DESK, text=f"{name} {at}") for at, tool in enumerate(drawn)]


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
    write_policies(folder / "strict", AGENTS, extra={**extra, **denying("slow.send")})


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
                await fleet.settle(60)
                await self._change(place)
                await self._answer()
            for _ in range(12):
                self.clock.advance(30_000_000)
                await fleet.settle(60)
                await self._answer()

    async def _open(self) -> None:
        """Set the clock to where the day is: time never goes back over a crash."""
        mark = self.day.folder / "clock"
        if mark.exists():
            self._pass_to(int(mark.read_text(encoding="ascii")) + 1_000_000)

    def _pass(self, place: int) -> None:
        self._pass_to(self.day.at_us(place))
        (self.day.folder / "clock").write_text(str(self.clock.now_us()), encoding="ascii")

    def _pass_to(self, at_us: int) -> None:
        self.clock.advance(max(0, at_us - self.clock.now_us()))

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
                await self._once(
                    f"policy {at}",
                    lambda order, name=name: self.fleet.app.commands.policy_apply(
                        order, self.day.folder / name
                    ),
                )

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
        for row in self.fleet.app.store.holds_page(after=0, limit=2000):
            if row.waits != "approval" or row.hold != "open" or share(f"{row.id} left") < 0.1:
                continue
            yes = self._says_yes(row)
            id = f"{row.id} {row.decisions} {row.tries}"
            answer = commands.approve if yes else commands.deny
            if await self._once(id, partial(answer, hold=row.id.replace("act_", "hold_"))):
                append(self.day.folder / "answers.jsonl", {"action": row.id, "yes": yes})
        await self.fleet.settle(60)

    def _says_yes(self, row: ActionRow) -> bool:
        if row.effect == "unknown":
            return not self.world.happened(row.id.removeprefix("act_"))
        return share(row.id) < 0.8


# --- deaths -----------------------------------------------------------------------------------


def live(day: Day) -> None:
    """Play to the end of the day in this process."""
    counted = crashpoint.hook

    def hook(point: str) -> None:
        # (Two of these for every event say who was thinking; nothing of the record is written.)
        if counted is not None and not point.startswith("in_hand"):
            counted(point)

    crashpoint.hook = hook
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
            crashpoint.hook = hook
            last = [
                job(f"last {name}", do("order.place", to=DESK, text=f"last {name}"), agent=name)
                for name in ACTING[:4]
            ]
            await fleet.send(*last)
            await fleet.settle(60)

    asyncio.run(more())


def warm(folder: Path) -> None:
    """Load once, in the parent, what every child would load again."""
    keep("vedette.load", "load_fleet", lambda root, settings, **_: root)
    keep("vedette.load.modules", "release_digest", lambda folder: folder)
    keep("vedette.adapters.rego.data", "mount", lambda files: frozenset(files.items()))
    keep("vedette.adapters.rego.stage", "read_bundle", lambda folder: folder)
    app: Any = import_module("vedette.app")
    app.Dispatcher = partial(app.Dispatcher, handlers=16)
    with TemporaryDirectory(dir=folder) as place:
        day = Day(folder, 100, 1)
        trial = replace(day, folder=Path(place))
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
        ended = in_child(lambda: live(day), die_at=draw.randint(20, reach), within_s=120)
        if ended.error:
            raise RuntimeError(ended.error)
        if not ended.killed:
            break
        died += 1
        points[ended.at] += 1
    ended = in_child(lambda: live(day), within_s=300)
    if ended.error:
        raise RuntimeError(ended.error)
    last = in_child(lambda: die_calling(day), within_s=60)
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
