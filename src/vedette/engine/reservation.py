"""Reserve: the worst case of a turn is booked before anything is spent.

A judge spends nothing. What a model may spend at worst (calls, tokens, money) is booked durably
before it is asked, against the limits of its run, its agent and the fleet, and settled with its
turn: a crash in between can only overcount. Where there is no room the run waits, durably, until
the window turns, another run gives room back, or a person raises the limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from vedette.domain.agent import Agent
from vedette.domain.base.errors import BadFleet, Permanent
from vedette.domain.budget import Budgets, Cap, Reservation, Shortage, used, worst_case
from vedette.domain.compensation import is_undo
from vedette.domain.conflict import Fenced, OverBudget, Superseded
from vedette.domain.entry import Draft
from vedette.domain.ports import Thought
from vedette.engine.run_context import Case
from vedette.engine.services import Line


async def reserve(line: Line, case: Case, now: int) -> bool:
    """Book a turn's worst case; False if there is no room, then the run waits for its budget.

    Raises Permanent if the run has had all the turns that its agent may take, Superseded if its
    turns have no worst case in what is limited by now (`pause_unbounded`).
    """
    agent = case.agent
    if agent.reasoner == "judge" or is_undo(case.event):
        return True
    if case.run.turn >= agent.max_turns:
        raise Permanent(f"the run wanted more than {agent.max_turns} turns")
    while True:
        revision = line.gateway.policy_rev
        if (gap := gap_of(line.budgets, agent)) is not None:
            raise Superseded(f"{agent.name}: {gap}")
        worst = worst_case(agent.budget, line.budgets.price(agent.budget))
        limits = limits_of(line, case, worst)
        booked = case.entry("budget.reserved", turn=case.run.turn + 1, spend=worst)
        step = case.step([booked], [], now, spend=worst, limits=limits, policy_rev=revision)
        try:
            await case.commit(step)
        except OverBudget as error:
            if await wait_for_room(line, case, worst, limits, error.shortage, revision, now):
                return False
        except Fenced:
            pass
        else:
            case.reservation = Reservation(worst, now, case.run.last)
            return True
        now = line.clock.now_us()


def gap_of(budgets: Budgets, agent: Agent) -> str | None:
    """Say why an agent's turns have no worst case in what is limited; None if they have one."""
    if agent.reasoner == "judge":
        return None
    return budgets.gaps(agent.name, agent.budget)


def pause_unbounded(line: Line) -> None:
    """Have agents begin nothing here while their turns have no worst case in what is limited.

    To be asked whenever another release or another revision is live here. Nothing like that is
    released or published; but a worker may hear of one when it is so already, of releases that
    who published did not have at hand.
    """
    for agent in line.fleet.agents.values():
        if gap_of(line.budgets, agent) is None:
            line.stops.go_on(agent.name, "budget")
        else:
            line.stops.pause(agent.name, "budget")


def refuse_unbounded(line: Line) -> None:
    """Raise BadFleet if the live limits cannot be kept for an agent that was changed meanwhile."""
    for agent in line.fleet.agents.values():
        if (gap := gap_of(line.budgets, agent)) is not None:
            mend = "mend its agent.yaml, or policies/budgets/data.yaml"
            raise BadFleet(f"{agent.name}: {gap}", where=f"{agent.name}/agent.yaml", mend=mend)


def limits_of(line: Line, case: Case, worst: Mapping[str, int]) -> list[Cap]:
    """Return every limit on a turn: the run's own, with what it has used, then by hour and day."""
    agent, units = case.agent, tuple(worst)
    # The run may have booked turns that a crash kept it from taking: they count.
    before = line.store.reserved(case.run.id) if case.run.entries else {}
    limits = [
        Cap("run", unit, "run", most, before.get(unit, 0))
        for unit in units
        if (most := agent.budget.limit(unit, "run")) is not None
    ]
    return [*limits, *line.budgets.caps(agent.name, agent.budget, units)]


async def wait_for_room(
    line: Line,
    case: Case,
    worst: Mapping[str, int],
    limits: list[Cap],
    shortage: Shortage,
    revision: int,
    now: int,
) -> bool:
    """Record the refusal and let the run wait; False if there is room by now."""
    refused = case.entry("budget.refused", turn=case.run.turn + 1, **shortage.fields())
    step = case.step([refused], [], now, lacking=worst, limits=limits, policy_rev=revision)
    step = replace(step, state="waiting", wake_us=shortage.until_us, waits="budget")
    try:
        await case.commit(step)
    except Fenced:
        return False
    tell_refused(line, case, shortage)
    return True


def tell_refused(line: Line, case: Case, shortage: Shortage) -> None:
    """Count a refusal."""
    line.metrics.count(
        "budget_refusals", agent=case.agent.name, scope=shortage.scope, unit=shortage.unit,
        window=shortage.span,
    )  # fmt: skip


def settle(
    line: Line, case: Case, thought: Thought
) -> tuple[list[Draft], dict[str, int], list[tuple[str, int, int]]]:
    """Return what settles a turn: its entry, what it spent beyond, and what it gives back.

    What it spent beyond its worst case (a vendor's own retries, say) is counted all the same: it
    is gone.
    """
    held = case.reservation
    if held is None:
        return [], {}, []
    budget = case.agent.budget
    spent = used(budget, line.budgets.price(budget), thought.model_calls, thought.spent)
    beyond, returns = {}, []
    for unit in sorted({*held.spend, *spent}):
        over = spent.get(unit, 0) - held.spend.get(unit, 0)
        if unit not in spent:
            # Its price went with a new revision: what was booked stays booked.
            spent[unit] = held.spend[unit]
        elif over > 0:
            beyond[unit] = over
        elif over < 0:
            returns.append((unit, held.at_us, -over))
    turn = case.run.turn + 1
    return [case.entry("budget.settled", after=held.seq, turn=turn, spend=spent)], beyond, returns
