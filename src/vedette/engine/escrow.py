"""What an ask sets aside of its run's budget, and what of that is given back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vedette.domain.budget import ACTIONS
from vedette.domain.delegation import BUDGET_RULE
from vedette.domain.entry import Draft
from vedette.domain.escrow import count_actions, returned_escrow
from vedette.domain.run import ActionRow
from vedette.engine.run_context import RunContext
from vedette.engine.services import Services

Returns = list[tuple[str, int, int]]


def uncount_returned(services: Services, agent: str, returned: Returns) -> None:
    """Count the actions of an agent no more that a committed step gave back."""
    for unit, at_us, amount in returned:
        if unit == ACTIONS:
            services.gateway.counts.refund(agent, unit, at_us, amount)


def find_excess(
    context: RunContext, rows: Sequence[ActionRow], escrow: Mapping[str, int]
) -> str | None:
    """Say why a run has no room for what an ask would set aside; None if it has.

    What an hour or a day has no room for waits; of a run there is no more to come. `rows` are the
    run's actions, those of the step that is made among them.
    """
    task = context.task
    given = None if task is None else task.task.delegation
    booked = context.services.store.spend.of_run(context.run.id)
    for unit, amount in escrow.items():
        used = booked.get(unit, 0) + context.slots.escrow.get(unit, 0)
        used = count_actions(rows) if unit == ACTIONS else used
        bounds = [context.agent.budget.limit(unit, "run")]
        bounds += [] if given is None else [given.budget.get(unit, 0)]
        most = min((bound for bound in bounds if bound is not None), default=None)
        if most is not None and used + amount > most:
            return f"{used} of its run's {most} {unit} are taken, and it would set {amount} aside"
    return None


def deny_excess(context: RunContext, row: ActionRow, why: str) -> Draft:
    """Deny a permitted ask of a run that has no room for what it would set aside."""
    row.decided, row.rule, row.effect, row.counted_us = "deny", BUDGET_RULE, None, 0
    row.hold = None if row.hold is None else "denied"
    body = context.body({"why": why})
    return context.entry("action.refused", back=1, action=row.id, tool=row.tool, body=body)


def escrow_entry(
    context: RunContext, row: ActionRow, back: int, escrow: Mapping[str, int]
) -> Draft:
    """Return the entry of what an ask sets aside."""
    return context.entry(
        "budget.escrowed", back=back, action=row.id, tool=row.tool, spend=dict(escrow)
    )


def return_escrow(
    context: RunContext, before: ActionRow, after: ActionRow
) -> tuple[list[Draft], Returns]:
    """Return the entry of what an ask gives back as its row becomes another, and the amounts.

    It follows the entry that says so of the row.
    """
    left = returned_escrow(before, after)
    if not left:
        return [], []
    entry = context.entry("budget.returned", back=1, action=after.id, tool=after.tool, spend=left)
    return [entry], [(unit, before.counted_us, amount) for unit, amount in left.items()]
