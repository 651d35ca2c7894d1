"""The ports of sources: where events come from, and where they are handed over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from vedette.domain.event import Event


class Refused(Struct, frozen=True):
    """A refused delivery, which is no event: what it was (bounded), where, why and the mend.

    `event` (a key) and `subject` are what its content is found and erased by, where known.
    """

    where: str
    why: str
    raw: bytes = b""
    event: str | None = None
    subject: str | None = None


class Receipt(Struct, frozen=True):
    """What became of one delivery, told after the commit: the broker may forget it now."""

    status: str  # accepted | duplicate | refused
    event: str | None = None
    runs: tuple[str, ...] = ()
    error: str | None = None


class Intake(Protocol):
    """The port where sources hand over. Returns only when all is durable; awaits under load."""

    async def accept(
        self, deliveries: Sequence[Event | Refused], *, position: tuple[str, str] | None = None
    ) -> list[Receipt]:
        """Make a batch durable. `position` (source name, where to go on) moves with it."""
        ...

    def position(self, source: str) -> str | None:
        """Return where the source was, as of the last durable batch."""
        ...


class Source(Protocol):
    """The port of where events come from. `finite` sources end by returning from `deliver`."""

    name: str
    finite: bool

    async def deliver(self, intake: Intake) -> None:
        """Hand over batches until there is no more (finite) or until cancelled."""
        ...
