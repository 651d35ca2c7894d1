"""Where a task's run stops for a person, or ends by a person's word.

A task ends by its finish; else it goes on with another turn, unless it comes to a bound of its
agent's plan. Then it waits for a person, at no compute, and is told of as a hold is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from msgspec.structs import replace

from vedette.domain.entry import Draft
from vedette.domain.task_words import STALLED, STEERED, TASK_KINDS
from vedette.engine.reauthorization import deny_changed
from vedette.engine.run_context import RunContext
from vedette.engine.services import Services

_WAIT: Mapping[str, Any] = {"state": "waiting", "wake_us": 0, "waits": "person"}


async def yield_to_person(services: Services, context: RunContext, now: int) -> bool:
    """Have a task's run wait for a person, or end, if that is its turn; say whether it was."""
    task = context.task
    if task is None or context.run.state == "done":
        return False
    if task.words.cancelled:
        await _close_cancelled(services, context, now)
        return True
    drafts: list[Draft] = []
    if not task.words.paused:
        if not context.needs_turn:
            return False
        why = task.find_stall(context.agent, context.run, context.history, now)
        if not why:
            return False
        services.metrics.count("stalls", agent=context.agent.name)
        body = context.body({"why": why})
        drafts.append(context.entry(STALLED, wait="person", turn=context.run.turn, body=body))
    run = context.run
    if drafts or (run.state, run.waits, run.wake_us) != ("waiting", "person", 0):
        await context.commit(context.build_step(drafts, [], now, **_WAIT))
    return True


def take_in_notes(context: RunContext) -> bool:
    """Take in what a person said of a task while its turn was thought; say whether the turn stands.

    It does if they left a note and nothing else moved the run: the next turn is told of that. If
    not, what the turn cost can be settled. Raises StoreFailed, and Superseded if the run is gone.
    """
    services, before = context.services, context.run
    if context.task is None or context.model_call is None:
        return False
    if services.store.cluster.lease_epoch(before) != context.epoch:
        return False
    said = services.store.ledger.run_entries(before.id, TASK_KINDS)
    kinds = [orjson.loads(raw)["kind"] for seq, raw, _ in said if seq > before.last]
    fresh = services.store.runs.run(before.id)
    if fresh is None or (fresh.turn, fresh.entries) != (before.turn, before.entries + len(kinds)):
        return False
    context.reload()
    return bool(kinds) and {*kinds} == {STEERED}


async def _close_cancelled(services: Services, context: RunContext, now: int) -> None:
    """End a task that a person cancelled: what is open is not begun any more."""
    rows = [replace(row) for row in context.actions if not row.is_final]
    drafts: list[Draft] = []
    for row in rows:
        drafts += deny_changed(services, context, row, "a person cancelled the task", now)
    drafts.append(context.final_entry(1 if drafts else 0, len(context.actions)))
    await context.commit(context.build_step(drafts, rows, now))
