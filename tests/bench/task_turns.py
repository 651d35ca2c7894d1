"""What a turn of a task costs late in a long run, beside one early in another: CPU of its engine.

`make bench-task-turns`. Two fleets of this process, each with a task of a scripted model: one waits
at its thousandth turn while the other takes twenty of its first, and so in turns, so that what else
the machine does meets both.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from contextlib import AsyncExitStack
from itertools import pairwise
from pathlib import Path

from tests.task_fleet import Greeter, task_fleet

from vedette.domain.run import Step
from vedette.testing.model_server import ModelServer
from vedette.testing.toy_fleet import World, intercept_commits, job

BLOCK, BLOCKS, EARLY = 20, 4, 40
# What grows are passes over the run's actions, all of which are kept in memory.
MOST = 2.0


class Task:
    """A fleet with one task, which goes on for as many turns as it is let."""

    def __init__(self, folder: Path, server: ModelServer, most: int) -> None:
        self.fleet = task_fleet(folder, server, world=World(), most=most)
        self._marks: list[float] = []
        self._let, self._paused = asyncio.Semaphore(0), asyncio.Event()

    async def open(self, stack: AsyncExitStack) -> None:
        """Begin the task; it waits before its first turn is durable."""
        await stack.enter_async_context(self.fleet)
        intercept_commits(self.fleet, self._hold)
        await self.fleet.send(job("1"))

    async def _hold(self, step: Step) -> None:
        if any(draft.kind == "turn.reasoned" for draft in step.drafts):
            self._marks.append(time.thread_time())
            if self._let.locked():
                self._paused.set()
            await self._let.acquire()

    async def take(self, turns: int) -> list[float]:
        """Let it take so many turns; return the seconds of CPU of each, but for the first."""
        self._marks.clear()
        self._paused.clear()
        for _ in range(turns):
            self._let.release()
        await self._paused.wait()
        marks = self._marks
        return [later - sooner for sooner, later in pairwise(marks)]

    def finish(self) -> None:
        """Let it take all turns that are left."""
        for _ in range(100_000):
            self._let.release()


async def measure(turns: int) -> tuple[float, float]:
    """Return the median CPU seconds of a turn at about turn 50, and after so many turns."""
    early: list[float] = []
    late: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        most = BLOCK * BLOCKS
        models = Greeter(turns + 2 * most), Greeter(EARLY + 2 * most)
        with ModelServer(models[0]) as one, ModelServer(models[1]) as two:
            long = Task(Path(name) / "long", one, models[0].most)
            short = Task(Path(name) / "short", two, models[1].most)
            async with AsyncExitStack() as stack:
                await long.open(stack)
                await long.take(turns)
                await short.open(stack)
                await short.take(EARLY)
                for block in range(BLOCKS):
                    # A block's first turn has what the other fleet left to be done.
                    early += (await short.take(BLOCK))[1:]
                    late += (await long.take(BLOCK))[1:]
                    ratio = statistics.median(late) / statistics.median(early)
                    print(f"  block {block + 1} of {BLOCKS}: {ratio:.3f}", flush=True)
                long.finish()
                short.finish()
    return statistics.median(early), statistics.median(late)


def main() -> int:
    """Measure and print; 1 if a late turn costs more than `MOST` of an early one."""
    options = argparse.ArgumentParser(prog="make bench-task-turns", description=__doc__)
    options.add_argument("--turns", type=int, default=1000, help="of the long task")
    given = options.parse_args()
    early, late = asyncio.run(measure(given.turns))
    print(
        f"CPU of a turn: {early * 1000:.1f} ms at turn 50, {late * 1000:.1f} ms at turn "
        f"{given.turns}: {late / early:.2f} of it"
    )
    return 0 if late <= MOST * early else 1


if __name__ == "__main__":
    raise SystemExit(main())
