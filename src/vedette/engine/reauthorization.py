"""Reauthorization: an action is decided anew before use, under the policy and the stops of today.

Its wait is over, or the policy or a stop moved before its effect began.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from vedette.domain.budget import ACTIONS
from vedette.domain.decision import build_denial
from vedette.domain.effect import RowWrite
from vedette.domain.entry import Draft
from vedette.domain.row_proof import EntryRecord
from vedette.domain.run import ActionRow, Fenced, OverBudget, Superseded
from vedette.domain.spend import PermitCount
from vedette.engine import action_holds
from vedette.engine.effect_entry import find_end_kind
from vedette.engine.escrow import return_escrow, uncount_returned
from vedette.engine.run_context import RunContext
from vedette.engine.services import Services
from vedette.engine.turn import decide_action, emit_metrics


async def reauthorize(services: Services, context: RunContext, due: list[ActionRow]) -> None:
    """Decide actions anew and make durable what became of them."""
    async with services.keys.row_lock(context.agent.collection, context.run.key):
        while True:
            try:
                await commit_reauthorization(services, context, due)
            except (Fenced, OverBudget):
                continue
            break


def read_proofs(
    context: RunContext, rows: Sequence[ActionRow]
) -> Mapping[str, Sequence[EntryRecord]]:
    """Return the entries that rows are proved by, read at once; none for what needs no proof.

    An action that was decided here needs none. But an approval came from outside, and since when
    policy denies what may have happened stands in that entry.
    """
    unproved = [
        row.id
        for row in rows
        if row.id not in context.fresh_actions
        or row.hold in ("approved", "used")
        or row.waits == "policy"
    ]
    return context.services.store.ledger.proof_entries(unproved) if unproved else {}


async def commit_reauthorization(
    services: Services, context: RunContext, due: list[ActionRow]
) -> None:
    """Commit new decisions of these actions, and count them as metrics.

    Raises Fenced or OverBudget if they have to be made again.
    """
    now = services.clock.now_us()
    context.reset_slots(now)
    drafts: list[Draft] = []
    writes: list[RowWrite] = []
    returns: list[tuple[str, int, int]] = []
    returned: list[tuple[str, int, int]] = []
    rows = [replace(row) for row in due]
    for row in rows:
        if row.tries and services.in_loss_window(context.run, row):
            # Those were before the loss: what was tried after it is still to be found out.
            row.tries = 0
    entries = read_proofs(context, rows)
    with PermitCount(services.gateway.counts, context.agent.name) as counted:
        for before, row in zip(due, rows, strict=True):
            if action_holds.is_hold_over(row, services.clock.expiry_us()):
                drafts += close_hold(context, row)
                continue
            counted_us, proof = row.counted_us, entries.get(row.id, ())
            if counted_us:
                # Its own place is free again, or a full window would hold what it had granted.
                counted.remove(counted_us)
            try:
                action = context.rebuild_action(row, proof)
            except Superseded as error:
                drafts += deny_changed(services, context, row, str(error), now)
            else:
                drafts += decide_action(
                    services, context, action, row, rows, writes, counted, 0, now, proof
                )
            if counted_us and row.decided != "permit":
                returns.append((ACTIONS, counted_us, 1))
                entries_of, amounts = return_escrow(context, before, row)
                drafts, returned = drafts + entries_of, returned + amounts
        drafts += context.end_entries(rows)
        step = context.build_step(
            drafts,
            rows,
            now,
            rows=writes,
            refunds=returns,
            returned=returned,
            policy_rev=services.gateway.policy_rev,
            stop_epoch=services.stops.epoch,
            **context.step_limits(counted.new),
        )
        await context.commit(step)
    uncount_returned(services, context.agent.name, returned)
    emit_metrics(services, context, step, now)


def close_hold(context: RunContext, row: ActionRow) -> list[Draft]:
    """Deny, as its run goes on, an action whose hold was denied or not answered in time."""
    drafts = []
    if row.hold != "denied":
        row.hold = "expired"
        drafts.append(context.entry("hold.expired", action=row.id, tool=row.tool))
    row.decided, row.rule, row.waits = "deny", f"hold.{row.hold}", None
    if row.effect is not None:
        # An unknown effect that nobody will ask about any more: it stays as it was, unrepeated.
        row.effect = "failed"
        back = 1 if drafts else 0
        drafts.append(context.effect_entry("effect.failed", row, back))
    return drafts


def deny_changed(
    services: Services, context: RunContext, row: ActionRow, why: str, now: int
) -> list[Draft]:
    """Deny before use an action that is not what it was: its tool, charter or registry changed."""
    if row.waits == "policy":
        services.calls.unrecorded.add(row.id)
        row.effect = "intended"
    end = find_end_kind(context, row) if row.effect is not None else None
    action_holds.apply_decision(
        row, build_denial("engine.changed", why), services.gateway.policy_rev, now
    )
    row.counted_us = 0
    body = context.body({"why": why})
    drafts = [
        context.entry("action.refused", after=row.last, action=row.id, tool=row.tool, body=body)
    ]
    if end is not None:
        drafts.append(context.effect_entry(end, row, 1))
    return drafts
