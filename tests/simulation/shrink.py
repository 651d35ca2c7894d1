"""Making a plan smaller while it still shows its violation (delta debugging).

Zeller, Hildebrandt, "Simplifying and Isolating Failure-Inducing Input" (2002): leave out ever
smaller parts as long as the rest still fails. First operations, then single events, then what
events ask for; then durations are halved and workers left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from tests.simulation.plan import Delivery, Operation, Plan

T = TypeVar("T")
Fails = Callable[[Plan], bool]


def shrink(plan: Plan, fails: Fails, tries: int = 400) -> Plan:
    """Return a smaller plan for which `fails` is still true, after at most `tries` tries.

    A plan that does not fail by itself is returned as it is.
    """
    left = tries

    def still(candidate: Plan) -> bool:
        nonlocal left
        left -= 1
        return left >= 0 and fails(candidate)

    if not still(plan):
        return plan
    before = None
    while plan != before and left > 0:
        before = plan
        plan = _fewer_operations(plan, still)
        plan = _fewer_events(plan, still)
        for candidate in _simpler(plan):
            if candidate != plan and still(candidate):
                plan = candidate
                break
    return plan


def _fewer_operations(plan: Plan, still: Fails) -> Plan:
    kept = minimize(plan.operations, lambda ops: still(replace(plan, operations=tuple(ops))))
    return replace(plan, operations=tuple(kept))


def _fewer_events(plan: Plan, still: Fails) -> Plan:
    """Leave out single events of each delivery, and what they ask for."""
    for at, operation in enumerate(plan.operations):
        if len(operation.events) > 1:

            def enough(events: Sequence[Delivery], plan: Plan = plan, at: int = at) -> bool:
                return still(_with(plan, at, events=tuple(events)))

            plan = _with(plan, at, events=tuple(minimize(operation.events, enough)))
    for at, operation in enumerate(plan.operations):
        for nth, event in enumerate(operation.events):
            for tool in range(len(event.tools)):
                tools = event.tools[:tool] + event.tools[tool + 1 :]
                events = list(plan.operations[at].events)
                events[nth] = replace(event, tools=tools)
                candidate = _with(plan, at, events=tuple(events))
                if still(candidate):
                    plan = candidate
                    break
    return plan


def _simpler(plan: Plan) -> Iterator[Plan]:
    """Give plans with one thing simpler: fewer workers, a shorter fault, no second delivery."""
    if plan.workers > 1:
        fewer = plan.workers - 1
        operations = [replace(one, worker=min(one.worker, fewer - 1)) for one in plan.operations]
        yield replace(plan, workers=fewer, operations=tuple(operations))
    for at, one in enumerate(plan.operations):
        if one.for_s > 0.1:
            yield _with(plan, at, for_s=round(one.for_s / 2, 3))
        if one.again:
            yield _with(plan, at, again=False)


def _with(plan: Plan, at: int, **change: object) -> Plan:
    operations: list[Operation] = list(plan.operations)
    operations[at] = replace(operations[at], **change)  # type: ignore[arg-type]
    return replace(plan, operations=tuple(operations))


def minimize(parts: Sequence[T], fails: Callable[[Sequence[T]], bool]) -> Sequence[T]:
    """Return of `parts`, for which `fails` is true, what is left once nothing can be left out."""
    size = max(1, len(parts) // 2)
    while parts:
        at, smaller = 0, False
        while at < len(parts):
            rest = [*parts[:at], *parts[at + size :]]
            if fails(rest):
                parts, smaller = rest, True
            else:
                at += size
        if size == 1 and not smaller:
            break
        if not smaller:
            size = max(1, size // 2)
    return parts
