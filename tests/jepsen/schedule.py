"""What happens when, drawn by one seed before anything runs: faults, orders of people, bursts.

The schedule is the seed's; what meets what is real time's, so a seed names a schedule and not a
history. A pause after every sixth fault lets the fleet come back to where it works: faults of a
fleet that never works find little.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.jepsen.fleet import AGENTS

# Each kind of fault: how often, in parts; its shortest and its longest duration in seconds.
EITHER = {
    "kill": (6, 0.1, 3.0), "freeze": (4, 0.5, 8.0), "worker death": (3, 0.0, 0.0),
    "late targets": (5, 4.0, 12.0), "failing targets": (3, 3.0, 8.0),
    "silent targets": (2, 2.0, 5.0), "unreadable targets": (2, 3.0, 8.0),
    "stop": (5, 0.5, 4.0), "publish": (3, 1.0, 5.0), "burst": (4, 0.0, 0.0),
}  # fmt: skip
POSTGRES = {
    "stall": (5, 1.0, 12.0), "drop": (4, 0.0, 0.0), "slow": (2, 3.0, 8.0),
    "shutdown": (2, 0.2, 4.0),
}  # fmt: skip
OUTAGES = ("targets", "store", "both", "failover")
OUTAGE_FROM_S, FAILOVER_S = 10.0, 60.0
# Of these one lasts at a time.
TARGETS = ("late targets", "failing targets", "silent targets", "unreadable targets")
OF_A_WORKER = ("kill", "freeze", "worker death", "stall", "drop", "slow")
ORDERS = ("stop", "publish", "burst", "look", "copy")  # of people and sources: nothing breaks
SCOPES = (
    *(f"agent:{name}" for name in AGENTS),
    "tool:order.place", "tool:parcel.send", "tool:lamp.set", "tool:wire.send", "all:",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Planned:
    """A fault or an order: when, what, for how long, and where: a worker's number, or a scope."""

    at_s: float
    what: str
    for_s: float
    where: str


def draw_schedule(seed: int, seconds: float, *, workers: int) -> list[Planned]:
    """Return what happens within `seconds`, in order; with several workers they share a server."""
    draw = random.Random(f"jepsen {seed}")
    kinds = EITHER | (POSTGRES if workers > 1 else {})
    found: list[Planned] = []
    at_s, targets_until_s = 3.0, 0.0
    while at_s < seconds - 4:
        what = draw.choices(list(kinds), [parts for parts, _, _ in kinds.values()])[0]
        _, least, most = kinds[what]
        for_s = round(min(draw.uniform(least, most), seconds - at_s - 2), 2)
        if what in TARGETS:
            if at_s < targets_until_s:
                at_s += 0.3
                continue
            targets_until_s = at_s + for_s
        where = draw.choice(SCOPES) if what == "stop" else ""
        if what in OF_A_WORKER:
            where = str(draw.randrange(workers))
        found.append(Planned(round(at_s, 2), what, for_s, where))
        # Half of the time the next one comes while this one lasts.
        at_s += draw.uniform(0.2, 2.0) + (0 if draw.random() < 0.5 else for_s)
        if len(found) % 6 == 0:
            at_s += draw.uniform(2.0, 5.0)
    return found


def draw_outage(seed: int, for_s: float, *, workers: int, what: str) -> tuple[list[Planned], float]:
    """Return one long outage, what people and machines do meanwhile, and how long all takes.

    A cut of the network to the `targets`, the `store` or `both`: with two stops, a kill, and a look
    at what people are told. Or a `failover` to a copy of the server that is so many seconds old.
    """
    draw = random.Random(f"jepsen {what} {seed}")

    def within(part: float, what: str, lasts: float, place: str) -> Planned:
        return Planned(round(OUTAGE_FROM_S + part * for_s, 2), what, round(lasts, 2), place)

    if what == "failover":
        return [
            within(0, "copy", 0.0, ""),
            within(1, "failover", draw.uniform(1.0, 4.0), ""),
        ], OUTAGE_FROM_S + for_s + FAILOVER_S
    return [
        within(0, "cut", for_s, what),
        within(0.2, "stop", 0.2 * for_s, draw.choice(SCOPES[:-1])),
        within(0.3, "kill", 1.0, str(draw.randrange(workers))),
        within(0.55, "stop", 0.25 * for_s, SCOPES[-1]),
        within(0.65, "look", 0.0, ""),
    ], OUTAGE_FROM_S + for_s
