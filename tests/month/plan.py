"""What is to happen on a day of the month, as plain data of its seed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache

from tests.month.content import ASKED, KEEPERS, OBSERVES, TASKED, WRITERS
from tests.month.record import TaskPlan
from tests.simulation.plan import CALLS, HELD, ROW, Delivery, Operation, Plan

DAY_S = 86_400.0
HOUR_S = 3600.0
# Events of a day at rate 1, about: of those whose judges keep values, of series, of letters.
_EVENTS, _POINTS, _LETTERS = 750, 240, 8
# Share of a day's events by the hour of the day.
_HOURS = (1, 1, 1, 1, 2, 4, 7, 9, 10, 10, 9, 8, 8, 9, 9, 8, 7, 6, 4, 3, 2, 2, 1, 1)
_TOOLS = {ROW: 5, "wire.send": 4, "order.place": 2, "bell.ring": 1, HELD: 0.5}
SERIES = ("crane_load", "shore_power", "tide_gauge", "fuel_flow")


@dataclass(frozen=True)
class DayPlan:
    """A day: what happens to the engine (`Plan`), the tasks that people give, the points."""

    number: int
    plan: Plan
    tasks: tuple[TaskPlan, ...]
    points: tuple[tuple[float, str, float], ...]
    letters: tuple[float, ...]


@cache
def make_day(seed: int, number: int, rate: float, first: int) -> DayPlan:
    """Return the plan of a day; `first` is the number of the first task that nobody has given."""
    draw = random.Random(f"month/{seed}/{number}")
    made: list[Operation] = []
    value = 0
    total = round(_EVENTS * rate * draw.uniform(0.6, 1.4) * (0.4 if number % 7 in (5, 6) else 1.1))
    while value < total:
        burst = draw.choice((1, 1, 1, 2, 6, 20))
        at_s, events = _instant(draw), []
        for _ in range(min(burst, total - value)):
            value += 1
            events.append(_delivery(draw, f"d{number}e{value}", value))
        again = draw.random() < 0.08
        what = f"s{draw.randrange(4)}"
        made.append(Operation(at_s, "deliver", what, again=again, events=tuple(events)))
    made += _orders(draw, number)
    made += _faults(draw, number)
    tasks = _tasks(draw, number, first, rate)
    for task in tasks:
        made += _task_orders(draw, task)
    made.sort(key=lambda one: one.at_s)
    plan = Plan(seed * 1000 + number, "sqlite", 1, tuple(made), founded=True)
    points = tuple(
        (DAY_S * at / max(1, round(_POINTS * rate)) + draw.random(), name, _value(draw, number, at))
        for at in range(round(_POINTS * rate))
        for name in (SERIES[at % len(SERIES)],)
    )
    letters = tuple(sorted(_instant(draw) for _ in range(round(_LETTERS * rate + 0.5))))
    return DayPlan(number, plan, tasks, points, letters)


def _instant(draw: random.Random) -> float:
    hour = draw.choices(range(24), _HOURS)[0]
    return round(min(DAY_S - 120, HOUR_S * (hour + draw.random())), 3)


def _delivery(draw: random.Random, name: str, value: int) -> Delivery:
    wakes = draw.choice((*KEEPERS, *KEEPERS, *KEEPERS, *KEEPERS, "all"))
    tools = draw.choices(list(_TOOLS), list(_TOOLS.values()), k=draw.choice((0, 0, 0, 1, 1, 2)))
    return Delivery(name, wakes, f"k{draw.randrange(6)}", value, tuple(tools))


def _value(draw: random.Random, number: int, at: int) -> float:
    base = 100 + draw.gauss(0, 4)
    # On some mornings one crane carries far too much for a while.
    return round(base + (900 if number % 5 == 3 and at % 4 == 0 and 40 <= at <= 70 else 0), 2)


def _orders(draw: random.Random, number: int) -> list[Operation]:
    """Return what people order that day, with what undoes it."""
    made: list[Operation] = []

    def at(low: float = 8.0, high: float = 17.0) -> float:
        return round(HOUR_S * draw.uniform(low, high), 3)

    for _ in range(draw.choice((0, 1, 2))):
        scopes = [f"agent:{name}" for name in (*KEEPERS, *TASKED, *WRITERS)]
        what = draw.choice([*scopes, *(f"tool:{name}" for name in (*CALLS, ROW, HELD)), "all:"])
        began = at()
        hours = draw.choice((0.05, 1.0, 6.0))
        made += [Operation(began, "stop", what), Operation(began + HOUR_S * hours, "resume", what)]
    if draw.random() < 0.4:
        began = at()
        back = began + HOUR_S * draw.uniform(0.5, 5)
        made += [Operation(began, "publish", "strict"), Operation(back, "publish", "base")]
    if draw.random() < 0.35:
        made.append(Operation(at(), "erase"))
    made += [Operation(at(), "undo") for _ in range(draw.choice((0, 1)))]
    made += [Operation(at(), "raise", draw.choice(("fuel_dock", "surveyor", "")))
             for _ in range(draw.random() < 0.3)]  # fmt: skip
    if number % 3 == 1:
        made.append(Operation(at(), "promote"))
    if number % 4 == 3:
        made.append(Operation(at(), "withdraw"))
    if number % 6 == 2:
        made.append(Operation(at(), "release", "berth_keeper"))
    if number % 12 == 9:
        made.append(Operation(at(), "rollback", "berth_keeper"))
    if number % 10 == 5:
        made.append(Operation(at(), "rotate"))
    if number % 7 == 6:
        made.append(Operation(at(), "archive"))
    return made


def _faults(draw: random.Random, number: int) -> list[Operation]:
    made: list[Operation] = []
    for _ in range(draw.randint(1, 3)):
        made.append(Operation(_instant(draw), "kill"))
    for _ in range(draw.randint(0, 2)):
        made.append(Operation(_instant(draw), "point", n=draw.randint(1, 60)))
    for _ in range(draw.randint(0, 2)):
        made.append(Operation(_instant(draw), "freeze", for_s=round(draw.uniform(1, 240), 3)))
    for _ in range(draw.randint(0, 2)):
        made.append(Operation(_instant(draw), "stall", for_s=round(draw.uniform(0.2, 5), 3)))
    for _ in range(draw.randint(0, 2)):
        what = draw.choice((*KEEPERS, *TASKED))
        made.append(Operation(_instant(draw), "death", what, n=draw.randint(1, 20)))
    slow = round(draw.uniform(600, 7200), 3)
    made.append(Operation(_instant(draw), "slow", for_s=slow))
    if draw.random() < 0.4:
        made.append(Operation(_instant(draw), "model", for_s=round(draw.uniform(600, 14400), 3)))
    if draw.random() < 0.4:
        made.append(Operation(_instant(draw), "hook", for_s=round(draw.uniform(600, 7200), 3)))
    made += [Operation(_instant(draw), "duplicate") for _ in range(3)]
    made.append(Operation(_instant(draw), "reorder", for_s=1800.0))
    if number % 4 == 1:
        made.append(Operation(_instant(draw), "cut"))
        call = draw.choice(("write", "write", "sync", "truncate"))
        made.append(Operation(_instant(draw), "io", call, n=draw.randint(1, 60)))
    if number % 4 == 2:
        room = draw.choice((0, 4096, 65536))
        made.append(Operation(_instant(draw), "full", n=room, for_s=round(draw.uniform(5, 300), 3)))
    return made


def _tasks(draw: random.Random, number: int, first: int, rate: float) -> tuple[TaskPlan, ...]:
    made = []
    for at in range(2 if rate < 0.5 else 4):
        agent = draw.choice((*TASKED, *TASKED, *WRITERS))
        name = f"T-{first + at}"
        claims = draw.choice((0, 1, 3))
        person = draw.random() < 0.3
        deadline = draw.choice(("", "", "2d"))
        if agent in TASKED:
            items = tuple(f"i{at}" for at in range(1, draw.choice((3, 6, 12, 25)) + 1))
            few = [one for one in items if draw.random() < 0.1]
            asked = tuple(one for one in items if draw.random() < 0.06)
            free = tuple(one for one in items if one not in (*asked, *few))
            delegates = free[:1] if agent in ASKED and draw.random() < 0.6 else ()
            plan = TaskPlan(
                name, agent, items, claims=claims, person=person, deadline=deadline,
                refuses=tuple(few[:1]),
                asks=asked,
                repeats=free[-1:], delegates=delegates, waits=free[2:4],
                stands=tuple(one for one in items if draw.random() < 0.05)[:1],
            )  # fmt: skip
        else:
            letters = draw.choice((4, 12, 30))
            asks = tuple(str(draw.randint(1, letters)) for _ in range(draw.choice((0, 0, 1))))
            plan = TaskPlan(
                name, agent, letters=letters, claims=claims, person=person, deadline=deadline,
                asks=asks,
            )  # fmt: skip
        made.append(plan)
    return tuple(made)


def _task_orders(draw: random.Random, task: TaskPlan) -> list[Operation]:
    """Return when a task is given, and what people say of it while it is at work."""
    given_s = round(HOUR_S * draw.uniform(7, 15), 3)
    made = [Operation(given_s, "start", task.name)]
    later = round(given_s + draw.choice((0.05, 0.5, 20, 3600)), 3)
    if len(task.waits) > 1 and draw.random() < 0.7:
        turned = round(given_s + HOUR_S * draw.uniform(2.2, 6), 3)
        made.append(Operation(turned, "tide", task.name))
    word = draw.random()
    if word < 0.25:
        until = round(later + HOUR_S * draw.uniform(0.2, 8), 3)
        made += [Operation(later, "pause", task.name), Operation(until, "go_on", task.name)]
    elif word < 0.4:
        made.append(Operation(later, "steer", task.name))
    elif word < 0.48:
        made.append(Operation(later, "cancel", task.name))
    return made


def is_observed(agent: str) -> bool:
    """Say whether an agent's actions are counted and not done."""
    return agent == OBSERVES
