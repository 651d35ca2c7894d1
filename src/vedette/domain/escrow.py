"""Escrow: the part of its agent's budget that an ask sets aside for the run that it asks.

It is booked in the step that permits the ask, and what the child did not spend of it is given back
in the step that settles, denies or cancels it. Both follow from the action's row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import orjson

from vedette.domain.budget import ACTIONS
from vedette.domain.delegation import add_spend, read_budget
from vedette.domain.row_proof import parse_record
from vedette.domain.run import ActionRow
from vedette.domain.work_tools import ASK_TOOL, ENGINE_TOOLS


def escrow_of(row: ActionRow) -> dict[str, int]:
    """Return what an ask sets aside, by unit."""
    return read_budget(parse_record(row.record)["args"]["budget"])


def held_escrow(row: ActionRow) -> dict[str, int]:
    """Return what an ask holds of its agent's budget, by unit: all that it set aside, or what its
    child spent of that once it is settled; nothing while it is not permitted.
    """
    if row.tool != ASK_TOOL or not row.counted_us:
        return {}
    escrow = escrow_of(row)
    if row.answer is None:
        return escrow
    # Where nobody could say what was spent, all of it counts as that.
    spent: Mapping[str, int] = orjson.loads(row.answer)["data"].get("spent", escrow)
    return {unit: min(amount, spent.get(unit, 0)) for unit, amount in escrow.items()}


def returned_escrow(before: ActionRow, after: ActionRow) -> dict[str, int]:
    """Return what is given back where an ask's row becomes another: what it holds no more."""
    held = held_escrow(after)
    left = {unit: amount - held.get(unit, 0) for unit, amount in held_escrow(before).items()}
    return {unit: amount for unit, amount in left.items() if amount > 0}


def count_actions(rows: Iterable[ActionRow]) -> int:
    """Return how many actions a run has used: those permitted, and those set aside for its asks.

    The engine's own tools are no use of them.
    """
    own = held = 0
    for row in rows:
        if row.tool not in ENGINE_TOOLS:
            own += row.effect is not None
        elif row.tool == ASK_TOOL:
            held += held_escrow(row).get(ACTIONS, 0)
    return own + held


def spend_of(booked: Mapping[str, int], rows: Iterable[ActionRow]) -> dict[str, int]:
    """Return what a run has spent by unit: what its turns booked, and its actions.

    `booked` is the store's word (`SpendReader.of_run`), which knows of no action of its own.
    """
    turns = {unit: amount for unit, amount in booked.items() if unit != ACTIONS}
    return add_spend(turns, {ACTIONS: count_actions(rows)})
