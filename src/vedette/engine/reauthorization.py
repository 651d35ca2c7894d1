"""Decide again: a wait is over, or the policy or a stop moved before the effect began."""

from __future__ import annotations

from dataclasses import replace

from vedette.domain.budget import ACTIONS
from vedette.domain.conflict import Fenced, OverBudget, Superseded
from vedette.domain.effect import RowWrite
from vedette.domain.entry import Draft
from vedette.domain.run import ActionRow, Step
from vedette.engine import held_actions
from vedette.engine.run_context import Case
from vedette.engine.services import Line
from vedette.engine.turn import decide, end_hold, refuse_changed, tell


async def decide_again(line: Line, case: Case, due: list[ActionRow]) -> None:
    """Decide actions whose wait is over, or whose policy or stop moved, under today's policy."""
    async with line.alone(case.agent.collection, case.run.key):
        step = await decide_due(line, case, due)
    tell(line, case, step)


async def decide_due(line: Line, case: Case, due: list[ActionRow]) -> Step:
    """Commit new decisions of these actions; return the step that stood."""
    while True:
        now = line.clock.now_us()
        case.expect_room(now)
        drafts: list[Draft] = []
        writes: list[RowWrite] = []
        rows = [replace(row) for row in due]
        for row in rows:
            if row.tries and line.in_doubt(case.run, row):
                # Those were before the loss: what was tried after it is still to be found out.
                row.tries = 0
        told = case.read_told(rows)
        returns: list[tuple[str, int, int]] = []
        permits = 0
        try:
            for row in rows:
                if held_actions.ended(row, line.clock.expiry_us()):
                    drafts += end_hold(case, row)
                    continue
                counted_us = row.counted_us
                if counted_us:
                    # Its own place is free again, or a full window would hold what it had granted.
                    line.gateway.give_back(case.agent.name, counted_us)
                    returns.append((ACTIONS, counted_us, 1))
                try:
                    action = case.action(row, told.get(row.id, ()))
                except Superseded as error:
                    drafts += refuse_changed(line, case, row, str(error), now)
                    continue
                drafts += decide(
                    line, case, action, row, rows, writes, 0, now, told.get(row.id, ())
                )
                if counted_us and row.decided == "permit":
                    keep_place(line, case, row, counted_us)
                    returns.pop()
                else:
                    permits += row.decided == "permit"
            if case.final and all(row.settled for row in case.merged(rows)):
                drafts.append(case.closed_entry(1, None, len(case.rows)))
            step = case.step(
                drafts, rows, now, rows=writes, returns=returns, policy_rev=line.gateway.policy_rev,
                stop_epoch=line.stops.epoch, **case.places_taken(permits),
            )  # fmt: skip
            await case.commit(step)
        except BaseException as error:
            for _ in range(permits):
                line.gateway.give_back(case.agent.name, now)
            for unit, counted_us, amount in returns:
                line.gateway.counts.add(case.agent.name, unit, counted_us, amount)
            if isinstance(error, Fenced | OverBudget):
                continue
            raise
        return step


def keep_place(line: Line, case: Case, row: ActionRow, counted_us: int) -> None:
    """Leave a permit that is given again with the place it had, in the window it had it in."""
    line.gateway.give_back(case.agent.name, row.counted_us)
    line.gateway.counts.add(case.agent.name, ACTIONS, counted_us)
    row.counted_us = counted_us
