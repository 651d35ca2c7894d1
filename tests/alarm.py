"""One series whose alarm nobody could overlook: its webhook is called once people approved it."""

from __future__ import annotations

import random

from vedette.domain.event import Event
from vedette.testing.harness import FleetHarness


def series() -> list[Event]:
    """Return 160 rows that look alike, and one among them that does not."""
    draw = random.Random(1)
    return [
        Event(
            "csv:pump", f"pump@{row}", "metric.point", "pump",
            f"2026-05-01T{row // 60:02d}:{row % 60:02d}:00Z",
            {"value": f"{500 if row == 150 else 50 + draw.random():.4f}"},
        )
        for row in range(160)
    ]  # fmt: skip


async def sound(fleet: FleetHarness) -> None:
    """Send the series and approve all that is held."""
    await fleet.send(*series())
    await fleet.wait_until_idle()
    for row in fleet.app.store.runs.holds_page(after=0, limit=200):
        await fleet.approve(row)
    await fleet.wait_until_idle()
