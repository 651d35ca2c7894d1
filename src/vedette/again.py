"""Decide again: a wait is over, or the policy or a stop moved before the effect began."""

from __future__ import annotations

from dataclasses import replace

from vedette import hold
from vedette.case import Case, Fenced, Superseded
from vedette.effect import RowWrite
from vedette.entry import Draft
from vedette.gateway import ACTIONS
from vedette.line import Line
from vedette.run import ActionRow, Step
from vedette.turn import decide, end_hold, refuse_changed, tell


async def decide_again(line: Line, case: Case, due: list[ActionRow]) -> None:
    """Decide actions whose wait is over, or whose policy or stop moved, under today's policy."""
    async with line.alone(case.agent.collection, case.run.key):
        step = await decide_due(line, case, due)
    tell(line, case, step)


async def decide_due(line: Line, case: Case, due: list[ActionRow]) -> Step:
    """Commit new decisions of these actions; return the step that stood."""
    while True:
        now = line.clock.now_us()
        drafts: list[Draft] = []
        writes: list[RowWrite] = []
        rows = [replace(row) for row in due]
        returns: list[tuple[str, int, int]] = []
        for row in rows:
            if hold.ended(row, now):
                drafts += end_hold(case, row)
                continue
            if row.counted_us:
                # Its own place is free again, or a full window would hold what it had granted.
                line.gateway.give_back(case.agent.name, row.counted_us)
                returns.append((ACTIONS, row.counted_us, 1))
            try:
                action = case.action(row)
            except Superseded as error:
                drafts += refuse_changed(line, case, row, str(error), now)
                continue
            drafts += decide(line, case, action, row, rows, writes, 0, now)
        if case.final and all(row.settled for row in case.merged(rows)):
            drafts.append(case.closed_entry(1, None, len(case.rows)))
        permits = sum(1 for row in rows if row.counted_us == now and row.decided == "permit")
        step = case.step(
            drafts, rows, now, rows=writes, spend={ACTIONS: permits} if permits else {},
            returns=returns, policy_rev=line.gateway.policy_rev, stop_epoch=line.stops.epoch,
        )  # fmt: skip
        try:
            await case.commit(step)
        except BaseException as error:
            for _ in range(permits):
                line.gateway.give_back(case.agent.name, now)
            for unit, counted_us, amount in returns:
                line.gateway.counts.add(case.agent.name, unit, counted_us, amount)
            if isinstance(error, Fenced):
                continue
            raise
        return step
