"""What the tests of noisy neighbours share: quiet agents at a steady pace, and how long each took.

Latency is from the moment an event is handed over to the moment its effect begins at the target.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vedette.domain.effect import Call, Outcome
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import World, job, send_proposal

QUIET = ("alpha", "beta", "gamma", "delta")


@dataclass
class Seen(World):
    """A target that notes when each text reached it. `hook` may hang or answer."""

    at: dict[str, float] = field(default_factory=dict)
    hook: Callable[[Call], Outcome | None] | None = None

    def refresh(self) -> None:
        """Learn what was done so far; here it is known at once."""

    def act(self, call: Call) -> Outcome:
        """Note the time, then do as usual."""
        text = str(call.args.get("text"))
        with self.lock:
            self.at.setdefault(text, time.monotonic())
        if self.hook is not None:
            given = self.hook(call)
            if given is not None:
                return given
        return super().act(call)


# Tools for fleets whose hands are processes of their own: the target is a file, its record too.
# The monotonic clock is the same in all processes of a machine.
FILE_TOOLS = """\
import os
import time

from vedette.domain.effect import Outcome, RowWrite


def add_note(call, row):
    return [RowWrite(f"{call.agent}_notes", call.args["key"], {"text": call.args["text"]})]


def act(call):
    line = f"{time.monotonic()} {call.key} {call.args['text']}\\n".encode()
    file = os.open(call.target["path"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, line)
    os.close(file)
    return Outcome("done", {"id": call.key})


def ask(call):
    return None
"""


@dataclass
class Filed(Seen):
    """A target that is a file, for hands in other processes."""

    path: Path = Path()

    def refresh(self) -> None:
        """Read what was done so far."""
        if self.path.exists():
            for line in self.path.read_text().splitlines():
                at, key, text = line.split(" ", 2)
                if text not in self.at:
                    self.at[text] = float(at)
                    self.record.append(("file", key))


@dataclass(slots=True)
class Pace:
    """Quiet agents' events, each at its own instant, whatever became of the one before."""

    fleet: FleetHarness
    world: Seen
    name: str
    per_second: float
    sent: dict[str, float] = field(default_factory=dict)

    async def run(self, seconds: float) -> None:
        """Hand over one event after the other for so long; return when all reached the target."""
        began = time.monotonic()
        tasks: list[asyncio.Task[Any]] = []
        for number in range(int(seconds * self.per_second)):
            at = began + number / self.per_second
            await asyncio.sleep(max(0.0, at - time.monotonic()))
            agent = QUIET[number % len(QUIET)]
            text = f"{self.name} {number}"
            self.sent[text] = time.monotonic()
            event = job(text, send_proposal(text), key=f"k{number % 8}", agent=agent)
            tasks.append(asyncio.create_task(self.fleet.send(event)))
        await asyncio.gather(*tasks)
        async with asyncio.timeout(90):
            while not self.sent.keys() <= self.world.at.keys():
                await asyncio.sleep(0.005)
                self.world.refresh()

    def took_ms(self) -> list[float]:
        """Return how long each took, in milliseconds, shortest first."""
        return sorted((self.world.at[text] - at) * 1000 for text, at in self.sent.items())


def share(sorted_ms: list[float], of: float) -> float:
    """Return the value that a share of the values do not exceed."""
    return sorted_ms[min(len(sorted_ms) - 1, math.ceil(of * len(sorted_ms)) - 1)]


async def measure(
    fleet: FleetHarness,
    world: Seen,
    *,
    seconds: float,
    per_second: float,
    noise: Callable[[], Awaitable[None]] | None = None,
    name: str = "quiet",
) -> list[float]:
    """Return how long the quiet agents' events took, with `noise` going on all the while."""
    making = asyncio.ensure_future(noise()) if noise is not None else None
    if making is not None:
        await asyncio.sleep(0.5)
    pace = Pace(fleet, world, name, per_second)
    try:
        await pace.run(seconds)
    finally:
        if making is not None:
            making.cancel()
            await asyncio.gather(making, return_exceptions=True)
    return pace.took_ms()


def latency_line(what: str, quiet: list[float], noisy: list[float]) -> str:
    """Return one line: p50 and p99 of both, and their ratio."""
    return (
        f"{what}: quiet p50 {share(quiet, 0.5):.1f} p99 {share(quiet, 0.99):.1f} ms, "
        f"disturbed p50 {share(noisy, 0.5):.1f} p99 {share(noisy, 0.99):.1f} ms, "
        f"p99 ratio {share(noisy, 0.99) / share(quiet, 0.99):.2f}"
    )
