"""The engine's Clock port in simulated time."""

from __future__ import annotations

import asyncio

from tests.simulation.loop import OWNER, SimLoop


class SimClock:
    """The wall clock is that of the machine which asks, right or wrong; monotonic the loop's."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop

    def now_us(self) -> int:
        """Return the wall clock of whoever asks."""
        owner = OWNER.get()
        return self._loop.now_us() + (owner.wall_offset_us if owner is not None else 0)

    def monotonic_us(self) -> int:
        """Return microseconds of the loop's clock."""
        return round(self._loop.time() * 1e6)

    async def sleep_until(self, at_us: int) -> None:
        """Return when the wall clock of whoever asks has reached an instant."""
        while (left := at_us - self.now_us()) > 0:  # noqa: ASYNC110 (the wall clock may jump)
            await asyncio.sleep(min(left / 1e6, 3600))
