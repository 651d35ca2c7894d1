"""Leases of Pub/Sub deliveries: how much a source has out, since when, what must be extended."""

from __future__ import annotations

import asyncio

from msgspec import Struct, field


class Lease(Struct):
    """One Pub/Sub delivery not settled: its bytes, when it came, and when it was extended (µs)."""

    octets: int
    received_us: int
    extended_us: int


class Leases(Struct):
    """Pub/Sub deliveries by ack id; one that came again under another id counts again.

    `max_deliveries` and `max_octets` are how many and how many bytes may be out before nothing more
    is read; one delivery is always let in, however large. `active` are those whose leases are ours,
    `messages` the bytes of those whose messages are in memory: each is bounded by itself, since a
    lease may outlast its message and a message its lease.
    """

    max_deliveries: int
    max_octets: int
    octets: int = 0
    active: dict[str, Lease] = field(default_factory=dict)
    messages: dict[tuple[int, str], int] = field(default_factory=dict)
    message_octets: int = 0
    _has_room: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._has_room.set()

    def add_lease(self, ack_id: str, octets: int, now_us: int) -> None:
        """Take a delivery."""
        if ack_id in self.active:
            return
        self.active[ack_id] = Lease(octets, now_us, now_us)
        self.octets += octets
        if not self._is_below_bounds():
            self._has_room.clear()

    def drop_lease(self, ack_id: str) -> None:
        """Let go of a delivery; it may be gone already."""
        lease = self.active.pop(ack_id, None)
        if lease is None:
            return
        self.octets -= lease.octets
        if self._is_below_bounds():
            self._has_room.set()

    def clear_leases(self) -> None:
        """Let go of all leases."""
        self.active.clear()
        self.octets = 0
        if self._is_below_bounds():
            self._has_room.set()

    def add_message(self, delivery: tuple[int, str], octets: int) -> None:
        """Count a message that is in memory, by the broker's life and the ack id."""
        if delivery in self.messages:
            return
        self.messages[delivery] = octets
        self.message_octets += octets
        if not self._is_below_bounds():
            self._has_room.clear()

    def drop_message(self, delivery: tuple[int, str]) -> None:
        """Count a message no more; it may be gone already."""
        self.message_octets -= self.messages.pop(delivery, 0)
        if self._is_below_bounds():
            self._has_room.set()

    def _is_below_bounds(self) -> bool:
        return (
            len(self.active) < self.max_deliveries
            and len(self.messages) < self.max_deliveries
            and self.octets < self.max_octets
            and self.message_octets < self.max_octets
        )

    @property
    def is_full(self) -> bool:
        """Say whether nothing more may be read now."""
        return not self._has_room.is_set()

    async def wait_for_room(self) -> None:
        """Return when something more may be read."""
        await self._has_room.wait()

    def select_due(
        self, now_us: int, *, age_us: int, oldest_us: int
    ) -> tuple[list[str], list[str]]:
        """Return what to extend, and what was held for too long and is extended no more.

        What was extended less than `age_us` ago can wait; what came more than `oldest_us` ago is
        dropped here: the broker gives it to somebody else.
        """
        expired = [
            ack for ack, each in self.active.items() if now_us - each.received_us > oldest_us
        ]
        for ack in expired:
            self.drop_lease(ack)
        due = [ack for ack, each in self.active.items() if now_us - each.extended_us >= age_us]
        for ack in due:
            self.active[ack].extended_us = now_us
        return due, expired
