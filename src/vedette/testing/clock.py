"""ManualClock: time that passes only when a test says so."""

from __future__ import annotations

import asyncio
import heapq

# How often the loop is let run before it is taken to be idle. A task that needs more turns than
# this between two sleeps must be awaited by the test itself.
_TURNS = 50


class ManualClock:
    """A Clock for tests. Instants and durations are integer microseconds.

    Those who sleep wake in the order of their instants, and of their calls where these are equal.
    `boot` names the run of the monotonic clock, where a test wants it to outlast a process.
    """

    def __init__(self, now_us: int = 1_750_000_000_000_000, boot: str | None = None) -> None:
        self.boot = boot
        self._now_us = now_us
        self._monotonic_us = 0
        self._sleep_count = 0
        self._sleepers: list[tuple[int, int, asyncio.Future[None]]] = []

    def now_us(self) -> int:
        """Return the wall clock."""
        return self._now_us

    def monotonic_us(self) -> int:
        """Return how far the clock was advanced since it was made."""
        return self._monotonic_us

    async def sleep_until(self, at_us: int) -> None:
        """Return when the clock was advanced as far as `at_us` is now; else let others run once."""
        if at_us <= self._now_us:
            await asyncio.sleep(0)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleep_count += 1
        at = self._monotonic_us + at_us - self._now_us
        heapq.heappush(self._sleepers, (at, self._sleep_count, future))
        await future

    def advance(self, by_us: int) -> None:
        """Let time pass at once: who sleeps until then wakes, and sees the later instant."""
        if by_us < 0:
            raise ValueError("time does not go back; use set_wall for a wall clock that was set")
        self._now_us += by_us
        self._monotonic_us += by_us
        self._wake_due()

    async def elapse(self, by_us: int) -> None:
        """Let time pass from sleeper to sleeper, each waking at its own instant."""
        await run_ready_tasks()
        end = self._monotonic_us + by_us
        while True:
            left = end - self._monotonic_us
            first = self._next_wake_us()
            step = left if first is None else min(left, max(0, first - self._monotonic_us))
            self.advance(step)
            await run_ready_tasks()
            if step == left:
                return

    def set_wall(self, now_us: int) -> None:
        """Set the wall clock, forward or back; the monotonic clock stays, and so do sleepers."""
        self._now_us = now_us

    @property
    def sleepers(self) -> int:
        """Return how many sleep now."""
        return sum(not future.done() for _, _, future in self._sleepers)

    def _next_wake_us(self) -> int | None:
        while self._sleepers and self._sleepers[0][2].done():
            heapq.heappop(self._sleepers)
        return self._sleepers[0][0] if self._sleepers else None

    def _wake_due(self) -> None:
        while self._sleepers and self._sleepers[0][0] <= self._monotonic_us:
            _, _, future = heapq.heappop(self._sleepers)
            if not future.done():
                future.set_result(None)


async def run_ready_tasks() -> None:
    """Let every task of a test that is ready run, until all wait for something."""
    for _ in range(_TURNS):
        await asyncio.sleep(0)
