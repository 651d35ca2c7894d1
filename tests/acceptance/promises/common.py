"""What the tests of several promises share."""

from __future__ import annotations

from vedette.domain.event import Event
from vedette.domain.run import ActionRow
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import note_proposal, send_proposal

SECOND = 1_000_000

MIXED = [
    send_proposal("a"),
    send_proposal("b", "order.place"),
    send_proposal("c", "bell.ring"),
    send_proposal("d", "big.send"),
    send_proposal("e", to="x@evil.example"),
    note_proposal("f"),
]

WIDE = """\
hops: 8
actions: {default: {minute: 100000, hour: 100000, day: 100000}}
confidence_milli: {default: 800}
complete: true
"""


def first(fleet: FleetHarness, event: Event) -> ActionRow:
    return fleet.actions(event)[0]


def state(fleet: FleetHarness, event: Event) -> str:
    return fleet.runs(event)[0].state


async def approve(fleet: FleetHarness, row: ActionRow) -> None:
    await fleet.approve(row, "it is right")
