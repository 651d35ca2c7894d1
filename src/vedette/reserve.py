"""Reserve: the worst case of a turn is booked before anything is spent."""

from __future__ import annotations

from vedette.case import Case, OverBudget
from vedette.errors import Permanent
from vedette.line import MODEL_CALLS, Line


async def reserve(line: Line, case: Case, now: int) -> bool:
    """Book a turn's worst case against the agent's budget; False if there is no room.

    A judge spends nothing, so nothing is booked for it. What a model may spend is booked durably
    before it is asked, and settled with the turn: a crash in between can only overcount.
    """
    agent = case.agent
    if agent.reasoner == "judge":
        return True
    if case.run.turn >= agent.max_turns:
        raise Permanent(f"the run wanted more than {agent.max_turns} turns")
    if not line.reservable(agent, now):
        return False
    amount = agent.budget.model_calls_per_run
    booked = case.entry("budget.reserved", unit=MODEL_CALLS, amount=amount)
    caps = {MODEL_CALLS: agent.budget.model_calls_per_day}
    step = case.step([booked], [], now, spend={MODEL_CALLS: amount}, caps=caps)
    try:
        await case.commit(step)
    except OverBudget:
        return False
    line.gateway.counts.add(agent.name, MODEL_CALLS, now, amount)
    case.reserved_us = now
    return True
