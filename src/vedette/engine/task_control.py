"""Where a task's run stops for a person, or ends by a person's word.

A task ends by its finish; else it goes on with another turn, unless it comes to a bound of its
agent's plan. Then it waits for a person, at no compute, and is told of as a hold is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from vedette.domain.entry import Draft
from vedette.domain.run import ActionRow
from vedette.domain.task_words import ADDED, JOINED, STALLED, STANDING_KINDS, STEERED
from vedette.domain.work_tools import ASK_TOOL, ENGINE_TOOLS
from vedette.engine.delegation import end_ask, find_child_end
from vedette.engine.escrow import return_escrow, uncount_returned
from vedette.engine.reauthorization import deny_changed, reauthorize
from vedette.engine.reservation import find_turn_excess
from vedette.engine.run_context import RunContext
from vedette.engine.services import Services
from vedette.engine.task_progress import read_words
from vedette.engine.task_wait import release
from vedette.engine.tool_calls import apply_outcome

_WAIT: Mapping[str, Any] = {"state": "waiting", "wake_us": 0, "waits": "person"}


async def yield_to_person(services: Services, context: RunContext, now: int) -> bool:
    """Have a task's run wait for a person, or end, if that is its turn; say whether it was."""
    task = context.task
    if task is None or context.run.state == "done":
        return False
    if not task.words.is_halted and (stale := task.list_stale(context.actions)):
        # What waits to end the task did not hear a person's last word.
        await reauthorize(services, context, stale)
    if task.words.cancelled:
        await _close(services, context, now, "a person cancelled the task")
        return True
    if task.task.delegation is not None and await _yield_to_parent(services, context, now):
        return True
    if not task.words.paused:
        if not context.needs_turn and not _is_orphaned(context):
            return False
        why = task.find_stall(context.agent, context.run, context.actions, now)
        if why:
            await wait_for_person(services, context, why, now)
        return bool(why)
    run = context.run
    if (run.state, run.waits, run.wake_us) != ("waiting", "person", 0):
        await context.commit(context.build_step([], [], now, **_WAIT))
    return True


def _is_orphaned(context: RunContext) -> bool:
    """Say whether a task waits whose agent takes none any more: nobody could take in what comes."""
    return context.agent.work is None and any(row.is_awaited for row in context.actions)


async def wait_for_person(services: Services, context: RunContext, why: str, now: int) -> None:
    """Have a task's run wait for a person, and say why."""
    services.metrics.count("stalls", agent=context.agent.name)
    body = context.body({"why": why})
    stalled = context.entry(STALLED, wait="person", turn=context.run.turn, body=body)
    await context.commit(context.build_step([stalled], [], now, **_WAIT))


def take_in_notes(context: RunContext) -> bool:
    """Take in what a person said of a task while its turn was thought; say whether the turn stands.

    It does if they left a note or an item, or an event joined, and nothing else moved the run: the
    next turn is told of that. If not, as with another goal, its proposals are dropped, and what it
    cost is settled. Nothing is taken in before a model was asked. Raises StoreFailed, and
    Superseded if the run is gone.
    """
    services, before = context.services, context.run
    if context.task is None or context.model_call is None:
        return False
    if services.store.cluster.lease_epoch(before) != context.epoch:
        return False
    said = services.store.ledger.run_entries(before.id, STANDING_KINDS)
    kinds = [orjson.loads(raw)["kind"] for seq, raw, _ in said if seq > before.last]
    fresh = services.store.runs.run(before.id)
    if fresh is None or (fresh.turn, fresh.entries) != (before.turn, before.entries + len(kinds)):
        return False
    context.reload()
    return bool(kinds) and {*kinds} <= {STEERED, ADDED, JOINED}


async def _yield_to_parent(services: Services, context: RunContext, now: int) -> bool:
    """Have a task that an agent gave wait for those above it, or end; say whether it does."""
    task = context.task
    assert task is not None
    assert task.task.delegation is not None
    task.ended = find_child_end(services, context, now)
    why = "its ask is over" if task.ended else ""
    if not why and context.needs_turn and (why := find_turn_excess(services, context) or ""):
        task.ended = "budget"
    if why:
        await _close(services, context, now, why)
        return True
    if not context.needs_turn:
        return False
    wait = _WAIT
    if task.is_stopped_above(services.stops):
        wait = {**_WAIT, "waits": "resume"}
    elif not any(read_words(services.store, run).paused for run in task.task.delegation.runs):
        return False
    run = context.run
    if (run.state, run.waits, run.wake_us) != ("waiting", wait["waits"], 0):
        await context.commit(context.build_step([], [], now, **wait))
    return True


async def _close(services: Services, context: RunContext, now: int, why: str) -> None:
    """End a task that was not finished: what is open is not begun any more, who was asked ends."""
    drafts: list[Draft] = []
    rows: list[ActionRow] = []
    returned: list[tuple[str, int, int]] = []
    for before in [row for row in context.actions if not row.is_final]:
        row = before.copy()
        rows.append(row)
        if before.tool == ASK_TOOL and before.is_awaited:
            outcome = await end_ask(services, before, why)
            apply_outcome(row, ENGINE_TOOLS[ASK_TOOL], outcome, now)
            answer = context.body_of(row.answer or b"{}")
            drafts.append(context.effect_entry("effect.failed", row, 0, answer))
        else:
            drafts += deny_changed(services, context, row, why, now)
        entries, amounts = return_escrow(context, before, row)
        drafts, returned = drafts + entries, returned + amounts
    drafts.append(context.final_entry(1 if drafts else 0, len(context.actions)))
    own_rows = release(context.actions)
    step = context.build_step(drafts, rows, now, returned=returned, own_rows=own_rows)
    await context.commit(step)
    uncount_returned(services, context.agent.name, returned)
