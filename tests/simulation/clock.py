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

    @property
    def boot(self) -> str:
        """Return which run of its machine whoever asks is in."""
        owner = OWNER.get()
        return f"boot {owner.boots if owner is not None else 0}"

    def monotonic_us(self) -> int:
        """Return microseconds of the loop's clock."""
        return round(self._loop.time() * 1e6)

    async def sleep_until(self, at_us: int) -> None:
        """Return when as much time has passed as lies between now and an instant."""
        await asyncio.sleep(max(0, at_us - self.now_us()) / 1e6)
