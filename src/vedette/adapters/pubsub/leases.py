"""What a source has out from its broker: how much, since when, and what must be extended."""

from __future__ import annotations

import asyncio
from dataclasses import field

from vedette.domain.base.dataclass import dataclass


@dataclass(slots=True)
class Held:
    """One delivery that is not settled: its bytes, when it came, and when it was extended (µs)."""

    octets: int
    came_us: int
    extended_us: int


@dataclass(slots=True)
class Leases:
    """Deliveries by ack id. A delivery that came again under another id counts again.

    `most` and `most_octets` are how many and how many bytes may be out before nothing more is
    read; one delivery is always let in, however large. `held` are those whose leases are ours,
    `kept` the bytes of those whose messages are in memory: each is bounded by itself, since a
    lease may outlast its message and a message its lease.
    """

    most: int
    most_octets: int
    octets: int = 0
    held: dict[str, Held] = field(default_factory=dict)
    kept: dict[tuple[int, str], int] = field(default_factory=dict)
    kept_octets: int = 0
    _room: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._room.set()

    def take(self, ack_id: str, octets: int, now_us: int) -> None:
        """Take a delivery."""
        if ack_id in self.held:
            return
        self.held[ack_id] = Held(octets, now_us, now_us)
        self.octets += octets
        if not self._fits():
            self._room.clear()

    def drop(self, ack_id: str) -> None:
        """Let go of a delivery; it may be gone already."""
        gone = self.held.pop(ack_id, None)
        if gone is None:
            return
        self.octets -= gone.octets
        if self._fits():
            self._room.set()

    def clear(self) -> None:
        """Let go of all leases."""
        self.held.clear()
        self.octets = 0
        if self._fits():
            self._room.set()

    def keep(self, delivery: tuple[int, str], octets: int) -> None:
        """Count a message that is in memory, by the broker's life and the ack id."""
        if delivery in self.kept:
            return
        self.kept[delivery] = octets
        self.kept_octets += octets
        if not self._fits():
            self._room.clear()

    def let_go(self, delivery: tuple[int, str]) -> None:
        """Count a message no more; it may be gone already."""
        self.kept_octets -= self.kept.pop(delivery, 0)
        if self._fits():
            self._room.set()

    def _fits(self) -> bool:
        return (
            len(self.held) < self.most
            and len(self.kept) < self.most
            and self.octets < self.most_octets
            and self.kept_octets < self.most_octets
        )

    @property
    def full(self) -> bool:
        """Say whether nothing more may be read now."""
        return not self._room.is_set()

    async def room(self) -> None:
        """Return when something more may be read."""
        await self._room.wait()

    def due(self, now_us: int, *, age_us: int, oldest_us: int) -> tuple[list[str], list[str]]:
        """Return what to extend, and what was held for too long and is extended no more.

        What was extended less than `age_us` ago can wait; what came more than `oldest_us` ago is
        dropped here: the broker gives it to somebody else.
        """
        late = [ack for ack, each in self.held.items() if now_us - each.came_us > oldest_us]
        for ack in late:
            self.drop(ack)
        due = [ack for ack, each in self.held.items() if now_us - each.extended_us >= age_us]
        for ack in due:
            self.held[ack].extended_us = now_us
        return due, late
