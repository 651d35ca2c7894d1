"""Decide again: a wait is over, or the policy or a stop moved before the effect began."""

from __future__ import annotations

from msgspec.structs import replace

from vedette.domain.budget import ACTIONS
from vedette.domain.conflict import Fenced, OverBudget, Superseded
from vedette.domain.effect import RowWrite
from vedette.domain.entry import Draft
from vedette.domain.run import ActionRow, Step
from vedette.engine import held_actions
from vedette.engine.run_context import RunContext
from vedette.engine.services import Services
from vedette.engine.turn import close_hold, decide_action, deny_changed, emit_metrics


async def reauthorize(services: Services, context: RunContext, due: list[ActionRow]) -> None:
    """Decide actions whose wait is over, or whose policy or stop moved, under today's policy."""
    async with services.row_lock(context.agent.collection, context.run.key):
        step = await commit_reauthorization(services, context, due)
    emit_metrics(services, context, step)


async def commit_reauthorization(
    services: Services, context: RunContext, due: list[ActionRow]
) -> Step:
    """Commit new decisions of these actions; return the step that stood."""
    while True:
        now = services.clock.now_us()
        context.reset_places(now)
        drafts: list[Draft] = []
        writes: list[RowWrite] = []
        rows = [replace(row) for row in due]
        for row in rows:
            if row.tries and services.in_loss_window(context.run, row):
                # Those were before the loss: what was tried after it is still to be found out.
                row.tries = 0
        entries = context.read_entries(rows)
        returns: list[tuple[str, int, int]] = []
        permits = 0
        try:
            for row in rows:
                if held_actions.is_hold_over(row, services.clock.expiry_us()):
                    drafts += close_hold(context, row)
                    continue
                counted_us = row.counted_us
                if counted_us:
                    # Its own place is free again, or a full window would hold what it had granted.
                    services.gateway.uncount_permit(context.agent.name, counted_us)
                    returns.append((ACTIONS, counted_us, 1))
                try:
                    action = context.rebuild_action(row, entries.get(row.id, ()))
                except Superseded as error:
                    drafts += deny_changed(services, context, row, str(error), now)
                    continue
                drafts += decide_action(
                    services, context, action, row, rows, writes, 0, now, entries.get(row.id, ())
                )
                if counted_us and row.decided == "permit":
                    keep_window_slot(services, context, row, counted_us)
                    returns.pop()
                else:
                    permits += row.decided == "permit"
            if context.final and all(row.is_final for row in context.merge_actions(rows)):
                drafts.append(context.final_entry(1, None, len(context.actions)))
            step = context.build_step(
                drafts,
                rows,
                now,
                rows=writes,
                refunds=returns,
                policy_rev=services.gateway.policy_rev,
                stop_epoch=services.stops.epoch,
                **context.step_limits(permits),
            )
            await context.commit(step)
        except BaseException as error:
            for _ in range(permits):
                services.gateway.uncount_permit(context.agent.name, now)
            for unit, counted_us, amount in returns:
                services.gateway.counts.add(context.agent.name, unit, counted_us, amount)
            if isinstance(error, Fenced | OverBudget):
                continue
            raise
        return step


def keep_window_slot(
    services: Services, context: RunContext, row: ActionRow, counted_us: int
) -> None:
    """Leave a permit that is given again with the place it had, in the window it had it in."""
    services.gateway.uncount_permit(context.agent.name, row.counted_us)
    services.gateway.counts.add(context.agent.name, ACTIONS, counted_us)
    row.counted_us = counted_us
