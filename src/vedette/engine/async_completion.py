"""Async completion: actions that begin now, and whose outcome comes later.

Such an action is decided like every other. `effect.started` says that it began; from then on its
row says what it waits for, and when that is over in any case (`not_before_us`). Its outcome follows
from what is durable, never from what a message said: it is looked for after the start, whenever its
run is taken up (what became durable has made the run due: `RunWake`), and at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from vedette.domain.action import Action
from vedette.domain.effect import Outcome
from vedette.domain.row_proof import EntryRecord
from vedette.domain.run import ActionRow, Superseded
from vedette.domain.work_tools import ASK_TOOL, WAIT_TOOL
from vedette.engine.async_tool import AsyncTool
from vedette.engine.delegation import ASK
from vedette.engine.effect_executor import (
    await_pending_stop,
    await_store,
    may_start,
    record_outcome,
    refuse_past_canary,
)
from vedette.engine.reauthorization import reauthorize
from vedette.engine.run_context import RunContext
from vedette.engine.services import Services
from vedette.engine.task_wait import WAIT, release

_OVERDUE = "what it waited for did not come in time"


# By name; whoever declares such a tool (`vedette.domain.work_tools`) adds it here.
ASYNC_TOOLS: Mapping[str, AsyncTool] = {WAIT_TOOL: WAIT, ASK_TOOL: ASK}


async def advance_action(services: Services, context: RunContext, row: ActionRow) -> None:
    """Begin an action whose outcome comes later, or end it: its time is over."""
    if not services.store.steps.is_ready:
        await await_store(services, context)
    if row.effect != "intended":
        await settle_action(services, context, row)
        return
    if may_start(services, context, row):
        try:
            action = _rebuild(services, context, row)
        except Superseded:
            await reauthorize(services, context, [row])
            return
        now = services.clock.now_us()
        begun = ASYNC_TOOLS[row.tool].begin(services, context, action, now)
        started = replace(row, effect="started", waits=begun.waits, not_before_us=begun.until_us)
        drafts = [context.effect_entry("effect.started", started, 0)]
        due: dict[str, Any] = (
            {"state": "ready", "wake_us": 0, "waits": None} if begun.starts else {}
        )
        await context.commit(
            context.build_step(drafts, [started], now, own_rows=begun.own_rows, **due)
        )
        await settle_action(services, context, started)
        return
    refuse_past_canary(services, context)
    await await_pending_stop(services, context, row)
    await reauthorize(services, context, [row])


async def settle_awaited(services: Services, context: RunContext) -> bool:
    """Record the outcomes of a run's awaited actions that are there by now; say whether any was.

    To be asked before a run is left to wait, until it says no: what came while something else of it
    was recorded was taken in with that, and wakes nobody any more. Until all was looked for, each
    step leaves the run due, so that it is looked for though this process ends.
    """
    before, now = context.run.steps, services.clock.now_us()
    rows = [row for row in context.actions if row.is_awaited and _is_due(services, row, now)]
    proofs = services.store.ledger.proof_entries([row.id for row in rows]) if rows else {}
    for row in rows:
        await settle_action(services, context, row, proofs.get(row.id, ()))
    is_moved = context.run.steps != before
    if context.task is not None:
        context.task.may_have_come = is_moved and context.task.is_unread(context.actions)
    return is_moved


def _is_due(services: Services, row: ActionRow, now_us: int) -> bool:
    due = ASYNC_TOOLS[row.tool].is_due
    return due is None or due(services, row, now_us)


async def settle_action(
    services: Services,
    context: RunContext,
    row: ActionRow,
    entries: Sequence[EntryRecord] | None = None,
) -> None:
    """Record the outcome of an awaited action, if it is there or its time is over. `entries` are
    the action's, if they are read already.

    While its tool is stopped nothing is settled. Raises Superseded while its agent is.
    """
    if services.stops.is_agent_stopped(context.agent.name):
        raise Superseded("the agent is stopped: what it waits for is looked at once that is lifted")
    if services.stops.is_tool_stopped(context.agent.name, row.tool):
        return
    now = services.clock.now_us()
    outcome: Outcome | None
    try:
        action = _rebuild(services, context, row, entries)
        outcome = await ASYNC_TOOLS[row.tool].settle(services, context, action, row, now)
    except Superseded as error:
        # Its tool, or what an argument was drawn from, is not what it was: nobody knows any more
        # what was waited for.
        outcome = Outcome("failed", error=str(error))
    if outcome is None and row.not_before_us <= now:
        outcome = Outcome("failed", error=_OVERDUE)
    if outcome is not None:
        own_rows = release([row])
        await record_outcome(services, context, row, outcome, verified=False, own_rows=own_rows)


def _rebuild(
    services: Services,
    context: RunContext,
    row: ActionRow,
    entries: Sequence[EntryRecord] | None = None,
) -> Action:
    """Return a row's action, proved by its entries. Raises Superseded as `rebuild_action` does."""
    if row.id in context.fresh_actions:
        entries = ()
    elif entries is None:
        entries = services.store.ledger.proof_entries([row.id]).get(row.id, ())
    return context.rebuild_action(row, entries)
