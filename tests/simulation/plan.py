"""A plan: what is to happen in one history, as plain data made of one seed.

It says what the world does to the engine and when: deliveries, people's orders, faults. It does
not say what comes of it. Each seed turns on some kinds of orders and faults only (swarm testing:
Groce et al., "Swarm Testing", ISSTA 2012): what hides one violation is then missing in another
history. Being data, a plan can be kept in a file, played again, and made smaller.
"""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass, field, replace
from typing import Any

AGENTS = ("ant", "bee", "cat")
CALLS = ("wire.send", "order.place", "bell.ring")
ROW, HELD = "note.add", "big.send"
TOOLS = (*CALLS, ROW, HELD)
# The tool that the stricter policy denies.
DENIED = "wire.send"

ORDERS = ("stop", "publish", "answer", "erase", "rotate", "archive", "failover")
FAULTS = ("kill", "point", "freeze", "stall", "drop", "duplicate", "reorder", "slow", "clock",
          "cut", "io", "full", "away", "death")  # fmt: skip
DISK_FAULTS, RESTARTS = ("cut", "io", "full"), ("kill", "point", "cut")
# How often the fleet was founded before.
_FOUNDED = 0.9
# Which of them there are on which store; the others have nothing to bite on there.
ONLY = {"sqlite": ("rotate", "cut", "io", "full"), "postgresql": ("drop", "away")}


@dataclass(frozen=True)
class Delivery:
    """One event of a source: whom it wakes (an agent, or `all`), its key, and what it asks for."""

    name: str
    wakes: str
    key: str
    value: int
    tools: tuple[str, ...] = ()


@dataclass(frozen=True)
class Operation:
    """One thing that happens to the engine at an instant; `do` says what, the rest how.

    `deliver`: source `what` hands over `events`, `again` at once to a second worker too.
    `stop`, `resume`: of `what`. `publish`: the policy `what`. `answer`: every open hold, `what` is
    yes or no. `erase`: the event named `what`. `rotate`. `archive`: all that is closed. `backup`:
    the store is copied. `failover`: that copy takes the store's place.
    `kill`, `cut` (its power), `freeze`, `stall`, `drop`, `clock` (the wall by `for_s`), `io` (the
    `n`-th call `what` fails), `full` (but for `n` bytes): at `worker`. `point`: kill at its `n`-th
    crash point from now. `death`: of the process of the agent `what`, at the `n`-th thing that is
    asked of it there from now. `away`: the server. `slow`: the targets.
    """

    at_s: float
    do: str
    what: str = ""
    worker: int = 0
    for_s: float = 0.0
    n: int = 0
    again: bool = False
    events: tuple[Delivery, ...] = ()


@dataclass(frozen=True)
class Plan:
    """A whole history to come. `seed` also draws what the plan leaves open, such as latencies.

    The fleet was `founded` before, or its workers found it as they come up.
    """

    seed: int
    store: str
    workers: int
    operations: tuple[Operation, ...] = field(default=())
    founded: bool = False

    @property
    def deliveries(self) -> list[Delivery]:
        """Return all events."""
        return [event for operation in self.operations for event in operation.events]

    def to_json(self) -> str:
        """Return the plan as text."""
        return json.dumps(_short(asdict(self)), indent=1) + "\n"


def from_json(text: str) -> Plan:
    """Return the plan that `Plan.to_json` wrote."""
    document = json.loads(text)
    operations = []
    for each in document.get("operations", ()):
        events = [Delivery(**one | {"tools": tuple(one.get("tools", ()))})
                  for one in each.pop("events", ())]  # fmt: skip
        operations.append(Operation(**each, events=tuple(events)))
    founded = document.get("founded", False)
    return Plan(
        document["seed"], document["store"], document["workers"], tuple(operations), founded
    )


def _short(answer: Any) -> Any:
    """Leave out what is empty."""
    if isinstance(answer, dict):
        keep = ("seed", "store", "workers", "at_s", "value", "key")
        return {name: _short(it) for name, it in answer.items() if it or name in keep}
    return [_short(it) for it in answer] if isinstance(answer, list | tuple) else answer


@dataclass(frozen=True)
class Size:
    """How large a plan is made: events, orders of people and faults, over how long.

    Of the faults there are `least` at least; one worker alone is started anew then, whatever else.
    """

    events: int = 24
    orders: int = 3
    faults: int = 3
    over_s: float = 3.0
    least: int = 0


TINY = Size(events=6, orders=1, faults=1, over_s=0.6, least=1)
SHORT = Size()
LONG = Size(events=200, orders=8, faults=8, over_s=12.0)


def make_plan(seed: int, size: Size = SHORT, store: str = "", workers: int = 0) -> Plan:
    """Return the plan of a seed. `store` and `workers` are drawn unless they are given."""
    draw = random.Random(f"plan/{seed}")
    drawn = draw.choice(("sqlite", "postgresql"))
    store = store or drawn
    workers = 1 if store == "sqlite" else workers or 3
    missing = {name for other, names in ONLY.items() if other != store for name in names}
    orders = [name for name in ORDERS if name not in missing and draw.random() < 0.5]
    if "failover" in orders and "archive" in orders:
        # A segment of history that is lost is moved away by hand first.
        orders.remove(draw.choice(("failover", "archive")))
    faults = [name for name in FAULTS if name not in missing and draw.random() < 0.4]
    made = _deliveries(draw, size)
    for _ in range(draw.randint(0, size.orders) if orders else 0):
        made += _order(draw, size, draw.choice(orders), made)
    if size.least and workers == 1:
        made += _fault(draw, size, draw.choice(RESTARTS), workers)
    if size.least and not faults:
        faults = [draw.choice([name for name in FAULTS if name not in missing])]
    for _ in range(draw.randint(size.least, size.faults) if faults else 0):
        made += _fault(draw, size, draw.choice(faults), workers)
    made.sort(key=lambda one: one.at_s)
    return Plan(seed, store, workers, tuple(made), draw.random() < _FOUNDED)


def _deliveries(draw: random.Random, size: Size) -> list[Operation]:
    """Spread the events over sources; some hand over many at once, so that there is a backlog."""
    sources, keys = draw.randint(1, 4), draw.randint(1, 5)
    burst, repeat = draw.choice((1, 1, 4, 16)), draw.choice((0.0, 0.0, 0.2))
    weights = [draw.random() + 0.05 for _ in TOOLS]
    made: list[Operation] = []
    value = 0
    while value < size.events:
        events = []
        for _ in range(min(draw.randint(1, burst), size.events - value)):
            value += 1
            tools = draw.choices(TOOLS, weights, k=draw.randint(0, 3))
            wakes = draw.choice((*AGENTS, *AGENTS, *AGENTS, "all"))
            key = f"k{draw.randrange(keys)}"
            events.append(Delivery(f"e{value}", wakes, key, value, tuple(tools)))
        at_s, what = _instant(draw, size), f"s{draw.randrange(sources)}"
        twice = draw.random() < repeat
        made.append(Operation(at_s, "deliver", what, again=twice, events=tuple(events)))
    return made


def _order(draw: random.Random, size: Size, what: str, made: list[Operation]) -> list[Operation]:
    """Return one order of a person, with what undoes it."""
    at_s = _instant(draw, size)
    later_s = round(at_s + draw.uniform(0.05, 1.5), 3)
    if what == "stop":
        agents, tools = (f"agent:{name}" for name in AGENTS), (f"tool:{name}" for name in TOOLS)
        name = draw.choice([*agents, *tools, "all:"])
        return [Operation(at_s, "stop", name), Operation(later_s, "resume", name)]
    if what == "publish":
        return [Operation(at_s, "publish", "strict"), Operation(later_s, "publish", "base")]
    if what == "answer":
        return [Operation(at_s, "answer", draw.choice(("yes", "no")))]
    if what == "erase":
        return [Operation(at_s, "erase", draw.choice([e for o in made for e in o.events]).name)]
    if what == "failover":
        if draw.random() < 0.5:  # beyond a lease: keys have moved in what is lost
            later_s = round(at_s + draw.uniform(1.5, 6.0), 3)
        return [Operation(at_s, "backup"), Operation(later_s, "failover")]
    return [Operation(at_s, what)]


def _fault(draw: random.Random, size: Size, what: str, workers: int) -> list[Operation]:
    at_s, worker = _instant(draw, size), draw.randrange(workers)
    for_s = round(draw.choice((draw.uniform(0.05, 0.5), draw.uniform(0.5, 6.0))), 3)
    one = Operation(at_s, what, worker=worker, for_s=for_s)
    if what == "point":
        return [replace(one, for_s=0.0, n=draw.randint(1, 40))]
    if what == "death":
        return [replace(one, for_s=0.0, what=draw.choice(AGENTS), n=draw.randint(1, 20))]
    if what == "clock":
        return [replace(one, for_s=draw.choice((-10800.0, -60.0, 60.0, 288000.0)))]
    if what == "io":
        call = draw.choice(("write", "write", "sync", "truncate"))
        return [replace(one, for_s=0.0, what=call, n=draw.randint(1, 60))]
    if what == "full":
        return [replace(one, n=draw.choice((0, 4096, 65536)))]
    return [one]


def _instant(draw: random.Random, size: Size) -> float:
    return round(draw.uniform(0.0, size.over_s), 3)
